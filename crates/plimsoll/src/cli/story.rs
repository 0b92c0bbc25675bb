//! Reads the files of a run's folder for its page. Not here: the page (`plimsoll_render`), and the reader of the journal
//! (`plimsoll_watch`).

use plimsoll_files::{read_inside, read_text_inside};
use plimsoll_render::RunStory;
use plimsoll_telemetry::{Attempts, history, history_span};
use plimsoll_units::Bytes;
use plimsoll_watch::{Kind, RunFollower, RunView, Standing, WatchError};
use std::path::Path;

/// Far more than the plan of any model that fits on a GPU.
const PLAN_BYTES_MAX: Bytes = Bytes::mib(64);

/// Enough for the losses of some million steps.
const REPORT_BYTES_MAX: Bytes = Bytes::mib(128);

/// Read at most this many of the newest hours of samples: two years.
const HOURS_MAX: f64 = 17_520.0;

const HOUR_S: f64 = 3600.0;

/// Reads a run's folder. Errors: its journal can't be read; it is a run of another program.
pub(super) fn read_story(folder: &Path) -> Result<RunStory, WatchError> {
    let run = RunView::clone(RunFollower::open(folder)?.view());
    if run.kind != Kind::Train {
        return Err(WatchError::NotARun { folder: folder.to_owned() });
    }
    let report = read_text_inside(&folder.join("report.json"), 1, REPORT_BYTES_MAX);
    let plan = read_inside(&folder.join("plan.json"), 1, PLAN_BYTES_MAX).unwrap_or_default();
    // Read samples one hour at a time, and skip hours that can't be read.
    let span = history_span(folder).unwrap_or(0.0..0.0);
    let first = span.start.max(span.end - HOUR_S * HOURS_MAX);
    let hours = std::iter::successors(Some(first), |hour| Some(hour + HOUR_S)).take_while(|hour| *hour < span.end);
    let samples = hours.flat_map(|hour| history(folder, hour..hour + HOUR_S).unwrap_or_default());
    let attempts = Attempts::read(&folder.join("journal.jsonl"), run.standing == Standing::Running);
    Ok(RunStory::new(run, report, &plan, samples, attempts))
}
