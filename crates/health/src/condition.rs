//! For how long something is bad or good, until that counts. Not here: what is bad.

use plimsoll_units::Seconds;
use std::collections::VecDeque;

/// How something is at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Bad,
    Good,
    /// Neither, or not known: nothing begins or ends.
    Between,
}

impl State {
    /// Bad if it is so, else good.
    pub fn bad_if(is_bad: bool) -> Self {
        if is_bad { Self::Bad } else { Self::Good }
    }
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Begins,
    Ends(Seconds),
}

/// Something that lasts: it begins when it was bad for some time, and ends when it was good for some time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Condition {
    /// Since when it lasts.
    on_s: Option<f64>,
    /// Since when it is as it would have to be for the other.
    turning_s: Option<f64>,
}

impl Condition {
    pub fn is_on(&self) -> bool {
        self.on_s.is_some()
    }

    /// How it is at this time; it must be bad, or good, for so many seconds.
    pub fn step(&mut self, now_s: f64, state: State, bad_s: f64, good_s: f64) -> Option<Change> {
        let (turns, for_s) = match self.on_s {
            None => (State::Bad, bad_s),
            Some(_) => (State::Good, good_s),
        };
        if state != turns {
            self.turning_s = None;
            return None;
        }
        let since_s = *self.turning_s.get_or_insert(now_s);
        if now_s - since_s < for_s {
            return None;
        }
        self.turning_s = None;
        match self.on_s.take() {
            None => {
                self.on_s = Some(since_s);
                Some(Change::Begins)
            }
            Some(on_s) => Some(Change::Ends(Seconds((since_s - on_s).max(0.0)))),
        }
    }
}

/// Readings of a counter that are kept for its rise: the rise is known to this part of its window.
const READINGS: usize = 64;

/// A counter, and how it rose in some time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rising {
    readings: VecDeque<(f64, u64)>,
    last: Option<u64>,
}

impl Rising {
    /// A reading: by how much it rose in the last `window_s`, and since when that is; none before the second reading. A counter
    /// that falls has started again.
    pub fn add(&mut self, now_s: f64, count: u64, window_s: f64) -> Option<(u64, f64)> {
        let started_again = self.last.is_some_and(|last| count < last);
        let went_back = self.readings.back().is_some_and(|(then, _)| now_s < *then);
        if started_again || went_back {
            self.readings.clear();
        }
        self.last = Some(count);
        if self.readings.back().is_none_or(|(then, _)| now_s - then >= window_s / READINGS as f64) {
            self.readings.push_back((now_s, count));
        }
        while self.readings.get(1).is_some_and(|(then, _)| now_s - then >= window_s) {
            self.readings.pop_front();
        }
        let (then_s, then) = *self.readings.front()?;
        (now_s > then_s).then_some((count - then, now_s - then_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bad_for_long_enough_begins_and_ends_once() {
        let mut condition = Condition::default();
        let states =
            [State::Bad, State::Good, State::Bad, State::Bad, State::Bad, State::Between, State::Good, State::Good];
        let changes =
            states.iter().enumerate().filter_map(|(s, state)| Some((s, condition.step(s as f64, *state, 2.0, 1.0)?)));
        assert_eq!(changes.collect::<Vec<_>>(), [(4, Change::Begins), (7, Change::Ends(Seconds(4.0)))]);
    }

    #[test]
    fn counters_rise_in_a_window_and_may_start_again() {
        let mut rising = Rising::default();
        assert_eq!(rising.add(0.0, 1000, 100.0), None);
        assert_eq!(rising.add(10.0, 1005, 100.0), Some((5, 10.0)));
        assert_eq!(rising.add(90.0, 1005, 100.0), Some((5, 90.0)));
        assert_eq!(rising.add(300.0, 1005, 100.0).map(|(more, _)| more), Some(0));
        assert_eq!(rising.add(310.0, 3, 100.0), None);
        // A flood of readings is not kept.
        for n in 0..10_000_u32 {
            rising.add(400.0 + f64::from(n), u64::from(10 + n), 100.0);
        }
        assert!(rising.readings.len() <= READINGS + 2);
    }
}
