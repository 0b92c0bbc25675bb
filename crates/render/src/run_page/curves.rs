//! The curves of a run as charts: losses, speed and memory over its steps.

use super::story::RunStory;
use crate::page::axis::{ByteAxis, NumberAxis};
use crate::page::chart::{Chart, LINE, fine};
use plimsoll_telemetry::{Curve, Stretch};
use plimsoll_units::Bytes;
use plimsoll_watch::RunView;
use std::fmt::Write;

/// Heights in pixels.
const LOSS: f64 = 260.0;
const SPEED: f64 = 130.0;
const MEMORY: f64 = 120.0;

/// Units across.
pub(super) const COLUMNS: usize = 1000;

/// Steps as columns.
struct Steps {
    first: u64,
    last: u64,
}

impl Steps {
    /// All steps with values.
    fn of(run: &RunView) -> Self {
        let curves = [&run.losses, &run.held_out, &run.averaged];
        let wholes = || curves.iter().filter_map(|curve| curve.whole());
        let first = wholes().map(|whole| whole.first.step).min().unwrap_or(0);
        let last = wholes().map(|whole| whole.last.step).max().unwrap_or(0);
        Self { first, last: last.max(first + 1) }
    }

    fn part(&self, step: u64) -> f64 {
        (step as f64 - self.first as f64) / (self.last - self.first) as f64
    }

    fn column(&self, step: u64) -> f64 {
        COLUMNS as f64 * self.part(step)
    }

    /// The middle of a stretch.
    fn middle(&self, stretch: &Stretch) -> f64 {
        (self.column(stretch.first.step) + self.column(stretch.last.step)) / 2.0
    }

    fn draw(&self, chart: &mut Chart) {
        let row = chart.extend(LINE + 6.0) + 4.0;
        chart.ticks_across(row, [self.first, self.last], |step| self.part(step));
    }
}

/// Training and held-out losses; `None` without any.
pub(super) fn loss_chart(story: &RunStory) -> Option<Chart> {
    let run = &story.run;
    let curves = [(&run.losses, "first"), (&run.held_out, "second"), (&run.averaged, "third")];
    let wholes = curves.iter().filter_map(|(curve, _)| curve.whole()).collect::<Vec<_>>();
    let lowest = wholes.iter().map(|whole| whole.lowest.value).reduce(f64::min)?;
    let highest = wholes.iter().map(|whole| whole.highest.value).reduce(f64::max)?;
    let (mut chart, steps) = (Chart::new(COLUMNS), Steps::of(run));
    chart.title(format!("loss, {}", story.loss_unit()));
    let axis = NumberAxis::new(&mut chart, LOSS, [lowest, highest]);
    axis.draw_ground(&mut chart);
    for (curve, class) in curves {
        draw_curve(&mut chart, &steps, curve, class, |value| axis.y(value));
    }
    steps.draw(&mut chart);
    Some(chart)
}

/// Learning rates from zero up.
pub(super) fn learning_rate_chart(run: &RunView) -> Option<Chart> {
    number_chart(run, &run.learning_rate, "learning rate")
}

/// Norms of gradients from zero up.
pub(super) fn grad_norm_chart(run: &RunView) -> Option<Chart> {
    number_chart(run, &run.grad_norm, "norm of the gradient, before clipping")
}

/// Tokens a second from zero up.
pub(super) fn speed_chart(run: &RunView) -> Option<Chart> {
    number_chart(run, &run.tokens_per_s, "tokens per second")
}

/// Values from zero up.
fn number_chart(run: &RunView, curve: &Curve, title: &str) -> Option<Chart> {
    let whole = curve.whole()?;
    let (mut chart, steps) = (Chart::new(COLUMNS), Steps::of(run));
    chart.title(title);
    let axis = NumberAxis::new(&mut chart, SPEED, [whole.lowest.value.min(0.0), whole.highest.value]);
    axis.draw_ground(&mut chart);
    draw_curve(&mut chart, &steps, curve, "first", |value| axis.y(value));
    steps.draw(&mut chart);
    Some(chart)
}

/// Held bytes of the device, with the planned bytes and the budget as lines.
pub(super) fn memory_chart(run: &RunView) -> Option<Chart> {
    let whole = run.memory_bytes.whole()?;
    let (planned, budget) = (run.planned_bytes?, run.budget_bytes?);
    let (mut chart, steps) = (Chart::new(COLUMNS), Steps::of(run));
    chart.title("bytes held, and planned (dotted)");
    // Room for the label above the line.
    let highest = planned.max(whole.highest.value as u64).min(u64::MAX / 4);
    let near = if budget <= highest + highest / 2 { highest.max(budget) } else { highest };
    let ceiling = (1.04 * near as f64 * MEMORY / (MEMORY - LINE - 4.0)) as u64;
    let axis = ByteAxis::new(&mut chart, MEMORY, [0, ceiling], Some(budget));
    axis.draw_ground(&mut chart);
    draw_curve(&mut chart, &steps, &run.memory_bytes, "first", |value| axis.y(value.max(0.0) as u64));
    let y = axis.y(planned);
    chart.line("mark dots", [0, COLUMNS], [y, y]);
    axis.draw_budget(&mut chart, Some(format!("budget {}", Bytes(budget))));
    steps.draw(&mut chart);
    Some(chart)
}

fn draw_curve(chart: &mut Chart, steps: &Steps, curve: &Curve, class: &str, y: impl Fn(f64) -> f64) {
    draw(chart, curve, class, |stretch| steps.middle(stretch), y);
}

/// The means of a curve's stretches as a line, and the range between their extremes as an area behind it. Short curves
/// have dots.
pub(super) fn draw(chart: &mut Chart, curve: &Curve, class: &str, x: impl Fn(&Stretch) -> f64, y: impl Fn(f64) -> f64) {
    const FEW: usize = 60;
    let stretches = curve.stretches();
    let place = |stretch: &Stretch, value: f64| format!("{:.1} {}", x(stretch), fine(y(value)));
    if stretches.iter().any(|stretch| stretch.count > 1) {
        let above = stretches.iter().map(|stretch| place(stretch, stretch.highest.value));
        let below = stretches.iter().rev().map(|stretch| place(stretch, stretch.lowest.value));
        let edge = above.chain(below).collect::<Vec<_>>().join("L");
        chart.path(&format!("range {class}"), &format!("M{edge}z"));
    }
    let mean = stretches.iter().map(|stretch| place(stretch, stretch.mean)).collect::<Vec<_>>();
    if mean.is_empty() {
        return;
    }
    chart.path(&format!("curve {class}"), &format!("M{}", mean.join("L")));
    if mean.len() <= FEW {
        let dots = mean.iter().fold(String::new(), |mut dots, place| {
            let _ = write!(dots, "M{place}h0");
            dots
        });
        chart.path(&format!("points {class}"), &dots);
    }
}
