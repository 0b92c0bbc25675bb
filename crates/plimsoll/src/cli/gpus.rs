//! `plimsoll gpus`: the NVIDIA cards of this machine.

use super::Failure;
use super::failure::exit_code;
use crate::report::gpus_table;
use crate::streams::{talk, write_data};
use clap::Args;
use plimsoll_telemetry::gpus;

#[derive(Debug, Args)]
pub(super) struct GpusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &GpusArgs) -> Result<u8, Failure> {
    let found = gpus()?;
    if args.json {
        write_data(serde_json::to_string_pretty(&found).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    write_data(gpus_table(&found))?;
    for note in &found.notes {
        talk(format_args!("note: {note}"));
    }
    Ok(exit_code::DONE)
}
