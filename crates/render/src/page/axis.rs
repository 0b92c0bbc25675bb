//! Axes of charts: bytes at powers of two, with the budget, and numbers at round ones.

use super::chart::{Chart, LINE, Label, Place};
use super::steps::byte_step;
use crate::plan_table::grouped;

/// The height above the break of an axis.
const STRIP: f64 = 24.0;

/// Pixels between ticks.
const TICK_HEIGHT: f64 = 30.0;

/// A part of the chart with bytes on its vertical axis, from `floor` to `ceiling`. A budget far above is drawn in a separate strip
/// above a break.
pub(crate) struct ByteAxis {
    top: f64,
    pub(crate) bottom: f64,
    floor: u64,
    ceiling: u64,
    /// `None` if it is drawn on another axis.
    budget: Option<u64>,
}

impl ByteAxis {
    pub(crate) fn new(chart: &mut Chart, height: f64, [floor, ceiling]: [u64; 2], budget: Option<u64>) -> Self {
        let top = chart.extend(height);
        Self { top, bottom: top + height, floor, ceiling: ceiling.max(floor + 1), budget }
    }

    /// Whether it shows this range of bytes.
    pub(crate) fn holds(&self, [from, to]: [u64; 2]) -> bool {
        self.floor <= from && to <= self.ceiling
    }

    fn is_broken(&self) -> bool {
        self.budget.is_some_and(|budget| budget > self.ceiling)
    }

    /// The end of the scale.
    fn upper(&self) -> f64 {
        if self.is_broken() { self.top + STRIP } else { self.top }
    }

    pub(crate) fn y(&self, bytes: u64) -> f64 {
        let part = (bytes.clamp(self.floor, self.ceiling) - self.floor) as f64 / (self.ceiling - self.floor) as f64;
        self.bottom - (self.bottom - self.upper()) * part
    }

    /// The background, and ticks at multiples of a power of two.
    pub(crate) fn draw_ground(&self, chart: &mut Chart) {
        chart.rectangle("ground", [0, chart.columns()], [self.top, self.bottom], None);
        let most = ((self.bottom - self.upper()) / TICK_HEIGHT) as u64;
        let step = byte_step(self.ceiling - self.floor, most);
        let ticks = (self.floor.next_multiple_of(step)..=self.ceiling).step_by(step as usize);
        let ticks = ticks.map(|bytes| (self.y(bytes), bytes)).collect::<Vec<_>>();
        chart.grid(&ticks.iter().map(|(y, _)| *y).collect::<Vec<_>>());
        for (y, bytes) in ticks {
            chart.label(Label::new(tick(bytes, step), y - LINE / 2.0, Place::Gutter, ""));
        }
    }

    /// The line of the budget, unless it is below the axis, with the area beyond it and a label.
    pub(crate) fn draw_budget(&self, chart: &mut Chart, label: Option<String>) {
        let Some(budget) = self.budget.filter(|budget| *budget > self.floor) else { return };
        let y = if self.is_broken() { self.top + LINE + 2.0 } else { self.y(budget) };
        let all = [0, chart.columns()];
        chart.rectangle("beyond", all, [self.top, y], None);
        chart.line("limit", all, [y, y]);
        if self.is_broken() {
            chart.broken(self.upper());
        }
        if let Some(label) = label {
            chart.label(Label::new(label, y - LINE - 1.0, Place::UpTo(1.0), "limit"));
        }
    }
}

/// A part of a chart with numbers on its vertical axis.
pub(crate) struct NumberAxis {
    top: f64,
    bottom: f64,
    low: f64,
    high: f64,
}

impl NumberAxis {
    /// From the lowest to the highest value, with a margin.
    pub(crate) fn new(chart: &mut Chart, height: f64, [lowest, highest]: [f64; 2]) -> Self {
        let top = chart.extend(height);
        let air = (0.06 * (highest - lowest)).max(1e-9 * highest.abs()).max(f64::MIN_POSITIVE);
        // Values that are never below zero need no margin there.
        let low = if lowest >= 0.0 { (lowest - air).max(0.0) } else { lowest - air };
        Self { top, bottom: top + height, low, high: highest + air }
    }

    pub(crate) fn y(&self, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The background, and ticks at round numbers.
    pub(crate) fn draw_ground(&self, chart: &mut Chart) {
        chart.rectangle("ground", [0, chart.columns()], [self.top, self.bottom], None);
        let step = round_step((self.high - self.low) / ((self.bottom - self.top) / TICK_HEIGHT));
        let first = (self.low / step).ceil();
        let ticks = (0..100).map(|n| (first + f64::from(n)) * step).take_while(|value| *value <= self.high);
        let ticks = ticks.collect::<Vec<_>>();
        chart.grid(&ticks.iter().map(|value| self.y(*value)).collect::<Vec<_>>());
        for value in ticks {
            chart.label(Label::new(number(value, step), self.y(value) - LINE / 2.0, Place::Gutter, ""));
        }
    }
}

/// The 1, 2 or 5 times a power of ten that is no less than this.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|n| n * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// A number with enough digits to distinguish ticks that are `step` apart.
fn number(value: f64, step: f64) -> String {
    match step {
        ..1e-5 => format!("{value:.2e}"),
        ..1.0 if value.abs() < 1e6 => format!("{value:.*}", (-step.log10().floor()) as usize),
        _ if value.abs() < 1e9 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(value.abs().round() as u64))
        }
        _ => format!("{value:.2e}"),
    }
}

/// The label of a tick, in the largest unit that the step between ticks is a round part of: `1.5 GiB`, `7,328 MiB`.
pub(crate) fn tick(bytes: u64, step: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let (unit, name) = units.into_iter().find(|(unit, _)| step * 4 >= *unit).unwrap_or((1, "B"));
    let fraction = format!("{:.2}", (bytes % unit) as f64 / unit as f64);
    let fraction = fraction.trim_start_matches('0').trim_end_matches('0').trim_end_matches('.');
    format!("{}{fraction} {name}", grouped(bytes / unit))
}
