//! A row: some values at a step, named like the metrics of Hugging Face's Trainer; the machine's values are named like
//! W&B's system metrics. Pure: converts events and samples to rows.

use plimsoll_telemetry::{CardSample, Event, Sample};
use std::borrow::Cow;

/// A metric's name.
pub(crate) type Name = Cow<'static, str>;

/// Some values at a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// The last completed step.
    pub(crate) step: u64,
    /// Seconds since 1970, UTC.
    pub(crate) time_s: f64,
    /// Names and values; values may be NaN or infinite.
    pub(crate) values: Vec<(Name, f64)>,
    /// Whether it describes the machine and not the training.
    pub(crate) of_machine: bool,
}

pub(crate) const EPOCH: &str = "train/epoch";

/// The names of all metrics that a run itself may log, in the order of the columns.
pub(crate) const METRICS: [&str; 10] = [
    "train/loss",
    "train/learning_rate",
    "train/grad_norm",
    "train/tokens_per_second",
    "train/step_ms",
    "train/memory_bytes",
    EPOCH,
    "train/loss_scale",
    "eval/loss",
    "eval/average_loss",
];

/// The row for an event; `None` for most. A step that diverged logs NaN for values that are not finite.
pub(crate) fn row_of(event: &Event, time_s: f64, steps_per_epoch: Option<f64>) -> Option<Row> {
    let nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let (step, mut values): (u64, Vec<(&'static str, f64)>) = match *event {
        Event::Step { step, loss, learning_rate, grad_norm, step_ms, tokens_per_s, memory_bytes } => (
            step,
            vec![
                ("train/loss", loss),
                ("train/learning_rate", learning_rate),
                ("train/grad_norm", grad_norm),
                ("train/tokens_per_second", tokens_per_s),
                ("train/step_ms", step_ms),
                ("train/memory_bytes", memory_bytes as f64),
            ],
        ),
        Event::UpdateSkipped { step, loss, loss_scale } => {
            (step, vec![("train/loss", loss), ("train/loss_scale", loss_scale.into())])
        }
        Event::Diverged { step, loss, grad_norm, .. } => {
            (step, vec![("train/loss", nan(loss)), ("train/grad_norm", nan(grad_norm))])
        }
        Event::Evaluated { step, loss, average_loss, .. } => {
            let average = average_loss.map(|loss| ("eval/average_loss", loss));
            (step, std::iter::once(("eval/loss", loss)).chain(average).collect())
        }
        Event::Rewards { step, held_out, chosen, rejected, accuracy } => {
            let margin = chosen.zip(rejected).map(|(chosen, rejected)| chosen - rejected);
            let values = rewards_of(held_out).into_iter().zip([chosen, rejected, accuracy, margin]);
            (step, values.filter_map(|(name, value)| Some((name, value?))).collect())
        }
        _ => return None,
    };
    // Once per step: MLflow's database accepts no value twice.
    let is_of_step = !matches!(event, Event::Evaluated { .. } | Event::Rewards { .. });
    let of_steps = steps_per_epoch.filter(|steps| is_of_step && *steps > 0.0);
    values.extend(of_steps.map(|steps| (EPOCH, step as f64 / steps)));
    let values = values.into_iter().map(|(name, value)| (name.into(), value)).collect();
    Some(Row { step, time_s, values, of_machine: false })
}

/// The names of rewards, as TRL has them.
fn rewards_of(held_out: bool) -> [&'static str; 4] {
    match held_out {
        true => ["eval/rewards/chosen", "eval/rewards/rejected", "eval/rewards/accuracies", "eval/rewards/margins"],
        false => {
            ["train/rewards/chosen", "train/rewards/rejected", "train/rewards/accuracies", "train/rewards/margins"]
        }
    }
}

/// Prefix of the machine's metrics, as displayed by W&B.
pub(crate) const SYSTEM: &str = "system/";

/// The row for a sample; `None` without readings.
pub(crate) fn row_of_machine(sample: &Sample, step: u64) -> Option<Row> {
    let mut values = Vec::new();
    let mut add = |name: &str, value: Option<f64>| {
        values.extend(value.map(|value| (Name::from(format!("{SYSTEM}{name}")), value)));
    };
    for card in &sample.cards {
        let of_card = |what: &str| format!("gpu.{}.{what}", card.index);
        for (what, value) in of_card_sample(card) {
            add(&of_card(what), value);
        }
    }
    let system = &sample.system;
    let part = |used: Option<f64>, all: Option<f64>| Some(100.0 * used? / all.filter(|all| *all > 0.0)?);
    let bytes = |bytes: Option<plimsoll_units::Bytes>| bytes.map(|bytes| bytes.0 as f64);
    let used = |all: Option<f64>, free: Option<f64>| Some((all? - free?).max(0.0));
    let (memory, disk) = (bytes(system.memory_total), bytes(system.disk_total));
    add("cpu.cpu_percent", system.cpu_percent);
    add("memory_percent", part(used(memory, bytes(system.memory_available)), memory));
    add("proc.memory.rssMB", system.process.map(|bytes| bytes.0 as f64 / f64::from(1 << 20)));
    add("disk.run.usagePercent", part(used(disk, bytes(system.disk_free)), disk));
    (!values.is_empty()).then_some(Row { step, time_s: sample.time_s, values, of_machine: true })
}

fn of_card_sample(card: &CardSample) -> [(&'static str, Option<f64>); 13] {
    let percent = |part: Option<f64>, all: Option<f64>| Some(100.0 * part? / all.filter(|all| *all > 0.0)?);
    let bytes = |bytes: Option<plimsoll_units::Bytes>| bytes.map(|bytes| bytes.0 as f64);
    let used = bytes(card.used);
    [
        ("gpu", card.busy_percent.map(f64::from)),
        ("memory", card.memory_busy_percent.map(f64::from)),
        ("memoryAllocated", percent(used, bytes(card.total))),
        ("memoryAllocatedBytes", used),
        ("temp", card.temperature_c),
        ("memoryTemp", card.memory_temperature_c),
        ("powerWatts", card.power_w),
        ("enforcedPowerLimitWatts", card.power_limit_w),
        ("powerPercent", percent(card.power_w, card.power_limit_w)),
        ("smClock", card.sm_clock_mhz.map(f64::from)),
        ("memoryClock", card.memory_clock_mhz.map(f64::from)),
        ("fanSpeed", card.fan_percent.map(f64::from)),
        ("uncorrectedMemoryErrors", card.ecc_uncorrected.map(|errors| errors as f64)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Bytes;

    fn names(row: &Row) -> Vec<&str> {
        row.values.iter().map(|(name, _)| &**name).collect()
    }

    #[test]
    fn metrics_have_the_names_of_hugging_face() {
        let step = Event::Step {
            step: 30,
            loss: 2.5,
            learning_rate: 1e-3,
            grad_norm: 0.5,
            step_ms: 10.0,
            tokens_per_s: 100.0,
            memory_bytes: 7,
        };
        let row = row_of(&step, 1.0, Some(20.0)).expect("a row");
        assert_eq!(
            names(&row)[..4],
            ["train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_second"]
        );
        assert_eq!(row.values.last(), Some(&(EPOCH.into(), 1.5)));
        let held_out = Event::Evaluated { step: 30, loss: 2.0, average_loss: Some(1.0), tokens: 4 };
        let row = row_of(&held_out, 1.0, Some(20.0)).expect("a row");
        assert_eq!(names(&row), ["eval/loss", "eval/average_loss"], "no epoch, since the step's row has it");
        assert_eq!(row_of(&Event::Interrupted { step: 3 }, 1.0, None), None);
        for event in [step, held_out] {
            let row = row_of(&event, 1.0, Some(1.0)).expect("a row");
            assert!(names(&row).iter().all(|name| METRICS.contains(name)), "a column is missing for {row:?}");
        }
    }

    #[test]
    fn a_diverged_step_logs_nan() {
        let diverged = Event::Diverged { step: 4, loss: None, grad_norm: Some(3.0), weights_whole: true, tensor: None };
        let row = row_of(&diverged, 1.0, None).expect("a row");
        assert!(row.values[0].1.is_nan() && row.values[1].1 == 3.0);
    }

    #[test]
    fn a_missing_reading_is_not_logged() {
        let card = CardSample {
            index: 1,
            temperature_c: Some(60.0),
            used: Some(Bytes(50)),
            total: Some(Bytes(200)),
            power_w: Some(90.0),
            ..CardSample::default()
        };
        let sample = Sample { time_s: 5.0, cards: vec![card], ..Sample::default() };
        let row = row_of_machine(&sample, 9).expect("a row");
        let expected = [
            ("system/gpu.1.memoryAllocated", 25.0),
            ("system/gpu.1.memoryAllocatedBytes", 50.0),
            ("system/gpu.1.temp", 60.0),
            ("system/gpu.1.powerWatts", 90.0),
        ];
        assert_eq!(row.values, expected.map(|(name, value)| (Name::from(name), value)));
        assert!(row.of_machine && row.step == 9);
        assert_eq!(row_of_machine(&Sample::default(), 9), None);
    }
}
