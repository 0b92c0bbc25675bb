//! The messages that wait for one sender: so many at most. Who puts one in never waits for a server; what there is no room
//! for is merged or dropped, progress first, and counted. Failures and ends are never dropped.

use crate::message::{Kind, Message};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What merged messages say together, in bytes.
const TEXT_MAX: usize = 4000;

/// A message, and how often it was tried.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) attempts: u32,
}

/// What came of the messages so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// Given up, after one try or several.
    pub(crate) failed: u64,
    /// Dropped or merged without a try, or for newer ones.
    pub(crate) dropped: u64,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Entry>,
    /// A message is being sent.
    in_flight: bool,
    /// Messages that were left out since the last one that arrived.
    unsaid: u64,
    counts: Counts,
    /// Set at the end of the run: when everything stops.
    deadline: Option<Instant>,
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
        Self { most: most.max(2), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The lock is held for moments only, never while something is sent. A thread that panicked left nothing half done.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. Newer progress takes the place of older.
    pub(crate) fn push(&self, message: Message) {
        let mut state = self.lock();
        if state.deadline.is_some() {
            return;
        }
        if message.kind == Kind::Progress {
            state.remove(|waiting| waiting.kind == Kind::Progress);
        }
        state.waiting.push_back(Entry { message, attempts: 0 });
        state.shrink_to(self.most);
        self.changed.notify_all();
    }

    /// Puts back what could not be sent yet, in its old place.
    pub(crate) fn put_back(&self, entry: Entry) {
        let mut state = self.lock();
        state.in_flight = false;
        let is_old = |waiting: &Entry| waiting.message.kind == Kind::Progress;
        if entry.message.kind == Kind::Progress && state.waiting.iter().any(is_old) {
            state.unsaid += 1 + entry.message.dropped_messages;
            state.counts.dropped += 1;
            return;
        }
        state.waiting.push_front(entry);
        state.shrink_to(self.most);
    }

    /// The next message, with the count of those that were left out before it. Waits until there is one and `not_before`
    /// has come; at the end of the run, no longer than until then. Returns `None` when nothing is left to do.
    pub(crate) fn next(&self, not_before: impl Fn(bool) -> Instant) -> Option<Entry> {
        let mut state = self.lock();
        loop {
            let until = not_before(state.deadline.is_some());
            // Read after it, so that a moment that was now has come.
            let now = Instant::now();
            match state.deadline {
                Some(deadline) if now >= deadline || until >= deadline || state.waiting.is_empty() => {
                    state.ended = true;
                    self.changed.notify_all();
                    return None;
                }
                _ => {}
            }
            let wait = match state.waiting.is_empty() {
                true => Duration::from_secs(3600),
                false => until.saturating_duration_since(now),
            };
            if !state.waiting.is_empty() && wait.is_zero() {
                let mut entry = state.waiting.pop_front().expect("it is not empty");
                entry.message.dropped_messages += std::mem::take(&mut state.unsaid);
                state.in_flight = true;
                return Some(entry);
            }
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The message in flight arrived.
    pub(crate) fn arrived(&self) {
        let mut state = self.lock();
        state.in_flight = false;
        state.counts.sent += 1;
    }

    /// The message in flight is given up; the next one says so.
    pub(crate) fn give_up(&self, message: &Message) {
        let mut state = self.lock();
        state.in_flight = false;
        state.counts.failed += 1;
        state.unsaid += 1 + message.dropped_messages;
    }

    /// Keeps what went wrong last.
    pub(crate) fn note(&self, error: String) {
        self.lock().counts.last_error = Some(error);
    }

    /// The run ends: progress no longer matters beside what must arrive, which goes first, and nothing goes on behind the
    /// deadline.
    pub(crate) fn close(&self, deadline: Instant) {
        let mut state = self.lock();
        if state.waiting.iter().any(|entry| entry.message.kind.is_kept()) {
            state.remove(|waiting| waiting.kind == Kind::Progress);
        }
        state.waiting.make_contiguous().sort_by_key(|entry| !entry.message.kind.is_kept());
        state.deadline = Some(deadline);
        self.changed.notify_all();
    }

    /// Waits for the end until `deadline`. Gives the counts, and how many messages did not go.
    pub(crate) fn wait_for_end(&self, deadline: Instant) -> (Counts, u64) {
        let mut state = self.lock();
        while !state.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.counts.clone(), state.waiting.len() as u64 + u64::from(state.in_flight))
    }
}

impl State {
    fn remove(&mut self, which: impl Fn(&Message) -> bool) {
        let mut left_out = 0;
        let mut unsaid = 0;
        self.waiting.retain(|entry| {
            let goes = which(&entry.message);
            left_out += u64::from(goes);
            unsaid += if goes { 1 + entry.message.dropped_messages } else { 0 };
            !goes
        });
        self.unsaid += unsaid;
        self.counts.dropped += left_out;
    }

    /// Drops the oldest of what matters least. If all must be kept, the two oldest become one.
    fn shrink_to(&mut self, most: usize) {
        while self.waiting.len() > most {
            let ranks = self.waiting.iter().map(|entry| entry.message.kind.rank());
            let (place, rank) = ranks.enumerate().min_by_key(|(_, rank)| *rank).expect("more than none");
            if rank < u8::MAX {
                let dropped = self.waiting.remove(place).expect("it was found");
                self.unsaid += 1 + dropped.message.dropped_messages;
            } else {
                let first = self.waiting.pop_front().expect("more than one");
                let second = self.waiting.front_mut().expect("more than one");
                self.unsaid += 1 + first.message.dropped_messages;
                merge(&mut second.message, first.message);
            }
            self.counts.dropped += 1;
        }
    }
}

/// The newer message says first what the older one said, as far as there is room.
fn merge(newer: &mut Message, older: Message) {
    if older.text.len() + newer.text.len() < TEXT_MAX {
        newer.text = format!("{}\n{}", older.text, newer.text);
    }
    if newer.kind == Kind::Test {
        newer.kind = older.kind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Kind, text: &str) -> Message {
        Message::new(kind, "run", text, 0.0)
    }

    fn at_once(_: bool) -> Instant {
        Instant::now()
    }

    /// All that waits: kind, text and how many were left out before.
    fn drained(queue: &Queue) -> Vec<(Kind, String, u64)> {
        queue.close(Instant::now() + Duration::from_secs(60));
        std::iter::from_fn(|| {
            let entry = queue.next(at_once)?;
            queue.arrived();
            Some((entry.message.kind, entry.message.text, entry.message.dropped_messages))
        })
        .collect()
    }

    #[test]
    fn newer_progress_takes_the_place_of_older() {
        let queue = Queue::new(8);
        for step in ["1", "2", "3"] {
            queue.push(message(Kind::Progress, step));
        }
        queue.push(message(Kind::Heat, "hot"));
        let first = queue.next(at_once).unwrap();
        assert_eq!((first.message.text.as_str(), first.message.dropped_messages), ("3", 2));
        // It could not be sent; meanwhile there is newer.
        queue.push(message(Kind::Progress, "4"));
        queue.put_back(first);
        let next = queue.next(at_once).unwrap();
        assert_eq!((next.message.text.as_str(), next.message.dropped_messages), ("hot", 3));
        queue.arrived();
        let next = queue.next(at_once).unwrap();
        assert_eq!((next.message.text.as_str(), next.message.dropped_messages), ("4", 0));
    }

    #[test]
    fn what_matters_least_is_dropped_first_and_counted() {
        let queue = Queue::new(4);
        for (kind, text) in [
            (Kind::Failure, "a"),
            (Kind::Checkpoint, "b"),
            (Kind::Heat, "c"),
            (Kind::Checkpoint, "d"),
            (Kind::Start, "e"),
            (Kind::Heat, "f"),
            (Kind::Heat, "g"),
            (Kind::End, "h"),
        ] {
            queue.push(message(kind, text));
        }
        let texts = [(Kind::Failure, "a".to_owned(), 4), (Kind::End, "h".to_owned(), 0)];
        let rest = [(Kind::Heat, "f".to_owned(), 0), (Kind::Heat, "g".to_owned(), 0)];
        assert_eq!(drained(&queue), [texts, rest].concat());
    }

    #[test]
    fn of_a_flood_of_failures_none_is_forgotten_and_memory_is_bounded() {
        let queue = Queue::new(3);
        for n in 0..5 {
            queue.push(message(Kind::Failure, &format!("failure {n}")));
        }
        queue.push(message(Kind::End, "end"));
        let left = drained(&queue);
        assert_eq!(left[0], (Kind::Failure, "failure 0\nfailure 1\nfailure 2\nfailure 3".to_owned(), 3));
        assert_eq!(left[2], (Kind::End, "end".to_owned(), 0));
        let queue = Queue::new(2);
        for _ in 0..1000 {
            queue.push(message(Kind::Failure, &"x".repeat(100)));
        }
        let left = drained(&queue);
        assert_eq!((left.len(), left[0].2), (2, 998));
        assert!(left.iter().all(|(_, text, _)| text.len() < TEXT_MAX));
    }

    /// A message that is given up takes what it would have said of others with it.
    #[test]
    fn the_next_message_counts_for_one_that_is_given_up() {
        let queue = Queue::new(4);
        queue.push(message(Kind::Progress, "1"));
        queue.push(message(Kind::Progress, "2"));
        let given_up = queue.next(at_once).unwrap().message;
        queue.give_up(&given_up);
        queue.push(message(Kind::Heat, "hot"));
        assert_eq!(queue.next(at_once).unwrap().message.dropped_messages, 2);
    }

    #[test]
    fn nothing_goes_on_behind_the_deadline() {
        let queue = Queue::new(3);
        queue.push(message(Kind::End, "end"));
        let now = Instant::now();
        queue.close(now);
        assert!(queue.next(at_once).is_none());
        assert_eq!(queue.wait_for_end(now), (Counts::default(), 1));
        // What a server asks to wait for is not waited for if the end comes before.
        let queue = Queue::new(3);
        queue.push(message(Kind::End, "end"));
        queue.close(now + Duration::from_secs(5));
        assert!(queue.next(|_| now + Duration::from_secs(60)).is_none());
    }
}
