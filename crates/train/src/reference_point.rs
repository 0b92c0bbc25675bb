//! The reference point of losses of single answers: how much more probable than the reference the model finds answers to other
//! prompts. Source: Ethayarajh et al. 2024 (arXiv:2402.01306), section 4.1.

use crate::{Engine, TrainError};
use plimsoll_data::Batch;
use plimsoll_graph::{ProgramKind, Scalars};

/// The mean reward of mismatched answers so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReferencePoint {
    rewards: f64,
    answers: u64,
}

impl ReferencePoint {
    /// Adds the answers of a batch. `kind`: a program that evaluates. Errors: the device fails.
    pub(crate) fn add(&mut self, engine: &mut Engine, kind: ProgramKind, mismatched: &Batch) -> Result<(), TrainError> {
        let program = engine.run_batch(kind, mismatched, &Scalars::default())?;
        let [liked, disliked, _] = engine.rewards(program)?.expect("an evaluation of answers yields rewards");
        self.rewards += liked + disliked;
        self.answers += mismatched.real_targets();
        Ok(())
    }

    /// The mean, at least zero; NaN if a reward is.
    pub(crate) fn get(self) -> f32 {
        let mean = self.rewards / self.answers.max(1) as f64;
        if mean < 0.0 { 0.0 } else { mean as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_point_is_a_mean_that_is_not_negative() {
        let point = |rewards, answers| ReferencePoint { rewards, answers }.get();
        assert_eq!((point(3.0, 4), point(-3.0, 4), point(0.0, 0)), (0.75, 0.0, 0.0));
        assert!(point(f64::NAN, 4).is_nan());
    }
}
