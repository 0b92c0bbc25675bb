//! The verdicts of a stress test, with what they are based on. For people in `text.rs` and `page.rs`, for programs in
//! `json.rs`.

mod json;
mod page;
mod text;

pub use json::stress_json;
pub use page::stress_html;
pub use text::stress_text;

use crate::plan_table::grouped;
use plimsoll_stress::{Ending, Findings, Metric, Mismatch, Outcome, Series, Unit, Verdict};
use plimsoll_units::{Seconds, format_duration};

/// A finished or interrupted stress test.
#[derive(Debug)]
pub struct StressReport {
    /// The device's name.
    pub device: String,
    /// Whether the driver is a stand-in.
    pub is_stand_in: bool,
    /// What was found.
    pub findings: Findings,
    /// The verdict for each metric.
    pub verdicts: Vec<Verdict>,
}

impl StressReport {
    /// The metrics that failed.
    pub fn failed(&self) -> impl Iterator<Item = Metric> {
        self.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Fail).map(|verdict| verdict.metric)
    }

    /// Whether all phases ran and no metric failed.
    pub fn passed(&self) -> bool {
        self.findings.ending == Ending::Finished && self.failed().next().is_none()
    }
}

/// A metric's name.
pub fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::MemoryUse => "memory in use",
        Metric::Temperature => "sustained temperature",
        Metric::WrongBits => "wrong bits",
        Metric::CardErrors => "memory and driver errors",
        Metric::SteadySpeed => "steady speed",
        Metric::Speedup => "fastest precision",
        Metric::Uninterrupted => "time without interruption",
    }
}

/// The result of the whole test.
fn headline(report: &StressReport) -> String {
    let failed = report.failed().map(metric_name).collect::<Vec<_>>().join(", ");
    match (&report.findings.ending, failed.is_empty()) {
        (Ending::Finished, true) => "passed".to_owned(),
        (Ending::Finished, false) => format!("failed: {failed}"),
        (Ending::Interrupted, true) => "interrupted, without a failure until then".to_owned(),
        (Ending::Interrupted, false) => format!("interrupted; failed: {failed}"),
        (Ending::TooHot, _) => format!("stopped for heat; failed: {failed}"),
        (Ending::Failed(why), _) => format!("the device failed: {why}"),
    }
}

/// The device and its time.
fn subject(report: &StressReport) -> String {
    let findings = &report.findings;
    let stand_in = if report.is_stand_in { " (a stand-in for a GPU)" } else { "" };
    format!("{}{stand_in}, {} of {}", report.device, short(findings.ran), short(findings.planned))
}

/// A time, with parts of a second if it is short.
fn short(time: Seconds) -> String {
    if time.0 < 10.0 { format!("{:.1} s", time.0) } else { format_duration(time) }
}

const VERDICT_HEADS: [&str; 4] = ["metric", "limit", "measured", "verdict"];

/// Metric, limit, measured value and verdict.
fn verdict_rows(report: &StressReport) -> Vec<[String; 4]> {
    let row = |verdict: &Verdict| {
        let outcome = match &verdict.outcome {
            Outcome::Pass => "pass".to_owned(),
            Outcome::Fail => "FAIL".to_owned(),
            Outcome::NotJudged(why) => format!("not judged: {why}"),
        };
        let measured =
            verdict.measured.map_or("-".to_owned(), |value| measured(verdict.metric, value, &report.findings));
        [metric_name(verdict.metric).to_owned(), limit(verdict), measured, outcome]
    };
    report.verdicts.iter().map(row).collect()
}

fn limit(verdict: &Verdict) -> String {
    let limit = verdict.limit;
    match verdict.metric {
        Metric::MemoryUse => format!("over {:.0} %", 100.0 * limit),
        Metric::Temperature => format!("below {limit:.0} °C"),
        Metric::WrongBits | Metric::CardErrors => format!("{limit:.0}"),
        Metric::SteadySpeed => format!("{:.0} % of the median", 100.0 * limit),
        Metric::Speedup => format!("{limit:.0} times fp32"),
        Metric::Uninterrupted => short(Seconds(limit)),
    }
}

fn measured(metric: Metric, value: f64, findings: &Findings) -> String {
    match metric {
        Metric::MemoryUse => {
            let memory = &findings.memory;
            let whose = if memory.is_of_card { "of the GPU's" } else { "of the budget's" };
            format!("{:.1} %, {} {whose} {}", 100.0 * value, memory.used, memory.of)
        }
        Metric::Temperature => format!("{value:.0} °C"),
        Metric::WrongBits => format!("{} in {} comparisons", grouped(value as u64), grouped(findings.wrong.checks)),
        Metric::CardErrors => grouped(value as u64),
        Metric::SteadySpeed => format!("{:.0} %", 100.0 * value),
        Metric::Speedup => format!("{value:.1} times"),
        Metric::Uninterrupted => short(Seconds(value)),
    }
}

const WORKLOAD_HEADS: [&str; 5] = ["workload", "size", "median speed", "nine of ten turns reach", "time"];

/// Each workload with its size and speed.
fn workload_rows(findings: &Findings) -> Vec<[String; 5]> {
    let size = |series: &Series| findings.sizes.iter().find(|(name, _)| *name == series.workload);
    let row = |series: &Series| {
        [
            series.workload.clone(),
            size(series).map_or("-".to_owned(), |(_, size)| size.clone()),
            speed(series.unit, series.median()),
            format!("{:.0} %", 100.0 * series.slow_part()),
            short(series.busy),
        ]
    };
    findings.series.iter().map(row).collect()
}

fn speed(unit: Unit, per_second: f64) -> String {
    match unit {
        Unit::Flops if per_second >= 1e12 => format!("{:.1} TFLOP/s", per_second / 1e12),
        Unit::Flops => format!("{:.2} GFLOP/s", per_second / 1e9),
        Unit::Bytes => format!("{:.2} GB/s", per_second / 1e9),
        Unit::Tokens => format!("{per_second:.0} tokens/s"),
    }
}

/// What the card reported, one fact per line.
fn reading_lines(findings: &Findings) -> Vec<String> {
    let Some(readings) = &findings.readings else { return vec![] };
    let mut lines = Vec::new();
    if let Some(hottest) = readings.hottest_c {
        let memory = readings.memory_c.map_or(String::new(), |celsius| format!("; its memory up to {celsius:.0} °C"));
        lines.push(format!("temperature: up to {hottest:.0} °C{memory}"));
    }
    if let Some([mean, most]) = readings.power_w {
        let limit = readings.power_limit_w.map_or(String::new(), |limit| format!(", limit {limit:.0} W"));
        lines.push(format!("power: mean {mean:.0} W, up to {most:.0} W{limit}"));
    }
    if let Some([least, most]) = readings.clock_mhz {
        lines.push(format!("clock: {least} to {most} MHz"));
    }
    for (reasons, count) in &readings.throttling {
        let (words, all) = (reasons.words().join(", "), readings.samples);
        lines.push(format!("lowered clocks in {count} of {all} samples: {words}"));
    }
    if let Some([corrected, uncorrected]) = readings.ecc.filter(|counts| *counts != [0, 0]) {
        lines.push(format!("new memory errors: {corrected} corrected, {uncorrected} uncorrected"));
    }
    if !readings.xids.is_empty() {
        let numbers = readings.xids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        lines.push(format!("errors that the driver reported (Xid): {numbers}"));
    }
    if readings.held_back.0 >= 0.1 {
        lines.push(format!("work held back for heat: {}", short(readings.held_back)));
    }
    lines
}

/// The wrong values that are known with their place.
fn mismatch_lines(findings: &Findings) -> Vec<String> {
    let wrong = &findings.wrong;
    let line = |mismatch: &Mismatch| {
        let place = if mismatch.on_host { "host" } else { "device" };
        let Mismatch { workload, offset, bits, .. } = mismatch;
        match bits {
            Some([found, expected]) => format!(
                "{workload}: byte {offset:#x} of the {place}'s memory: found {found:#010x}, expected {expected:#010x}, differing \
                 bits {:#010x}",
                mismatch.differing()
            ),
            None => {
                format!("{workload}: a result at byte {offset:#x} of the {place}'s memory differs from the first one")
            }
        }
    };
    let mut lines = wrong.first.iter().map(line).collect::<Vec<_>>();
    let more = wrong.values - wrong.first.len() as u64;
    if more > 0 {
        lines.push(format!("and {} more wrong values", grouped(more)));
    }
    lines
}
