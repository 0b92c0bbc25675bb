//! Thread that polls runs and machine, and publishes one snapshot for all clients. It polls every second while clients
//! ask, and every ten seconds otherwise. It never waits for a client.

use crate::wire::{Problem, Summary, machine, problem};
use axum::http::StatusCode;
use plimsoll_telemetry::{Sampler, SamplerOptions};
use plimsoll_watch::{MachineView, Places, RunView, RunsFollower, WatchError};
use serde_json::json;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Maximum number of runs that are read: the running ones, then the newest.
const RUNS: usize = 60;

/// Time between polls while no client asks.
const IDLE: Duration = Duration::from_secs(10);

/// How long a request waits for the first poll.
const FIRST_POLL: Duration = Duration::from_secs(2);

/// Time after a client's last request until polling slows down.
const ACTIVE: Duration = Duration::from_secs(15);

/// Runs and machine at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Incremented by each poll that saw a change.
    pub(crate) version: u64,
    /// The runs, each with the version of its last change.
    pub(crate) runs: Vec<(Arc<RunView>, u64)>,
    /// The list of runs as JSON, and the version of its last change.
    pub(crate) list: (Arc<str>, u64),
    pub(crate) machine: Arc<MachineView>,
    /// The machine as JSON, and the version of its last change.
    pub(crate) machine_json: (Arc<str>, u64),
}

impl Snapshot {
    pub(crate) fn run(&self, id: &str) -> Option<&(Arc<RunView>, u64)> {
        self.runs.iter().find(|(run, _)| run.id == id)
    }
}

/// The polling thread and its last snapshot.
pub(crate) struct Poller {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    requests: Arc<Requests>,
    every: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
    waker: Thread,
    _sampler: Option<Sampler>,
}

/// When a client last asked, and whether the thread must end.
struct Requests {
    begun: Instant,
    last_ms: AtomicU64,
    is_over: AtomicBool,
}

impl Requests {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn recently(&self) -> bool {
        self.now().saturating_sub(self.last_ms.load(Ordering::Relaxed)) < ACTIVE.as_millis() as u64
    }
}

impl Poller {
    /// Polls the runs in these places, or only those in `named`. Errors: one of `named` is not a run, or the system
    /// cannot start a thread.
    pub(crate) fn start(places: Places, named: Vec<PathBuf>, every: Duration) -> Result<Self, PollError> {
        let machine = Arc::new(Mutex::new(Arc::new(MachineView::default())));
        let sampled = machine.clone();
        let options = SamplerOptions { every, folder: places.roots.first().cloned().filter(|root| root.is_dir()) };
        // Runs are shown even if the machine cannot be sampled.
        let sampler = Sampler::start(options, move |sample| {
            let mut held = sampled.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::make_mut(&mut held).observe(sample);
        });
        let mut follower = RunsFollower::new(places, named, RUNS)?;
        let (publish, snapshot) = watch::channel(Arc::new(Snapshot::default()));
        let requests = Requests { begun: Instant::now(), last_ms: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        let requests = Arc::new(requests);
        let thread_requests = requests.clone();
        let poll = move || {
            while !thread_requests.is_over.load(Ordering::Relaxed) {
                follower.refresh();
                let machine = machine.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let before = publish.borrow().clone();
                if let Some(snapshot) = next_snapshot(&before, &follower, machine) {
                    publish.send_replace(Arc::new(snapshot));
                }
                std::thread::park_timeout(if thread_requests.recently() { every } else { IDLE });
            }
        };
        let thread = std::thread::Builder::new().name("poller".to_owned()).spawn(poll)?;
        let waker = thread.thread().clone();
        Ok(Self { snapshot, requests, every, thread: Mutex::new(Some(thread)), waker, _sampler: sampler.ok() })
    }

    /// The current snapshot; polls first if the last one is old. Errors: the first poll takes too long.
    pub(crate) async fn latest(&self) -> Result<Arc<Snapshot>, Problem> {
        let before = self.requests.last_ms.swap(self.requests.now(), Ordering::Relaxed);
        let mut snapshot = self.snapshot.clone();
        let is_old = self.requests.now().saturating_sub(before) > 2 * self.every.as_millis() as u64;
        if snapshot.borrow().version == 0 {
            let first = tokio::time::timeout(FIRST_POLL, snapshot.wait_for(|snapshot| snapshot.version > 0)).await;
            if !matches!(first, Ok(Ok(_))) {
                let message = "the runs are being read for the first time; retry in a second";
                return Err(problem(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        } else if is_old {
            snapshot.mark_unchanged();
            self.waker.unpark();
            // A poll without a change publishes no snapshot, so this may time out.
            let _ = tokio::time::timeout(self.every, snapshot.changed()).await;
        }
        let fresh = snapshot.borrow().clone();
        Ok(fresh)
    }

    /// A receiver of snapshots. A slow receiver skips to the newest.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshot.clone()
    }

    /// Records that a client still follows, which keeps polling fast.
    pub(crate) fn keep_awake(&self) {
        self.requests.last_ms.store(self.requests.now(), Ordering::Relaxed);
    }

    /// Polls now, because a run received an order.
    pub(crate) fn wake(&self) {
        self.waker.unpark();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.requests.is_over.store(true, Ordering::Relaxed);
        self.waker.unpark();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Why the poller did not start.
#[derive(Debug, thiserror::Error)]
pub enum PollError {
    /// A named folder is not a run.
    #[error(transparent)]
    Run(#[from] WatchError),
    /// The system cannot start a thread.
    #[error("cannot start the thread that reads runs: {0}")]
    Thread(#[from] io::Error),
}

/// A new snapshot; `None` if nothing changed.
fn next_snapshot(before: &Snapshot, follower: &RunsFollower, machine_view: Arc<MachineView>) -> Option<Snapshot> {
    let version = before.version + 1;
    let runs = follower.views().map(|run| match before.run(&run.id) {
        Some((known, since)) if Arc::ptr_eq(known, run) => (known.clone(), *since),
        _ => (run.clone(), version),
    });
    let runs = runs.collect::<Vec<_>>();
    let has_same_versions = |list: &[(Arc<RunView>, u64)]| {
        list.iter().map(|(_, since)| *since).eq(before.runs.iter().map(|(_, since)| *since))
    };
    let more = (follower.all().found.len() + follower.all().more).saturating_sub(runs.len());
    let list = if before.version > 0 && has_same_versions(&runs) {
        before.list.clone()
    } else {
        let runs = runs.iter().map(|(run, _)| Summary::of(run)).collect::<Vec<_>>();
        (Arc::from(json!({ "runs": runs, "more": more }).to_string()), version)
    };
    let machine_json = if before.version > 0 && before.machine == machine_view && list.1 != version {
        before.machine_json.clone()
    } else {
        let views = runs.iter().map(|(run, _)| &**run).collect::<Vec<_>>();
        (Arc::from(machine(&machine_view, &views).to_string()), version)
    };
    let is_new = list.1 == version || machine_json.1 == version;
    is_new.then_some(Snapshot { version, runs, list, machine: machine_view, machine_json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_a_limited_time_for_the_first_poll() {
        let (publish, snapshot) = watch::channel(Arc::new(Snapshot::default()));
        let requests = Requests { begun: Instant::now(), last_ms: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        let waker = std::thread::current();
        let every = Duration::from_millis(1);
        let poller =
            Poller { snapshot, requests: Arc::new(requests), every, thread: Mutex::new(None), waker, _sampler: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let first_poll = async {
                // Longer than the time between two polls.
                tokio::time::sleep(20 * every).await;
                publish.send_replace(Arc::new(Snapshot { version: 1, ..Snapshot::default() }));
            };
            let (fresh, ()) = tokio::join!(poller.latest(), first_poll);
            assert_eq!(fresh.expect("the first poll is done").version, 1);
            publish.send_replace(Arc::default());
            drop(publish);
            let refused = poller.latest().await.expect_err("there will be no poll");
            assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        });
    }
}
