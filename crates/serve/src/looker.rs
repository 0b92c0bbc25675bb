//! A thread that looks at runs and machine, and puts what it sees where all clients find it. It looks each second while somebody
//! asks, and seldom while nobody does. Clients never keep it waiting.

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

/// Runs that are followed: those that run, and the newest.
const RUNS: usize = 60;

/// How often it is looked while nobody asks.
const IDLE: Duration = Duration::from_secs(10);

/// How long a request waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Who asked so long ago asks no longer.
const FORGET: Duration = Duration::from_secs(15);

/// What was seen at once.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Grows with each look that saw something new.
    pub(crate) version: u64,
    /// The runs, each with the version since which it is as it is.
    pub(crate) runs: Vec<(Arc<RunView>, u64)>,
    /// The list of runs as JSON, and its version.
    pub(crate) list: (Arc<str>, u64),
    pub(crate) machine: Arc<MachineView>,
    /// The machine as JSON, and its version.
    pub(crate) machine_json: (Arc<str>, u64),
}

impl Seen {
    pub(crate) fn run(&self, id: &str) -> Option<&(Arc<RunView>, u64)> {
        self.runs.iter().find(|(run, _)| run.id == id)
    }
}

/// The thread, and what it saw last.
pub(crate) struct Looker {
    seen: watch::Receiver<Arc<Seen>>,
    asked: Arc<Asked>,
    every: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
    waker: Thread,
    _sampler: Option<Sampler>,
}

/// When somebody asked last.
struct Asked {
    begun: Instant,
    milliseconds: AtomicU64,
    is_over: AtomicBool,
}

impl Asked {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn recently(&self) -> bool {
        self.now().saturating_sub(self.milliseconds.load(Ordering::Relaxed)) < FORGET.as_millis() as u64
    }
}

impl Looker {
    /// Looks at the runs of these places, or only at those that are named. Errors: a named one is none, or the system starts no
    /// thread.
    pub(crate) fn start(places: Places, named: Vec<PathBuf>, every: Duration) -> Result<Self, LookError> {
        let machine = Arc::new(Mutex::new(Arc::new(MachineView::default())));
        let sampled = machine.clone();
        let options = SamplerOptions { every, folder: places.roots.first().cloned().filter(|root| root.is_dir()) };
        // A machine that can't be sampled has runs all the same.
        let sampler = Sampler::start(options, move |sample| {
            let mut held = sampled.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::make_mut(&mut held).observe(sample);
        });
        let mut follower = RunsFollower::new(places, named, RUNS)?;
        let (publish, seen) = watch::channel(Arc::new(Seen::default()));
        let asked = Asked { begun: Instant::now(), milliseconds: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        let asked = Arc::new(asked);
        let theirs = asked.clone();
        let look = move || {
            while !theirs.is_over.load(Ordering::Relaxed) {
                follower.refresh();
                let machine = machine.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let before = publish.borrow().clone();
                if let Some(seen) = look(&before, &follower, machine) {
                    publish.send_replace(Arc::new(seen));
                }
                std::thread::park_timeout(if theirs.recently() { every } else { IDLE });
            }
        };
        let thread = std::thread::Builder::new().name("looker".to_owned()).spawn(look)?;
        let waker = thread.thread().clone();
        Ok(Self { seen, asked, every, thread: Mutex::new(Some(thread)), waker, _sampler: sampler.ok() })
    }

    /// What is seen now, as fresh as somebody who looks each time. Errors: nothing was looked at yet, and it takes long.
    pub(crate) async fn fresh(&self) -> Result<Arc<Seen>, Problem> {
        let before = self.asked.milliseconds.swap(self.asked.now(), Ordering::Relaxed);
        let mut seen = self.seen.clone();
        let is_old = self.asked.now().saturating_sub(before) > 2 * self.every.as_millis() as u64;
        if seen.borrow().version == 0 {
            let first = tokio::time::timeout(FIRST_LOOK, seen.wait_for(|seen| seen.version > 0)).await;
            if !matches!(first, Ok(Ok(_))) {
                let message = "the runs are being read for the first time; ask again in a second";
                return Err(problem(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        } else if is_old {
            seen.mark_unchanged();
            self.waker.unpark();
            // A look that saw nothing new tells nothing.
            let _ = tokio::time::timeout(self.every, seen.changed()).await;
        }
        let fresh = seen.borrow().clone();
        Ok(fresh)
    }

    /// Tells whoever follows. Each look that sees something new is told, or the newest of several.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Seen>> {
        self.seen.clone()
    }

    /// Somebody still follows.
    pub(crate) fn is_followed(&self) {
        self.asked.milliseconds.store(self.asked.now(), Ordering::Relaxed);
    }

    /// Has it look now, since something was done.
    pub(crate) fn hurry(&self) {
        self.waker.unpark();
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.asked.is_over.store(true, Ordering::Relaxed);
        self.waker.unpark();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Why nothing can be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// What is named is no run.
    #[error(transparent)]
    Run(#[from] WatchError),
    /// The system starts no thread.
    #[error("runs can't be looked at: {0}")]
    Thread(#[from] io::Error),
}

/// What is seen now; none if it is what was seen before.
fn look(before: &Seen, follower: &RunsFollower, machine_view: Arc<MachineView>) -> Option<Seen> {
    let version = before.version + 1;
    let runs = follower.views().map(|run| match before.run(&run.id) {
        Some((known, since)) if Arc::ptr_eq(known, run) => (known.clone(), *since),
        _ => (run.clone(), version),
    });
    let runs = runs.collect::<Vec<_>>();
    let is_listed_alike = |list: &[(Arc<RunView>, u64)]| {
        list.iter().map(|(_, since)| *since).eq(before.runs.iter().map(|(_, since)| *since))
    };
    let more = (follower.all().found.len() + follower.all().more).saturating_sub(runs.len());
    let list = if before.version > 0 && is_listed_alike(&runs) {
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
    is_new.then_some(Seen { version, runs, list, machine: machine_view, machine_json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_the_first_look_and_not_for_ever() {
        let (publish, seen) = watch::channel(Arc::new(Seen::default()));
        let asked = Asked { begun: Instant::now(), milliseconds: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        let waker = std::thread::current();
        let every = Duration::from_millis(1);
        let looker = Looker { seen, asked: Arc::new(asked), every, thread: Mutex::new(None), waker, _sampler: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let look = async {
                // Longer than the time between two looks.
                tokio::time::sleep(20 * every).await;
                publish.send_replace(Arc::new(Seen { version: 1, ..Seen::default() }));
            };
            let (fresh, ()) = tokio::join!(looker.fresh(), look);
            assert_eq!(fresh.expect("it was looked").version, 1);
            publish.send_replace(Arc::default());
            drop(publish);
            let refused = looker.fresh().await.expect_err("nothing will be looked at");
            assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        });
    }
}
