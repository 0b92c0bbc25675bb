//! The report for programs.

use super::StressReport;
use plimsoll_stress::{Ending, Mismatch, Outcome, PhaseRun, Readings, Series, Unit, Verdict};
use serde_json::{Value, json};

/// Everything that was found. Unknown values are null.
pub fn stress_json(report: &StressReport) -> Value {
    let findings = &report.findings;
    let (memory, wrong) = (&findings.memory, &findings.wrong);
    let (ending, error) = match &findings.ending {
        Ending::Finished => ("finished", None),
        Ending::Interrupted => ("interrupted", None),
        Ending::TooHot => ("too_hot", None),
        Ending::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "passed": report.passed(),
        "device": report.device,
        "stand_in": report.is_stand_in,
        "ending": ending,
        "error": error,
        "planned_s": findings.planned,
        "ran_s": findings.ran,
        "verdicts": report.verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "phases": findings.phases.iter().map(phase).collect::<Vec<_>>(),
        "workloads": findings.series.iter().map(|series| workload(report, series)).collect::<Vec<_>>(),
        "memory": {
            "reserved_bytes": memory.reserved,
            "patterned_bytes": memory.patterned,
            "compared_bytes": memory.compared,
            "used_bytes": memory.used,
            "of_bytes": memory.of,
            "of_gpu": memory.is_of_card,
        },
        "wrong": {
            "values": wrong.values,
            "bits": wrong.bits,
            "checks": wrong.checks,
            "first": wrong.first.iter().map(mismatch).collect::<Vec<_>>(),
        },
        "readings": findings.readings.as_ref().map(readings),
    })
}

fn verdict(verdict: &Verdict) -> Value {
    let (outcome, reason) = match &verdict.outcome {
        Outcome::Pass => ("pass", None),
        Outcome::Fail => ("fail", None),
        Outcome::NotJudged(why) => ("not_judged", Some(why)),
    };
    json!({
        "metric": verdict.metric.key(),
        "limit": verdict.limit,
        "measured": verdict.measured,
        "outcome": outcome,
        "reason": reason,
    })
}

fn phase(phase: &PhaseRun) -> Value {
    json!({ "number": phase.number, "name": phase.name, "planned_s": phase.planned, "ran_s": phase.ran })
}

fn workload(report: &StressReport, series: &Series) -> Value {
    let size = report.findings.sizes.iter().find(|(name, _)| *name == series.workload).map(|(_, size)| size);
    let unit = match series.unit {
        Unit::Flops => "flop",
        Unit::Bytes => "byte",
        Unit::Tokens => "token",
    };
    json!({
        "workload": series.workload,
        "size": size,
        "unit": unit,
        "per_s_p50": series.median(),
        "slow_part": series.slow_part(),
        "turns": series.speeds.len(),
        "busy_s": series.busy,
    })
}

fn mismatch(mismatch: &Mismatch) -> Value {
    json!({
        "workload": mismatch.workload,
        "memory": if mismatch.on_host { "host" } else { "device" },
        "offset_bytes": mismatch.offset,
        "found": mismatch.bits.map(|[found, _]| found),
        "expected": mismatch.bits.map(|[_, expected]| expected),
        "differing": mismatch.differing(),
    })
}

fn readings(readings: &Readings) -> Value {
    json!({
        "samples": readings.samples,
        "hottest_c": readings.hottest_c,
        "sustained_c": readings.sustained_c,
        "memory_c": readings.memory_c,
        "power_mean_w": readings.power_w.map(|[mean, _]| mean),
        "power_max_w": readings.power_w.map(|[_, most]| most),
        "power_limit_w": readings.power_limit_w,
        "clock_min_mhz": readings.clock_mhz.map(|[least, _]| least),
        "clock_max_mhz": readings.clock_mhz.map(|[_, most]| most),
        "throttling": readings.throttling.iter().map(|(reasons, count)| json!({
            "reasons": reasons.words(), "samples": count,
        })).collect::<Vec<_>>(),
        "ecc_corrected": readings.ecc.map(|[corrected, _]| corrected),
        "ecc_uncorrected": readings.ecc.map(|[_, uncorrected]| uncorrected),
        "xids": readings.xids,
        "held_back_s": readings.held_back,
    })
}
