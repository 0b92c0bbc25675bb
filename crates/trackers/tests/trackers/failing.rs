//! Disks that are full or hang: a run loses logs, and nothing else.

use crate::readers::{self, of};
use crate::{LONG, settings, started, step};
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::Sink;
use plimsoll_trackers::{Tracker, TrackerReport, Trackers};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A disk that is full on demand: a part of each write is stored before the system refuses the rest.
#[derive(Debug, Default)]
struct Full {
    is_full: AtomicBool,
    refused: Mutex<u64>,
    changed: Condvar,
}

impl Watch for Full {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        if !self.is_full.load(Ordering::SeqCst) {
            return Ok(());
        }
        match operation {
            Operation::Append(path, bytes) => {
                File::options().append(true).open(path)?.write_all(&bytes[..bytes.len() / 2])?;
                *self.refused.lock().expect("no panic") += 1;
                self.changed.notify_all();
            }
            // Truncation frees no space either.
            Operation::Truncate(..) => {}
            _ => return Ok(()),
        }
        Err(io::ErrorKind::StorageFull.into())
    }
}

impl Full {
    fn wait_for(&self, refused: u64) {
        let count = self.refused.lock().expect("no panic");
        let waited = self.changed.wait_timeout_while(count, LONG, |count| *count < refused).expect("no panic");
        assert!(!waited.1.timed_out());
    }
}

#[test]
fn a_full_disk_loses_only_the_logs_that_did_not_fit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for tracker in [Tracker::TensorBoard, Tracker::Wandb, Tracker::Jsonl, Tracker::Csv] {
        let full = Arc::new(Full::default());
        let mut settings = settings(folder.path());
        settings.folder = folder.path().join(tracker.name());
        settings.trackers = vec![tracker];
        settings.disk = Disk::watched(full.clone());
        let mut trackers = Trackers::start(settings.clone(), &Secrets::default()).expect("a thread");
        trackers.take(&started(1));
        trackers.take(&step(1, 1.0));
        // The first log is on disk before the disk is full.
        let (_, read) = readers::ALL.into_iter().find(|(name, _)| *name == tracker.name()).expect("a reader");
        wait_until(|| {
            settings.folder.join("run.json").exists()
                && files_of(tracker, &settings.folder)
                && !read(&settings.folder).is_empty()
        });
        full.is_full.store(true, Ordering::SeqCst);
        trackers.take(&step(2, 2.0));
        full.wait_for(1);
        full.is_full.store(false, Ordering::SeqCst);
        trackers.take(&step(3, 3.0));
        let TrackerReport { written, lost, dropped, last_error, .. } = trackers.finish(LONG).remove(0);
        let found = of(&read(&settings.folder), "train/loss").into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(found, if lost == 1 { vec![1, 3] } else { vec![1] }, "{tracker}");
        assert_eq!((written + lost, dropped), (3, 0), "{tracker}");
        assert!(last_error.is_some_and(|error| error.contains("storage") || error.contains("space")), "{tracker}");
    }
}

fn files_of(tracker: Tracker, logs: &std::path::Path) -> bool {
    match tracker {
        Tracker::TensorBoard => logs.join("tensorboard").is_dir() && !readers::event_files(logs).is_empty(),
        Tracker::Wandb => {
            let has_log = |run: std::path::PathBuf| readers::names(&run).iter().any(|file| file.extension().is_some());
            logs.join("wandb").is_dir() && readers::names(&logs.join("wandb")).into_iter().any(has_log)
        }
        other => logs.join(format!("metrics.{other}")).exists(),
    }
}

/// Polls until a condition holds; the polled files may be partially written.
fn wait_until(is_so: impl Fn() -> bool + std::panic::RefUnwindSafe) {
    let begun = std::time::Instant::now();
    while !std::panic::catch_unwind(&is_so).unwrap_or(false) {
        assert!(begun.elapsed() < LONG, "timed out");
        std::thread::yield_now();
    }
}

/// A disk that hangs, like a network disk.
#[derive(Debug, Default)]
struct Hangs {
    is_free: Mutex<bool>,
    changed: Condvar,
}

impl Watch for Hangs {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        if matches!(operation, Operation::Append(..)) {
            let free = self.is_free.lock().expect("no panic");
            drop(self.changed.wait_while(free, |free| !*free).expect("no panic"));
        }
        Ok(())
    }
}

/// If logs were written by the thread that receives events, this test would never end.
#[test]
fn a_hanging_disk_delays_no_step_and_memory_is_bounded() {
    const STEPS: u64 = 20_000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let hangs = Arc::new(Hangs::default());
    let mut settings = settings(folder.path());
    settings.disk = Disk::watched(hangs.clone());
    let mut trackers = Trackers::start(settings, &Secrets::default()).expect("threads");
    trackers.take(&started(1));
    (1..=STEPS).for_each(|n| trackers.take(&step(n, 1.0)));
    for report in trackers.finish(Duration::ZERO) {
        assert_eq!(report.written + report.lost, 0, "{report:?}");
        assert_eq!(report.unwritten + report.dropped, STEPS, "{report:?}");
        assert!(report.unwritten <= 8192 + 256, "{report:?}");
    }
    *hangs.is_free.lock().expect("no panic") = true;
    hangs.changed.notify_all();
}

#[test]
fn a_folder_that_cannot_be_created_is_reported() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut settings = settings(folder.path());
    settings.folder = folder.path().join("file/logs");
    std::fs::write(folder.path().join("file"), "no folder").expect("written");
    for report in crate::session(&settings, &[started(1), step(1, 1.0)]) {
        assert_eq!((report.written, report.lost, report.path), (0, 1, None), "{}", report.tracker);
        assert!(report.last_error.is_some_and(|error| error.contains("file/logs")));
    }
}
