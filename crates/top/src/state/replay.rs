//! Replay of a run, with a slider over its time.

use plimsoll_watch::RunView;

/// Duration of playing a whole run, unless the run was shorter.
const PLAYS_IN_S: f64 = 60.0;

/// Number of slider steps over the whole run.
const STEPS: f64 = 100.0;

/// A run and the slider's position.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The run at its end.
    pub(crate) run: RunView,
    /// Start of the run, in seconds since 1970.
    pub(crate) from_s: f64,
    /// End of the run; never before its start.
    pub(crate) to_s: f64,
    /// Time at the slider.
    pub(crate) at_s: f64,
    pub(crate) is_playing: bool,
    /// When playing last moved the slider.
    played_s: Option<f64>,
}

impl Replay {
    /// Replay of a run; the slider is at its end.
    pub fn new(run: RunView) -> Self {
        let from_s = run.first_s.filter(|time| time.is_finite()).unwrap_or(0.0);
        let to_s = run.last_s.filter(|time| time.is_finite()).unwrap_or(from_s).max(from_s);
        Self { run, from_s, to_s, at_s: to_s, is_playing: false, played_s: None }
    }

    /// The slider's position, from 0 to 1.
    pub(crate) fn done(&self) -> f64 {
        let span = self.to_s - self.from_s;
        if span > 0.0 { ((self.at_s - self.from_s) / span).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// Speed of playing, as a multiple of the run's.
    pub(crate) fn speed(&self) -> f64 {
        ((self.to_s - self.from_s) / PLAYS_IN_S).max(1.0)
    }

    pub(super) fn go(&mut self, steps: f64) {
        self.at_s = (self.at_s + steps * (self.to_s - self.from_s) / STEPS).clamp(self.from_s, self.to_s);
        (self.is_playing, self.played_s) = (false, None);
    }

    pub(super) fn play_or_stop(&mut self) {
        self.is_playing = !self.is_playing;
        self.played_s = None;
        if self.is_playing && self.at_s >= self.to_s {
            self.at_s = self.from_s;
        }
    }

    /// Moves the slider if the replay plays. Returns whether it moved.
    pub(super) fn play(&mut self, now_s: f64) -> bool {
        let Some(before_s) = self.played_s.replace(now_s).filter(|_| self.is_playing) else { return false };
        // Limit the movement after a clock jump.
        let passed_s = (now_s - before_s).clamp(0.0, 1.0);
        self.at_s = (self.at_s + passed_s * self.speed()).min(self.to_s);
        self.is_playing = self.at_s < self.to_s;
        true
    }
}
