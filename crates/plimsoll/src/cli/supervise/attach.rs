//! `plimsoll attach`: follows a run to its end, and exits with its exit code. Starts a supervisor for a run without
//! one.

use super::{RunsArgs, background, logs};
use crate::cli::Failure;
use crate::cli::failure::exit_code;
use crate::streams::talk;
use clap::Args;
use plimsoll_registry::{Entry, RunState};

#[derive(Debug, Args)]
pub(in crate::cli) struct AttachArgs {
    /// The run's name or folder
    run: String,
    /// Lines of earlier output to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Which of several workers, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: usize,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run(args: &AttachArgs) -> Result<u8, Failure> {
    let entry = args.runs.find(&args.run)?;
    let was = entry.state();
    let entry = background::adopted(entry)?;
    let name = entry.name();
    match was {
        RunState::Orphaned => talk(format_args!("{name} had lost its supervisor; started a new one")),
        RunState::Elsewhere => return Err(super::run::elsewhere(&entry)),
        RunState::Running => {}
        RunState::Ended | RunState::Gone => talk(format_args!("{name} has ended")),
    }
    if was != RunState::Ended && was != RunState::Gone {
        talk(format_args!("Ctrl-C leaves it running; `plimsoll stop {name}` stops it"));
    }
    logs::show(&entry, args.worker, Some(args.lines), true)?;
    let ended = Entry::read(&entry.folder).ok().and_then(|entry| entry.ended);
    match ended.map(|ended| ended.code) {
        Some(Some(code)) => Ok(code.to_le_bytes()[0]),
        Some(None) => {
            talk(format_args!("{name} ended, exit code unknown"));
            Ok(1)
        }
        None => {
            talk(format_args!("{name} is gone, and left no record of its end"));
            Ok(exit_code::DEVICE_FAILED)
        }
    }
}
