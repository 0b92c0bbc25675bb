//! Writes the logs of a run that was killed in the middle of a record and resumed, for `scripts/check_trackers.py`:
//! `sessions FOLDER`. If `MLFLOW_TRACKING_URI` names a server, MLflow's logs go there.

use plimsoll_files::Disk;
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{CardSample, Event, Sample, Sink};
use plimsoll_trackers::{TrackSettings, Tracker, Trackers};
use serde_json::json;
use std::fs::OpenOptions;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("name a folder")?);
    std::fs::create_dir_all(folder.join("run"))?;
    session(&folder, 1..=300, 0.25, false)?;
    for file in files(&folder.join("logs"))? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ["tfevents", ".wandb", "metrics.", "loss"].iter().any(|part| name.contains(part)) {
            let length = file.metadata()?.len();
            OpenOptions::new().write(true).open(&file)?.set_len(length - 9)?;
        }
    }
    session(&folder, 201..=400, 0.75, true)
}

/// All files below a folder.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

fn session(
    folder: &Path,
    steps: RangeInclusive<u64>,
    part: f64,
    finishes: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let config = json!({ "learning_rate": "0.001", "seed": 1337, "data": ["a", "b"], "model": "nano" });
    let settings = TrackSettings {
        trackers: Tracker::ALL.to_vec(),
        every_steps: 1,
        folder: folder.join("logs"),
        mlruns: folder.join("logs/mlruns"),
        run: folder.join("run"),
        project: "plimsoll-check".to_owned(),
        entity: None,
        config: config.as_object().cloned().unwrap_or_default(),
        steps_per_epoch: Some(100.0),
        disk: Disk::default(),
    };
    let secrets = Secrets::load(|name| std::env::var_os(name), None, None)?;
    let mut trackers = Trackers::start(settings, &secrets)?;
    let (first_step, last) = (*steps.start(), *steps.end());
    trackers.take(&Event::RunStarted {
        name: "nano-1".to_owned(),
        model: "nano".to_owned(),
        parameters: 1000,
        planned_bytes: 1 << 20,
        budget_bytes: 1 << 21,
        first_step,
        last_step: Some(400),
    });
    let tap = trackers.machine_tap();
    for step in steps {
        let (loss, learning_rate) = (step as f64 + part, 1e-3);
        trackers.take(&Event::Step {
            step,
            loss,
            learning_rate,
            grad_norm: 0.5,
            step_ms: 2.0,
            tokens_per_s: 64.0,
            memory_bytes: 4096,
        });
        if step % 100 == 0 {
            let loss = if step == 400 { f64::NAN } else { part };
            trackers.take(&Event::Evaluated { step, loss, average_loss: None, tokens: 10 });
            let card = CardSample { temperature_c: Some(61.0), power_w: Some(250.0), ..CardSample::default() };
            tap.take(&Sample { time_s: 1e9 + step as f64, cards: vec![card], ..Sample::default() });
        }
    }
    if finishes {
        trackers.take(&Event::Finished { step: last, seconds: 1.0 });
    }
    for report in trackers.finish(Duration::from_secs(60)) {
        if report.lost + report.dropped + report.unwritten > 0 || report.last_error.is_some() {
            return Err(format!("{report:?}").into());
        }
    }
    Ok(())
}
