//! How long something must be bad or good before an episode begins or ends. Not here: what counts as bad.

use plimsoll_units::Seconds;
use std::collections::VecDeque;

/// The verdict on one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Bad,
    Good,
    /// Neither, or unknown: no episode begins or ends.
    Unclear,
}

impl Verdict {
    /// `Bad` if `is_bad`, otherwise `Good`.
    pub fn bad_if(is_bad: bool) -> Self {
        if is_bad { Self::Bad } else { Self::Good }
    }
}

/// A transition of an episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Transition {
    Begins,
    Ends(Seconds),
}

/// An episode: it begins after its condition was bad for some time, and ends after it was good for some time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Condition {
    /// Start of the current episode.
    on_s: Option<f64>,
    /// Start of the current series of verdicts that would end or begin the episode.
    turning_s: Option<f64>,
}

impl Condition {
    pub fn is_on(&self) -> bool {
        self.on_s.is_some()
    }

    /// Adds a verdict at this time. An episode begins after `bad_s` seconds of `Bad`, and ends after `good_s` seconds
    /// of `Good`.
    pub fn step(&mut self, now_s: f64, verdict: Verdict, bad_s: f64, good_s: f64) -> Option<Transition> {
        let (turns, for_s) = match self.on_s {
            None => (Verdict::Bad, bad_s),
            Some(_) => (Verdict::Good, good_s),
        };
        if verdict != turns {
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
                Some(Transition::Begins)
            }
            Some(on_s) => Some(Transition::Ends(Seconds((since_s - on_s).max(0.0)))),
        }
    }
}

/// Number of readings kept per window. The rise is exact to this fraction of the window.
const READINGS: usize = 64;

/// A counter, and its rise within a time window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rising {
    readings: VecDeque<(f64, u64)>,
    last: Option<u64>,
}

impl Rising {
    /// Adds a reading. Returns the rise in the last `window_s` and the time that it covers; `None` before the second
    /// reading. A counter that falls was reset.
    pub fn add(&mut self, now_s: f64, count: u64, window_s: f64) -> Option<(u64, f64)> {
        let was_reset = self.last.is_some_and(|last| count < last);
        let clock_went_back = self.readings.back().is_some_and(|(then, _)| now_s < *then);
        if was_reset || clock_went_back {
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
    fn an_episode_begins_and_ends_once() {
        let mut condition = Condition::default();
        let states = [
            Verdict::Bad,
            Verdict::Good,
            Verdict::Bad,
            Verdict::Bad,
            Verdict::Bad,
            Verdict::Unclear,
            Verdict::Good,
            Verdict::Good,
        ];
        let changes = states
            .iter()
            .enumerate()
            .filter_map(|(s, verdict)| Some((s, condition.step(s as f64, *verdict, 2.0, 1.0)?)));
        assert_eq!(changes.collect::<Vec<_>>(), [(4, Transition::Begins), (7, Transition::Ends(Seconds(4.0)))]);
    }

    #[test]
    fn counters_rise_in_a_window_and_may_be_reset() {
        let mut rising = Rising::default();
        assert_eq!(rising.add(0.0, 1000, 100.0), None);
        assert_eq!(rising.add(10.0, 1005, 100.0), Some((5, 10.0)));
        assert_eq!(rising.add(90.0, 1005, 100.0), Some((5, 90.0)));
        assert_eq!(rising.add(300.0, 1005, 100.0).map(|(more, _)| more), Some(0));
        assert_eq!(rising.add(310.0, 3, 100.0), None);
        // The number of readings kept is bounded.
        for n in 0..10_000_u32 {
            rising.add(400.0 + f64::from(n), u64::from(10 + n), 100.0);
        }
        assert!(rising.readings.len() <= READINGS + 2);
    }
}
