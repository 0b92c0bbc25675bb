//! What waits for one worker, which does the slow things on a thread of its own: writes logs, talks to servers. Whoever puts
//! something in never waits for that. At the end it has until a deadline.
//! Not here: what waits, how much of it, and in which order it goes (`W`, which has neither threads nor clocks); what is done
//! with it.
//!
//! ```text
//!   a step ─► Lane::change ─► W ─► Lane::next ─► the worker's thread ─► a disk, a server
//!   the end ─► Lane::close, wait_for_end                 └─► Counts
//! ```

use crate::background::let_others_go_first;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What came of all that went through a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of it arrived.
    pub done: u64,
    /// Was given up, after one try or several.
    pub failed: u64,
    /// Had no room, or was not worth a try any more.
    pub dropped: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
}

/// What a worker gets.
#[derive(Debug)]
pub enum Next<T> {
    /// This, now.
    Now(T),
    /// Whatever there is then, or if something is changed before.
    At(Instant),
    /// Whatever there is when something is changed.
    Later,
    /// Nothing any more.
    Over,
}

/// Whether a change is one that the worker waits for. One that is not spares waking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// It is.
    Yes,
    /// What the worker asked for last holds still.
    No,
}

#[derive(Debug)]
struct State<W> {
    waiting: W,
    counts: Counts,
    /// Set at the end: when everything stops.
    deadline: Option<Instant>,
    ended: bool,
}

/// What waits for one worker.
#[derive(Debug)]
pub struct Lane<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

impl<W> Lane<W> {
    /// With what waits already.
    pub fn new(waiting: W) -> Self {
        let state = State { waiting, counts: Counts::default(), deadline: None, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Starts the worker's thread, which lets others go first. Errors: the system starts none.
    pub fn start(self: &Arc<Self>, name: String, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()>
    where
        W: Send + 'static,
    {
        self.start_at_once(name, |lane| {
            let_others_go_first();
            work(lane);
        })
    }

    /// Starts the worker's thread with the priority of the calling thread. Errors: the system refuses one.
    pub fn start_at_once(self: &Arc<Self>, name: String, work: impl FnOnce(&Self) + Send + 'static) -> io::Result<()>
    where
        W: Send + 'static,
    {
        let lane = self.clone();
        let run = move || {
            // Said however the work ends, when all that it held is free.
            let _ended = Ended(&*lane);
            work(&lane);
        };
        std::thread::Builder::new().name(name).spawn(run).map(drop)
    }

    /// The lock is held for moments only, never while something is done. A thread that panicked left nothing half done.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what waits, and what is counted. After the end nothing is put in any more: then `None`, and nothing is done.
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

    /// As the worker changes it, also behind the end.
    pub fn settle<T>(&self, change: impl FnOnce(&mut W, &mut Counts) -> T) -> T {
        let state = &mut *self.lock();
        let changed = change(&mut state.waiting, &mut state.counts);
        self.changed.notify_all();
        changed
    }

    /// Waits until `is_so`, for as long as the worker works. Returns false once it has ended or done nothing for `patience`.
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

    /// Keeps what went wrong last.
    pub fn note(&self, error: String) {
        self.lock().counts.last_error = Some(error);
    }

    /// For the worker: what is next, by `choose`, which is told the deadline once there is one. Waits until there is something;
    /// `None` at the end, and when its deadline has come.
    pub fn next<T>(&self, mut choose: impl FnMut(&mut W, Option<Instant>) -> Next<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            let deadline = state.deadline;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let until = match choose(&mut state.waiting, deadline) {
                Next::Now(next) => {
                    // Who waits for room looks again.
                    self.changed.notify_all();
                    return Some(next);
                }
                Next::Over => return None,
                Next::At(moment) => Some(deadline.map_or(moment, |deadline| moment.min(deadline))),
                Next::Later => deadline,
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

    /// For the worker: waits so long before another try. Says whether there is time for one before the deadline.
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

    /// Whether the deadline has come.
    pub fn is_late(&self) -> bool {
        self.lock().deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// It is the end: what waits is changed for the last time, and nothing goes on behind the deadline.
    pub fn close(&self, deadline: Instant, change: impl FnOnce(&mut W, &mut Counts)) {
        let mut state = self.lock();
        state.deadline = Some(deadline);
        let state = &mut *state;
        change(&mut state.waiting, &mut state.counts);
        self.changed.notify_all();
    }

    /// Waits for the worker until `deadline`. Gives the counts, and what `left` says of what it did not come to.
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

/// Says that the worker ended.
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

    /// Far longer than anything takes.
    const LONG: Duration = Duration::from_secs(60);

    fn first(waiting: &mut Vec<u32>, deadline: Option<Instant>) -> Next<u32> {
        match (waiting.is_empty(), deadline) {
            (false, _) => Next::Now(waiting.remove(0)),
            (true, Some(_)) => Next::Over,
            (true, None) => Next::Later,
        }
    }

    #[test]
    fn what_waits_is_done_and_counted_before_the_end() {
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
    fn nothing_goes_on_behind_the_deadline() {
        let lane = Lane::new(vec![1]);
        assert!(lane.pause(Duration::ZERO) && !lane.is_late());
        lane.close(Instant::now(), |_, _| ());
        assert_eq!(lane.next(first), None);
        assert!(!lane.pause(LONG) && lane.is_late());
        let (counts, left) = lane.wait_for_end(Instant::now(), |waiting| waiting.len() as u64);
        assert_eq!((counts.done, left), (0, 1));
        // What may go only later than that does not hold anybody up.
        let lane = Lane::new(());
        lane.close(Instant::now() + Duration::from_millis(1), |(), _| ());
        assert!(lane.next(|(), _| Next::<()>::At(Instant::now() + LONG)).is_none());
    }

    #[test]
    fn what_waits_for_its_moment_goes_then_and_a_change_that_wakes_nobody_is_seen_then() {
        let lane = Arc::new(Lane::new(0));
        let moment = Instant::now() + Duration::from_millis(20);
        lane.put(|waiting, _| {
            *waiting = 5;
            Wake::No
        });
        let ready = |waiting: &mut u32, _: Option<Instant>| match Instant::now() >= moment {
            true => Next::Now(*waiting),
            false => Next::At(moment),
        };
        assert_eq!(lane.next(ready), Some(5));
        assert!(Instant::now() >= moment);
    }

    #[test]
    fn a_worker_that_panics_keeps_nobody_waiting() {
        let lane = Arc::new(Lane::new(()));
        lane.start("worker".to_owned(), |_| panic!("as it is meant to")).expect("a thread");
        let begun = Instant::now();
        lane.wait_for_end(begun + LONG, |()| 0);
        assert!(begun.elapsed() < LONG);
    }
}
