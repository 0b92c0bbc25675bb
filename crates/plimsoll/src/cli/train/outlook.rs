//! Messages about a run's length and its defaults, before the first step.

use super::{Given, Setup};
use crate::cli::recipe::FEW_UPDATES;
use crate::streams::talk;
use ::plimsoll_train::{Length, Start};
use plimsoll_units::{Seconds, format_duration};

/// Runs longer than this get a warning.
const LONG: Seconds = Seconds(7.0 * 86_400.0);

impl Given {
    /// Prints the run's defaults, and warns of a run that is very long or has few updates.
    pub(super) fn say_outlook(&self, setup: &Setup<'_>) {
        self.say_defaults(setup);
        self.warn_if_long(setup);
        self.warn_of_few_updates(setup);
        self.note_ends_of_epochs(setup);
        self.args.grace.and_then(|grace| words_of_grace(grace, setup)).into_iter().for_each(talk);
    }

    /// The settings that no flag gave, in one line.
    fn say_defaults(&self, setup: &Setup<'_>) {
        let (args, schedule) = (&self.args, &setup.trainer.schedule);
        if matches!(setup.start, Start::Resume(_)) {
            return;
        }
        let mut defaults = Vec::new();
        if args.schedule.learning_rate.is_none() {
            let rate = schedule.learning_rate;
            defaults.push(match setup.start {
                Start::Weights(_) if !self.chosen.takes_pairs() => {
                    format!("learning rate {rate:.1e} (for the model's size, from trained weights)")
                }
                _ => format!("learning rate {rate:.1e}"),
            });
        }
        if !args.request.gives_global_batch() {
            let (samples, of) = (setup.found.plan.global_batch, setup.dataset.training());
            defaults.push(format!("{samples} of {of} samples per step"));
        }
        if args.max_steps.is_none() && args.epochs.is_none() && args.duration.is_none() {
            let steps = setup.last_step().unwrap_or_default();
            defaults.push(match setup.trainer.length {
                Length::Epochs(epochs) => format!("{epochs} epochs ({steps} steps)"),
                _ => format!("{steps} steps"),
            });
        }
        if args.schedule.warmup_steps.is_none() && args.schedule.warmup_ratio.is_none() {
            match (setup.trainer.length, schedule.warmup_steps) {
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

    fn warn_if_long(&self, setup: &Setup<'_>) {
        let time = setup.last_step().map(|last| Seconds(last as f64 * setup.found.step.0));
        if let Some(time) = time.filter(|time| *time > LONG) {
            talk(format_args!(
                "warning: the run is predicted to take {}; `--duration 8h` or fewer `--max-steps` or `--epochs` shorten it",
                format_duration(time)
            ));
        }
    }

    fn warn_of_few_updates(&self, setup: &Setup<'_>) {
        let Length::Epochs(epochs) = setup.trainer.length else { return };
        let Some(steps) = setup.last_step().filter(|&steps| steps < FEW_UPDATES) else { return };
        let (samples, batch) = (setup.dataset.training(), setup.found.plan.global_batch);
        let fewer = if batch > 1 { "a smaller `--global-batch` or " } else { "" };
        talk(format_args!(
            "warning: {epochs} epochs of {samples} samples, {batch} per step, update the weights only {steps} times\nhint: \
             {fewer}more `--epochs` give more updates"
        ));
    }

    /// Reports how incomplete batches at the end of an epoch are filled.
    fn note_ends_of_epochs(&self, setup: &Setup<'_>) {
        let (Some(epochs), Some(steps)) = (self.args.epochs, setup.last_step()) else { return };
        let (samples, batch) = (setup.dataset.training(), setup.found.plan.global_batch as u64);
        if !samples.is_multiple_of(batch) {
            let smaller = (epochs * samples.div_ceil(batch) as f64).ceil().max(1.0);
            talk(format_args!(
                "note: {epochs} epochs of {samples} samples are {steps} steps of {batch}: an incomplete batch at the end of an epoch \
                 is filled from the next epoch, the last one from one more epoch (Hugging Face's trainer makes a \
                 smaller batch at the end of each epoch, {smaller} steps in all)"
            ));
        }
    }
}

/// What a signal means for a step that is predicted to take longer than the grace period; `None` if it takes no longer.
fn words_of_grace(grace: Seconds, setup: &Setup<'_>) -> Option<String> {
    let (plan, step) = (&setup.found.plan, setup.found.step);
    let part = Seconds(step.0 / plan.accumulation as f64);
    let [whole, of_part, given] = [step, part, grace].map(format_duration);
    if step.0 <= grace.0 {
        None
    } else if part.0 <= grace.0 && plan.accumulation > 1 {
        Some(format!(
            "note: a step is predicted to take {whole}, longer than `--grace {given}`: after a signal, the run drops the step in \
             progress and saves the state before it"
        ))
    } else {
        Some(format!(
            "warning: a micro-batch is predicted to take {of_part} and can't be dropped, so the run may not end within \
             `--grace {given}`\nhint: a smaller `--micro-batch` ends sooner; `--checkpoint-every 1` loses at most one step"
        ))
    }
}
