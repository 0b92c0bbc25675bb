//! Rate limits of the services, respected in advance.

use crate::service::Service;
use std::time::{Duration, Instant};

/// A token bucket: a burst of messages, and one more per interval.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    burst: u32,
    interval: Duration,
    /// When the bucket will be full again.
    full_at: Option<Instant>,
}

impl Rate {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, full_at: None }
    }

    /// The limits of each service. Sources: Discord, "Rate Limits" (five per two seconds and webhook, thirty per minute
    /// and channel); Slack, "Rate limits" (one per second, bursts allowed); Telegram, "Bots FAQ" (one per second and
    /// chat, twenty per minute and group); ntfy, "Limitations" (sixty at once, one per five seconds). Mail and webhooks
    /// have no common limit.
    ///
    /// `pace` scales these intervals.
    pub(crate) fn of(service: Service, pace: f64) -> Self {
        let (burst, seconds) = match service {
            Service::Discord => (5, 2),
            Service::Slack => (3, 1),
            Service::Telegram => (3, 3),
            Service::Ntfy => (10, 5),
            Service::Webhook => (10, 1),
            Service::Mail => (3, 20),
        };
        Self::new(burst, Duration::from_secs(seconds).mul_f64(pace))
    }

    /// When the next message may be sent.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        let ahead = self.interval * (self.burst - 1);
        self.full_at.and_then(|full| full.checked_sub(ahead)).map_or(now, |at| at.max(now))
    }

    /// Records that a message was sent.
    pub(crate) fn spend(&mut self, now: Instant) {
        self.full_at = Some(self.full_at.map_or(now, |at| at.max(now)) + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_in_intervals() {
        let start = Instant::now() + Duration::from_secs(100);
        let second = Duration::from_secs(1);
        let mut rate = Rate::new(3, second);
        let mut now = start;
        let mut times = Vec::new();
        for _ in 0..6 {
            now = rate.next(now);
            rate.spend(now);
            times.push((now - start).as_secs());
        }
        assert_eq!(times, [0, 0, 0, 1, 2, 3]);
        // Unused capacity returns, up to the burst.
        now += second * 60;
        let again = (0..4).map(|_| {
            now = rate.next(now);
            rate.spend(now);
            (now - start).as_secs()
        });
        assert_eq!(again.collect::<Vec<_>>(), [63, 63, 63, 64]);
    }
}
