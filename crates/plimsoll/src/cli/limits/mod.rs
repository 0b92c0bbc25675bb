//! `plimsoll limits`: what failed on this user's devices, and what later runs do differently because of it.

mod store;

pub(super) use store::Limits;

use super::Failure;
use super::failure::{exit_code, io_failure};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::{DeviceFailure, DeviceFailures, FailureKind, PinLimit, SafeDevice, SafeLevel};
use clap::Args;
use plimsoll_telemetry::now_s;
use plimsoll_units::{Seconds, format_duration};
use serde_json::json;

#[derive(Debug, Args)]
pub(super) struct LimitsArgs {
    /// Forget the failures of this device, by its name in the list; without a name, all
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "")]
    forget: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &LimitsArgs) -> Result<u8, Failure> {
    let limits = Limits::open();
    let Some(path) = limits.path() else {
        return Err(
            Failure::device("failures are not remembered: no home folder is known").hint("set HOME or XDG_STATE_HOME")
        );
    };
    let known = limits.known();
    if let Some(device) = &args.forget {
        let device = Some(device.as_str()).filter(|device| !device.is_empty());
        let mut count = 0;
        limits.record(|failures, _| count = failures.forget(device)).map_err(io_failure(path.display()))?;
        if let (0, Some(device)) = (count, device) {
            return Err(Failure::bad_flag(format!("nothing is remembered of the device `{device}`"))
                .hint("`plimsoll limits` lists the devices"));
        }
        talk(format_args!("forgotten: {count}"));
        return Ok(exit_code::DONE);
    }
    if args.json {
        let value = json!({ "file": path, "failures": known.failures, "safe": known.safe, "pinned": known.pinned });
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    write_data(words(&known, Seconds(now_s())))?;
    Ok(exit_code::DONE)
}

/// What is remembered, and its consequences.
fn words(known: &DeviceFailures, now: Seconds) -> String {
    let counts = |failure: &&DeviceFailure| now.0 < failure.until_s;
    let failures = known.failures.iter().filter(counts).map(|failure| failure_words(failure, now));
    let (safe, pinned) = (known.safe.iter().map(safe_words), known.pinned.iter().map(pinned_words));
    let lines = failures.chain(safe).chain(pinned).collect::<Vec<_>>();
    match lines.is_empty() {
        true => "no failures are remembered: runs begin with their usual budgets and settings".to_owned(),
        false => format!("{}\n\n`plimsoll limits --forget` forgets them", lines.join("\n")),
    }
}

fn failure_words(failure: &DeviceFailure, now: Seconds) -> String {
    let DeviceFailure { device, kind, size, count, last_s, until_s, what } = failure;
    let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
    let [ago, left] = [now.0 - last_s, until_s - now.0].map(|time| format_duration(Seconds(time.max(0.0))));
    let next = match kind {
        FailureKind::Device => "after another one, runs have safe settings".to_owned(),
        FailureKind::Refused | FailureKind::Killed => {
            format!("runs that want up to twice that begin with at most {}", failure.limit())
        }
    };
    format!("{device}: {} with {size}, {times}, last {ago} ago ({what}); for {left}, {next}", kind.words())
}

fn safe_words(SafeDevice { device, level, why }: &SafeDevice) -> String {
    format!(
        "{device}: runs have safe settings ({}), because {why}; each run that finishes undoes one",
        changes(*level).join(", ")
    )
}

fn pinned_words(PinLimit { device, pinned }: &PinLimit) -> String {
    format!("{device}: the driver pins {pinned} of host memory; plans for more count slower copies")
}

/// What a level changes.
pub(super) fn changes(level: SafeLevel) -> Vec<&'static str> {
    let all = [
        (SafeLevel::SinglePrecision, "fp32 unless `--precision` is set"),
        (SafeLevel::LessMemory, "70 % of the memory"),
        (SafeLevel::NoLibrary, "built-in matrix products"),
        (SafeLevel::NoCapture, "no launches of whole steps"),
    ];
    all.into_iter().filter(|(from, _)| level >= *from).map(|(_, what)| what).collect()
}
