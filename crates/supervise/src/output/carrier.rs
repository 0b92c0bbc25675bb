//! Carries a program's output: into the tail, which is used to classify its end, and to the screen, byte for byte.
//! Writes the log only if no keeper does.

use super::log::{OutputLog, last_bytes};
use super::screen::Screen;
use super::tail::Tail;
use plimsoll_registry::{Meter, Progress};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, retry_on_intr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes per read.
const PIECE: usize = 64 << 10;

/// Bytes of output used to classify an end.
pub(crate) const TAIL: usize = 64 << 10;

/// Longer lines are forwarded in parts.
const LONGEST_LINE: usize = 64 << 10;

/// The kept part of a worker's output.
#[derive(Debug)]
struct Kept {
    /// The log, if this process writes it.
    log: Option<OutputLog>,
    tail: Tail,
    meter: Meter,
    /// Why some output was not logged.
    lost: Option<String>,
}

/// The output of all attempts of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    log: PathBuf,
    log_bytes: u64,
    kept: Arc<Mutex<Kept>>,
    /// Bytes received.
    bytes: Arc<AtomicU64>,
    /// Whether a slow reader blocks the program.
    is_held_up: Arc<AtomicBool>,
}

impl Output {
    /// Output logged in this file, limited to `log_bytes`.
    pub(crate) fn new(log: &Path, log_bytes: u64) -> Self {
        let kept = Kept { log: None, tail: Tail::new(TAIL), meter: Meter::default(), lost: None };
        Self {
            log: log.to_owned(),
            log_bytes,
            kept: Arc::new(Mutex::new(kept)),
            bytes: Arc::default(),
            is_held_up: Arc::default(),
        }
    }

    /// The log file and its size limit.
    pub(crate) fn log(&self) -> (&Path, u64) {
        (&self.log, self.log_bytes)
    }

    /// Why output was first lost; `None` if all of it was logged.
    pub(crate) fn lost(&self) -> Option<String> {
        let kept = self.kept();
        kept.lost.clone().or_else(|| kept.log.as_ref()?.reason().map(str::to_owned))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes received so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the program waits for a slow reader.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up.load(Ordering::Relaxed)
    }

    /// Progress of the current attempt.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.kept().meter.furthest()
    }

    /// Restores the tail and progress of an attempt from its output: the last `bytes` of the log.
    pub(crate) fn recall_logged(&self, bytes: u64) {
        let count = usize::try_from(bytes).unwrap_or(TAIL).min(TAIL);
        self.recall(&last_bytes(&self.log, count));
    }

    fn recall(&self, bytes: &[u8]) {
        let mut kept = self.kept();
        kept.tail.push(bytes);
        kept.meter.read(bytes);
    }

    /// Ends an attempt: returns its tail and progress, and resets both.
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
    /// The unfinished line, if lines get a label.
    line: Vec<u8>,
}

impl Carrier {
    /// `label`: a prefix for each line on the screen, if several workers share it.
    pub(crate) fn new(output: &Output, screen: Option<Screen>, label: Option<String>) -> Self {
        Self { output: output.clone(), screen, label, line: vec![] }
    }

    /// Reads a pipe, and writes the log too, until the pipe ends or until it is empty and `over` is readable.
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
                        let (path, log_bytes) = self.output.log();
                        self.output
                            .kept()
                            .log
                            .get_or_insert_with(|| OutputLog::new(path, log_bytes))
                            .append(&buffer[..count]);
                        self.carry(&buffer[..count]);
                    }
                }
            } else if is_over {
                break;
            }
        }
    }

    /// Records and forwards output.
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

    /// Records output in the tail and progress without forwarding it.
    pub(crate) fn recall(&self, bytes: &[u8]) {
        self.output.recall(bytes);
    }

    /// Records why some output was not logged.
    pub(crate) fn lost(&self, reason: String) {
        self.output.kept().lost.get_or_insert(reason);
    }

    /// Ends the stream: forwards the unfinished line.
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
