//! The one entry: events and samples go in and never wait, a report comes out at the end.

use crate::csv::{self, Csv};
use crate::jsonl::{self, Jsonl};
use crate::mlflow::{self, Store};
use crate::place::Place;
use crate::queue::Queue;
use crate::row::{Row, row_of, row_of_machine};
use crate::tensorboard::{self, TensorBoard};
use crate::tracker::Tracker;
use crate::wandb::{Wandb, synced_folder};
use crate::worker::work;
use crate::writer::{Begin, End, Open, Standing, Writer};
use plimsoll_files::Disk;
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{Event, Lane, Sample, Sink, now_s};
use serde_json::{Map, Value};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rows that wait at most for a writer: minutes of the shortest steps.
const WAITING_MAX: usize = 8192;

/// Between two logs of the machine's metrics, as W&B has it.
const MACHINE_EVERY_S: f64 = 15.0;

/// What is logged, and where.
#[derive(Debug, Clone)]
pub struct TrackSettings {
    /// For which tools.
    pub trackers: Vec<Tracker>,
    /// Steps between two logs of training; every evaluation is logged.
    pub every_steps: u64,
    /// The folder of the run's logs; another run's are left alone, and the name gets a number.
    pub folder: PathBuf,
    /// MLflow's folder, which runs may share.
    pub mlruns: PathBuf,
    /// The run's own folder.
    pub run: PathBuf,
    /// The project, or experiment, that the run is a part of.
    pub project: String,
    /// Its owner in W&B, if that is not the user.
    pub entity: Option<String>,
    /// The run's settings, which are logged as hyperparameters.
    pub config: Map<String, Value>,
    /// Steps of a pass over the data, where that is known.
    pub steps_per_epoch: Option<f64>,
    /// The disk that is written to.
    pub disk: Disk,
}

/// Why nothing can be logged. No message has a secret in it.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// MLflow's address can't be used.
    #[error("MLFLOW_TRACKING_URI {reason}")]
    Mlflow {
        /// Why.
        reason: &'static str,
    },
    /// The system starts no thread.
    #[error("a thread for {tracker} can't be started: {source}")]
    Thread {
        /// The tracker.
        tracker: Tracker,
        /// What the system says.
        source: io::Error,
    },
}

/// What came of the logs of a tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackerReport {
    /// The tracker.
    pub tracker: Tracker,
    /// What it wrote, as a file or a folder; none if that is on a server, or nothing could be written.
    pub path: Option<PathBuf>,
    /// Logs that were written.
    pub written: u64,
    /// Logs that could not be written.
    pub lost: u64,
    /// Logs for which there was no room, since the tracker was too slow.
    pub dropped: u64,
    /// Logs that it did not come to before the time was up.
    pub unwritten: u64,
    /// What went wrong last, without secrets.
    pub last_error: Option<String>,
}

/// What a tracker writes, of a run whose logs lie there; nothing if that is on a server.
type PathOf = Box<dyn Fn(&Place) -> Option<PathBuf> + Send>;

struct Track {
    tracker: Tracker,
    queue: Arc<Lane<Queue>>,
    path: PathOf,
}

/// Logs to all trackers that are set. Dropped without [`Trackers::finish`], its threads go on until the process ends.
pub struct Trackers {
    settings: TrackSettings,
    tracks: Vec<Track>,
    tap: MachineTap,
    begin: Option<Arc<Begin>>,
    standing: Standing,
}

impl Trackers {
    /// Starts a thread for each tracker. Nothing is written before a session begins.
    /// Errors: MLflow's address can't be used, or the system starts no thread.
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
                    Box::new(|place| Some(place.folder.join(tensorboard::FOLDER))),
                ),
                Tracker::Wandb => (
                    Box::new(move |begin| Ok(boxed(Wandb::open(&disk, begin)?))),
                    Box::new(|place| Some(synced_folder(&place.folder, &place.ids))),
                ),
                Tracker::Jsonl => (
                    Box::new(move |begin| Ok(boxed(Jsonl::open(&disk, begin)?))),
                    Box::new(|place| Some(place.folder.join(jsonl::FILE))),
                ),
                Tracker::Csv => (
                    Box::new(move |begin| Ok(boxed(Csv::open(&disk, begin)?))),
                    Box::new(|place| Some(place.folder.join(csv::FILE))),
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
        Ok(Self { settings, tracks, tap, begin: None, standing: Standing::Failed })
    }

    /// Whether these trackers could start: to be asked before anything is made. Errors: MLflow's address can't be used.
    pub fn check(trackers: &[Tracker], secrets: &Secrets) -> Result<(), TrackError> {
        if trackers.contains(&Tracker::Mlflow) {
            Store::of(secrets, PathBuf::new()).map_err(|reason| TrackError::Mlflow { reason })?;
        }
        Ok(())
    }

    /// What takes samples of the machine, from any thread.
    pub fn machine_tap(&self) -> MachineTap {
        self.tap.clone()
    }

    fn begin(&mut self, name: &str, first_step: u64, more: [(&str, Value); 4]) {
        let settings = &self.settings;
        let time_s = now_s();
        let mut config = settings.config.clone();
        config.extend(more.map(|(key, value)| (key.to_owned(), value)));
        let place = Place::take(&settings.disk, &settings.folder, &settings.run, time_s);
        let place = place.map_err(|error| format!("{}: {error}", settings.folder.display()));
        let (project, entity) = (settings.project.clone(), settings.entity.clone());
        let begin = Begin { first_step, time_s, name: name.to_owned(), project, entity, config, place };
        let begin = Arc::new(begin);
        for track in &self.tracks {
            track.queue.put(|queue, _| queue.begin(&begin));
        }
        self.tap.step.store(first_step.saturating_sub(1), Ordering::Relaxed);
        self.begin = Some(begin);
    }

    /// Writes what waits, for `timeout` at most.
    pub fn finish(self, timeout: Duration) -> Vec<TrackerReport> {
        let deadline = Instant::now() + timeout;
        let end = End { standing: self.standing, time_s: now_s() };
        for track in &self.tracks {
            track.queue.close(deadline, |queue, _| queue.end = Some(end));
        }
        let report = |track: &Track| {
            let (counts, unwritten) = track.queue.wait_for_end(deadline, Queue::left);
            let place = self.begin.as_ref().and_then(|begin| begin.place.as_ref().ok());
            TrackerReport {
                tracker: track.tracker,
                path: place.and_then(&track.path).filter(|path| path.exists()),
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
            Event::Finished { .. } => self.standing = Standing::Finished,
            Event::Interrupted { .. } | Event::StoppedForHeat { .. } | Event::Replanned { .. } => {
                self.standing = Standing::Stopped;
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

/// The last step of a session that has not begun.
const NOT_BEGUN: u64 = u64::MAX;

/// Takes samples of the machine for all trackers.
#[derive(Debug, Clone)]
pub struct MachineTap {
    queues: Vec<Arc<Lane<Queue>>>,
    /// The last step that was made, or [`NOT_BEGUN`].
    step: Arc<AtomicU64>,
    /// When a sample was logged last.
    logged_s: Arc<Mutex<Option<f64>>>,
}

impl MachineTap {
    /// Logs a sample, unless one was logged a moment ago or the session has not begun. Never waits for a disk or a server.
    pub fn take(&self, sample: &Sample) {
        let step = self.step.load(Ordering::Relaxed);
        if step == NOT_BEGUN {
            return;
        }
        {
            let mut logged = self.logged_s.lock().unwrap_or_else(PoisonError::into_inner);
            // Clocks may be set back.
            if logged.is_some_and(|logged| (0.0..MACHINE_EVERY_S).contains(&(sample.time_s - logged))) {
                return;
            }
            *logged = Some(sample.time_s);
        }
        let Some(row) = row_of_machine(sample, step) else { return };
        push_to(&self.queues, row);
    }
}
