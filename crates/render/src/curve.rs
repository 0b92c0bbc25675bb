//! Step time by memory budget: a table, data, and a picture.

use super::page::escape;
use super::page::steps::decimal_step;
use comfy_table::{CellAlignment, Table, presets};
use plimsoll_plan::{CurvePoint, Found};
use plimsoll_units::{Bytes, Seconds};
use serde_json::{Value, json};
use std::fmt::Write;

/// A row for each budget. The plan's own row, or the last row within its budget, is marked.
pub fn curve_table(points: &[CurvePoint], chosen: &Found) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["budget", "peak", "step", "time", "micro-batch", "optimizer", "weights", "sent blocks", ""]);
    let fastest = points.iter().map(|point| point.found.step.0).fold(f64::INFINITY, f64::min);
    let here = points.iter().rposition(|point| point.budget.0 <= chosen.plan.budget().device().0);
    for (index, CurvePoint { budget, found }) in points.iter().enumerate() {
        table.add_row([
            budget.to_string(),
            found.plan.peak().to_string(),
            milliseconds(found.step),
            format!("{:.2} x", found.step.0 / fastest),
            format!("{} x {}", found.plan.micro_batch, found.plan.accumulation),
            format!("{:.0} %", 100.0 * found.settings.levers.optimizer_offload),
            format!("{:.0} %", 100.0 * found.settings.levers.weight_offload),
            found.settings.levers.activation_offload.to_string(),
            mark(here == Some(index), found, chosen).to_owned(),
        ]);
    }
    for column in 0..=7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// The mark of a row: whether it is the plan above, or the last row within the plan's budget.
fn mark(is_here: bool, row: &Found, chosen: &Found) -> &'static str {
    match is_here {
        true if row.settings == chosen.settings => "< the plan above",
        true => "< the budget above ends here",
        false => "",
    }
}

/// The same as data. Units are in the keys.
pub fn curve_json(points: &[CurvePoint]) -> Value {
    let point = |CurvePoint { budget, found }: &CurvePoint| {
        json!({
            "budget_bytes": budget.0,
            "peak_bytes": found.plan.peak().0,
            "host_bytes": found.plan.host().0,
            "step_ms": found.step.0 * 1e3,
            "micro_batch": found.plan.micro_batch,
            "activation_offload_blocks": found.settings.levers.activation_offload,
            "optimizer_offload": found.settings.levers.optimizer_offload,
            "weight_offload": found.settings.levers.weight_offload,
        })
    };
    points.iter().map(point).collect()
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Left, top, right and bottom.
const MARGINS: [f64; 4] = [76.0, 44.0, 24.0, 48.0];

/// Time of a step against memory, with the plan as a dot; in light and dark.
pub fn curve_svg(model: &str, points: &[CurvePoint], chosen: &Found) -> String {
    let [left, top, right, bottom] = MARGINS;
    let all = || points.iter().map(|point| &point.found).chain([chosen]);
    let memory_max = all().map(|found| found.plan.peak().0).max().unwrap_or(1).max(1) as f64;
    let step_max = all().map(|found| found.step.0).fold(f64::MIN_POSITIVE, f64::max);
    let x = |bytes: f64| left + (WIDTH - left - right) * bytes / memory_max;
    let y = |seconds: f64| HEIGHT - bottom - (HEIGHT - top - bottom) * seconds / (1.05 * step_max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<style>\
         text{{font:12px system-ui,sans-serif;fill:#444}}.title{{font-weight:600;font-size:14px}}\
         .back{{fill:#fff}}.grid{{stroke:#ddd}}.curve{{fill:none;stroke:#0067b1;stroke-width:2}}\
         .plan{{fill:#d1495b}}@media(prefers-color-scheme:dark){{text{{fill:#ccc}}.back{{fill:#16181d}}\
         .grid{{stroke:#333}}.curve{{stroke:#6cb8ff}}}}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{left}\" y=\"24\">{}: predicted time of a step by memory of the device</text>\n",
        escape(model)
    );
    let gib = Bytes::gib(1).0 as f64;
    for value in ticks(memory_max / gib) {
        let at = x(value * gib);
        let text = HEIGHT - bottom + 20.0;
        writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{}\"/>", HEIGHT - bottom)
            .and_then(|()| writeln!(svg, "<text x=\"{at:.1}\" y=\"{text}\" text-anchor=\"middle\">{value} GiB</text>"))
            .expect("a string takes all");
    }
    for value in ticks(step_max) {
        let at = y(value);
        writeln!(svg, "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>", WIDTH - right)
            .and_then(|()| {
                let (text, label) = (left - 8.0, milliseconds(Seconds(value)));
                writeln!(svg, "<text x=\"{text}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", at + 4.0)
            })
            .expect("a string takes all");
    }
    // Memory beyond a plan's need does not speed it up, so the curve is a staircase.
    let mut path = String::new();
    for (index, CurvePoint { budget, found }) in points.iter().enumerate() {
        let (across, down) = (x(budget.0 as f64), y(found.step.0));
        let step = if index == 0 { format!("M{across:.1} {down:.1}") } else { format!("H{across:.1}V{down:.1}") };
        path.push_str(&step);
    }
    let (across, down) = (x(chosen.plan.peak().0 as f64), y(chosen.step.0));
    write!(
        svg,
        "<path class=\"curve\" d=\"{path}\"/>\n<circle class=\"plan\" cx=\"{across:.1}\" cy=\"{down:.1}\" r=\"5\">\
         <title>the plan: {}, {} per step</title></circle>\n</svg>\n",
        chosen.plan.peak(),
        milliseconds(chosen.step)
    )
    .expect("a string takes all");
    svg
}

/// Round values from zero to this, five at the most.
fn ticks(most: f64) -> impl Iterator<Item = f64> {
    const FINE: f64 = 1e4;
    let step = decimal_step(((most * FINE) as usize).max(1), 5);
    (0..=(most * FINE) as usize / step).map(move |index| (index * step) as f64 / FINE)
}

/// As people read it: `3.20 s`, `186 ms`, `1.25 ms`.
fn milliseconds(Seconds(seconds): Seconds) -> String {
    match seconds * 1e3 {
        0.0 => "0".to_owned(),
        ms if ms >= 1e3 => format!("{seconds:.2} s"),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (most, expected) in [(24.0, vec![0.0, 5.0, 10.0, 15.0, 20.0]), (0.93, vec![0.0, 0.2, 0.4, 0.6, 0.8])] {
            assert_eq!(ticks(most).collect::<Vec<_>>(), expected);
        }
        assert!((1..4000).all(|most| (2..=6).contains(&ticks(f64::from(most) / 64.0).count())));
    }
}
