//! The bounded queue of one sender. If it is full, messages are merged or dropped, progress first, and counted.
//! Failures and ends are never dropped.
//! Not here: threads and waiting (`plimsoll_telemetry::Lane`).

use crate::message::{Kind, Message};
use plimsoll_telemetry::{Counts, NextItem, Wake};
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum length of a merged message, in bytes.
const TEXT_MAX: usize = 4000;

/// A message and its number of attempts.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) message: Message,
    pub(crate) attempts: u32,
}

/// The queued messages.
#[derive(Debug)]
pub(crate) struct Queue {
    most: usize,
    queued: VecDeque<Entry>,
    /// Whether a message is being sent.
    in_flight: bool,
    /// Number of messages dropped since the last delivered one.
    unreported: u64,
}

impl Queue {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(2), queued: VecDeque::new(), in_flight: false, unreported: 0 }
    }

    /// Adds a message. New progress replaces queued progress.
    pub(crate) fn push(&mut self, counts: &mut Counts, message: Message) -> Wake {
        if message.kind == Kind::Progress {
            self.remove(counts, |waiting| waiting.kind == Kind::Progress);
        }
        self.queued.push_back(Entry { message, attempts: 0 });
        self.shrink(counts);
        Wake::Yes
    }

    /// Puts a message that could not be sent back in its old place.
    pub(crate) fn put_back(&mut self, counts: &mut Counts, entry: Entry) {
        self.in_flight = false;
        let is_old = |waiting: &Entry| waiting.message.kind == Kind::Progress;
        if entry.message.kind == Kind::Progress && self.queued.iter().any(is_old) {
            self.unreported += 1 + entry.message.dropped_messages;
            counts.dropped += 1;
            return;
        }
        self.queued.push_front(entry);
        self.shrink(counts);
    }

    /// The next message, with the number of messages dropped before it, once `not_before` has come. At the end of the
    /// run, messages that could not be sent before the deadline are not returned.
    pub(crate) fn next(&mut self, not_before: impl Fn() -> Instant, deadline: Option<Instant>) -> NextItem<Entry> {
        if self.queued.is_empty() {
            return if deadline.is_some() { NextItem::Closed } else { NextItem::WaitForChange };
        }
        let until = not_before();
        if deadline.is_some_and(|deadline| until >= deadline) {
            return NextItem::Closed;
        }
        // Read the clock after `not_before`, so that a `not_before` of now has passed.
        if until > Instant::now() {
            return NextItem::WaitUntil(until);
        }
        let mut entry = self.queued.pop_front().expect("not empty");
        entry.message.dropped_messages += std::mem::take(&mut self.unreported);
        self.in_flight = true;
        NextItem::Item(entry)
    }

    /// The message in flight was delivered.
    pub(crate) fn arrived(&mut self, counts: &mut Counts) {
        self.in_flight = false;
        counts.done += 1;
    }

    /// The message in flight is given up; the next message reports it.
    pub(crate) fn give_up(&mut self, counts: &mut Counts, message: &Message) {
        self.in_flight = false;
        counts.failed += 1;
        self.unreported += 1 + message.dropped_messages;
    }

    /// The run ends: messages that must arrive go first, and replace progress.
    pub(crate) fn close(&mut self, counts: &mut Counts) {
        if self.queued.iter().any(|entry| entry.message.kind.is_kept()) {
            self.remove(counts, |waiting| waiting.kind == Kind::Progress);
        }
        self.queued.make_contiguous().sort_by_key(|entry| !entry.message.kind.is_kept());
    }

    /// Number of messages that were not sent.
    pub(crate) fn left(&self) -> u64 {
        self.queued.len() as u64 + u64::from(self.in_flight)
    }

    fn remove(&mut self, counts: &mut Counts, which: impl Fn(&Message) -> bool) {
        let mut left_out = 0;
        let mut unreported = 0;
        self.queued.retain(|entry| {
            let goes = which(&entry.message);
            left_out += u64::from(goes);
            unreported += if goes { 1 + entry.message.dropped_messages } else { 0 };
            !goes
        });
        self.unreported += unreported;
        counts.dropped += left_out;
    }

    /// Drops the oldest message of the lowest rank. If all must be kept, merges the two oldest.
    fn shrink(&mut self, counts: &mut Counts) {
        while self.queued.len() > self.most {
            let ranks = self.queued.iter().map(|entry| entry.message.kind.rank());
            let (place, rank) = ranks.enumerate().min_by_key(|(_, rank)| *rank).expect("not empty");
            if rank < u8::MAX {
                let dropped = self.queued.remove(place).expect("found above");
                self.unreported += 1 + dropped.message.dropped_messages;
            } else {
                let first = self.queued.pop_front().expect("more than one");
                let second = self.queued.front_mut().expect("more than one");
                self.unreported += 1 + first.message.dropped_messages;
                merge(&mut second.message, first.message);
            }
            counts.dropped += 1;
        }
    }
}

/// Prepends the older message's text to the newer one's, if it fits.
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
                NextItem::Item(entry) => Some(entry),
                _ => None,
            }
        }

        /// All queued messages: kind, text, and number of messages dropped before.
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
    fn new_progress_replaces_queued_progress() {
        let mut queue = Case::new(8);
        for step in ["1", "2", "3"] {
            queue.push(Kind::Progress, step);
        }
        queue.push(Kind::Heat, "hot");
        let first = queue.next().unwrap();
        assert_eq!((first.message.text.as_str(), first.message.dropped_messages), ("3", 2));
        // It could not be sent, and newer progress was added meanwhile.
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
    fn the_least_important_message_is_dropped_first_and_counted() {
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
    fn many_failures_are_merged_and_memory_is_bounded() {
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

    /// A message that is given up passes its count of dropped messages on to the next one.
    #[test]
    fn the_next_message_counts_one_that_was_given_up() {
        let mut queue = Case::new(4);
        queue.push(Kind::Progress, "1");
        queue.push(Kind::Progress, "2");
        let given_up = queue.next().unwrap().message;
        queue.0.give_up(&mut queue.1, &given_up);
        queue.push(Kind::Heat, "hot");
        assert_eq!((queue.next().unwrap().message.dropped_messages, queue.1.failed), (2, 1));
    }

    #[test]
    fn the_queue_waits_as_requested_unless_the_deadline_is_earlier() {
        let mut queue = Case::new(3);
        queue.push(Kind::End, "end");
        let now = Instant::now();
        let [soon, late] = [5, 60].map(|seconds| now + Duration::from_secs(seconds));
        assert!(matches!(queue.0.next(|| late, None), NextItem::WaitUntil(moment) if moment == late));
        assert!(matches!(queue.0.next(|| late, Some(soon)), NextItem::Closed));
        assert!(matches!(queue.0.next(|| soon, Some(late)), NextItem::WaitUntil(moment) if moment == soon));
        assert_eq!(queue.0.left(), 1);
        assert!(queue.next().is_some() && matches!(queue.0.next(Instant::now, None), NextItem::WaitForChange));
        assert!(matches!(queue.0.next(Instant::now, Some(late)), NextItem::Closed), "nothing is left");
    }
}
