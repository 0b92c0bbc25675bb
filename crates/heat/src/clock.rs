//! Time between samples, from a clock that may jump, stand still or tell nonsense.
//! Not here: what the time is used for. Read next: `guard.rs`.

use plimsoll_units::Seconds;

/// The time between samples until any was measured, s.
const USUAL_S: f64 = 1.0;

/// Times between samples that are taken as they are, s. Shorter ones are taken as the shortest.
const SHORTEST_S: f64 = 0.05;
const LONGEST_S: f64 = 60.0;

/// Samples at usual distances after which a jump is a new one.
const SETTLED: u32 = 60;

/// A clock, as samples tell it.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    last_s: Option<f64>,
    usual_s: f64,
    /// Samples since it jumped.
    since_jump: u32,
}

/// What a sample says of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tick {
    /// Time since the last sample, s: what the clock says or, where that can't be, what is usual.
    pub dt_s: f64,
    /// The clock jumped, so that what was before says little of now.
    pub jumped: bool,
    /// That is to be told, with how far.
    pub tell: Option<Seconds>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { last_s: None, usual_s: USUAL_S, since_jump: SETTLED }
    }

    /// A sample at this time.
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
                Tick { dt_s, jumped: false, tell: None }
            }
            Some(by_s) => {
                let tell = (self.since_jump >= SETTLED).then_some(Seconds(by_s));
                self.since_jump = 0;
                Tick { dt_s: self.usual_s, jumped: true, tell }
            }
            None => Tick { dt_s: self.usual_s, jumped: false, tell: None },
        }
    }
}
