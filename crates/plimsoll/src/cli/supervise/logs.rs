//! `plimsoll logs`: the output of a run; for a run of `plimsoll train`, the events of its journal.

use super::RunsArgs;
use crate::cli::Failure;
use crate::cli::failure::{exit_code, io_failure};
use crate::streams::{pass, talk, write_data};
use clap::Args;
use plimsoll_registry::{Entry, Follower, RunKind, RunState, output_of};
use plimsoll_render::health_line;
use plimsoll_telemetry::{Event, Record};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::path::Path;
use std::time::Duration;

/// How often to check for new output.
const TICK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(in crate::cli) struct LogsArgs {
    /// The run's name or folder
    run: String,
    /// Follow the output until the run ends
    #[arg(long, short)]
    follow: bool,
    /// Only the last lines
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<usize>,
    /// Which of several workers, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: usize,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run(args: &LogsArgs) -> Result<u8, Failure> {
    let entry = args.runs.find(&args.run)?;
    if args.worker >= entry.worker_count {
        return Err(Failure::bad_flag(format!("{} has no worker {}", entry.name(), args.worker))
            .hint(format!("`--worker` is at most {}", entry.worker_count.saturating_sub(1))));
    }
    show(&entry, args.worker, args.lines, args.follow)?;
    Ok(exit_code::DONE)
}

/// Writes a run's output to stdout. `lines`: only the last ones of the stored output.
pub(super) fn show(entry: &Entry, worker: usize, lines: Option<usize>, follow: bool) -> Result<(), Failure> {
    let path = match entry.kind {
        RunKind::Supervised => output_of(&entry.folder, worker, entry.worker_count),
        RunKind::Own => entry.folder.join("journal.jsonl"),
    };
    let mut before = path.clone().into_os_string();
    before.push(".1");
    let mut reader = Reader { kind: entry.kind, line: vec![] };
    // Include the previous file if all lines are shown, or more than this file has.
    let most = match lines {
        None => {
            reader.copy(&mut follower(Path::new(&before), u64::MAX)?)?;
            u64::MAX
        }
        Some(lines) => bytes_of(&path, lines)?,
    };
    let mut output = follower(&path, most)?;
    loop {
        // Test this before reading, so that the read covers everything printed before the end.
        let is_over = !follow || !is_running(entry);
        reader.copy(&mut output)?;
        if is_over {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
}

/// Whether a run may still print.
fn is_running(entry: &Entry) -> bool {
    let state = Entry::read(&entry.folder).unwrap_or_else(|_| entry.clone()).state();
    if state == RunState::Orphaned {
        talk(format_args!("{} has lost its supervisor; `plimsoll attach {}` starts one", entry.name(), entry.name()));
    }
    state == RunState::Running
}

fn follower(path: &Path, most: u64) -> Result<Follower, Failure> {
    Follower::new(path, most).map_err(io_failure(path.display()))
}

/// The size in bytes of a file's last lines, within its last 16 MiB.
fn bytes_of(path: &Path, lines: usize) -> Result<u64, Failure> {
    const MOST: u64 = 16 << 20;
    let mut end = Vec::new();
    let mut file = follower(path, MOST)?;
    let mut buffer = vec![0; 64 << 10];
    while let count @ 1.. = file.read(&mut buffer).map_err(io_failure(path.display()))? {
        end.extend_from_slice(&buffer[..count]);
    }
    let whole = end.strip_suffix(b"\n").unwrap_or(&end);
    let starts = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = match lines {
        0 => end.len(),
        _ => starts.take(lines).nth(lines - 1).unwrap_or(0),
    };
    Ok((end.len() - start) as u64)
}

/// Writes output unchanged, or events as lines.
struct Reader {
    kind: RunKind,
    /// The start of an incomplete line of events.
    line: Vec<u8>,
}

impl Reader {
    fn copy(&mut self, from: &mut Follower) -> Result<(), Failure> {
        let mut buffer = vec![0; 64 << 10];
        while let count @ 1.. = from.read(&mut buffer).map_err(io_failure("the output can't be read"))? {
            match self.kind {
                RunKind::Supervised => pass(&buffer[..count])?,
                RunKind::Own => self.events(&buffer[..count])?,
            }
        }
        Ok(())
    }

    fn events(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(text) = serde_json::from_slice::<Record>(&line).ok().and_then(|record| in_words(&record.event))
            {
                write_data(text)?;
            }
        }
        Ok(())
    }
}

/// An event of a run of `plimsoll train`, in words.
fn in_words(event: &Event) -> Option<String> {
    Some(match event {
        Event::RunStarted { name, model, first_step, .. } => format!("{name}: {model}, from step {first_step}"),
        Event::Step { step, loss, tokens_per_s, .. } => {
            format!("step {step}: loss {loss:.4}, {tokens_per_s:.0} tokens/s")
        }
        Event::Evaluated { step, loss, .. } => format!("step {step}: held-out loss {loss:.4}"),
        Event::CheckpointSaved { step, checkpoint, .. } => format!("step {step}: saved {}", checkpoint.display()),
        Event::CheckpointFailed { step, reason } => format!("step {step}: not saved: {reason}"),
        Event::Diverged { step, .. } => format!("step {step}: diverged"),
        Event::Interrupted { step } => format!("step {step}: interrupted"),
        Event::Heat { card, what } => format!("{card}: {what}"),
        Event::Paused { step, .. } => format!("step {step}: paused"),
        Event::Unpaused { step, seconds, .. } => {
            format!("step {step}: continues after a pause of {}", format_duration(Seconds(*seconds)))
        }
        Event::Replanned { step, planned_bytes, budget_bytes, .. } => {
            format!("step {step}: planned again: {} within {}", Bytes(*planned_bytes), Bytes(*budget_bytes))
        }
        Event::OrderRefused { step, reason, .. } => format!("step {step}: refused: {reason}"),
        Event::Health { card, what, advice, level, .. } => {
            health_line(card.as_deref(), what, advice.as_deref(), *level)
        }
        Event::MemoryPressure { step, what, .. } => format!("step {step}: memory pressure: {what}"),
        Event::SafeSettings { what } => format!("safe settings: {what}"),
        Event::OutOfMemoryAverted { what } => format!("out of memory averted: {what}"),
        Event::StoppedForHeat { step } => format!("step {step}: stopped for heat"),
        Event::Finished { step, .. } => format!("step {step}: finished"),
        _ => return None,
    })
}
