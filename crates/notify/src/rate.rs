//! How fast each service is written to: its own limits, kept before it has to ask.

use crate::service::Service;
use std::time::{Duration, Instant};

/// Some messages at once, and one more each interval.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    burst: u32,
    interval: Duration,
    /// When the bucket would be full again.
    full_at: Option<Instant>,
}

impl Rate {
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        Self { burst, interval, full_at: None }
    }

    /// Each service's. Sources: Discord, "Rate Limits" (five in two seconds a webhook, thirty a minute a channel); Slack,
    /// "Rate limits" (one a second, bursts allowed); Telegram, "Bots FAQ" (one a second a chat, twenty a minute a group);
    /// ntfy, "Limitations" (sixty at once, one each five seconds). Mail and webhooks have none that all servers share.
    ///
    /// `pace` is the part of these intervals that is kept.
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

    /// When the next message may go.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        let ahead = self.interval * (self.burst - 1);
        self.full_at.and_then(|full| full.checked_sub(ahead)).map_or(now, |at| at.max(now))
    }

    /// A message goes.
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
        // What was not used is there again, up to the burst.
        now += second * 60;
        let again = (0..4).map(|_| {
            now = rate.next(now);
            rate.spend(now);
            (now - start).as_secs()
        });
        assert_eq!(again.collect::<Vec<_>>(), [63, 63, 63, 64]);
    }
}
