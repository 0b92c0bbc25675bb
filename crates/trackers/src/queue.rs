//! A bounded queue of rows for one writer; rows that do not fit are dropped and counted. When rows arrive fast, they
//! are gathered for a moment, so that a step does not wake the writer. Pure: callers pass the time.
//! Not here: threads and waiting (`plimsoll_telemetry::Lane`).

use crate::row::Row;
use crate::writer::{Begin, End};
use plimsoll_telemetry::{Counts, NextItem, Wake};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum rows per write.
const BATCH: usize = 256;

/// Minimum time between two writes of rows.
const GATHER: Duration = Duration::from_secs(1);

/// The writer's next task.
#[derive(Debug)]
pub(crate) enum Work {
    /// Begin a session.
    Begin(Arc<Begin>),
    /// Write these rows, at least one.
    Rows(Vec<Arc<Row>>),
}

/// The waiting rows.
#[derive(Debug)]
pub(crate) struct Queue {
    most: usize,
    begin: Option<Arc<Begin>>,
    waiting: VecDeque<Arc<Row>>,
    /// Number of rows that the writer is writing.
    in_flight: u64,
    /// No rows are written before this time, unless there are many.
    not_before: Option<Instant>,
    /// How the run ended, once it has.
    pub(crate) end: Option<End>,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, begin: None, waiting: VecDeque::new(), in_flight: 0, not_before: None, end: None }
    }

    pub(crate) fn begin(&mut self, begin: &Arc<Begin>) -> Wake {
        self.begin = Some(begin.clone());
        Wake::Yes
    }

    /// Adds a row if there is room.
    pub(crate) fn push(&mut self, counts: &mut Counts, row: &Arc<Row>, now: Instant) -> Wake {
        if self.waiting.len() >= self.most {
            counts.dropped += 1;
            return Wake::No;
        }
        self.waiting.push_back(row.clone());
        let is_waited_for = match self.waiting.len() {
            1 => !self.gathers(now),
            many => many == BATCH,
        };
        if is_waited_for { Wake::Yes } else { Wake::No }
    }

    fn gathers(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|moment| now < moment)
    }

    /// The next task: the beginning of a session before its rows, then all waiting rows, up to `BATCH` at a time.
    pub(crate) fn next(&mut self, now: Instant, is_closed: bool) -> NextItem<Work> {
        if let Some(begin) = self.begin.take() {
            return NextItem::Item(Work::Begin(begin));
        }
        match self.not_before {
            // Rows that arrive meanwhile do not wake the writer.
            Some(moment) if now < moment && !is_closed && self.waiting.len() < BATCH => {
                return NextItem::WaitUntil(moment);
            }
            _ if self.waiting.is_empty() => return if is_closed { NextItem::Closed } else { NextItem::WaitForChange },
            _ => {}
        }
        let count = self.waiting.len().min(BATCH);
        let rows = self.waiting.drain(..count).collect::<Vec<_>>();
        self.in_flight = rows.len() as u64;
        self.not_before = Some(now + GATHER);
        NextItem::Item(Work::Rows(rows))
    }

    /// Counts the rows of the last task as written.
    pub(crate) fn written(&mut self, counts: &mut Counts) {
        counts.done += std::mem::take(&mut self.in_flight);
    }

    /// Counts the rows of the last task as lost.
    pub(crate) fn lost(&mut self, counts: &mut Counts) {
        counts.failed += std::mem::take(&mut self.in_flight);
    }

    /// Number of unwritten rows.
    pub(crate) fn left(&self) -> u64 {
        self.waiting.len() as u64 + self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> Arc<Row> {
        Arc::new(Row { step, time_s: 0.0, values: vec![], of_machine: false })
    }

    /// The steps of the rows in a task.
    fn steps(next: NextItem<Work>) -> Vec<u64> {
        match next {
            NextItem::Item(Work::Rows(rows)) => rows.iter().map(|row| row.step).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fast_rows_are_gathered_without_waking_the_writer() {
        let (mut queue, mut counts, begun) = (Queue::new(1000), Counts::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        assert!(matches!(queue.next(at(0), false), NextItem::WaitForChange));
        assert_eq!(queue.push(&mut counts, &row(1), at(1)), Wake::Yes, "the first is written at once");
        assert_eq!(steps(queue.next(at(2), false)), [1]);
        let NextItem::WaitUntil(moment) = queue.next(at(3), false) else { panic!("the rows are not gathered") };
        assert_eq!(moment, at(1002));
        for step in 2..=20 {
            assert_eq!(queue.push(&mut counts, &row(step), at(50 * step)), Wake::No);
        }
        assert!(matches!(queue.next(at(1001), false), NextItem::WaitUntil(_)));
        assert_eq!(steps(queue.next(at(1002), false)), (2..=20).collect::<Vec<_>>());
        // After a pause, the next row is written at once.
        assert!(matches!(queue.next(at(2002), false), NextItem::WaitForChange));
        assert_eq!(queue.push(&mut counts, &row(21), at(9000)), Wake::Yes);
        assert_eq!(steps(queue.next(at(9001), false)), [21]);
        // At the end there is no wait.
        assert_eq!(queue.push(&mut counts, &row(22), at(9002)), Wake::No);
        assert_eq!(steps(queue.next(at(9003), true)), [22]);
        assert!(matches!(queue.next(at(9004), true), NextItem::Closed));
    }

    #[test]
    fn many_rows_are_written_in_parts_and_dropped_rows_are_counted() {
        let (mut queue, mut counts, now) = (Queue::new(BATCH + 10), Counts::default(), Instant::now());
        queue.not_before = Some(now + GATHER);
        let wakes = (0..BATCH as u64 + 12).map(|step| queue.push(&mut counts, &row(step), now)).collect::<Vec<_>>();
        assert_eq!(wakes.iter().position(|wake| *wake == Wake::Yes), Some(BATCH - 1), "before it is time");
        assert_eq!((steps(queue.next(now, false)).len(), queue.left()), (BATCH, BATCH as u64 + 10));
        queue.written(&mut counts);
        assert_eq!(steps(queue.next(now, true)).len(), 10);
        queue.lost(&mut counts);
        assert_eq!((counts.done, counts.failed, counts.dropped, queue.left()), (BATCH as u64, 10, 2, 0));
    }
}
