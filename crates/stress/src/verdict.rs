//! The verdict for each metric, from the findings. Pure.

use crate::findings::{Ending, Findings, Readings, Series, Unit};
use plimsoll_units::Seconds;

/// The least part of the memory that must be in use.
const MEMORY_USE: f64 = 0.9;

/// The temperature, °C, below which the core must stay, and for how long it may be there.
const TEMPERATURE_C: f64 = 80.0;
pub(crate) const SUSTAINED: Seconds = Seconds(10.0);

/// The least part of its median speed that a workload must reach in nine of ten turns.
const STEADY: f64 = 0.9;

/// Turns, and seconds, that a workload needs before its speeds are compared.
const TURNS: usize = 10;
const TURNS_S: f64 = 5.0;

/// How much faster the fastest precision must be than single precision.
const SPEEDUP: f64 = 3.0;

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// The used part of the memory.
    MemoryUse,
    /// The temperature that the core holds.
    Temperature,
    /// Results that differ from their known answers.
    WrongBits,
    /// Errors that the card and its driver count.
    CardErrors,
    /// Whether speeds fall during the run.
    SteadySpeed,
    /// The fastest precision compared with single precision.
    Speedup,
    /// Whether the whole duration passed.
    Uninterrupted,
}

impl Metric {
    /// All metrics, in the order of the output.
    pub const ALL: [Self; 7] = [
        Self::MemoryUse,
        Self::Temperature,
        Self::WrongBits,
        Self::CardErrors,
        Self::SteadySpeed,
        Self::Speedup,
        Self::Uninterrupted,
    ];

    /// Its name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::MemoryUse => "memory_use",
            Self::Temperature => "temperature",
            Self::WrongBits => "wrong_bits",
            Self::CardErrors => "gpu_errors",
            Self::SteadySpeed => "steady_speed",
            Self::Speedup => "speedup",
            Self::Uninterrupted => "uninterrupted",
        }
    }
}

/// What becomes of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Within its limit.
    Pass,
    /// Not within its limit.
    Fail,
    /// No verdict, and why.
    NotJudged(String),
}

/// The verdict for a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The metric.
    pub metric: Metric,
    /// Its limit: a fraction, °C, a count, a factor or seconds.
    pub limit: f64,
    /// Its measured value in the same unit; `None` if there is none.
    pub measured: Option<f64>,
    /// Pass or fail.
    pub outcome: Outcome,
}

/// The device's units for products of matrices, which decide whether [`Metric::Speedup`] is judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MatrixUnits {
    /// The device has none.
    None,
    /// The ratio of their rate to the rate in single precision, by the data sheet.
    OnPaper(f64),
    /// The device is a stand-in, whose speed means nothing.
    StandIn,
}

/// What the verdicts depend on in addition to the findings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Criteria {
    /// The device's units for products.
    pub matrix_units: MatrixUnits,
}

/// A verdict for every metric.
pub fn judge(findings: &Findings, criteria: &Criteria) -> Vec<Verdict> {
    Metric::ALL.into_iter().map(|metric| judge_one(metric, findings, criteria)).collect()
}

fn judge_one(metric: Metric, findings: &Findings, criteria: &Criteria) -> Verdict {
    let readings = findings.readings.as_ref();
    match metric {
        Metric::MemoryUse => {
            let memory = &findings.memory;
            let part = (memory.of.0 > 0).then(|| memory.used.as_f64() / memory.of.as_f64());
            decide(metric, MEMORY_USE, part.ok_or("no memory was reserved"), |part| part > MEMORY_USE)
        }
        Metric::Temperature => {
            let celsius = temperature(readings);
            let is_too_hot = findings.ending == Ending::TooHot;
            decide(metric, TEMPERATURE_C, celsius, |celsius| celsius < TEMPERATURE_C && !is_too_hot)
        }
        Metric::WrongBits => {
            let wrong = &findings.wrong;
            let bits = if wrong.checks == 0 && wrong.bits == 0 { Err("nothing was compared") } else { Ok(wrong.bits) };
            decide(metric, 0.0, bits.map(|bits| bits as f64), |bits| bits == 0.0)
        }
        Metric::CardErrors => decide(metric, 0.0, card_errors(readings), |errors| errors == 0.0),
        Metric::SteadySpeed => {
            let parts = findings.series.iter().filter(|series| is_judged(series)).map(Series::slow_part);
            let slowest = parts.min_by(f64::total_cmp).ok_or("no computation ran for 5 seconds in 10 turns");
            decide(metric, STEADY, slowest, |part| part >= STEADY)
        }
        Metric::Speedup => {
            let speedup =
                speedup(&findings.series).ok_or("no product ran in single and in another precision".to_owned());
            match not_comparable(criteria.matrix_units) {
                Some(why) => {
                    Verdict { metric, limit: SPEEDUP, measured: speedup.ok(), outcome: Outcome::NotJudged(why) }
                }
                None => decide(metric, SPEEDUP, speedup, |speedup| speedup >= SPEEDUP),
            }
        }
        Metric::Uninterrupted => {
            let (ran, planned) = (findings.ran.0, findings.planned.0);
            match findings.ending {
                Ending::Interrupted => Verdict {
                    metric,
                    limit: planned,
                    measured: Some(ran),
                    outcome: Outcome::NotJudged("the test was interrupted".to_owned()),
                },
                _ => decide::<&str>(metric, planned, Ok(ran), |_| findings.ending == Ending::Finished),
            }
        }
    }
}

/// Judges a value by a test, or gives the reason why there is none.
fn decide<E: Into<String>>(
    metric: Metric,
    limit: f64,
    measured: Result<f64, E>,
    passes: impl FnOnce(f64) -> bool,
) -> Verdict {
    let (measured, outcome) = match measured {
        Ok(value) => (Some(value), if passes(value) { Outcome::Pass } else { Outcome::Fail }),
        Err(why) => (None, Outcome::NotJudged(why.into())),
    };
    Verdict { metric, limit, measured, outcome }
}

fn temperature(readings: Option<&Readings>) -> Result<f64, &'static str> {
    let readings = readings.ok_or("the CPU's temperature is not read")?;
    readings.sustained_c.ok_or("the GPU reports no temperature")
}

/// Memory errors, and errors that the driver reported.
fn card_errors(readings: Option<&Readings>) -> Result<f64, &'static str> {
    let readings = readings.ok_or("the CPU's memory errors are not read")?;
    let xids = readings.xids.len() as u64;
    match readings.ecc {
        Some([corrected, uncorrected]) => Ok((corrected + uncorrected + xids) as f64),
        None if xids > 0 => Ok(xids as f64),
        None => Err("the GPU counts no memory errors"),
    }
}

/// Whether the speeds of a workload are judged. Those of copies depend on the host.
fn is_judged(series: &Series) -> bool {
    series.unit != Unit::Bytes && series.speeds.len() >= TURNS && series.busy.0 >= TURNS_S
}

/// The workload of products in single precision.
pub(crate) const BASELINE: &str = "product, fp32";

/// The speed of the fastest product relative to that in single precision.
fn speedup(series: &[Series]) -> Option<f64> {
    let baseline = series.iter().find(|series| series.workload == BASELINE)?.median();
    let others = series.iter().filter(|series| series.unit == Unit::Flops && series.workload.starts_with("product, "));
    let others = others.filter(|series| series.workload != BASELINE).map(Series::median);
    others.max_by(f64::total_cmp).filter(|_| baseline > 0.0).map(|fastest| fastest / baseline)
}

/// Why the speedup is not judged on a device with these units.
fn not_comparable(units: MatrixUnits) -> Option<String> {
    match units {
        MatrixUnits::None => Some("the device has no matrix units".to_owned()),
        MatrixUnits::StandIn => Some("the device is a stand-in for a GPU".to_owned()),
        MatrixUnits::OnPaper(ratio) if ratio < SPEEDUP => {
            Some(format!("this GPU's tensor cores reach {ratio:.1} times by its data sheet"))
        }
        MatrixUnits::OnPaper(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{MemoryFilled, WrongResults};
    use plimsoll_units::Bytes;

    /// Changes findings so that a metric fails.
    type Spoil = Box<dyn Fn(&mut Findings)>;

    fn series(workload: &str, speeds: &[f64]) -> Series {
        Series { workload: workload.to_owned(), unit: Unit::Flops, speeds: speeds.to_vec(), busy: Seconds(20.0) }
    }

    /// A run that passes every metric.
    fn good() -> Findings {
        let memory = MemoryFilled { used: Bytes(95), of: Bytes(100), ..MemoryFilled::default() };
        Findings {
            phases: vec![],
            sizes: vec![],
            series: vec![series(BASELINE, &[1.0; 20]), series("product, bf16", &[4.0; 20])],
            memory,
            wrong: WrongResults { checks: 7, ..WrongResults::default() },
            readings: Some(Readings { sustained_c: Some(79.0), ecc: Some([0, 0]), ..Readings::default() }),
            ending: Ending::Finished,
            planned: Seconds(60.0),
            ran: Seconds(60.0),
        }
    }

    fn outcomes(findings: &Findings, matrix_units: MatrixUnits) -> Vec<(Metric, Outcome)> {
        let verdicts = judge(findings, &Criteria { matrix_units });
        verdicts.into_iter().map(|verdict| (verdict.metric, verdict.outcome)).collect()
    }

    #[test]
    fn each_metric_fails_beyond_its_limit_alone() {
        let units = MatrixUnits::OnPaper(8.0);
        assert!(outcomes(&good(), units).iter().all(|(_, outcome)| *outcome == Outcome::Pass));
        let readings = |change: fn(&mut Readings)| {
            move |findings: &mut Findings| change(findings.readings.as_mut().expect("readings"))
        };
        let cases: [(Metric, Spoil); 9] = [
            (Metric::MemoryUse, Box::new(|findings| findings.memory.used = Bytes(90))),
            (Metric::Temperature, Box::new(readings(|readings| readings.sustained_c = Some(80.0)))),
            (Metric::WrongBits, Box::new(|findings| findings.wrong.bits = 1)),
            (Metric::CardErrors, Box::new(readings(|readings| readings.ecc = Some([1, 0])))),
            (Metric::CardErrors, Box::new(readings(|readings| readings.ecc = Some([0, 1])))),
            (Metric::CardErrors, Box::new(readings(|readings| readings.xids = vec![48]))),
            (Metric::SteadySpeed, Box::new(|findings| findings.series[1].speeds[..3].fill(3.5))),
            (Metric::Speedup, Box::new(|findings| findings.series[1].speeds = vec![2.9; 20])),
            (Metric::Uninterrupted, Box::new(|findings| findings.ending = Ending::Failed(String::new()))),
        ];
        for (metric, spoil) in cases {
            let mut findings = good();
            spoil(&mut findings);
            let failed = outcomes(&findings, units).into_iter().filter(|(_, outcome)| *outcome != Outcome::Pass);
            assert_eq!(failed.collect::<Vec<_>>(), [(metric, Outcome::Fail)]);
        }
    }

    #[test]
    fn what_is_not_measured_is_not_judged() {
        let not_judged = |findings: &Findings, units: MatrixUnits| {
            let outcomes = outcomes(findings, units).into_iter();
            outcomes
                .filter(|(_, outcome)| matches!(outcome, Outcome::NotJudged(_)))
                .map(|(metric, _)| metric)
                .collect::<Vec<_>>()
        };
        for units in [MatrixUnits::None, MatrixUnits::StandIn, MatrixUnits::OnPaper(2.0)] {
            assert_eq!(not_judged(&good(), units), [Metric::Speedup], "{units:?}");
        }
        let units = MatrixUnits::OnPaper(8.0);
        let processor = Findings { readings: None, ..good() };
        assert_eq!(not_judged(&processor, units), [Metric::Temperature, Metric::CardErrors]);
        let nothing =
            Findings { wrong: WrongResults::default(), series: vec![], ending: Ending::Interrupted, ..good() };
        let expected = [Metric::WrongBits, Metric::SteadySpeed, Metric::Speedup, Metric::Uninterrupted];
        assert_eq!(not_judged(&nothing, units), expected);
        let mut short = good();
        short.series.iter_mut().for_each(|series| series.busy = Seconds(1.0));
        assert_eq!(not_judged(&short, units), [Metric::SteadySpeed]);
    }
}
