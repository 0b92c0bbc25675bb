//! `plimsoll ps`: the runs of this user, and what they do.

use super::{RunsArgs, detach};
use crate::cli::Failure;
use crate::cli::failure::exit_code;
use crate::report::{ListedRun, runs_json, runs_table};
use crate::streams::{talk, write_data};
use clap::Args;
use plimsoll_files::{open_regular, read_exact_at};
use plimsoll_supervise::{Entry, Kind, Progress, State, last_progress, output_of};
use plimsoll_telemetry::{Event, Record};
use std::path::Path;

/// The end of an output in which progress is looked for.
const END: u64 = 16 << 10;

#[derive(Debug, Args)]
pub(in crate::cli) struct PsArgs {
    /// List runs that ended, too
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only show runs whose supervisor was killed, instead of giving them another one
    #[arg(long)]
    no_adopt: bool,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run(args: &PsArgs) -> Result<u8, Failure> {
    let listed = args.runs.registry().entries().into_iter().filter_map(|entry| {
        let state = entry.state();
        let is_shown = args.all || matches!(state, State::Running | State::Orphaned | State::Elsewhere);
        if !is_shown {
            return None;
        }
        let entry = if args.no_adopt { entry } else { detach::adopted(entry) };
        let is_adopted = state == State::Orphaned && entry.state() == State::Running;
        Some(ListedRun {
            state,
            progress: progress(&entry),
            adopted_by: is_adopted.then_some(entry.process.pid),
            entry,
        })
    });
    let listed = listed.collect::<Vec<_>>();
    if args.json {
        write_data(serde_json::to_string_pretty(&runs_json(&listed)).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    match listed.is_empty() {
        true if args.all => talk("no runs"),
        true => talk("nothing runs; `plimsoll ps --all` lists runs that ended, too"),
        false => write_data(runs_table(&listed))?,
    }
    Ok(exit_code::DONE)
}

/// How far a run has come: its slowest worker, or the last step in its journal.
fn progress(entry: &Entry) -> Option<Progress> {
    match entry.kind {
        Kind::Own => last_step(&end_of(&entry.folder.join("journal.jsonl"))?),
        Kind::Supervised => {
            let outputs = (0..entry.worker_count).map(|worker| output_of(&entry.folder, worker, entry.worker_count));
            outputs.map(|output| end_of(&output).and_then(|end| last_progress(&end))).min().flatten()
        }
    }
}

fn end_of(path: &Path) -> Option<Vec<u8>> {
    let file = open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    let start = length.saturating_sub(END);
    let mut bytes = vec![0; (length - start) as usize];
    read_exact_at(&file, &mut bytes, start).ok()?;
    Some(bytes)
}

fn last_step(journal: &[u8]) -> Option<Progress> {
    journal.rsplit(|&byte| byte == b'\n').find_map(|line| match serde_json::from_slice::<Record>(line).ok()?.event {
        Event::Step { step, .. } | Event::Finished { step, .. } => Some(Progress { epoch: None, step, of: None }),
        _ => None,
    })
}
