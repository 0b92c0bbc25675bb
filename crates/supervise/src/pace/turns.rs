//! A program that may only run for a part of the time runs and is stopped by turns. Pure: times are handed in.

use std::time::{Duration, Instant};

/// The shorter of the two turns. Kernels that a program has queued on a card are computed while it is stopped, a second of them
/// or so, so that shorter turns would hold nothing back.
const SHORTER: Duration = Duration::from_secs(2);

/// Both turns together, at most: a card becomes hotter and cooler by some degrees in it, and what waits for a program that is
/// stopped (collectives, data loaders, whoever asks for signs of life) does so for minutes.
const BOTH: Duration = Duration::from_secs(10);

/// Whose turn it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Turns {
    /// It runs, as it may at any time.
    #[default]
    Free,
    /// It runs since then.
    Runs(Instant),
    /// It is stopped since then.
    Stopped(Instant),
    /// It is stopped until there is another order.
    Paused,
}

impl Turns {
    /// How long a program runs and is stopped in turn that may run for this part of the time, above 0 and below 1.
    pub(super) fn slices(share: f64) -> [Duration; 2] {
        let both = SHORTER.div_f64(share.min(1.0 - share)).min(BOTH);
        [both.mul_f64(share), both.mul_f64(1.0 - share)]
    }

    /// What is so at this time, which does not go back, if the program may run for this part of it.
    #[must_use]
    pub(crate) fn at(self, share: f64, now: Instant) -> Self {
        if share >= 1.0 {
            return Self::Free;
        }
        if share <= 0.0 {
            return Self::Paused;
        }
        let [runs, stops] = Self::slices(share);
        match self {
            // Until now it ran without pause.
            Self::Free => Self::Stopped(now),
            Self::Paused => Self::Runs(now),
            Self::Runs(since) if now - since >= runs => Self::Stopped(now),
            Self::Stopped(since) if now - since >= stops => Self::Runs(now),
            Self::Runs(_) | Self::Stopped(_) => self,
        }
    }

    pub(crate) fn is_stopped(self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(50);

    /// The part of five minutes in which a program ran, and how often it was stopped.
    fn day(share: f64) -> (f64, usize) {
        let (mut turns, mut now, mut ran, mut stops) = (Turns::Free, Instant::now(), 0, 0);
        for _ in 0..6000 {
            let next = turns.at(share, now);
            stops += usize::from(next.is_stopped() && !turns.is_stopped());
            turns = next;
            ran += usize::from(!turns.is_stopped());
            now += TICK;
        }
        (ran as f64 / 6000.0, stops)
    }

    #[test]
    fn a_program_is_stopped_at_once_and_paused_as_long_as_it_is_ordered() {
        let now = Instant::now();
        assert!(Turns::Free.at(0.5, now).is_stopped() && Turns::Free.at(0.0, now).is_stopped());
        assert!(!Turns::Free.at(1.0, now).is_stopped());
        let later = now + Duration::from_secs(3600);
        assert_eq!(Turns::Paused.at(0.0, later), Turns::Paused);
        assert_eq!((Turns::Paused.at(0.5, later), Turns::Paused.at(1.0, later)), (Turns::Runs(later), Turns::Free));
    }

    #[test]
    fn turns_are_some_seconds_long() {
        assert_eq!(Turns::slices(0.5), [Duration::from_secs(2); 2]);
        assert_eq!(Turns::slices(0.25), [Duration::from_secs(2), Duration::from_secs(6)]);
        assert_eq!(day(0.5).1, 75);
    }

    proptest! {
        #[test]
        fn it_runs_for_its_part_of_the_time_and_is_never_stopped_for_long(share in 0.02f64..0.99) {
            let (ran, stops) = day(share);
            prop_assert!((ran - share).abs() < 0.03, "{} of {}", ran, share);
            prop_assert!(stops >= 25);
            prop_assert!(Turns::slices(share).iter().sum::<Duration>() <= BOTH + TICK);
        }
    }
}
