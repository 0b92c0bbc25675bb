//! A run as it goes: a progress bar on a terminal, plain lines elsewhere. Everything goes to stderr.

use crate::streams::talk;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

/// Shows events.
pub struct Live {
    planned_bytes: u64,
    bar: Option<ProgressBar>,
    first_step: u64,
    last_step: Option<u64>,
    started: Instant,
    last_line: Option<Instant>,
}

/// Seconds between plain lines.
const LINE_SECONDS: f64 = 5.0;

/// Whether stderr may be animated.
pub(super) fn may_animate() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && !dumb
}

impl Live {
    /// A view of a run whose arena has this size.
    pub fn new(planned_bytes: u64) -> Self {
        let started = Instant::now();
        Self { planned_bytes, bar: None, first_step: 1, last_step: None, started, last_line: None }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| talk(text)),
            None => talk(text),
        }
    }

    fn start(&mut self, first_step: u64, last_step: Option<u64>) {
        (self.first_step, self.last_step, self.started) = (first_step, last_step, Instant::now());
        if !may_animate() {
            return;
        }
        let template = match last_step {
            Some(_) => "{bar:24} {msg}",
            None => "{spinner} {msg}",
        };
        let style = ProgressStyle::with_template(template).expect("a valid template").progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(last_step, ProgressDrawTarget::stderr()).with_style(style);
        bar.set_position(first_step - 1);
        self.bar = Some(bar);
    }

    /// Time left, from the mean speed of this session.
    fn left(&self, step: u64) -> Seconds {
        let Some(last) = self.last_step else { return Seconds(f64::NAN) };
        let made = (step + 1 - self.first_step) as f64;
        Seconds(self.started.elapsed().as_secs_f64() / made * last.saturating_sub(step) as f64)
    }
}

/// What a branch that begins leaves behind.
fn branched(from_step: u64, left_behind: &[PathBuf]) -> String {
    let names = left_behind.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
    let names = names.collect::<Vec<_>>().join(", ");
    let kept = if names.is_empty() { String::new() } else { format!("; {names} of the previous branch are kept") };
    format!("starting a new branch after step {from_step}; `--resume auto` continues it from now on{kept}")
}

impl Sink for Live {
    fn take(&mut self, event: &Event) {
        match event {
            Event::RunStarted { first_step, last_step, .. } => self.start(*first_step, *last_step),
            Event::Resumed { step, checkpoint } => {
                self.line(&format!("resumed after step {step} from {}", checkpoint.display()));
            }
            Event::CheckpointSkipped { checkpoint, reason } => {
                self.line(&format!("warning: checkpoint {} is skipped: {reason}", checkpoint.display()));
            }
            Event::Branched { from_step, left_behind } => self.line(&branched(*from_step, left_behind)),
            Event::EventsLost { events, reason } => self.line(&format!(
                "warning: {events} events could not be written to the journal: {reason}; reports of resumed \
                 sessions will lack their losses"
            )),
            Event::Step { step, loss, learning_rate, grad_norm, tokens_per_s, memory_bytes, .. } => {
                let of = self.last_step.map_or(String::new(), |last| format!("/{last}"));
                let text = format!(
                    "step {step}{of}  loss {loss:.3}  lr {learning_rate:.1e}  norm {grad_norm:.2}  {tokens_per_s:.0} tok/s  \
                     {}/{}  left {}",
                    Bytes(*memory_bytes),
                    Bytes(self.planned_bytes),
                    format_duration(self.left(*step))
                );
                if let Some(bar) = &self.bar {
                    bar.set_position(*step);
                    bar.set_message(text);
                    return;
                }
                let due = self.last_line.is_none_or(|t| t.elapsed().as_secs_f64() >= LINE_SECONDS);
                if due || Some(*step) == self.last_step {
                    self.line(&text);
                    self.last_line = Some(Instant::now());
                }
            }
            Event::Evaluated { step, loss, average_loss, tokens } => {
                let average = average_loss.map_or(String::new(), |a| format!(", {a:.4} with the averaged weights,"));
                self.line(&format!(
                    "step {step}: held-out loss {loss:.4} nats per token{average} over {tokens} tokens"
                ));
            }
            Event::UpdateSkipped { step, loss_scale, .. } => {
                self.line(&format!(
                    "step {step}: gradients overflowed half precision; the update is skipped, the loss scale is now {loss_scale}"
                ));
            }
            Event::CheckpointFailed { step, reason } => {
                self.line(&format!(
                    "warning: the checkpoint after step {step} could not be written: {reason}\n\
                     hint: is the disk full? training continues, and older checkpoints are kept"
                ));
            }
            Event::Undoing { from, to } => self.line(&match to - from {
                0 => format!("a parameter's gradient overflowed; going back to step {to}"),
                _ => format!("a parameter's gradient overflowed; rerunning steps {} to {to}", from + 1),
            }),
            Event::Diverged { step, weights_whole: false, .. } => {
                self.line(&format!("warning: step {step} could not be undone; no checkpoint contains it"));
            }
            Event::CheckpointSaved { .. }
            | Event::Unsaved { .. }
            | Event::Diverged { .. }
            | Event::Interrupted { .. }
            | Event::Finished { .. } => {}
        }
    }
}
