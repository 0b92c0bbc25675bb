//! The training loop as seen by the guard: micro-batches that cannot be interrupted, and pauses between them.

use crate::rng::Rng;

/// The training loop.
#[derive(Debug, Clone)]
pub struct Work {
    batch_s: f64,
    /// Largest relative deviation of a micro-batch's duration.
    jitter: f64,
    rng: Rng,
    state: State,
    begun: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Computing { took_s: f64, left_s: f64 },
    Waiting { after_s: f64, waited_s: f64 },
}

impl Work {
    pub fn new(batch_s: f64, jitter: f64, rng: Rng) -> Self {
        Self { batch_s, jitter, rng, state: State::Waiting { after_s: 0.0, waited_s: 0.0 }, begun: 0 }
    }

    /// The micro-batch in flight.
    pub fn in_flight(&self) -> Option<u64> {
        matches!(self.state, State::Computing { .. }).then_some(self.begun)
    }

    /// The fraction of the next `for_s` seconds that computes, at `speed` relative to full speed. A change of `share`
    /// during a pause shortens or lengthens that pause.
    pub fn step(&mut self, for_s: f64, share: f64, speed: f64) -> f64 {
        if self.batch_s < 0.25 * for_s && share > 0.25 {
            return share;
        }
        let mut left_s = for_s;
        let mut computed_s = 0.0;
        while left_s > 1e-9 {
            match &mut self.state {
                State::Computing { took_s, left_s: of_batch_s } => {
                    let now_s = left_s.min(*of_batch_s / speed);
                    computed_s += now_s;
                    left_s -= now_s;
                    *of_batch_s -= now_s * speed;
                    if *of_batch_s <= 1e-9 {
                        self.state = State::Waiting { after_s: *took_s / speed, waited_s: 0.0 };
                    }
                }
                State::Waiting { after_s, waited_s } => {
                    let wait_s = if share > 0.0 { *after_s * (1.0 - share) / share } else { f64::INFINITY };
                    let now_s = left_s.min((wait_s - *waited_s).max(0.0));
                    left_s -= now_s;
                    *waited_s += now_s;
                    if *waited_s >= wait_s - 1e-9 {
                        let took_s = self.batch_s * self.rng.between(1.0 - self.jitter, 1.0 + self.jitter);
                        self.state = State::Computing { took_s, left_s: took_s };
                        self.begun += 1;
                    }
                }
            }
        }
        computed_s / for_s
    }
}
