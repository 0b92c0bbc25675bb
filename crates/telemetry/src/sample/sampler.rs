//! Samples at regular intervals on a separate thread.
//! Not here: using the samples; a callback receives them on that thread, and `latest` returns the newest.

use super::card_reader::CardReader;
use super::system_reader::SystemReader;
use super::{CardSample, Sample};
use crate::driver::Driver;
use crate::journal::now_s;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between attempts to reach a driver that is absent or stopped responding.
const RETRY: Duration = Duration::from_secs(10);

/// More than any machine has.
const MOST_CARDS: u32 = 1024;

/// The schedule and the folder of a sampler.
#[derive(Debug, Clone)]
pub struct SamplerOptions {
    /// Time from the start of one sample to the next.
    pub every: Duration,
    /// The folder whose disk is sampled.
    pub folder: Option<PathBuf>,
}

/// A thread that samples until this is dropped.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    stop: Condvar,
}

#[derive(Default)]
struct State {
    latest: Option<Arc<Sample>>,
    stops: bool,
}

impl Sampler {
    /// Starts sampling. Calls `each` with every sample on the sampling thread: a slow `each` delays only the next
    /// sample. Errors: the system refuses to start a thread.
    pub fn start(options: SamplerOptions, mut each: impl FnMut(&Arc<Sample>) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), stop: Condvar::new() });
        let theirs = shared.clone();
        let run = move || {
            let mut system = SystemReader::new(Path::new("/"), options.folder.clone());
            while !theirs.stops() {
                match Driver::open() {
                    Ok(driver) => with_driver(&driver, &mut system, options.every, &theirs, &mut each),
                    Err(_) => sample_for(RETRY, &mut system, options.every, &theirs, &mut each, || Some(vec![])),
                }
            }
        };
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The newest sample; `None` before the first.
    pub fn latest(&self) -> Option<Arc<Sample>> {
        self.shared.lock().latest.clone()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.lock().stops = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already; the dropping thread must continue.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self) -> bool {
        self.lock().stops
    }

    /// Waits until a time, or until sampling stops.
    fn wait_until(&self, moment: Instant) {
        let mut state = self.lock();
        while !state.stops {
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.stop.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The identifiable cards among the first `count`.
fn readers(driver: &Driver, count: u32) -> Vec<CardReader<'_>> {
    (0..count.min(MOST_CARDS)).filter_map(|index| CardReader::new(driver, index).ok()).collect()
}

/// Samples while the driver reports the same cards: if a card appears or disappears, searches again.
fn with_driver(
    driver: &Driver,
    system: &mut SystemReader,
    every: Duration,
    shared: &Shared,
    each: &mut impl FnMut(&Arc<Sample>),
) {
    let count = driver.device_count().unwrap_or(0);
    let mut cards = readers(driver, count);
    let is_whole = cards.len() == count as usize;
    let read = || {
        let is_same = driver.device_count().is_ok_and(|now| now == count);
        is_same.then(|| cards.iter_mut().map(CardReader::read).collect::<Vec<_>>())
    };
    // A card that could not be opened may become available later.
    let long = if is_whole { Duration::MAX } else { RETRY };
    sample_for(long, system, every, shared, each, read);
}

/// Samples for some time, or until the cards can't be read.
fn sample_for(
    long: Duration,
    system: &mut SystemReader,
    every: Duration,
    shared: &Shared,
    each: &mut impl FnMut(&Arc<Sample>),
    mut read: impl FnMut() -> Option<Vec<CardSample>>,
) {
    let begun = Instant::now();
    let mut next = begun;
    loop {
        let time_s = now_s();
        let Some(cards) = read() else { return shared.wait_until(Instant::now() + every.min(RETRY)) };
        let lost = !cards.is_empty() && cards.iter().all(|card| card.lost.is_some());
        let sample = Arc::new(Sample { time_s, cards, system: system.read() });
        shared.lock().latest = Some(sample.clone());
        each(&sample);
        // A late sample does not cause extra samples to catch up.
        next = (next + every).max(Instant::now());
        shared.wait_until(next);
        if shared.stops() || begun.elapsed() >= long || lost {
            return;
        }
    }
}

/// The machine now, from two readings close together, so values that are counted between two samples are `None`.
pub fn sample_once(folder: Option<&Path>) -> Sample {
    let time_s = now_s();
    let cards = Driver::open().map_or_else(
        |_| vec![],
        |driver| readers(&driver, driver.device_count().unwrap_or(0)).iter_mut().map(CardReader::read).collect(),
    );
    let mut system = SystemReader::new(Path::new("/"), folder.map(Path::to_owned));
    Sample { time_s, cards, system: system.read() }
}
