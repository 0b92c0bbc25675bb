//! Statistics of a series of samples: a smoothed value, its slope, and recent peaks. Each update is in place and
//! accepts any time between samples.
//! Not here: the decisions based on them. Read next: `throttle.rs`.

/// Time constant of smoothing, s. It removes rounding to whole degrees and sensor noise, which change faster than the
/// temperature does.
pub(crate) const SMOOTHING_S: f64 = 5.0;

/// Weight of a new sample in an exponential mean, `dt_s` after the previous sample, with time constant `tau_s`.
pub(crate) fn weight(dt_s: f64, tau_s: f64) -> f64 {
    dt_s / (tau_s + dt_s)
}

/// A fast and a slow exponential mean of one series. On a ramp each mean lags by slope times time constant, so their
/// difference gives the slope.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Trend {
    means: Option<(f64, f64)>,
    slope: f64,
    age_s: f64,
}

impl Trend {
    /// Adds a sample, `dt_s` after the previous one. The slope covers the last `over_s`, which must exceed
    /// `SMOOTHING_S`. The first `settle_s` are excluded: die temperatures jump when work begins.
    pub(crate) fn add(&mut self, value: f64, dt_s: f64, over_s: f64, settle_s: f64) {
        self.age_s += dt_s;
        let settled = self.means.filter(|_| self.age_s > settle_s);
        let (fast, slow) = settled.unwrap_or((value, value));
        let fast = fast + weight(dt_s, SMOOTHING_S) * (value - fast);
        let slow = slow + weight(dt_s, over_s) * (value - slow);
        self.means = Some((fast, slow));
        self.slope = (fast - slow) / (over_s - SMOOTHING_S);
    }

    /// The smoothed value, or `raw` if there are no samples yet.
    pub(crate) fn value_or(&self, raw: f64) -> f64 {
        self.means.map_or(raw, |(fast, _)| fast)
    }

    /// Slope, units per second.
    pub(crate) fn slope(&self) -> f64 {
        self.slope
    }

    /// Discards all samples, for example after a gap in time.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Maximum over a recent window, in three buckets of half a window each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peaks {
    highest: [f64; 3],
    filled_s: f64,
}

impl Default for Peaks {
    fn default() -> Self {
        Self { highest: [f64::NEG_INFINITY; 3], filled_s: 0.0 }
    }
}

impl Peaks {
    /// Adds a sample, `dt_s` after the previous one, and returns the maximum over at least the last `window_s` and at
    /// most 1.5 times that; the sample itself if the window is empty.
    pub(crate) fn add(&mut self, value: f64, dt_s: f64, window_s: f64) -> f64 {
        self.filled_s += dt_s;
        if self.filled_s > window_s / 2.0 {
            self.highest = [f64::NEG_INFINITY, self.highest[0], self.highest[1]];
            self.filled_s = 0.0;
        }
        self.highest[0] = self.highest[0].max(value);
        if window_s <= dt_s {
            return value;
        }
        self.highest[0].max(self.highest[1]).max(self.highest[2])
    }

    /// Discards all samples, for example after a gap in time.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
