//! The pace of a run between two samples.

/// Timing of a sample, and the pace of the run since the previous one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Time since the last sample, s.
    pub dt_s: f64,
    /// Duration of a micro-batch, s, before whose end no order has an effect.
    pub batch_s: f64,
    /// The fraction of its full heat output that the card was allowed since the last sample. Without a lowered power
    /// limit, the fraction of the time that it was allowed to compute.
    pub share: f64,
    /// Whether the time since the last sample was a pause that tests a sensor, or followed one. Such samples do not
    /// count for the duty.
    pub probing: bool,
    /// The fraction of its full heat output that the card produces while it computes under its power limit.
    pub cap: f64,
}

impl Pace {
    /// The fraction of the time that a card may compute to produce this fraction of its full heat output.
    pub fn duty_of(&self, share: f64) -> f64 {
        (share / self.cap).min(1.0)
    }
}
