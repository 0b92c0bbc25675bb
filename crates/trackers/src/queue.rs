//! The rows that wait for one writer: so many at most. Who puts one in never waits for a disk or a server; rows for which there
//! is no room are dropped and counted.

use crate::row::Row;
use crate::writer::{Begin, End};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a writer gets next.
#[derive(Debug)]
pub(crate) enum Next {
    /// A session begins.
    Begin(Arc<Begin>),
    /// Rows, at least one.
    Rows(Vec<Arc<Row>>),
    /// The session is over; its end is said if there is time for it.
    End(Option<End>),
}

/// What came of the rows so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) written: u64,
    /// That could not be written.
    pub(crate) lost: u64,
    /// For which there was no room.
    pub(crate) dropped: u64,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    begin: Option<Arc<Begin>>,
    waiting: VecDeque<Arc<Row>>,
    /// Rows that the writer has.
    in_flight: u64,
    counts: Counts,
    /// Set at the end of the run: how it ended, and when everything stops.
    closed: Option<(End, Instant)>,
    ended: bool,
}

/// A bounded queue with one reader.
#[derive(Debug)]
pub(crate) struct Queue {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The lock is held for moments only, never while something is written. A thread that panicked left nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, begin: &Arc<Begin>) {
        self.lock().begin = Some(begin.clone());
        self.changed.notify_all();
    }

    /// Adds a row, if there is room.
    pub(crate) fn push(&self, row: &Arc<Row>) {
        let mut state = self.lock();
        if state.closed.is_some() {
            return;
        }
        if state.waiting.len() >= self.most {
            state.counts.dropped += 1;
            return;
        }
        state.waiting.push_back(row.clone());
        self.changed.notify_all();
    }

    /// What is next: the begin of a session before its rows, then rows, all that wait but `most` at a time. Waits until there
    /// is something.
    pub(crate) fn next(&self, most: usize) -> Next {
        let mut state = self.lock();
        loop {
            if let Some((end, deadline)) = state.closed {
                let is_late = Instant::now() >= deadline;
                if is_late || state.begin.is_none() && state.waiting.is_empty() {
                    return Next::End((!is_late).then_some(end));
                }
            }
            if let Some(begin) = state.begin.take() {
                return Next::Begin(begin);
            }
            if !state.waiting.is_empty() {
                let count = state.waiting.len().min(most);
                let rows = state.waiting.drain(..count).collect::<Vec<_>>();
                state.in_flight = rows.len() as u64;
                return Next::Rows(rows);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits so long before another try, or less if the run ends. Says whether there is time for one.
    pub(crate) fn pause(&self, wait: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            let left = match state.closed {
                Some((_, deadline)) if Instant::now() + wait.saturating_sub(begun.elapsed()) >= deadline => {
                    return false;
                }
                _ => wait.saturating_sub(begun.elapsed()),
            };
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The rows that the writer had are written.
    pub(crate) fn written(&self) {
        let mut state = self.lock();
        state.counts.written += std::mem::take(&mut state.in_flight);
    }

    /// They could not be.
    pub(crate) fn lost(&self) {
        let mut state = self.lock();
        state.counts.lost += std::mem::take(&mut state.in_flight);
    }

    /// Keeps what went wrong last.
    pub(crate) fn note(&self, error: String) {
        self.lock().counts.last_error = Some(error);
    }

    /// The run ends like this, and nothing goes on behind the deadline.
    pub(crate) fn close(&self, end: End, deadline: Instant) {
        self.lock().closed = Some((end, deadline));
        self.changed.notify_all();
    }

    /// The writer is done.
    pub(crate) fn ended(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the writer until `deadline`. Gives the counts, and how many rows it did not come to.
    pub(crate) fn wait_for_end(&self, deadline: Instant) -> (Counts, u64) {
        let mut state = self.lock();
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.counts.clone(), state.waiting.len() as u64 + state.in_flight)
    }
}
