//! The flags of the learning-rate schedule.

use super::options::{part, part_from_zero, positive_number};
use super::recipe::warm_up;
use ::plimsoll_train::{Schedule, Shape};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Args)]
pub(super) struct ScheduleArgs {
    /// Peak learning rate [default: 3e-4 from scratch, 4e-3 for nano; from weights it depends on the model's size: 2e-5 for 7
    /// billion parameters; scaled for optimizers other than adamw]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    pub(super) learning_rate: Option<f64>,
    /// Learning-rate schedule after warm-up: `cosine`, `linear`, `constant`, or `wsd` (warmup, stable, decay), which lowers
    /// the rate only in the last part of the run
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "cosine")]
    scheduler: Scheduler,
    /// Steps of linear warm-up [default: a tenth of the run, at most 100]; with `--duration`, warm-up takes at most a tenth of
    /// the time
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count)]
    pub(super) warmup_steps: Option<u64>,
    /// Warm-up as a fraction of the run's steps, if their number is known in advance
    #[arg(long, value_name = "X", value_parser = part_from_zero, conflicts_with_all = ["warmup_steps", "duration"])]
    pub(super) warmup_ratio: Option<f64>,
    /// Final learning rate, as a fraction of the peak
    #[arg(long, value_name = "X", value_parser = part_from_zero, default_value = "0.1")]
    final_lr_part: f64,
    /// Fraction of the run after warm-up in which `--scheduler wsd` lowers the learning rate
    #[arg(long, value_name = "X", value_parser = part, default_value = "0.2")]
    decay_part: f32,
}

/// `--scheduler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scheduler {
    Cosine,
    Linear,
    Constant,
    Wsd,
}

impl From<Scheduler> for Shape {
    fn from(scheduler: Scheduler) -> Self {
        match scheduler {
            Scheduler::Cosine => Self::Cosine,
            Scheduler::Linear => Self::Linear,
            Scheduler::Constant => Self::Constant,
            Scheduler::Wsd => Self::Wsd,
        }
    }
}

impl ScheduleArgs {
    /// The schedule of a run with this last step, if known. `usual_rate`: the default peak.
    pub(super) fn schedule(&self, usual_rate: f64, last_step: Option<u64>) -> Schedule {
        let part_of_run = self.warmup_ratio.zip(last_step).map(|(ratio, last)| (ratio * last as f64).ceil() as u64);
        Schedule {
            learning_rate: self.learning_rate.unwrap_or(usual_rate),
            warmup_steps: self.warmup_steps.or(part_of_run).unwrap_or_else(|| warm_up(last_step)),
            final_part: self.final_lr_part,
            shape: self.scheduler.into(),
            decay_part: f64::from(self.decay_part),
        }
    }

    /// The flags as settings of a run with this schedule.
    pub(super) fn settings(&self, schedule: &Schedule) -> Map<String, Value> {
        let scheduler = self.scheduler.to_possible_value().expect("no choice is hidden");
        let settings = json!({
            "learning_rate": schedule.learning_rate,
            "scheduler": scheduler.get_name(),
            "warmup_steps": schedule.warmup_steps,
            "final_lr_part": schedule.final_part,
            "decay_part": self.decay_part.to_string(),
        });
        settings.as_object().cloned().unwrap_or_default()
    }
}
