//! What a session needs from the system besides its device and its files: time, waiting, and work at intervals. Tests replace
//! it, so that a session runs in simulated time and on one thread.

use plimsoll_telemetry::{Sample, Sampler, SamplerOptions};
use plimsoll_train::monotonic;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Work at intervals. It ends when this is dropped.
pub type Repeated = Box<dyn Send + Sync>;

/// Receives each sample.
pub type EachSample = Box<dyn FnMut(&Arc<Sample>) + Send>;

/// The time of a session, and its work at intervals next to the training.
pub trait Surroundings: Send + Sync {
    /// The time since any start; never decreases.
    fn now(&self) -> Duration;

    /// Waits for this time, or until the calling thread is unparked. May return early.
    fn wait(&self, most: Duration);

    /// Calls `task` now and at this interval. Errors: the system refuses a thread.
    fn repeat(&self, name: &str, every: Duration, task: Box<dyn FnMut() + Send>) -> io::Result<Repeated>;

    /// Calls `each` with every sample of cards and system. Errors: the system refuses a thread.
    fn sample(&self, options: SamplerOptions, each: EachSample) -> io::Result<Repeated>;
}

/// The system's clock, sensors and threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Surroundings for System {
    fn now(&self) -> Duration {
        monotonic()
    }

    fn wait(&self, most: Duration) {
        thread::park_timeout(most);
    }

    fn repeat(&self, name: &str, every: Duration, mut task: Box<dyn FnMut() + Send>) -> io::Result<Repeated> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let repeat = move || {
            while !over.load(Ordering::Relaxed) {
                task();
                thread::park_timeout(every);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(repeat)?;
        Ok(Box::new(Repeating { is_over, thread: Some(thread) }))
    }

    fn sample(&self, options: SamplerOptions, each: EachSample) -> io::Result<Repeated> {
        Ok(Box::new(Sampler::start(options, each)?))
    }
}

/// A thread that works at intervals.
struct Repeating {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If the thread panicked, the run is over nevertheless.
            let _ = thread.join();
        }
    }
}
