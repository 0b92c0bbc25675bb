//! `plimsoll replay`: explains the memory of a PyTorch run from its snapshot.

use super::Failure;
use super::failure::{exit_code, io_failure, line};
use crate::streams::{talk, write_data};
use clap::Args;
use flate2::read::MultiGzDecoder;
use plimsoll_files::write_whole;
use plimsoll_render::{ReplayReport, replay_html, replay_json, replay_svg, replay_text};
use plimsoll_torch_memory::examine::examine;
use plimsoll_torch_memory::findings::Owners;
use plimsoll_torch_memory::pickle::{MAX_BYTES, PickleError};
use plimsoll_torch_memory::snapshot::{AllocatorSettings, Snapshot, SnapshotError};
use plimsoll_units::Bytes;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// File written by `torch.cuda.memory._dump_snapshot`, optionally compressed with gzip
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,
    /// Allocator setting to simulate in addition to the usual ones, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`
    #[arg(long, value_name = "CONF", value_parser = settings)]
    alloc_conf: Option<AllocatorSettings>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a web page with memory over time and the memory map at the peak
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the same as an SVG, for the GPU with the most memory in use
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Parses allocator settings. Errors: a setting is unknown.
fn settings(conf: &str) -> Result<AllocatorSettings, String> {
    let mut settings = AllocatorSettings::default();
    match settings.set(conf).first() {
        None => Ok(settings),
        Some(unknown) => Err(format!("unknown {unknown}")),
    }
}

/// How to make a snapshot.
const HOW: &str = "to make a snapshot, record with `torch.cuda.memory._record_memory_history()` and write with \
                   `torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")`";

pub(super) fn run(args: &ReplayArgs) -> Result<u8, Failure> {
    let start = Instant::now();
    let name = args.snapshot.display().to_string();
    let bytes = read(&args.snapshot)?;
    let snapshot = Snapshot::read(&bytes).map_err(|error| unusable(&name, &error))?;
    drop(bytes);
    if snapshot.cards.is_empty() {
        return Err(Failure::bad_input(format!("{name} has neither segments nor events")).hint(HOW));
    }
    let owners = Owners::of(&snapshot.stacks);
    let cards = snapshot
        .cards
        .iter()
        .map(|card| examine(&snapshot, &owners, card, args.alloc_conf.as_ref()))
        .collect::<Vec<_>>();
    let report = ReplayReport { name: &name, snapshot: &snapshot, owners: &owners, cards: &cards };
    if args.json {
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        let value = replay_json(&report, milliseconds);
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
    } else {
        write_data(replay_text(&report))?;
    }
    for (path, make) in [(&args.html, replay_html as fn(&ReplayReport) -> String), (&args.svg, replay_svg)] {
        if let Some(path) = path {
            write_whole(path, make(&report).as_bytes()).map_err(io_failure(path.display()))?;
        }
    }
    for unknown in &snapshot.unknown {
        talk(format_args!("warning: ignoring unknown {unknown} in {name}"));
    }
    Ok(exit_code::DONE)
}

/// The snapshot's bytes, decompressed.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let unreadable = |error: std::io::Error| Failure::bad_input(format!("{name} can't be read: {error}")).hint(HOW);
    let bytes = plimsoll_files::read_at_most(path, Bytes(MAX_BYTES as u64)).map_err(unreadable)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = vec![];
    MultiGzDecoder::new(bytes.as_slice()).take(MAX_BYTES as u64 + 1).read_to_end(&mut plain).map_err(|error| {
        Failure::bad_input(format!("{name} can't be decompressed: {error}"))
            .hint("it is damaged or truncated; copy it again")
    })?;
    Ok(plain)
}

fn unusable(name: &str, error: &SnapshotError) -> Failure {
    let failure = Failure::bad_input(format!("{name}: {}", line(error)));
    match error {
        SnapshotError::Pickle(PickleError::Truncated { .. }) => {
            failure.hint("copy it again, or write it again; the disk may have been full")
        }
        SnapshotError::Pickle(PickleError::NotPlain { .. }) => {
            failure.hint("a snapshot never contains code; don't open this file with Python's `pickle`")
        }
        SnapshotError::Pickle(PickleError::TooLong { .. } | PickleError::TooManyValues { .. }) => failure
            .hint("record fewer events, with `max_entries=100000`, or stacks of Python only, with `stacks=\"python\"`"),
        SnapshotError::OtherBackend => failure.hint("record a run with PyTorch's default allocator"),
        SnapshotError::Pickle(_) | SnapshotError::Foreign { .. } | SnapshotError::Damaged { .. } => failure.hint(HOW),
    }
}
