//! A running run: a progress bar on a terminal, plain lines elsewhere. Everything goes to stderr.
//! `status.rs` has the text of a step, `sparkline.rs` the losses so far.

mod sparkline;
mod status;

use crate::streams::{Bar, bar_text, talk};
use plimsoll_graph::DeviceKind;
use plimsoll_render::{health_line, memory_name};
use plimsoll_telemetry::{EnergyUse, Event, Sink};
use plimsoll_units::{Bytes, Seconds, format_duration};
use sparkline::Sparkline;
use status::Status;
use std::path::PathBuf;
use std::time::Instant;

/// What a view needs to know of a run in addition to its events.
#[derive(Debug, Clone, Copy)]
pub struct LiveRun {
    /// Bytes of the device's arena.
    pub planned: Bytes,
    /// The device of that memory.
    pub device: DeviceKind,
    /// All memory of the device.
    pub device_total: Bytes,
    /// Samples per step.
    pub samples: u64,
    /// Whether the loss is one of preferences, a mean over examples and not over tokens.
    pub compares: bool,
    /// Time after which the run ends; `None` if its time is not limited.
    pub duration: Option<Seconds>,
    /// Steps between lines; `None` for a line every few seconds, or none on a terminal.
    pub log_every: Option<u64>,
}

/// Shows events.
pub struct Live {
    run: LiveRun,
    bar: Option<Bar>,
    first_step: u64,
    last_step: Option<u64>,
    started: Instant,
    losses: Sparkline,
    last_line: Option<Instant>,
    energy: Option<EnergyUse>,
}

/// Seconds between plain lines.
const LINE_SECONDS: f64 = 5.0;

/// The fewest and most columns of a bar; half of the terminal's within these.
const BAR_COLUMNS: (usize, usize) = (10, 80);

impl Live {
    /// A view of a run that has not started.
    pub fn new(run: LiveRun) -> Self {
        Self {
            run,
            bar: None,
            first_step: 1,
            last_step: None,
            started: Instant::now(),
            losses: Sparkline::new(),
            last_line: None,
            energy: None,
        }
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        self.bar = None;
    }

    fn start(&mut self, first_step: u64, last_step: Option<u64>) {
        (self.first_step, self.last_step, self.started) = (first_step, last_step, Instant::now());
        self.bar = Bar::on_terminal();
    }

    /// The rows of a bar for this many columns.
    fn bar_rows(&self, status: &Status, columns: usize) -> Vec<String> {
        let width = (columns / 2).clamp(BAR_COLUMNS.0, BAR_COLUMNS.1);
        let next_to_bar = status.next_to_bar(columns.saturating_sub(width + 1));
        vec![format!("{} {next_to_bar}", bar_text(status.done, width)), status.below_bar(&self.losses, columns)]
    }

    /// The finished fraction of the run, and the time left at this session's mean speed: for the earlier of its ends.
    fn progress(&self, step: u64) -> (f64, Seconds) {
        let elapsed = self.started.elapsed().as_secs_f64();
        let made = (step + 1 - self.first_step) as f64;
        let by_steps = self
            .last_step
            .map(|last| (step as f64 / last.max(1) as f64, elapsed / made * last.saturating_sub(step) as f64));
        let by_time = self.run.duration.map(|limit| (elapsed / limit.0, limit.0 - elapsed));
        let (done, left) =
            [by_steps, by_time].into_iter().flatten().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0.0, f64::NAN));
        (done.clamp(0.0, 1.0), Seconds(left.max(0.0)))
    }

    fn show_step(&mut self, status: &Status) {
        self.losses.push(status.loss);
        if let Some(bar) = &self.bar {
            bar.show(|columns| self.bar_rows(status, columns));
        }
        let is_due = match self.run.log_every {
            Some(every) => status.step.is_multiple_of(every),
            None if self.bar.is_some() => return,
            None => self.last_line.is_none_or(|said| said.elapsed().as_secs_f64() >= LINE_SECONDS),
        };
        if is_due || Some(status.step) == self.last_step {
            talk(status.log_line());
            self.last_line = Some(Instant::now());
        }
    }
}

/// The message for the start of a branch.
fn branched(from_step: u64, left_behind: &[PathBuf]) -> String {
    let names = left_behind.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
    let names = names.collect::<Vec<_>>().join(", ");
    let kept = if names.is_empty() { String::new() } else { format!("; {names} of the previous branch are kept") };
    format!("starting a new branch after step {from_step}; `--resume auto` continues it from now on{kept}")
}

impl Sink for Live {
    fn take(&mut self, event: &Event) {
        match event {
            Event::RunStarted { first_step, last_step, .. } => {
                self.start(*first_step, *last_step);
                if let Some(last) = last_step.filter(|last| last < first_step) {
                    talk(format_args!(
                        "the run is finished: it has made its {last} steps\nhint: a larger `--max-steps` or `--epochs` \
                         continues it"
                    ));
                }
            }
            Event::Resumed { step, checkpoint } => {
                talk(format_args!("resumed after step {step} from {}", checkpoint.display()));
            }
            Event::CheckpointSkipped { checkpoint, reason } => {
                talk(format_args!("warning: skipping checkpoint {}: {reason}", checkpoint.display()));
            }
            Event::Branched { from_step, left_behind } => talk(branched(*from_step, left_behind)),
            Event::EventsLost { events, reason } => talk(format_args!(
                "warning: {events} events could not be written to the journal: {reason}; reports \
                 will lack their losses"
            )),
            Event::Step { step, loss, learning_rate, grad_norm, step_ms, tokens_per_s, memory_bytes } => {
                let (done, left) = self.progress(*step);
                self.show_step(&Status {
                    step: *step,
                    last_step: self.last_step,
                    loss: *loss,
                    learning_rate: *learning_rate,
                    grad_norm: *grad_norm,
                    tokens_per_s: *tokens_per_s,
                    step_s: step_ms / 1000.0,
                    samples: self.run.samples,
                    card_total: (self.run.device == DeviceKind::Cuda).then_some(self.run.device_total),
                    memory: memory_name(self.run.device),
                    used: Bytes(*memory_bytes),
                    planned: self.run.planned,
                    done,
                    left,
                    energy: self.energy.clone(),
                });
            }
            Event::Evaluated { step, loss, average_loss, tokens } => {
                let average = average_loss.map_or(String::new(), |a| format!(", {a:.4} with the averaged weights,"));
                let (unit, all) = if self.run.compares { ("", "examples") } else { (" nats per token", "tokens") };
                talk(format_args!("step {step}: held-out loss {loss:.4}{unit}{average} over {tokens} {all}"));
            }
            Event::Rewards { held_out: false, .. } => {}
            Event::Rewards { step, chosen, rejected, accuracy, .. } => {
                let reward =
                    |reward: &Option<f64>| reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.3}"));
                let [chosen, rejected] = [chosen, rejected].map(reward);
                let order = accuracy.map_or_else(String::new, |part| {
                    format!("; the chosen one has the higher reward in {:.0} % of the examples", 100.0 * part)
                });
                talk(format_args!(
                    "step {step}: held-out rewards {chosen} for chosen and {rejected} for rejected answers{order}"
                ));
            }
            Event::UpdateSkipped { step, loss_scale, .. } => {
                talk(format_args!(
                    "step {step}: gradients overflowed half precision; skipping the update; the loss scale is now {loss_scale}"
                ));
            }
            Event::CheckpointFailed { step, reason } => {
                talk(format_args!(
                    "warning: the checkpoint after step {step} could not be written: {reason}\n\
                     hint: check for a full disk; training continues, and older checkpoints are kept"
                ));
            }
            Event::Undoing { from, to } => talk(match to - from {
                0 => format!("a parameter's gradient overflowed; going back to step {to}"),
                _ => format!("a parameter's gradient overflowed; rerunning steps {} to {to}", from + 1),
            }),
            Event::Diverged { step, tensor: Some(tensor), .. } => {
                talk(format_args!("warning: `{tensor}` has values that are not finite after step {step}"));
            }
            Event::Diverged { step, weights_whole: false, .. } => {
                talk(format_args!("warning: step {step} could not be undone; no checkpoint contains it"));
            }
            Event::Heat { card, what } => talk(format_args!("{card}: {what}")),
            Event::Paused { step, .. } => {
                talk(format_args!(
                    "paused in step {step}; `plimsoll resume` continues it, `plimsoll stop` saves and ends"
                ));
            }
            Event::Unpaused { step, seconds, .. } => {
                talk(format_args!("step {step} continues after a pause of {}", format_duration(Seconds(*seconds))));
            }
            Event::Replanned { step, planned_bytes, budget_bytes, .. } => talk(format_args!(
                "planned again after step {step}: {} within {}",
                Bytes(*planned_bytes),
                Bytes(*budget_bytes)
            )),
            Event::OrderRefused { reason, .. } => talk(format_args!("warning: refused an order: {reason}")),
            Event::Health { card, what, advice, level, .. } => {
                talk(health_line(card.as_deref(), what, advice.as_deref(), *level));
            }
            Event::MemoryPressure { what, .. } => talk(format_args!("memory pressure: {what}")),
            Event::OutOfMemoryAverted { what } => talk(format_args!("out of memory averted: {what}")),
            Event::Energy(energy) => self.energy = Some(energy.clone()),
            // They are printed before the plan.
            Event::SafeSettings { .. }
            | Event::CheckpointSaved { .. }
            | Event::Unsaved { .. }
            | Event::Diverged { .. }
            | Event::Interrupted { .. }
            | Event::StoppedForHeat { .. }
            | Event::Finished { .. } => {}
        }
    }
}
