//! How long a run is, and the learning rate along it.

use plimsoll_units::Seconds;
use serde::{Deserialize, Serialize};

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// This many optimizer steps.
    MaxSteps(u64),
    /// This many passes over the training samples.
    Epochs(f64),
    /// So long, in time spent training; resumed sessions count on.
    Duration(Seconds),
}

impl Length {
    /// The last step, where it is known in advance. `steps_per_epoch` may have a fraction.
    pub fn last_step(self, steps_per_epoch: f64) -> Option<u64> {
        match self {
            Self::MaxSteps(steps) => Some(steps),
            Self::Epochs(epochs) => Some((epochs * steps_per_epoch).ceil().max(1.0) as u64),
            Self::Duration(_) => None,
        }
    }
}

/// How far a run is when a step begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// The step that begins, counted from 1.
    pub step: u64,
    /// The part of the run that lies behind, from 0 to 1.
    pub part: f64,
}

/// Linear warm-up, then half a cosine down to a part of the peak.
/// Source: Loshchilov & Hutter 2017 (SGDR), eq. 5, without restarts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The peak.
    pub learning_rate: f64,
    /// Steps until the peak is reached.
    pub warmup_steps: u64,
    /// What is left at the end, as a part of the peak.
    pub final_part: f64,
}

impl Schedule {
    /// The learning rate of the step that begins. `last_step` is the run's, where it is known: the cosine then begins
    /// right after warm-up and ends with that step. A run bounded by time has its cosine over the time instead.
    pub fn at(&self, progress: Progress, last_step: Option<u64>) -> f64 {
        if progress.step <= self.warmup_steps {
            return self.learning_rate * progress.step as f64 / self.warmup_steps as f64;
        }
        let part = match last_step {
            Some(last) => {
                let behind = (progress.step - self.warmup_steps) as f64;
                behind / last.saturating_sub(self.warmup_steps).max(1) as f64
            }
            None => progress.part,
        };
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * part.clamp(0.0, 1.0)).cos());
        self.learning_rate * (self.final_part + (1.0 - self.final_part) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_the_peak_and_falls_to_its_part() {
        let schedule = Schedule { learning_rate: 1.0, warmup_steps: 10, final_part: 0.1 };
        let at = |step| schedule.at(Progress { step, part: 0.0 }, Some(110));
        assert_eq!((at(1), at(5), at(10)), (0.1, 0.5, 1.0));
        assert!((at(60) - 0.55).abs() < 1e-12 && (at(110) - 0.1).abs() < 1e-12);
        assert!((11..110).all(|step| at(step + 1) < at(step)));
    }

    #[test]
    fn a_run_bounded_by_time_falls_with_time() {
        let schedule = Schedule { learning_rate: 1.0, warmup_steps: 2, final_part: 0.0 };
        let at = |part| schedule.at(Progress { step: 50, part }, None);
        assert!((at(0.0) - 1.0).abs() < 1e-12 && (at(0.5) - 0.5).abs() < 1e-12 && at(2.0).abs() < 1e-12);
    }

    #[test]
    fn epochs_round_up_to_whole_steps() {
        assert_eq!(Length::Epochs(1.5).last_step(10.5), Some(16));
        assert_eq!(Length::Epochs(0.001).last_step(10.0), Some(1));
        assert_eq!(Length::Duration(Seconds(5.0)).last_step(10.0), None);
    }
}
