//! What a run says of its length and of its defaults before the first step.

use super::Session;
use crate::cli::recipe::FEW_UPDATES;
use crate::streams::talk;
use ::plimsoll_train::{Length, Start};
use plimsoll_units::{Seconds, format_duration};

/// Longer runs are warned of.
const LONG: Seconds = Seconds(7.0 * 86_400.0);

impl Session {
    /// Prints the defaults that the run took, and warns of a run that is very long or has few updates.
    pub(super) fn say_outlook(&self) {
        self.say_defaults();
        self.warn_if_long();
        self.warn_of_few_updates();
        self.note_ends_of_epochs();
    }

    /// The number of the last step, if it is known.
    pub(super) fn last_step(&self) -> Option<u64> {
        self.trainer.length.last_step(self.steps_per_epoch())
    }

    pub(super) fn steps_per_epoch(&self) -> f64 {
        self.dataset.training() as f64 / self.found.plan.global_batch as f64
    }

    /// The settings that no flag gave, in one line.
    fn say_defaults(&self) {
        let (args, schedule) = (&self.args, &self.trainer.schedule);
        if matches!(self.start, Start::Resume(_)) {
            return;
        }
        let mut defaults = Vec::new();
        if args.schedule.learning_rate.is_none() {
            let rate = schedule.learning_rate;
            defaults.push(match self.start {
                Start::Weights(_) if !self.chosen.has_decoder() => {
                    format!("learning rate {rate:.1e} (for the model's size, from trained weights)")
                }
                _ => format!("learning rate {rate:.1e}"),
            });
        }
        if !args.request.gives_global_batch() {
            let (samples, of) = (self.found.plan.global_batch, self.dataset.training());
            defaults.push(format!("{samples} of {of} samples a step"));
        }
        if args.max_steps.is_none() && args.epochs.is_none() && args.duration.is_none() {
            let steps = self.last_step().unwrap_or_default();
            defaults.push(match self.trainer.length {
                Length::Epochs(epochs) => format!("{epochs} epochs ({steps} steps)"),
                _ => format!("{steps} steps"),
            });
        }
        if args.schedule.warmup_steps.is_none() && args.schedule.warmup_ratio.is_none() {
            match (self.trainer.length, schedule.warmup_steps) {
                (_, 0) => {}
                (Length::Duration(_), steps) => {
                    defaults.push(format!("warm-up for {steps} steps or a tenth of the time"))
                }
                (_, steps) => defaults.push(format!("warm-up for {steps} steps")),
            }
        }
        if !defaults.is_empty() {
            talk(format_args!("defaults: {}", defaults.join(", ")));
        }
    }

    fn warn_if_long(&self) {
        let time = self.last_step().map(|last| Seconds(last as f64 * self.found.step.0));
        if let Some(time) = time.filter(|time| *time > LONG) {
            talk(format_args!(
                "warning: the run is predicted to take {}; `--duration 8h` or fewer `--max-steps` or `--epochs` shorten it",
                format_duration(time)
            ));
        }
    }

    fn warn_of_few_updates(&self) {
        let Length::Epochs(epochs) = self.trainer.length else { return };
        let Some(steps) = self.last_step().filter(|&steps| steps < FEW_UPDATES) else { return };
        let (samples, batch) = (self.dataset.training(), self.found.plan.global_batch);
        let fewer = if batch > 1 { "a smaller `--global-batch` or " } else { "" };
        talk(format_args!(
            "warning: {epochs} epochs of {samples} samples, {batch} a step, update the weights {steps} times, which is little \
             to learn from\nhint: {fewer}more `--epochs` give more updates"
        ));
    }

    /// Says how batches that an epoch does not fill are completed.
    fn note_ends_of_epochs(&self) {
        let (Some(epochs), Some(steps)) = (self.args.epochs, self.last_step()) else { return };
        let (samples, batch) = (self.dataset.training(), self.found.plan.global_batch as u64);
        if !samples.is_multiple_of(batch) {
            let smaller = (epochs * samples.div_ceil(batch) as f64).ceil().max(1.0);
            talk(format_args!(
                "note: {epochs} epochs of {samples} samples are {steps} steps of {batch}: a batch that an epoch does not fill \
                 has samples of the next epoch, and the last step has some of one more (Hugging Face's trainer makes a \
                 smaller batch at the end of each epoch, {smaller} steps in all)"
            ));
        }
    }
}
