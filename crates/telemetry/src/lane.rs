//! A queue for one worker thread that does slow work: writing logs, talking to servers. Threads that add items never
//! wait for that work. At the end, the worker has until a deadline.
//! Not here: the items, their limits and their order (`W`, which uses neither threads nor clocks), and the work itself.
//!
//! ```text
//!   a step ─► Lane::change ─► W ─► Lane::next ─► the worker's thread ─► a disk, a server
//!   the end ─► Lane::close, wait_for_end                 └─► Counts
//! ```

use crate::background::lower_thread_priority;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Statistics of the items that passed through a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items completed.
    pub done: u64,
    /// Items given up after one or more attempts.
    pub failed: u64,
    /// Items dropped because there was no room or they were no longer worth an attempt.
    pub dropped: u64,
    /// The last error.
    pub last_error: Option<String>,
}

/// What the worker does next.
#[derive(Debug)]
pub enum NextItem<T> {
    /// Process this item now.
    Item(T),
    /// Wait until this time, or until the queue changes.
    WaitUntil(Instant),
    /// Wait until the queue changes.
    WaitForChange,
    /// Stop: no item will follow.
    Closed,
}

/// Whether a change must wake the worker. Skipping needless wake-ups saves work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The worker must look at the queue again.
    Yes,
    /// The worker's last decision is still valid.
    No,
}

#[derive(Debug)]
struct State<W> {
    waiting: W,
    counts: Counts,
    /// Set when the lane closes: the time at which all work stops.
    deadline: Option<Instant>,
    ended: bool,
}

/// A queue for one worker thread.
#[derive(Debug)]
pub struct Lane<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

impl<W> Lane<W> {
    /// A lane with these items already waiting.
    pub fn new(waiting: W) -> Self {
        let state = State { waiting, counts: Counts::default(), deadline: None, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Starts the worker's thread with lowered priority. Errors: the system refuses to start a thread.
    pub fn start(self: &Arc<Self>, name: String, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()>
    where
        W: Send + 'static,
    {
        self.start_at_once(name, |lane| {
            lower_thread_priority();
            work(lane);
        })
    }

    /// Starts the worker's thread with the priority of the calling thread. Errors: the system refuses to start a
    /// thread.
    pub fn start_at_once(self: &Arc<Self>, name: String, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()>
    where
        W: Send + 'static,
    {
        let lane = self.clone();
        let run = move || {
            // Dropped last, however the work ends, after everything else is freed.
            let _ended = Ended(&*lane);
            work(&lane);
        };
        std::thread::Builder::new().name(name).spawn(run).map(drop)
    }

    /// Holds the lock only briefly, never during work. A thread that panics leaves the state consistent.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and the counts. Once the lane is closed, does nothing and returns `None`.
    pub fn put(&self, change: impl FnOnce(&mut W, &mut Counts) -> Wake) -> Option<Wake> {
        let mut state = self.lock();
        if state.deadline.is_some() {
            return None;
        }
        let state = &mut *state;
        let wake = change(&mut state.waiting, &mut state.counts);
        if wake == Wake::Yes {
            self.changed.notify_all();
        }
        Some(wake)
    }

    /// Changes the queue and the counts on behalf of the worker, also after the lane is closed.
    pub fn settle<T>(&self, change: impl FnOnce(&mut W, &mut Counts) -> T) -> T {
        let state = &mut *self.lock();
        let changed = change(&mut state.waiting, &mut state.counts);
        self.changed.notify_all();
        changed
    }

    /// Waits until `is_so` while the worker makes progress. Returns false if it ends, or completes nothing for
    /// `patience`.
    pub fn wait_while_it_works(&self, patience: Duration, is_so: impl Fn(&W) -> bool) -> bool {
        let mut state = self.lock();
        let (mut done, mut since) = (state.counts.done, Instant::now());
        while !is_so(&state.waiting) {
            if state.counts.done != done {
                (done, since) = (state.counts.done, Instant::now());
            }
            let left = patience.saturating_sub(since.elapsed());
            if left.is_zero() || state.ended {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Records the last error.
    pub fn note(&self, error: String) {
        self.lock().counts.last_error = Some(error);
    }

    /// For the worker: returns the next item, chosen by `choose`, which receives the deadline once there is one. Waits
    /// until there is an item; `None` at the end, and when the deadline has passed.
    pub fn next<T>(&self, mut choose: impl FnMut(&mut W, Option<Instant>) -> NextItem<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            let deadline = state.deadline;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let until = match choose(&mut state.waiting, deadline) {
                NextItem::Item(next) => {
                    // Wakes threads that wait for room in the queue.
                    self.changed.notify_all();
                    return Some(next);
                }
                NextItem::Closed => return None,
                NextItem::WaitUntil(moment) => Some(deadline.map_or(moment, |deadline| moment.min(deadline))),
                NextItem::WaitForChange => deadline,
            };
            state = match until {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// For the worker: waits before another attempt. Returns false if the deadline is before that attempt.
    pub fn pause(&self, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if state.deadline.is_some_and(|deadline| end >= deadline) {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self) -> bool {
        self.lock().deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Closes the lane: changes the queue for the last time; all work stops at the deadline.
    pub fn close(&self, deadline: Instant, change: impl FnOnce(&mut W, &mut Counts)) {
        let mut state = self.lock();
        state.deadline = Some(deadline);
        let state = &mut *state;
        change(&mut state.waiting, &mut state.counts);
        self.changed.notify_all();
    }

    /// Waits for the worker until `deadline`. Returns the counts, and `left`'s count of unprocessed items.
    pub fn wait_for_end(&self, deadline: Instant, left: impl FnOnce(&W) -> u64) -> (Counts, u64) {
        let mut state = self.lock();
        while !state.ended {
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.counts.clone(), left(&state.waiting))
    }
}

/// Marks the worker as ended on drop.
struct Ended<'a, W>(&'a Lane<W>);

impl<W> Drop for Ended<'_, W> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far longer than any test takes.
    const LONG: Duration = Duration::from_secs(60);

    fn first(waiting: &mut Vec<u32>, deadline: Option<Instant>) -> NextItem<u32> {
        match (waiting.is_empty(), deadline) {
            (false, _) => NextItem::Item(waiting.remove(0)),
            (true, Some(_)) => NextItem::Closed,
            (true, None) => NextItem::WaitForChange,
        }
    }

    #[test]
    fn waiting_items_are_completed_and_counted_before_the_end() {
        let lane = Arc::new(Lane::new(vec![1]));
        let work = |lane: &Lane<Vec<u32>>| {
            while let Some(number) = lane.next(first) {
                lane.settle(|_, counts| counts.done += u64::from(number));
            }
        };
        lane.start("worker".to_owned(), work).expect("a thread");
        let put = |number| {
            lane.put(|waiting, _| {
                waiting.push(number);
                Wake::Yes
            })
        };
        assert_eq!(put(2), Some(Wake::Yes));
        let deadline = Instant::now() + LONG;
        lane.close(deadline, |waiting, _| waiting.push(4));
        assert_eq!(put(8), None, "it is closed");
        let (counts, left) = lane.wait_for_end(deadline, |waiting| waiting.len() as u64);
        assert_eq!((counts, left), (Counts { done: 7, ..Counts::default() }, 0));
    }

    #[test]
    fn work_stops_at_the_deadline() {
        let lane = Lane::new(vec![1]);
        assert!(lane.pause(Duration::ZERO) && !lane.is_late());
        lane.close(Instant::now(), |_, _| ());
        assert_eq!(lane.next(first), None);
        assert!(!lane.pause(LONG) && lane.is_late());
        let (counts, left) = lane.wait_for_end(Instant::now(), |waiting| waiting.len() as u64);
        assert_eq!((counts.done, left), (0, 1));
        // A wait past the deadline does not delay the end.
        let lane = Lane::new(());
        lane.close(Instant::now() + Duration::from_millis(1), |(), _| ());
        assert!(lane.next(|(), _| NextItem::<()>::WaitUntil(Instant::now() + LONG)).is_none());
    }

    #[test]
    fn timed_items_are_processed_on_time_and_silent_changes_are_seen_then() {
        let lane = Arc::new(Lane::new(0));
        let moment = Instant::now() + Duration::from_millis(20);
        lane.put(|waiting, _| {
            *waiting = 5;
            Wake::No
        });
        let ready = |waiting: &mut u32, _: Option<Instant>| match Instant::now() >= moment {
            true => NextItem::Item(*waiting),
            false => NextItem::WaitUntil(moment),
        };
        assert_eq!(lane.next(ready), Some(5));
        assert!(Instant::now() >= moment);
    }

    #[test]
    fn a_panicking_worker_blocks_no_waiter() {
        let lane = Arc::new(Lane::new(()));
        lane.start("worker".to_owned(), |_| panic!("as it is meant to")).expect("a thread");
        let begun = Instant::now();
        lane.wait_for_end(begun + LONG, |()| 0);
        assert!(begun.elapsed() < LONG);
    }
}
