//! Carries what a program prints: into the tail from which its end is judged, and on to the screen, byte for byte. Into
//! the log it goes only where no keeper does that.

use super::log::{OutputLog, last_bytes};
use super::progress::{Meter, Progress};
use super::screen::Screen;
use super::tail::Tail;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, retry_on_intr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Bytes of output by which an end is judged.
pub(crate) const TAIL: usize = 64 << 10;

/// Longer lines are passed on in parts.
const LONGEST_LINE: usize = 64 << 10;

/// What is kept of a worker's output.
#[derive(Debug)]
struct Kept {
    /// Where this process keeps it itself.
    log: Option<OutputLog>,
    tail: Tail,
    meter: Meter,
    /// Why some of it is not kept.
    lost: Option<String>,
}

/// A worker's output, over all of its attempts.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    log: PathBuf,
    log_bytes: u64,
    kept: Arc<Mutex<Kept>>,
    /// Bytes that came.
    bytes: Arc<AtomicU64>,
    /// Whether somebody who reads slowly holds up the program.
    is_held_up: Arc<AtomicBool>,
}

impl Output {
    /// Kept in this file, with at most so many bytes.
    pub(crate) fn new(log: &Path, most: u64) -> Self {
        let kept = Kept { log: None, tail: Tail::new(TAIL), meter: Meter::default(), lost: None };
        Self {
            log: log.to_owned(),
            log_bytes: most,
            kept: Arc::new(Mutex::new(kept)),
            bytes: Arc::default(),
            is_held_up: Arc::default(),
        }
    }

    /// The file, and how many bytes are kept.
    pub(crate) fn log(&self) -> (&Path, u64) {
        (&self.log, self.log_bytes)
    }

    /// Why some of it is not kept, the first time; `None` if all is.
    pub(crate) fn lost(&self) -> Option<String> {
        let kept = self.kept();
        kept.lost.clone().or_else(|| kept.log.as_ref()?.reason().map(str::to_owned))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much came so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the program waits for somebody to read.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up.load(Ordering::Relaxed)
    }

    /// How far the attempt has come.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.kept().meter.furthest()
    }

    /// Takes account of what an attempt printed: of so many bytes, which are the last in the log.
    pub(crate) fn recall_logged(&self, bytes: u64) {
        let most = usize::try_from(bytes).unwrap_or(TAIL).min(TAIL);
        self.recall(&last_bytes(&self.log, most));
    }

    fn recall(&self, bytes: &[u8]) {
        let mut kept = self.kept();
        kept.tail.push(bytes);
        kept.meter.read(bytes);
    }

    /// The end of an attempt: its tail and how far it came. The next one begins with neither.
    pub(crate) fn finish(&self) -> (Vec<u8>, Option<Progress>) {
        let mut kept = self.kept();
        let mut meter = std::mem::take(&mut kept.meter);
        meter.finish();
        (kept.tail.take(), meter.furthest())
    }
}

/// Carries one stream of a program.
#[derive(Debug)]
pub(crate) struct Carrier {
    output: Output,
    screen: Option<Screen>,
    label: Option<String>,
    /// What has begun, where lines are labeled.
    line: Vec<u8>,
}

impl Carrier {
    /// `label`: put before each line on the screen, where several workers share it.
    pub(crate) fn new(output: &Output, screen: Option<Screen>, label: Option<String>) -> Self {
        Self { output: output.clone(), screen, label, line: vec![] }
    }

    /// Carries what comes out of a pipe into the log too, until the pipe's end, or until it is empty and `over` can be
    /// read from.
    pub(crate) fn drain(&mut self, pipe: &OwnedFd, over: &OwnedFd) {
        let mut buffer = vec![0; PIECE];
        loop {
            let mut waited = [PollFd::new(pipe, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
            match poll(&mut waited, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => break,
            }
            let [has_output, is_over] = waited.map(|waited| !waited.revents().is_empty());
            if has_output {
                match retry_on_intr(|| read(pipe, &mut buffer[..])) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => {
                        let (path, most) = self.output.log();
                        self.output
                            .kept()
                            .log
                            .get_or_insert_with(|| OutputLog::new(path, most))
                            .append(&buffer[..count]);
                        self.carry(&buffer[..count]);
                    }
                }
            } else if is_over {
                break;
            }
        }
    }

    /// Passes on what was printed.
    pub(crate) fn carry(&mut self, bytes: &[u8]) {
        self.recall(bytes);
        self.output.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self.label.is_none() {
            self.pass(bytes.to_vec());
            return;
        }
        for &byte in bytes {
            self.line.push(byte);
            if matches!(byte, b'\n' | b'\r') || self.line.len() >= LONGEST_LINE {
                self.pass_line();
            }
        }
    }

    /// Takes account of what was printed, and passes nothing on.
    pub(crate) fn recall(&self, bytes: &[u8]) {
        self.output.recall(bytes);
    }

    /// Some of the output is not kept, for this reason.
    pub(crate) fn lost(&self, reason: String) {
        self.output.kept().lost.get_or_insert(reason);
    }

    /// There is no more: a line that has begun is passed on as it is.
    pub(crate) fn finish(&mut self) {
        if !self.line.is_empty() {
            self.line.push(b'\n');
            self.pass_line();
        }
    }

    fn pass_line(&mut self) {
        let mut labeled = self.label.clone().unwrap_or_default().into_bytes();
        labeled.append(&mut self.line);
        self.pass(labeled);
    }

    fn pass(&self, bytes: Vec<u8>) {
        if let Some(screen) = &self.screen {
            self.output.is_held_up.store(true, Ordering::Relaxed);
            screen.send(bytes);
            self.output.is_held_up.store(false, Ordering::Relaxed);
        }
    }
}
