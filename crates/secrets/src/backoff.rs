//! Delays before retries. Pure: the same seed gives the same delays.

use std::time::{Duration, SystemTime};

/// Exponential back-off with jitter.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    state: u64,
}

impl Backoff {
    /// `first`: the delay after the first failure; `longest`: the upper bound; `seed`: for the random part.
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { first, longest, state: seed }
    }

    /// The delay after the `failures`-th failure in a row, counted from 1. It doubles each time, and a random part of
    /// up to a half is subtracted, so that runs that failed together do not retry together.
    pub fn delay(&mut self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest).mul_f64(0.5 + 0.5 * self.random())
    }

    /// A random number between 0 and 1. Source: Steele, Lea & Flood 2014, SplitMix64.
    fn random(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Parses a `Retry-After` header: seconds, or a date. Source: RFC 9110, section 10.2.3.
pub fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Some(seconds) = header.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0) {
        return Some(Duration::from_secs_f64(seconds.min(1e6)));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_vary_by_a_half() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(first, longest, 7);
        for (failures, most_ms) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (40, 1000), (u32::MAX, 1000)] {
            let delay = backoff.delay(failures);
            assert!(
                delay <= Duration::from_millis(most_ms) && delay >= Duration::from_millis(most_ms / 2),
                "{delay:?}"
            );
        }
        let delays = |seed| (0..5).map(|_| Backoff::new(first, longest, seed).delay(1)).collect::<Vec<_>>();
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }

    #[test]
    fn retry_after_accepts_seconds_and_dates() {
        let now = httpdate::parse_http_date("Fri, 31 Dec 1999 23:59:00 GMT").unwrap();
        for (header, seconds) in [
            ("120", Some(120.0)),
            (" 0.5 ", Some(0.5)),
            ("Fri, 31 Dec 1999 23:59:59 GMT", Some(59.0)),
            ("Fri, 31 Dec 1999 23:00:00 GMT", Some(0.0)),
            ("-1", None),
            ("NaN", None),
            ("soon", None),
            ("1e300", Some(1e6)),
        ] {
            assert_eq!(retry_after(header, now).map(|d| d.as_secs_f64()), seconds, "{header}");
        }
    }
}
