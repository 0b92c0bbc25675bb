//! The entry point: accepts events and samples without blocking, and returns a report at the end.

use crate::csv::{self, Csv};
use crate::jsonl::{self, Jsonl};
use crate::mlflow::{self, Store};
use crate::queue::Queue;
use crate::row::{Row, row_of, row_of_machine};
use crate::run_logs::RunLogs;
use crate::tensorboard::{self, TensorBoard};
use crate::tracker::Tracker;
use crate::wandb::{Wandb, synced_folder};
use crate::worker::work;
use crate::writer::{Begin, End, Open, SessionStatus, Writer};
use plimsoll_files::Disk;
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{Event, Lane, Sample, Sink, now_s};
use serde_json::{Map, Value};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum waiting rows per writer: minutes of the shortest steps.
const WAITING_MAX: usize = 8192;

/// Interval between two logs of the machine's metrics, the same as W&B's.
const MACHINE_EVERY_S: f64 = 15.0;

/// What to log, and where.
#[derive(Debug, Clone)]
pub struct TrackSettings {
    /// The tools to log for.
    pub trackers: Vec<Tracker>,
    /// Steps between two logs of training; every evaluation is logged.
    pub every_steps: u64,
    /// The folder of the run's logs; if it has another run's logs, a number is appended to the name.
    pub folder: PathBuf,
    /// MLflow's folder, which runs may share.
    pub mlruns: PathBuf,
    /// The run's own folder.
    pub run: PathBuf,
    /// The project or experiment of the run.
    pub project: String,
    /// Its owner in W&B, if not the user.
    pub entity: Option<String>,
    /// The run's settings, which are logged as hyperparameters.
    pub config: Map<String, Value>,
    /// Steps per epoch, if known.
    pub steps_per_epoch: Option<f64>,
    /// The disk to write to.
    pub disk: Disk,
}

/// Why logging can't start. Messages contain no secrets.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// MLflow's address can't be used.
    #[error("MLFLOW_TRACKING_URI {reason}")]
    Mlflow {
        /// The reason.
        reason: &'static str,
    },
    /// The system refuses to start a thread.
    #[error("a thread for {tracker} can't be started: {source}")]
    Thread {
        /// The tracker.
        tracker: Tracker,
        /// The system's error.
        source: io::Error,
    },
}

/// The result of a tracker's logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackerReport {
    /// The tracker.
    pub tracker: Tracker,
    /// Its file or folder; `None` if it is on a server, or nothing could be written.
    pub path: Option<PathBuf>,
    /// Logs written.
    pub written: u64,
    /// Logs that could not be written.
    pub lost: u64,
    /// Logs dropped because the tracker was too slow.
    pub dropped: u64,
    /// Logs that were not written before the timeout.
    pub unwritten: u64,
    /// The last error, without secrets.
    pub last_error: Option<String>,
}

/// Returns a tracker's file or folder within a run's logs; `None` if it is on a server.
type PathOf = Box<dyn Fn(&RunLogs) -> Option<PathBuf> + Send>;

struct Track {
    tracker: Tracker,
    queue: Arc<Lane<Queue>>,
    path: PathOf,
}

/// Logs to all configured trackers. If dropped without [`Trackers::finish`], its threads run until the process ends.
pub struct Trackers {
    settings: TrackSettings,
    tracks: Vec<Track>,
    tap: MachineTap,
    begin: Option<Arc<Begin>>,
    status: SessionStatus,
}

impl Trackers {
    /// Starts a thread per tracker. Nothing is written before a session begins.
    /// Errors: MLflow's address can't be used, or the system refuses to start a thread.
    pub fn start(settings: TrackSettings, secrets: &Secrets) -> Result<Self, TrackError> {
        let mut trackers = settings.trackers.clone();
        trackers.sort_unstable();
        trackers.dedup();
        let store = Store::of(secrets, settings.mlruns.clone());
        let mut tracks = Vec::new();
        for tracker in trackers {
            let disk = settings.disk.clone();
            let (open, path): (Open, PathOf) = match tracker {
                Tracker::TensorBoard => (
                    Box::new(move |begin| Ok(boxed(TensorBoard::open(&disk, begin)?))),
                    Box::new(|logs| Some(logs.folder.join(tensorboard::FOLDER))),
                ),
                Tracker::Wandb => (
                    Box::new(move |begin| Ok(boxed(Wandb::open(&disk, begin)?))),
                    Box::new(|logs| Some(synced_folder(&logs.folder, &logs.ids))),
                ),
                Tracker::Jsonl => (
                    Box::new(move |begin| Ok(boxed(Jsonl::open(&disk, begin)?))),
                    Box::new(|logs| Some(logs.folder.join(jsonl::FILE))),
                ),
                Tracker::Csv => (
                    Box::new(move |begin| Ok(boxed(Csv::open(&disk, begin)?))),
                    Box::new(|logs| Some(logs.folder.join(csv::FILE))),
                ),
                Tracker::Mlflow => match store.clone().map_err(|reason| TrackError::Mlflow { reason })? {
                    Store::Folder(root) => {
                        let shown = root.clone();
                        (
                            Box::new(move |begin| Ok(boxed(mlflow::Files::open(&disk, &root, begin)?))),
                            Box::new(move |_| Some(shown.clone())),
                        )
                    }
                    Store::Server(address) => (
                        Box::new(move |begin| Ok(boxed(mlflow::Server::open(&disk, &address, begin)?))),
                        Box::new(|_| None),
                    ),
                },
            };
            let queue = Arc::new(Lane::new(Queue::new(WAITING_MAX)));
            let redactor = secrets.redactor();
            queue
                .start(format!("log-{tracker}"), move |lane| work(lane, &open, &redactor))
                .map_err(|source| TrackError::Thread { tracker, source })?;
            tracks.push(Track { tracker, queue, path });
        }
        let queues = tracks.iter().map(|track| track.queue.clone()).collect();
        let tap = MachineTap { queues, step: Arc::new(AtomicU64::new(NOT_BEGUN)), logged_s: Arc::default() };
        Ok(Self { settings, tracks, tap, begin: None, status: SessionStatus::Failed })
    }

    /// Checks whether these trackers could start, before any file is created. Errors: MLflow's address can't be used.
    pub fn check(trackers: &[Tracker], secrets: &Secrets) -> Result<(), TrackError> {
        if trackers.contains(&Tracker::Mlflow) {
            Store::of(secrets, PathBuf::new()).map_err(|reason| TrackError::Mlflow { reason })?;
        }
        Ok(())
    }

    /// A handle that accepts samples of the machine from any thread.
    pub fn machine_tap(&self) -> MachineTap {
        self.tap.clone()
    }

    fn begin(&mut self, name: &str, first_step: u64, more: [(&str, Value); 4]) {
        let settings = &self.settings;
        let time_s = now_s();
        let mut config = settings.config.clone();
        config.extend(more.map(|(key, value)| (key.to_owned(), value)));
        let logs = RunLogs::take(&settings.disk, &settings.folder, &settings.run, time_s);
        let logs = logs.map_err(|error| format!("{}: {error}", settings.folder.display()));
        let (project, entity) = (settings.project.clone(), settings.entity.clone());
        let begin = Begin { first_step, time_s, name: name.to_owned(), project, entity, config, logs };
        let begin = Arc::new(begin);
        for track in &self.tracks {
            track.queue.put(|queue, _| queue.begin(&begin));
        }
        self.tap.step.store(first_step.saturating_sub(1), Ordering::Relaxed);
        self.begin = Some(begin);
    }

    /// Writes the waiting rows, within `timeout`.
    pub fn finish(self, timeout: Duration) -> Vec<TrackerReport> {
        let deadline = Instant::now() + timeout;
        let end = End { status: self.status, time_s: now_s() };
        for track in &self.tracks {
            track.queue.close(deadline, |queue, _| queue.end = Some(end));
        }
        let report = |track: &Track| {
            let (counts, unwritten) = track.queue.wait_for_end(deadline, Queue::left);
            let logs = self.begin.as_ref().and_then(|begin| begin.logs.as_ref().ok());
            TrackerReport {
                tracker: track.tracker,
                path: logs.and_then(&track.path).filter(|path| path.exists()),
                written: counts.done,
                lost: counts.failed,
                dropped: counts.dropped,
                unwritten,
                last_error: counts.last_error,
            }
        };
        self.tracks.iter().map(report).collect()
    }
}

/// Never waits for a disk or a server.
fn push_to<'a>(queues: impl IntoIterator<Item = &'a Arc<Lane<Queue>>>, row: Row) {
    let (row, now) = (Arc::new(row), Instant::now());
    for queue in queues {
        queue.put(|queue, counts| queue.push(counts, &row, now));
    }
}

fn boxed(writer: impl Writer + 'static) -> Box<dyn Writer> {
    Box::new(writer)
}

impl Sink for Trackers {
    fn take(&mut self, event: &Event) {
        match event {
            Event::RunStarted { name, model, parameters, planned_bytes, budget_bytes, first_step, .. } => {
                let more = [
                    ("model_name", Value::from(model.as_str())),
                    ("parameters", Value::from(*parameters)),
                    ("planned_bytes", Value::from(*planned_bytes)),
                    ("budget_bytes", Value::from(*budget_bytes)),
                ];
                return self.begin(name, *first_step, more);
            }
            Event::Finished { .. } => self.status = SessionStatus::Finished,
            Event::Interrupted { .. } | Event::StoppedForHeat { .. } | Event::Replanned { .. } => {
                self.status = SessionStatus::Stopped;
            }
            _ => {}
        }
        let Some(row) = row_of(event, now_s(), self.settings.steps_per_epoch) else { return };
        self.tap.step.store(row.step, Ordering::Relaxed);
        let is_left_out =
            matches!(event, Event::Step { step, .. } if !step.is_multiple_of(self.settings.every_steps.max(1)));
        if !is_left_out {
            push_to(self.tracks.iter().map(|track| &track.queue), row);
        }
    }
}

/// The value of the last step before the session begins.
const NOT_BEGUN: u64 = u64::MAX;

/// Accepts samples of the machine for all trackers.
#[derive(Debug, Clone)]
pub struct MachineTap {
    queues: Vec<Arc<Lane<Queue>>>,
    /// The last completed step, or [`NOT_BEGUN`].
    step: Arc<AtomicU64>,
    /// Time of the last logged sample.
    logged_s: Arc<Mutex<Option<f64>>>,
}

impl MachineTap {
    /// Logs a sample, unless one was logged recently or the session has not begun. Never waits for a disk or a server.
    pub fn take(&self, sample: &Sample) {
        let step = self.step.load(Ordering::Relaxed);
        if step == NOT_BEGUN {
            return;
        }
        {
            let mut logged = self.logged_s.lock().unwrap_or_else(PoisonError::into_inner);
            // The clock may have been set back.
            if logged.is_some_and(|logged| (0.0..MACHINE_EVERY_S).contains(&(sample.time_s - logged))) {
                return;
            }
            *logged = Some(sample.time_s);
        }
        let Some(row) = row_of_machine(sample, step) else { return };
        push_to(&self.queues, row);
    }
}
