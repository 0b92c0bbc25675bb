//! The text of a step: a line of a log, or the two lines of a progress bar, which fit the terminal.

use super::sparkline::Sparkline;
use console::{measure_text_width, style};
use plimsoll_render::grouped;
use plimsoll_telemetry::EnergyUse;
use plimsoll_units::{Bytes, Seconds, format_duration};

/// The fewest and most columns of a sparkline.
const SPARKLINE: (usize, usize) = (6, 40);

/// A finished step, and the state of the run.
#[derive(Debug, Clone)]
pub(super) struct Status {
    pub(super) step: u64,
    /// The last step, if it is known in advance.
    pub(super) last_step: Option<u64>,
    /// Nats per token.
    pub(super) loss: f64,
    pub(super) learning_rate: f64,
    pub(super) grad_norm: f64,
    pub(super) tokens_per_s: f64,
    /// Time of the step.
    pub(super) step_s: f64,
    /// Samples per step.
    pub(super) samples: u64,
    /// All memory of the card, if the run is on one.
    pub(super) card_total: Option<Bytes>,
    /// The memory that the run's budget limits: `VRAM` or `RAM`.
    pub(super) memory: &'static str,
    pub(super) used: Bytes,
    pub(super) planned: Bytes,
    /// The finished fraction of the run.
    pub(super) done: f64,
    pub(super) left: Seconds,
    /// The energy that the cards used so far.
    pub(super) energy: Option<EnergyUse>,
}

impl Status {
    /// A line of a log, with everything in it.
    pub(super) fn log_line(&self) -> String {
        let Self { loss, learning_rate, grad_norm, .. } = self;
        let mut parts = vec![
            self.steps(),
            format!("loss {loss:.3}"),
            format!("lr {learning_rate:.1e}"),
            format!("norm {grad_norm:.2}"),
            self.speed(),
            self.samples_per_s(),
            self.steps_per_s(),
            self.memory(),
            self.left(),
        ];
        parts.extend(self.energy.as_ref().map(ToString::to_string));
        parts.join("  ")
    }

    /// The text after the bar: progress and time left; in at most `columns` if possible.
    pub(super) fn next_to_bar(&self, columns: usize) -> String {
        let percent = format!("{:.0} %", 100.0 * self.done);
        join_while_they_fit([percent, self.left(), self.steps()], columns)
    }

    /// The line below the bar, in at most `columns`: the most important figures first, and the losses as a sparkline in
    /// the remaining columns.
    pub(super) fn below_bar(&self, losses: &Sparkline, columns: usize) -> String {
        let Self { loss, learning_rate, grad_norm, .. } = self;
        let loss = format!("loss {}", style(format!("{loss:.3}")).for_stderr().bold());
        // Reserve its columns before the rates, which change little.
        let least = if losses.bars(SPARKLINE.0).is_empty() { 0 } else { SPARKLINE.0 + 1 };
        let (rate, norm) = (format!("lr {learning_rate:.1e}"), format!("norm {grad_norm:.2}"));
        let others = [self.speed(), self.memory(), self.samples_per_s(), self.steps_per_s(), rate, norm];
        let others = others.into_iter().chain(self.energy.as_ref().map(ToString::to_string));
        let room = columns.saturating_sub(measure_text_width(&loss) + least + GAP.len());
        let others = join_while_they_fit(others, room);
        let taken = measure_text_width(&loss) + GAP.len() + measure_text_width(&others) + 1;
        let bars = losses.bars(columns.saturating_sub(taken).min(SPARKLINE.1));
        let loss = if bars.is_empty() { loss } else { format!("{loss} {}", style(bars).for_stderr().cyan()) };
        if others.is_empty() { loss } else { format!("{loss}{GAP}{others}") }
    }

    fn steps(&self) -> String {
        format!("step {}{}", self.step, self.last_step.map_or(String::new(), |last| format!("/{last}")))
    }

    fn speed(&self) -> String {
        format!("{} tok/s", grouped(self.tokens_per_s as u64))
    }

    fn samples_per_s(&self) -> String {
        format!("{} samples/s", rate(self.samples as f64 / self.step_s))
    }

    /// Steps are updates, each of one batch.
    fn steps_per_s(&self) -> String {
        format!("{} steps/s", rate(1.0 / self.step_s))
    }

    /// `VRAM 25 %, 5.94/8.00 GiB`: the share of the card, and reserved out of planned memory; both units if they
    /// differ.
    fn memory(&self) -> String {
        let (used, planned) = (self.used.to_string(), self.planned.to_string());
        let held = match (used.split_once(' '), planned.split_once(' ')) {
            (Some((value, unit)), Some((_, of))) if unit == of => format!("{value}/{planned}"),
            _ => format!("{used}/{planned}"),
        };
        let part = |total: Bytes| format!("{:.0} %, ", 100.0 * self.used.0 as f64 / total.0 as f64);
        let part = self.card_total.filter(|total| total.0 > 0).map_or(String::new(), part);
        format!("{} {part}{held}", self.memory)
    }

    fn left(&self) -> String {
        format!("{} left", format_duration(self.left))
    }
}

/// A rate per second with two or three digits: `0.27`, `3.2`, `48`; `-` without a time.
fn rate(per_s: f64) -> String {
    match per_s {
        per_s if !per_s.is_finite() => "-".to_owned(),
        per_s if per_s < 1.0 => format!("{per_s:.2}"),
        per_s if per_s < 10.0 => format!("{per_s:.1}"),
        per_s => grouped(per_s.round() as u64),
    }
}

/// Between two figures.
const GAP: &str = "  ";

/// The first parts that fit together.
fn join_while_they_fit(parts: impl IntoIterator<Item = String>, columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let next = if line.is_empty() { part } else { format!("{line}{GAP}{part}") };
        if measure_text_width(&next) > columns {
            break;
        }
        line = next;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_telemetry::EnergySource;
    use proptest::prelude::*;

    fn status() -> Status {
        Status {
            step: 412,
            last_step: Some(1000),
            loss: 2.1342,
            learning_rate: 3e-4,
            grad_norm: 0.521,
            tokens_per_s: 14_012.4,
            step_s: 2.5,
            samples: 8,
            card_total: Some(Bytes(24 << 30)),
            memory: "VRAM",
            used: Bytes(6_377_000_000),
            planned: Bytes(8 << 30),
            done: 0.412,
            left: Seconds(80.0),
            energy: None,
        }
    }

    fn falling() -> Sparkline {
        let mut losses = Sparkline::new();
        (0..500).rev().for_each(|loss| losses.push(f64::from(loss)));
        losses
    }

    #[test]
    fn a_line_of_a_log_has_everything() {
        assert_eq!(
            status().log_line(),
            "step 412/1000  loss 2.134  lr 3.0e-4  norm 0.52  14,012 tok/s  3.2 samples/s  0.40 steps/s  \
             VRAM 25 %, 5.94/8.00 GiB  1 min 20 s left"
        );
        let energy = EnergyUse {
            energy_j: 4.5e6,
            by: EnergySource::Counter,
            missed_s: 0.0,
            cost: Some(0.387),
            currency: Some("EUR".to_owned()),
        };
        let told = Status { energy: Some(energy), ..status() }.log_line();
        assert!(told.ends_with("left  1.250 kWh (0.39 EUR)"), "{told}");
        let small = Status { used: Bytes(800 << 20), last_step: None, ..status() };
        assert!(
            small.log_line().starts_with("step 412  loss") && small.log_line().contains("VRAM 3 %, 800 MiB/8.00 GiB")
        );
    }

    #[test]
    fn eighty_columns_hold_all_figures_and_a_sparkline() {
        console::set_colors_enabled_stderr(false);
        let below = status().below_bar(&falling(), 79);
        assert_eq!(below, "loss 2.134 █▇▇▆▆▅▄▄▃▃▂▁▁  14,012 tok/s  VRAM 25 %, 5.94/8.00 GiB  3.2 samples/s");
        let wide = status().below_bar(&falling(), 120);
        assert!(wide.ends_with("3.2 samples/s  0.40 steps/s  lr 3.0e-4  norm 0.52"), "{wide}");
        let on_cpu = Status { card_total: None, memory: "RAM", ..status() }.log_line();
        assert!(on_cpu.contains("  RAM 5.94/8.00 GiB  "), "{on_cpu}");
        assert_eq!(status().next_to_bar(60), "41 %  1 min 20 s left  step 412/1000");
        assert_eq!(status().next_to_bar(24), "41 %  1 min 20 s left");
    }

    proptest! {
        #[test]
        fn what_is_shown_fits_any_terminal(
            columns in 12_usize..300, step in 1_u64..10_000_000, loss in 0.0..20.0, speed in 0.0..1e7, used in 0_u64..1 << 44,
            left in 0.0..1e7, steps in 0_u32..200,
        ) {
            let mut losses = Sparkline::new();
            (0..steps).for_each(|step| losses.push(f64::from(step % 17)));
            let status = Status {
                step, loss, tokens_per_s: speed, used: Bytes(used), left: Seconds(left), last_step: Some(step * 2), ..status()
            };
            let below = status.below_bar(&losses, columns);
            prop_assert!(measure_text_width(&below) <= columns, "{below:?} in {columns}");
            let shown = format!("{loss:.3}");
            prop_assert!(below.contains(&shown), "{below:?} lacks {shown}");
            let next_to = status.next_to_bar(columns);
            prop_assert!(measure_text_width(&next_to) <= columns, "{next_to:?} in {columns}");
        }
    }
}
