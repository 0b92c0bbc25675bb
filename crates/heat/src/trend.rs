//! What a series of samples says of the present: a smooth value, how fast it changes, and its recent peaks. All are
//! updated in place, for any distance between samples.
//! Not here: what follows from them. Read next: `throttle.rs`.

/// Time over which values are smoothed, s: whole degrees and noise of a sample are no heat, and heat takes longer.
pub(crate) const SMOOTHING_S: f64 = 5.0;

/// An exponential mean's weight of a new sample, after `dt_s`, with the time constant `tau_s`.
pub(crate) fn weight(dt_s: f64, tau_s: f64) -> f64 {
    dt_s / (tau_s + dt_s)
}

/// Two exponential means of one series, a fast and a slow one. Of a ramp, each lags by the slope times its time
/// constant, so that their difference tells the slope.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Trend {
    means: Option<(f64, f64)>,
    slope: f64,
    age_s: f64,
}

impl Trend {
    /// A sample `dt_s` after the last one; the slope is that over the last `over_s`, which is longer than `SMOOTHING_S`.
    /// What happens in the first `settle_s` is no trend: work begins, and dies jump.
    pub(crate) fn add(&mut self, value: f64, dt_s: f64, over_s: f64, settle_s: f64) {
        self.age_s += dt_s;
        let settled = self.means.filter(|_| self.age_s > settle_s);
        let (fast, slow) = settled.unwrap_or((value, value));
        let fast = fast + weight(dt_s, SMOOTHING_S) * (value - fast);
        let slow = slow + weight(dt_s, over_s) * (value - slow);
        self.means = Some((fast, slow));
        self.slope = (fast - slow) / (over_s - SMOOTHING_S);
    }

    /// The smooth value; `raw` before there is any.
    pub(crate) fn value_or(&self, raw: f64) -> f64 {
        self.means.map_or(raw, |(fast, _)| fast)
    }

    /// Change a second.
    pub(crate) fn slope(&self) -> f64 {
        self.slope
    }

    /// Forgets everything, as after a gap.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The highest value of the recent past, in three buckets of half a window each.
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
    /// A sample `dt_s` after the last one. Returns the highest of at least the last `window_s` and at most half as much
    /// again; the sample itself if the window is empty.
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

    /// Forgets everything, as after a gap.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
