//! The messages that wait for one sender: so many at most. What there is no room for is merged or dropped, progress first, and
//! counted. Failures and ends are never dropped.
//! Not here: threads and waiting (`plimsoll_telemetry::Lane`).

use crate::message::{Kind, Message};
use plimsoll_telemetry::{Counts, Next, Wake};
use std::collections::VecDeque;
use std::time::Instant;

/// What merged messages say together, in bytes.
const TEXT_MAX: usize = 4000;

/// A message, and how often it was tried.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) attempts: u32,
}

/// The messages that wait.
#[derive(Debug)]
pub(crate) struct Queue {
    most: usize,
    waiting: VecDeque<Entry>,
    /// A message is being sent.
    in_flight: bool,
    /// Messages that were left out since the last one that arrived.
    unsaid: u64,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(2), waiting: VecDeque::new(), in_flight: false, unsaid: 0 }
    }

    /// Adds a message. Newer progress takes the place of older.
    pub(crate) fn push(&mut self, counts: &mut Counts, message: Message) -> Wake {
        if message.kind == Kind::Progress {
            self.remove(counts, |waiting| waiting.kind == Kind::Progress);
        }
        self.waiting.push_back(Entry { message, attempts: 0 });
        self.shrink(counts);
        Wake::Yes
    }

    /// Puts back what could not be sent yet, in its old place.
    pub(crate) fn put_back(&mut self, counts: &mut Counts, entry: Entry) {
        self.in_flight = false;
        let is_old = |waiting: &Entry| waiting.message.kind == Kind::Progress;
        if entry.message.kind == Kind::Progress && self.waiting.iter().any(is_old) {
            self.unsaid += 1 + entry.message.dropped_messages;
            counts.dropped += 1;
            return;
        }
        self.waiting.push_front(entry);
        self.shrink(counts);
    }

    /// The next message, with the count of those that were left out before it, once `not_before` has come; at the end of the
    /// run, nothing that would have to wait until its deadline.
    pub(crate) fn next(&mut self, not_before: impl Fn() -> Instant, deadline: Option<Instant>) -> Next<Entry> {
        if self.waiting.is_empty() {
            return if deadline.is_some() { Next::Over } else { Next::Later };
        }
        let until = not_before();
        if deadline.is_some_and(|deadline| until >= deadline) {
            return Next::Over;
        }
        // Read after it, so that a moment that was now has come.
        if until > Instant::now() {
            return Next::At(until);
        }
        let mut entry = self.waiting.pop_front().expect("it is not empty");
        entry.message.dropped_messages += std::mem::take(&mut self.unsaid);
        self.in_flight = true;
        Next::Now(entry)
    }

    /// The message in flight arrived.
    pub(crate) fn arrived(&mut self, counts: &mut Counts) {
        self.in_flight = false;
        counts.done += 1;
    }

    /// The message in flight is given up; the next one says so.
    pub(crate) fn give_up(&mut self, counts: &mut Counts, message: &Message) {
        self.in_flight = false;
        counts.failed += 1;
        self.unsaid += 1 + message.dropped_messages;
    }

    /// The run ends: progress no longer matters beside what must arrive, which goes first.
    pub(crate) fn close(&mut self, counts: &mut Counts) {
        if self.waiting.iter().any(|entry| entry.message.kind.is_kept()) {
            self.remove(counts, |waiting| waiting.kind == Kind::Progress);
        }
        self.waiting.make_contiguous().sort_by_key(|entry| !entry.message.kind.is_kept());
    }

    /// Messages that did not go.
    pub(crate) fn left(&self) -> u64 {
        self.waiting.len() as u64 + u64::from(self.in_flight)
    }

    fn remove(&mut self, counts: &mut Counts, which: impl Fn(&Message) -> bool) {
        let mut left_out = 0;
        let mut unsaid = 0;
        self.waiting.retain(|entry| {
            let goes = which(&entry.message);
            left_out += u64::from(goes);
            unsaid += if goes { 1 + entry.message.dropped_messages } else { 0 };
            !goes
        });
        self.unsaid += unsaid;
        counts.dropped += left_out;
    }

    /// Drops the oldest of what matters least. If all must be kept, the two oldest become one.
    fn shrink(&mut self, counts: &mut Counts) {
        while self.waiting.len() > self.most {
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
            counts.dropped += 1;
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
    use std::time::Duration;

    fn message(kind: Kind, text: &str) -> Message {
        Message::new(kind, "run", text, 0.0)
    }

    /// A queue with its counts.
    struct Case(Queue, Counts);

    impl Case {
        fn new(most: usize) -> Self {
            Self(Queue::new(most), Counts::default())
        }

        fn push(&mut self, kind: Kind, text: &str) {
            assert_eq!(self.0.push(&mut self.1, message(kind, text)), Wake::Yes);
        }

        fn next(&mut self) -> Option<Entry> {
            match self.0.next(Instant::now, None) {
                Next::Now(entry) => Some(entry),
                _ => None,
            }
        }

        /// All that waits: kind, text and how many were left out before.
        fn drained(mut self) -> Vec<(Kind, String, u64)> {
            self.0.close(&mut self.1);
            std::iter::from_fn(|| {
                let entry = self.next()?;
                self.0.arrived(&mut self.1);
                Some((entry.message.kind, entry.message.text, entry.message.dropped_messages))
            })
            .collect()
        }
    }

    #[test]
    fn newer_progress_takes_the_place_of_older() {
        let mut queue = Case::new(8);
        for step in ["1", "2", "3"] {
            queue.push(Kind::Progress, step);
        }
        queue.push(Kind::Heat, "hot");
        let first = queue.next().unwrap();
        assert_eq!((first.message.text.as_str(), first.message.dropped_messages), ("3", 2));
        // It could not be sent; meanwhile there is newer.
        queue.push(Kind::Progress, "4");
        queue.0.put_back(&mut queue.1, first);
        let next = queue.next().unwrap();
        assert_eq!((next.message.text.as_str(), next.message.dropped_messages), ("hot", 3));
        queue.0.arrived(&mut queue.1);
        let next = queue.next().unwrap();
        assert_eq!((next.message.text.as_str(), next.message.dropped_messages), ("4", 0));
        assert_eq!((queue.1.done, queue.1.dropped, queue.0.left()), (1, 3, 1), "one is in flight");
    }

    #[test]
    fn what_matters_least_is_dropped_first_and_counted() {
        let mut queue = Case::new(4);
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
            queue.push(kind, text);
        }
        assert_eq!(queue.1.dropped, 4);
        let texts = [(Kind::Failure, "a".to_owned(), 4), (Kind::End, "h".to_owned(), 0)];
        let rest = [(Kind::Heat, "f".to_owned(), 0), (Kind::Heat, "g".to_owned(), 0)];
        assert_eq!(queue.drained(), [texts, rest].concat());
    }

    #[test]
    fn of_a_flood_of_failures_none_is_forgotten_and_memory_is_bounded() {
        let mut queue = Case::new(3);
        for n in 0..5 {
            queue.push(Kind::Failure, &format!("failure {n}"));
        }
        queue.push(Kind::End, "end");
        let left = queue.drained();
        assert_eq!(left[0], (Kind::Failure, "failure 0\nfailure 1\nfailure 2\nfailure 3".to_owned(), 3));
        assert_eq!(left[2], (Kind::End, "end".to_owned(), 0));
        let mut queue = Case::new(2);
        for _ in 0..1000 {
            queue.push(Kind::Failure, &"x".repeat(100));
        }
        let left = queue.drained();
        assert_eq!((left.len(), left[0].2), (2, 998));
        assert!(left.iter().all(|(_, text, _)| text.len() < TEXT_MAX));
    }

    /// A message that is given up takes what it would have said of others with it.
    #[test]
    fn the_next_message_counts_for_one_that_is_given_up() {
        let mut queue = Case::new(4);
        queue.push(Kind::Progress, "1");
        queue.push(Kind::Progress, "2");
        let given_up = queue.next().unwrap().message;
        queue.0.give_up(&mut queue.1, &given_up);
        queue.push(Kind::Heat, "hot");
        assert_eq!((queue.next().unwrap().message.dropped_messages, queue.1.failed), (2, 1));
    }

    #[test]
    fn what_a_server_asks_to_wait_for_is_waited_for_unless_the_end_comes_before() {
        let mut queue = Case::new(3);
        queue.push(Kind::End, "end");
        let now = Instant::now();
        let [soon, late] = [5, 60].map(|seconds| now + Duration::from_secs(seconds));
        assert!(matches!(queue.0.next(|| late, None), Next::At(moment) if moment == late));
        assert!(matches!(queue.0.next(|| late, Some(soon)), Next::Over));
        assert!(matches!(queue.0.next(|| soon, Some(late)), Next::At(moment) if moment == soon));
        assert_eq!(queue.0.left(), 1);
        assert!(queue.next().is_some() && matches!(queue.0.next(Instant::now, None), Next::Later));
        assert!(matches!(queue.0.next(Instant::now, Some(late)), Next::Over), "nothing is left");
    }
}
