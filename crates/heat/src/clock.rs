//! Time between samples, from a clock that may jump, stand still or return invalid values.
//! Not here: the use of that time. Read next: `guard.rs`.

use plimsoll_units::Seconds;

/// Assumed time between samples before the first measurement, s.
const USUAL_S: f64 = 1.0;

/// Accepted range of the time between samples, s. Shorter times are raised to the shortest.
const SHORTEST_S: f64 = 0.05;
const LONGEST_S: f64 = 60.0;

/// Number of regular samples after a jump, before another jump is reported.
const SETTLED: u32 = 60;

/// A clock, as seen through the times of samples.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    last_s: Option<f64>,
    usual_s: f64,
    /// Samples since the last jump.
    since_jump: u32,
}

/// The time step of one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tick {
    /// Time since the last sample, s: the measured time, or the usual one if the measurement is not plausible.
    pub dt_s: f64,
    /// The clock jumped, so earlier samples say little about the present.
    pub jumped: bool,
    /// The size of a jump that should be reported.
    pub report: Option<Seconds>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { last_s: None, usual_s: USUAL_S, since_jump: SETTLED }
    }

    /// Records a sample at this time.
    pub(crate) fn tick(&mut self, time: Seconds) -> Tick {
        let now = Some(time.0).filter(|t| t.is_finite());
        let by_s = now.zip(self.last_s).map(|(now, last)| now - last);
        self.last_s = now.or(self.last_s);
        match by_s {
            Some(by_s) if (0.0..=LONGEST_S).contains(&by_s) => {
                self.since_jump = self.since_jump.saturating_add(1);
                if by_s > 0.0 {
                    self.usual_s += 0.1 * (by_s.max(SHORTEST_S) - self.usual_s);
                }
                let dt_s = if by_s > 0.0 { by_s.max(SHORTEST_S) } else { self.usual_s };
                Tick { dt_s, jumped: false, report: None }
            }
            Some(by_s) => {
                let report = (self.since_jump >= SETTLED).then_some(Seconds(by_s));
                self.since_jump = 0;
                Tick { dt_s: self.usual_s, jumped: true, report }
            }
            None => Tick { dt_s: self.usual_s, jumped: false, report: None },
        }
    }
}
