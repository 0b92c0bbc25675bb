//! The flags for logging a run's metrics to trackers, in addition to its journal, and the report at the end of the run.
//! Keys and passwords are not flags, since all users of a machine can see a process's flags. Not here: the formats
//! (`plimsoll-trackers`).

use super::Failure;
use super::failure::{line, no_threads};
use crate::streams::talk;
use ::plimsoll_train::RunFolder;
use clap::Args;
use plimsoll_files::Disk;
use plimsoll_render::printable_line;
use plimsoll_secrets::Secrets;
use plimsoll_trackers::{SyncError, TrackError, TrackSettings, Tracker, TrackerReport, Trackers, sync_in_background};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How long the last logs of a run may take.
const LAST_LOGS: Duration = Duration::from_secs(10);

/// The same for a run that was asked to stop, whose sender may kill it soon.
const LAST_LOGS_OF_STOPPED: Duration = Duration::from_millis(1500);

/// The default project of runs.
const PROJECT: &str = "plimsoll";

#[derive(Debug, Clone, Args)]
pub(super) struct TrackArgs {
    /// Trackers to log metrics to, separated by commas: tensorboard, wandb, mlflow, jsonl, csv; or `all` or `none`
    #[arg(long, value_name = "TOOL", value_delimiter = ',')]
    log_to: Vec<LogTo>,
    /// Folder for the logs of several runs, with a subfolder per run [default: `logs` in the run's folder]
    #[arg(long, value_name = "PATH")]
    log_dir: Option<PathBuf>,
    /// Project of the run for W&B, and experiment for MLflow [default: WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME, else plimsoll]
    #[arg(long, value_name = "NAME")]
    log_project: Option<String>,
}

/// A value of `--log-to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogTo {
    None,
    All,
    One(Tracker),
}

impl FromStr for LogTo {
    type Err = plimsoll_trackers::UnknownTracker;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            name => name.parse().map(Self::One),
        }
    }
}

/// The properties of a run at its start.
pub(super) struct Tracked<'a> {
    pub(super) folder: &'a RunFolder,
    pub(super) config: Map<String, Value>,
    pub(super) steps_per_epoch: f64,
    pub(super) every_steps: u64,
}

impl TrackArgs {
    fn trackers(&self) -> Vec<Tracker> {
        let of = |word: &LogTo| match word {
            LogTo::None => vec![],
            LogTo::All => Tracker::ALL.to_vec(),
            LogTo::One(tracker) => vec![*tracker],
        };
        self.log_to.iter().flat_map(of).collect()
    }

    /// Checks the settings before the run creates anything. Errors: an address can't be used.
    pub(super) fn check(&self, secrets: &Secrets) -> Result<(), Failure> {
        Ok(Trackers::check(&self.trackers(), secrets)?)
    }

    /// Starts logging; `None` without trackers. Errors: an address can't be used.
    pub(super) fn start(&self, tracked: Tracked<'_>, secrets: &Secrets) -> Result<Option<Tracking>, Failure> {
        let trackers = self.trackers();
        if trackers.is_empty() {
            return Ok(None);
        }
        let run = tracked.folder.path();
        let name = run.file_name().map(Path::new).unwrap_or(run);
        let (folder, mlruns) = match &self.log_dir {
            Some(shared) => (shared.join(name), shared.join("mlruns")),
            None => (run.join("logs"), run.join("logs/mlruns")),
        };
        let of = |variable: &str| std::env::var(variable).ok().filter(|value| !value.trim().is_empty());
        let project = self.log_project.clone().or_else(|| of("WANDB_PROJECT"));
        let project = project.or_else(|| of("MLFLOW_EXPERIMENT_NAME"));
        let settings = TrackSettings {
            trackers,
            every_steps: tracked.every_steps,
            folder,
            mlruns,
            run: run.to_owned(),
            project: project.unwrap_or_else(|| PROJECT.to_owned()),
            entity: of("WANDB_ENTITY"),
            config: tracked.config,
            steps_per_epoch: Some(tracked.steps_per_epoch).filter(|steps| steps.is_finite() && *steps > 0.0),
            disk: Disk::default().within(run),
        };
        if settings.trackers.contains(&Tracker::Wandb) {
            let runs = settings.folder.join("wandb").join("offline-run-*");
            talk(format_args!(
                "W&B: the run is uploaded at its end; `wandb beta sync --live {}` uploads it as it runs",
                runs.display()
            ));
        }
        let started = Trackers::start(settings, secrets)?;
        Ok(Some(Tracking { trackers: started, secrets: secrets.clone() }))
    }

    /// The settings with which a resumed run logs to the same trackers.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let names = self.trackers().into_iter().map(Tracker::name).collect::<Vec<_>>().join(",");
        let mut settings = Map::new();
        if !names.is_empty() {
            settings.insert("log_to".to_owned(), json!(names));
        }
        settings.extend(self.log_dir.as_ref().map(|path| ("log_dir".to_owned(), json!(path))));
        settings.extend(self.log_project.as_ref().map(|name| ("log_project".to_owned(), json!(name))));
        settings
    }
}

/// A run that is logged.
pub(super) struct Tracking {
    pub(super) trackers: Trackers,
    secrets: Secrets,
}

impl Tracking {
    /// Writes pending logs at the end of a session, and prints what was lost. After a finished run, starts W&B's program to
    /// upload it.
    pub(super) fn finish(self, is_over: bool, is_stopped: bool) {
        let limit = if is_stopped { LAST_LOGS_OF_STOPPED } else { LAST_LOGS };
        for report in self.trackers.finish(limit) {
            say_lost(&report);
            if is_over
                && report.tracker == Tracker::Wandb
                && let Some(run) = &report.path
            {
                sync(run, &self.secrets);
            }
        }
    }
}

fn say_lost(report: &TrackerReport) {
    let lost = report.lost + report.dropped + report.unwritten;
    let error = report.last_error.as_deref().map(printable_line);
    if lost > 0 {
        let why = error.map_or(String::new(), |error| format!(": {error}"));
        let slow = if report.dropped > 0 {
            format!(", {} of them because it was too slow", report.dropped)
        } else {
            String::new()
        };
        talk(format_args!("warning: {} is missing {lost} of the run's logs{slow}{why}", report.tracker));
    } else if let (Some(error), 0) = (error, report.written) {
        talk(format_args!("warning: nothing was logged to {}: {error}", report.tracker));
    }
}

/// Uploads the run if there is a key and W&B's program; else prints the command.
fn sync(run: &Path, secrets: &Secrets) {
    let shown = run.display();
    let Some(key) = secrets.get("WANDB_API_KEY") else {
        return talk(format_args!("W&B: `wandb sync {shown}` uploads the run"));
    };
    match sync_in_background(run, key, std::env::var_os("PATH").as_deref()) {
        Ok(synced) => talk(format_args!("W&B: the run is being uploaded; see {}", synced.log.display())),
        Err(error @ SyncError::NotInstalled) => {
            talk(format_args!("note: {error}; after installing it, `wandb sync {shown}` uploads the run"));
        }
        Err(error) => talk(format_args!("warning: {}; `wandb sync {shown}` uploads the run", line(&error))),
    }
}

impl From<TrackError> for Failure {
    fn from(error: TrackError) -> Self {
        let message = line(&error);
        match error {
            TrackError::Mlflow { .. } => {
                Self::bad_input(message).hint("unset it to write MLflow's files next to the run's")
            }
            TrackError::Thread { .. } => no_threads(1, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::options::tests::assert_resumed_alike;

    #[test]
    fn a_resumed_run_has_every_setting_of_trackers() {
        assert_resumed_alike(
            &["--log-to=csv,wandb", "--log-dir=/tmp/logs", "--log-project=tides"],
            TrackArgs::resolved,
        );
    }
}
