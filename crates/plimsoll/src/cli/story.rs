//! Reads what a run's folder has for its page. Not here: the page (`plimsoll_render`), the journal's reader
//! (`plimsoll_watch`).

use plimsoll_files::{read_inside, read_text_inside};
use plimsoll_render::RunStory;
use plimsoll_telemetry::{history, history_span};
use plimsoll_units::Bytes;
use plimsoll_watch::{Kind, RunFollower, RunView, WatchError};
use std::path::Path;

/// Far more than the plan of a model that fits a card.
const PLAN_BYTES_MAX: Bytes = Bytes::mib(64);

/// Room for the losses of some million steps.
const REPORT_BYTES_MAX: Bytes = Bytes::mib(128);

/// Hours of samples that are read, the newest: two years.
const HOURS_MAX: f64 = 17_520.0;

const HOUR_S: f64 = 3600.0;

/// Reads a run's folder. Errors: it has no journal that can be read, or it is of a program that is kept alive.
pub(super) fn read_story(folder: &Path) -> Result<RunStory, WatchError> {
    let run = RunView::clone(RunFollower::open(folder)?.view());
    if run.kind != Kind::Train {
        return Err(WatchError::NotARun { folder: folder.to_owned() });
    }
    let report = read_text_inside(&folder.join("report.json"), 1, REPORT_BYTES_MAX);
    let plan = read_inside(&folder.join("plan.json"), 1, PLAN_BYTES_MAX).unwrap_or_default();
    // Samples are read an hour at a time. An hour that can't be read is left out.
    let span = history_span(folder).unwrap_or(0.0..0.0);
    let first = span.start.max(span.end - HOUR_S * HOURS_MAX);
    let hours = std::iter::successors(Some(first), |hour| Some(hour + HOUR_S)).take_while(|hour| *hour < span.end);
    let samples = hours.flat_map(|hour| history(folder, hour..hour + HOUR_S).unwrap_or_default());
    Ok(RunStory::new(run, report, &plan, samples))
}
