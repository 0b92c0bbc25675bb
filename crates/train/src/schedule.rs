//! The length of a run, and its learning-rate schedule.

use plimsoll_units::Seconds;
use serde::{Deserialize, Serialize};

/// The length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// This many optimizer steps.
    MaxSteps(u64),
    /// This many passes over the training samples.
    Epochs(f64),
    /// This training time; includes earlier sessions.
    Duration(Seconds),
}

impl Length {
    /// The last step, if it is known in advance. `steps_per_epoch` may have a fraction.
    pub fn last_step(self, steps_per_epoch: f64) -> Option<u64> {
        match self {
            Self::MaxSteps(steps) => Some(steps),
            Self::Epochs(epochs) => Some((epochs * steps_per_epoch).ceil().max(1.0) as u64),
            Self::Duration(_) => None,
        }
    }
}

/// The progress of a run at the start of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The step, counted from 1.
    pub step: u64,
    /// The completed fraction of the run, from 0 to 1.
    pub part: f64,
}

/// How the learning rate decays from its peak to its final value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Along half a cosine. Source: Loshchilov & Hutter 2017 (SGDR), eq. 5, without restarts.
    Cosine,
    /// In a straight line.
    Linear,
    /// No decay.
    Constant,
    /// Warmup, stable, decay: constant, then linear over the last part of the run.
    /// Source: Hu et al. 2024 (MiniCPM), section 4.
    Wsd,
}

impl Shape {
    /// The remaining fraction of the decay, from 1 to 0, after this fraction of the run. `decay_part` is for
    /// [`Shape::Wsd`].
    fn left(self, part: f64, decay_part: f64) -> f64 {
        match self {
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * part).cos()),
            Self::Linear => 1.0 - part,
            Self::Constant => 1.0,
            Self::Wsd => ((1.0 - part) / decay_part).min(1.0),
        }
    }
}

/// In a run limited by time, the fraction of the run after which warm-up ends at the latest.
const WARM_UP_OF_TIME: f64 = 0.1;

/// Linear warm-up, then decay to a fraction of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The shape of the decay.
    pub shape: Shape,
    /// For [`Shape::Wsd`], the fraction of the run after warm-up in which it decays; above 0.
    pub decay_part: f64,
    /// The peak.
    pub learning_rate: f64,
    /// Number of warm-up steps.
    pub warmup_steps: u64,
    /// The final rate as a fraction of the peak.
    pub final_part: f64,
}

impl Schedule {
    /// The learning rate of the step that starts. `last_step` is the run's last step, if it is known: the decay then
    /// starts after warm-up and ends with that step. In a run limited by time, warm-up ends after a tenth of the time
    /// at the latest, and the rate decays with time from the start, so that it does not jump at the end of warm-up.
    pub fn at(&self, progress: Progress, last_step: Option<u64>) -> f64 {
        let Progress { step, part } = progress;
        let peak = match step {
            step if step <= self.warmup_steps => self.learning_rate * step as f64 / self.warmup_steps as f64,
            _ => self.learning_rate,
        };
        let (peak, part) = match last_step {
            Some(last) => {
                let after_warm_up = step.saturating_sub(self.warmup_steps) as f64;
                (peak, after_warm_up / last.saturating_sub(self.warmup_steps).max(1) as f64)
            }
            None => (peak.max(self.learning_rate * (part / WARM_UP_OF_TIME).min(1.0)), part),
        };
        let left = self.shape.left(part.clamp(0.0, 1.0), self.decay_part);
        peak * (self.final_part + (1.0 - self.final_part) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSINE: Schedule =
        Schedule { learning_rate: 1.0, warmup_steps: 10, final_part: 0.1, shape: Shape::Cosine, decay_part: 0.2 };

    #[test]
    fn the_rate_rises_to_the_peak_and_decays_to_its_final_part() {
        let at = |step| COSINE.at(Progress { step, part: 0.0 }, Some(110));
        assert_eq!((at(1), at(5), at(10)), (0.1, 0.5, 1.0));
        assert!((at(60) - 0.55).abs() < 1e-12 && (at(110) - 0.1).abs() < 1e-12);
        assert!((11..110).all(|step| at(step + 1) < at(step)));
    }

    #[test]
    fn shapes_decay_as_their_names_say() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        for (shape, rates) in [
            (Shape::Linear, [1.0, 0.55, 0.28, 0.1]),
            (Shape::Constant, [1.0, 1.0, 1.0, 1.0]),
            // The last fifth of the hundred steps after warm-up: step 90 is its first.
            (Shape::Wsd, [1.0, 1.0, 1.0, 0.1]),
        ] {
            let schedule = Schedule { shape, ..COSINE };
            for (step, rate) in [10, 60, 90, 110].into_iter().zip(rates) {
                let found = schedule.at(Progress { step, part: 0.0 }, Some(110));
                assert!(near(found, rate), "{shape:?} at step {step}: {found}, not {rate}");
            }
        }
        let wsd = Schedule { shape: Shape::Wsd, ..COSINE };
        assert!(near(wsd.at(Progress { step: 100, part: 0.0 }, Some(110)), 0.55));
    }

    #[test]
    fn a_run_limited_by_time_decays_with_time() {
        let schedule = Schedule { warmup_steps: 2, final_part: 0.0, ..COSINE };
        let at = |part| schedule.at(Progress { step: 50, part }, None);
        assert!((at(0.0) - 1.0).abs() < 1e-12 && (at(0.5) - 0.5).abs() < 1e-12 && at(2.0).abs() < 1e-12);
    }

    #[test]
    fn the_rate_of_a_run_limited_by_time_does_not_jump_after_warm_up() {
        // 50 steps of equal time: fewer than the warm-up steps.
        let schedule = Schedule { warmup_steps: 100, ..COSINE };
        let at = |step: u64| schedule.at(Progress { step, part: (step - 1) as f64 / 50.0 }, None);
        let jump = (1..50).map(|step| (at(step + 1) - at(step)).abs()).fold(0.0, f64::max);
        assert!(jump < 0.21, "the rate changes by {jump} of the peak from one step to the next");
        assert!(at(1) > 0.0 && at(6) > 0.95, "{} and {}", at(1), at(6));
        let many = |step: u64| schedule.at(Progress { step, part: (step - 1) as f64 / 1e6 }, None);
        assert!((many(50) - 0.5).abs() < 1e-3 && many(101) > 0.999, "{} and {}", many(50), many(101));
    }

    #[test]
    fn epochs_round_up_to_whole_steps() {
        assert_eq!(Length::Epochs(1.5).last_step(10.5), Some(16));
        assert_eq!(Length::Epochs(0.001).last_step(10.0), Some(1));
        assert_eq!(Length::Duration(Seconds(5.0)).last_step(10.0), None);
    }
}
