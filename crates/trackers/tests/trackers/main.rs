//! Whole sessions of runs, read back by independent readers of the formats (`readers.rs`). `scripts/check_trackers.py`
//! reads the files with the actual tools.

mod failing;
mod readers;
mod server;
mod sessions;
mod sync;

use plimsoll_files::Disk;
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{Event, Sink};
use plimsoll_trackers::{TrackSettings, Tracker, TrackerReport, Trackers};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Far longer than any test takes.
const LONG: Duration = Duration::from_secs(30);

/// Settings that log for all trackers to `folder/logs`, for a run in `folder/run`.
fn settings(folder: &Path) -> TrackSettings {
    let run = folder.join("run");
    std::fs::create_dir_all(&run).expect("a folder");
    let config =
        json!({ "learning_rate": "0.001", "seed": 1337, "autotune": true, "data": ["a", "b"], "odd/key": "<b>: 'x'" });
    TrackSettings {
        trackers: Tracker::ALL.to_vec(),
        every_steps: 1,
        folder: folder.join("logs"),
        mlruns: folder.join("logs/mlruns"),
        run,
        project: "my: project".to_owned(),
        entity: None,
        config: config.as_object().expect("an object").clone(),
        steps_per_epoch: Some(4.0),
        disk: Disk::default(),
    }
}

fn started(first_step: u64) -> Event {
    Event::RunStarted {
        name: "nano-1".to_owned(),
        model: "nano".to_owned(),
        parameters: 1000,
        planned_bytes: 1 << 20,
        budget_bytes: 1 << 21,
        first_step,
        last_step: Some(10),
    }
}

fn step(step: u64, loss: f64) -> Event {
    Event::Step {
        step,
        loss,
        learning_rate: 1e-3,
        grad_norm: 0.5,
        step_ms: 2.0,
        tokens_per_s: 64.0,
        memory_bytes: 4096,
    }
}

fn evaluated(step: u64, loss: f64) -> Event {
    Event::Evaluated { step, loss, average_loss: None, tokens: 100 }
}

/// Runs a session with these events; returns its report.
fn session(settings: &TrackSettings, events: &[Event]) -> Vec<TrackerReport> {
    let mut trackers = Trackers::start(settings.clone(), &Secrets::default()).expect("threads");
    events.iter().for_each(|event| trackers.take(event));
    trackers.finish(LONG)
}

/// The steps of a complete session; the losses identify the session.
fn whole_session(settings: &TrackSettings, steps: std::ops::RangeInclusive<u64>, of_session: f64) {
    let mut events = vec![started(*steps.start())];
    events.extend(steps.clone().map(|n| step(n, n as f64 + of_session)));
    events.push(evaluated(*steps.end(), of_session));
    events.push(Event::Interrupted { step: *steps.end() });
    for report in session(settings, &events) {
        let made = steps.clone().count() as u64 + 1;
        let counts = (report.written, report.lost, report.dropped, report.unwritten);
        assert_eq!(counts, (made, 0, 0, 0), "{report:?}");
    }
}
