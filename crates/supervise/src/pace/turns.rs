//! Alternates running and stopping a program that may run only part of the time. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// Length of the shorter slice. While a program is stopped, the card still computes its queued kernels, about a second
/// of them, so shorter stops would have no effect.
const SHORTER: Duration = Duration::from_secs(2);

/// Limit on both slices together: the card's temperature varies by some degrees over this time, and anything that waits
/// for a stopped program (collectives, data loaders, health checks) tolerates minutes.
const BOTH: Duration = Duration::from_secs(10);

/// Whether a program runs or is stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Turns {
    /// It runs without limits.
    #[default]
    Free,
    /// It has run since then.
    Runs(Instant),
    /// It has been stopped since then.
    Stopped(Instant),
    /// It is stopped until another order.
    Paused,
}

impl Turns {
    /// The lengths of the running and the stopped slice for a program that may run for this share of the time, above 0
    /// and below 1.
    pub(super) fn slices(share: f64) -> [Duration; 2] {
        let both = SHORTER.div_f64(share.min(1.0 - share)).min(BOTH);
        [both.mul_f64(share), both.mul_f64(1.0 - share)]
    }

    /// The state at time `now`, which must not decrease, if the program may run for this share of the time.
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
            // It ran without limits until now, so stop it first.
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

    /// The share of five minutes in which a program ran, and how often it was stopped.
    fn simulate(share: f64) -> (f64, usize) {
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
    fn a_program_is_stopped_at_once_and_stays_paused_until_another_order() {
        let now = Instant::now();
        assert!(Turns::Free.at(0.5, now).is_stopped() && Turns::Free.at(0.0, now).is_stopped());
        assert!(!Turns::Free.at(1.0, now).is_stopped());
        let later = now + Duration::from_secs(3600);
        assert_eq!(Turns::Paused.at(0.0, later), Turns::Paused);
        assert_eq!((Turns::Paused.at(0.5, later), Turns::Paused.at(1.0, later)), (Turns::Runs(later), Turns::Free));
    }

    #[test]
    fn slices_last_some_seconds() {
        assert_eq!(Turns::slices(0.5), [Duration::from_secs(2); 2]);
        assert_eq!(Turns::slices(0.25), [Duration::from_secs(2), Duration::from_secs(6)]);
        assert_eq!(simulate(0.5).1, 75);
    }

    proptest! {
        #[test]
        fn a_program_runs_for_its_share_and_is_never_stopped_for_long(share in 0.02f64..0.99) {
            let (ran, stops) = simulate(share);
            prop_assert!((ran - share).abs() < 0.03, "{} of {}", ran, share);
            prop_assert!(stops >= 25);
            prop_assert!(Turns::slices(share).iter().sum::<Duration>() <= BOTH + TICK);
        }
    }
}
