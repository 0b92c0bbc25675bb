//! Carries what a program prints: into the log, into the tail from which its end is judged, and on to the screen, byte
//! for byte.

use super::log::OutputLog;
use super::progress::{Meter, Progress};
use super::screen::Screen;
use super::tail::Tail;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, retry_on_intr};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Bytes of output by which an end is judged.
const TAIL: usize = 64 << 10;

/// Longer lines are passed on in parts.
const LONGEST_LINE: usize = 64 << 10;

/// What is kept of a worker's output.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) log: OutputLog,
    tail: Tail,
    meter: Meter,
}

/// A worker's output, over all of its attempts.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    kept: Arc<Mutex<Kept>>,
    /// Bytes that came.
    bytes: Arc<AtomicU64>,
    /// Whether somebody who reads slowly holds up the program.
    is_held_up: Arc<AtomicBool>,
}

impl Output {
    /// Kept in this file, with at most so many bytes.
    pub(crate) fn new(log: &Path, most: u64) -> Self {
        let kept = Kept { log: OutputLog::new(log, most), tail: Tail::new(TAIL), meter: Meter::default() };
        Self { kept: Arc::new(Mutex::new(kept)), bytes: Arc::default(), is_held_up: Arc::default() }
    }

    /// What is kept.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
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

    /// The end of an attempt: its tail and how far it came. The next one begins with neither.
    pub(crate) fn finish(&self) -> (Vec<u8>, Option<Progress>) {
        let mut kept = self.kept();
        let mut meter = std::mem::take(&mut kept.meter);
        meter.finish();
        (kept.tail.take(), meter.furthest())
    }
}

/// A thread that carries.
#[derive(Debug)]
pub(crate) struct Pump {
    thread: JoinHandle<()>,
    /// While it is open, the thread waits for more.
    more: Option<OwnedFd>,
}

impl Pump {
    /// Carries what comes out of a pipe. `label`: put before each line on the screen, where several workers share it.
    pub(crate) fn start(
        pipe: OwnedFd,
        output: &Output,
        screen: Option<Screen>,
        label: Option<String>,
    ) -> io::Result<Self> {
        let (over, more) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut carrier = Carrier { output: output.clone(), screen, label, line: vec![] };
        let thread = std::thread::Builder::new().name("output".to_owned());
        let thread = thread.spawn(move || carrier.run(&pipe, &over))?;
        Ok(Self { thread, more: Some(more) })
    }

    /// Lets it take what is in the pipe, and no more: a process that left its group may keep the pipe open for ever.
    pub(crate) fn finish(&mut self) {
        self.more = None;
    }

    /// Whether it has carried all, which takes as long as somebody takes to read it.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

struct Carrier {
    output: Output,
    screen: Option<Screen>,
    label: Option<String>,
    /// What has begun, where lines are labeled.
    line: Vec<u8>,
}

impl Carrier {
    fn run(&mut self, pipe: &OwnedFd, over: &OwnedFd) {
        let mut buffer = vec![0; PIECE];
        loop {
            let mut waited = [PollFd::new(pipe, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
            match poll(&mut waited, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let [has_output, is_over] = waited.map(|waited| !waited.revents().is_empty());
            if has_output {
                match retry_on_intr(|| read(pipe, &mut buffer[..])) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => self.carry(&buffer[..count]),
                }
            } else if is_over {
                break;
            }
        }
        if !self.line.is_empty() {
            self.line.push(b'\n');
            self.pass_line();
        }
    }

    fn carry(&mut self, bytes: &[u8]) {
        let mut kept = self.output.kept();
        kept.log.append(bytes);
        kept.tail.push(bytes);
        kept.meter.read(bytes);
        drop(kept);
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
