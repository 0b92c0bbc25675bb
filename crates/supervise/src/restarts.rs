//! Whether and when to restart: limits, growing pauses, and crash loops. Pure.

use plimsoll_registry::{Progress, RestartHistory};
use std::time::Duration;

/// Limit on growing pauses, unless the first pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Limits on restarts of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Total number of restarts.
    pub restarts: u32,
    /// Number of consecutive ends with the same cause, without progress and without a changed command, that count as a
    /// loop.
    pub same: u32,
    /// The first pause. Each further one without progress is twice as long.
    pub pause: Duration,
}

/// Limit on the number of consecutive waits for memory without progress, each twice as long as the one before, up to
/// [`LONGEST_WAIT`] first waits: 96 minutes in total with the default pause.
const WAITS: u32 = 10;

/// The longest wait for memory, in first waits.
const LONGEST_WAIT: u32 = 32;

/// Counts the restarts of a worker and decides about the next one.
#[derive(Debug)]
pub(crate) struct Restarts {
    limits: Limits,
    seen: RestartHistory,
}

/// The decision about a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// Restart after a pause.
    After(Duration),
    /// Do not restart, for this reason.
    Stop(String),
}

impl Restarts {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, seen: RestartHistory::default() }
    }

    /// Continues from the history of another supervisor.
    pub(crate) fn resume(&mut self, seen: &RestartHistory) {
        self.seen = seen.clone();
    }

    /// The history so far.
    pub(crate) fn seen(&self) -> &RestartHistory {
        &self.seen
    }

    /// Records an end and decides. `is_changed`: the next attempt differs from the one that ended.
    pub(crate) fn after(&mut self, cause: &str, progress: Option<Progress>, is_changed: bool) -> Next {
        let seen = &mut self.seen;
        let has_progressed = progress > seen.furthest;
        seen.furthest = seen.furthest.max(progress);
        let is_same = seen.cause.as_deref() == Some(cause) && !has_progressed;
        seen.same = if is_same { seen.same + 1 } else { 1 };
        seen.idle = if has_progressed { 1 } else { seen.idle + 1 };
        seen.cause = Some(cause.to_owned());
        let Limits { restarts, same, pause } = self.limits;
        if seen.same >= same && !is_changed {
            return Next::Stop(format!("it ended the same way {} times in a row without progress", seen.same));
        }
        if seen.made >= restarts {
            return Next::Stop(match restarts {
                0 => "restarts are off".to_owned(),
                1 => "it was restarted once, which is the limit".to_owned(),
                _ => format!("it was restarted {restarts} times, which is the limit"),
            });
        }
        seen.made += 1;
        if is_changed {
            // A changed command starts its own count.
            (seen.same, seen.idle) = (0, 0);
            return Next::After(pause);
        }
        Next::After(pause.saturating_mul(1 << (seen.idle - 1).min(16)).min(LONGEST_PAUSE.max(pause)))
    }

    /// Records an end for lack of memory. The wait before the restart: `first`, or twice the last one if there was no
    /// progress. Errors: the limit that was reached.
    pub(crate) fn wait_after(&mut self, progress: Option<Progress>, first: Duration) -> Result<Duration, String> {
        if progress > self.seen.furthest {
            self.seen.furthest = progress;
            self.seen.waits = 0;
        }
        if self.seen.made >= self.limits.restarts {
            return Err("the limit on restarts is reached".to_owned());
        }
        let wait = self.wait_again(first).ok_or("it waited for memory again and again without progress")?;
        self.seen.made += 1;
        Ok(wait)
    }

    /// The next wait for memory; `None` if the limit is reached.
    pub(crate) fn wait_again(&mut self, first: Duration) -> Option<Duration> {
        let wait = first.saturating_mul((1 << self.seen.waits.min(16)).min(LONGEST_WAIT));
        self.seen.waits += 1;
        (self.seen.waits <= WAITS).then_some(wait)
    }

    /// Restarts so far.
    pub(crate) fn made(&self) -> u32 {
        self.seen.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { restarts: 20, same: 3, pause: Duration::from_secs(1) };

    fn at(step: u64) -> Option<Progress> {
        Some(Progress { epoch: None, step, of: None })
    }

    fn seconds(next: &Next) -> Option<u64> {
        match next {
            Next::After(pause) => Some(pause.as_secs()),
            Next::Stop(_) => None,
        }
    }

    /// `ends`: cause, progress, whether the command changes. `expected`: the pauses after them, `None` for a stop.
    fn check(limits: Limits, ends: &[(&str, Option<Progress>, bool)], expected: &[Option<u64>]) {
        let mut restarts = Restarts::new(limits);
        let pauses = ends.iter().map(|(cause, progress, changed)| seconds(&restarts.after(cause, *progress, *changed)));
        assert_eq!(pauses.collect::<Vec<_>>(), expected, "{ends:?}");
    }

    #[test]
    fn repeated_ends_with_one_cause_and_no_progress_are_a_loop() {
        check(LIMITS, &[("a", None, false); 3], &[Some(1), Some(2), None]);
        let progressing = [1, 2, 3, 4].map(|step| ("a", at(step), false));
        check(LIMITS, &progressing, &[Some(1); 4]);
        check(LIMITS, &[("a", at(5), false), ("a", at(5), false), ("a", at(4), false)], &[Some(1), Some(2), None]);
        let other =
            [("a", None, false), ("a", None, false), ("b", None, false), ("a", None, false), ("a", None, false)];
        check(LIMITS, &other, &[Some(1), Some(2), Some(4), Some(8), Some(16)]);
    }

    #[test]
    fn a_changed_command_starts_its_own_count() {
        let ends = [("a", None, false), ("a", None, false), ("a", None, true), ("a", None, false), ("a", None, false)];
        check(LIMITS, &ends, &[Some(1), Some(2), Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn waits_for_memory_double_until_there_is_progress_or_the_limit() {
        let mut restarts = Restarts::new(LIMITS);
        let first = Duration::from_secs(30);
        let waits = (0..12).map(|_| restarts.wait_again(first).map(|wait| wait.as_secs())).collect::<Vec<_>>();
        let expected = [30, 60, 120, 240, 480, 960, 960, 960, 960, 960].map(Some);
        assert_eq!((&waits[..10], &waits[10..]), (&expected[..], &[None, None][..]));
        assert!(restarts.wait_after(None, first).is_err());
        assert_eq!(restarts.wait_after(at(5), first), Ok(first), "progress starts the count again");
        assert_eq!(restarts.wait_after(at(5), first), Ok(first * 2));
        assert_eq!(restarts.made(), 2);
        let mut restarts = Restarts::new(Limits { restarts: 0, ..LIMITS });
        assert!(restarts.wait_after(None, first).is_err_and(|why| why.contains("limit on restarts")));
    }

    #[test]
    fn the_total_number_of_restarts_and_the_pause_are_limited() {
        let limits = Limits { restarts: 2, same: 100, ..LIMITS };
        check(limits, &[1, 2, 3].map(|step| ("a", at(step), true)), &[Some(1), Some(1), None]);
        check(Limits { restarts: 0, ..LIMITS }, &[("a", None, true)], &[None]);
        let mut restarts = Restarts::new(Limits { same: 100, ..LIMITS });
        let pauses = (0..20).map(|_| restarts.after("a", None, false)).collect::<Vec<_>>();
        assert_eq!(seconds(&pauses[19]), Some(60));
    }
}
