//! `plimsoll ps`: lists this user's runs and their progress. It changes nothing without `--adopt`.

use super::{RunsArgs, background};
use crate::cli::Failure;
use crate::cli::failure::exit_code;
use crate::streams::{talk, write_data};
use clap::Args;
use plimsoll_files::read_end_inside;
use plimsoll_registry::{Entry, Progress, RunKind, RunState, progress_of};
use plimsoll_render::{ListedRun, Speed, runs_json, runs_table};
use plimsoll_telemetry::{Event, Record};
use plimsoll_units::Bytes;
use std::fs;

/// The last bytes of a journal that are searched for the last step.
const END: Bytes = Bytes(16 << 10);

/// The last bytes of a journal whose steps count for the speed: some hundred steps.
const LAST_STEPS: Bytes = Bytes(256 << 10);

#[derive(Debug, Args)]
pub(in crate::cli) struct PsArgs {
    /// Include runs that ended
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Start a supervisor for each run that lost its own
    #[arg(long)]
    adopt: bool,
    /// Print nothing, and end with exit code 0 if a run is running, else 5: for health checks
    #[arg(long, conflicts_with_all = ["all", "json", "adopt"])]
    check: bool,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run(args: &PsArgs) -> Result<u8, Failure> {
    if args.check {
        let is_running = args.runs.registry().entries().iter().any(|entry| entry.state() == RunState::Running);
        return Ok(if is_running { exit_code::DONE } else { exit_code::DEVICE_FAILED });
    }
    let listed = args.runs.registry().entries().into_iter().filter_map(|entry| {
        let state = entry.state();
        let is_shown = args.all || matches!(state, RunState::Running | RunState::Orphaned | RunState::Elsewhere);
        if !is_shown {
            return None;
        }
        let adopted = (args.adopt && state == RunState::Orphaned).then(|| adopted(&entry)).flatten();
        let adopted_by = adopted.as_ref().map(|entry| entry.process.pid);
        let entry = adopted.unwrap_or(entry);
        let (progress, owner) = (progress(&entry), other_owner(&entry));
        // Running runs alone are not compared, so that the list stays narrow.
        let speed = args.all.then(|| speed(&entry, state, progress)).flatten();
        Some(ListedRun { state, progress, speed, adopted_by, owner, entry })
    });
    let listed = listed.collect::<Vec<_>>();
    if args.json {
        write_data(serde_json::to_string_pretty(&runs_json(&listed)).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    match listed.is_empty() {
        true if args.all => talk("no runs"),
        true => talk("no runs are running; `plimsoll ps --all` includes runs that ended"),
        false => write_data(runs_table(&listed))?,
    }
    let is_orphan =
        |run: &&ListedRun| run.state == RunState::Orphaned && run.adopted_by.is_none() && run.owner.is_none();
    if let Some(run) = listed.iter().find(is_orphan) {
        talk(format_args!(
            "hint: `plimsoll attach {}` starts a supervisor for an orphaned run, `plimsoll ps --adopt` for all",
            run.entry.name()
        ));
    }
    Ok(exit_code::DONE)
}

/// Starts a supervisor for a run. `None`, and a warning, if that fails.
fn adopted(entry: &Entry) -> Option<Entry> {
    match background::adopted(entry.clone()) {
        Ok(entry) => (entry.state() == RunState::Running).then_some(entry),
        Err(failure) => {
            talk(format_args!("warning: {} still has no supervisor: {}", entry.name(), failure.message()));
            None
        }
    }
}

/// The user ID of the run's owner, unless it is this user.
fn other_owner(entry: &Entry) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(&entry.folder).ok()?.uid();
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

/// The progress of a run: of its slowest worker, or the last step in its journal.
fn progress(entry: &Entry) -> Option<Progress> {
    match entry.kind {
        RunKind::Own => last_step(&read_end_inside(&entry.folder.join("journal.jsonl"), 1, END).ok()?),
        RunKind::Supervised => progress_of(&entry.folder, entry.worker_count),
    }
}

fn last_step(journal: &[u8]) -> Option<Progress> {
    journal.rsplit(|&byte| byte == b'\n').find_map(|line| match serde_json::from_slice::<Record>(line).ok()?.event {
        Event::Step { step, .. } | Event::Finished { step, .. } => Some(Progress { epoch: None, step, of: None }),
        _ => None,
    })
}

/// The median speed of a run of `plimsoll train` over its last steps; the mean speed of another program since its start,
/// restarts included.
fn speed(entry: &Entry, state: RunState, progress: Option<Progress>) -> Option<Speed> {
    match entry.kind {
        RunKind::Own => {
            let journal = read_end_inside(&entry.folder.join("journal.jsonl"), 1, LAST_STEPS).ok()?;
            let per_s = median_speed(&journal)?;
            Some(Speed { per_s, unit: "tokens" })
        }
        RunKind::Supervised => {
            // The steps of earlier epochs are not known.
            let steps = progress.filter(|progress| progress.epoch.is_none_or(|epoch| epoch <= 1))?.step;
            let ran_s = entry.ran_s(state);
            (steps > 0 && ran_s > 0.0).then(|| Speed { per_s: steps as f64 / ran_s, unit: "steps" })
        }
    }
}

/// The median of the tokens per second of the steps in a journal.
fn median_speed(journal: &[u8]) -> Option<f64> {
    let records = journal.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Record>(line).ok());
    let mut speeds = records
        .filter_map(|record| match record.event {
            Event::Step { tokens_per_s, .. } if tokens_per_s.is_finite() => Some(tokens_per_s),
            _ => None,
        })
        .collect::<Vec<_>>();
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied()
}
