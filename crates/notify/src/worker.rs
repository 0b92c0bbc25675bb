//! The thread of one sender: takes messages, respects the service's rate limit, and retries. All blocking work happens
//! here.

use crate::message::{Kind, Message};
use crate::queue::{Entry, Queue};
use crate::rate::Rate;
use crate::send_error::{Retry, SendError};
use crate::settings::Timing;
use plimsoll_secrets::Backoff;
use plimsoll_secrets::Redactor;
use plimsoll_telemetry::Lane;
use std::time::Instant;

/// Sends one message.
pub(crate) type Send = Box<dyn FnMut(&Message) -> Result<(), SendError> + core::marker::Send>;

/// Sends until the lane is closed and empty, or its deadline has passed.
pub(crate) fn work(lane: &Lane<Queue>, mut send: Send, mut rate: Rate, timing: &Timing, redactor: &Redactor) {
    let mut backoff = Backoff::new(timing.first_delay, timing.longest_delay, timing.seed);
    // Earliest time of the next message: requested by a server, or due to the last failure.
    let mut asked = None::<Instant>;
    let mut delayed = None::<Instant>;
    let mut failures = 0;
    loop {
        // At the end of the run time is short: leave rate limiting to the service, which reports it.
        let not_before = |closing: bool| {
            let now = Instant::now();
            let paced = if closing { now } else { rate.next(now) };
            [Some(paced), asked, delayed].into_iter().flatten().max().expect("at least one")
        };
        let next = lane.next(|queue, deadline| queue.next(|| not_before(deadline.is_some()), deadline));
        let Some(Entry { message, attempts }) = next else { return };
        rate.spend(Instant::now());
        (asked, delayed) = (None, None);
        let Err(error) = send(&message) else {
            failures = 0;
            lane.settle(Queue::arrived);
            continue;
        };
        lane.note(redactor.clean(&error.text));
        failures += 1;
        let now = Instant::now();
        match error.retry {
            Retry::Never => {}
            Retry::Later => delayed = Some(now + backoff.delay(failures)),
            Retry::After(wait) => asked = Some(now + wait.min(timing.longest_asked)),
        }
        let is_kept = message.kind.is_kept() && message.kind != Kind::Test;
        if error.retry == Retry::Never || attempts + 1 >= timing.attempts && !is_kept {
            lane.settle(|queue, counts| queue.give_up(counts, &message));
        } else {
            lane.settle(|queue, counts| queue.put_back(counts, Entry { message, attempts: attempts + 1 }));
        }
    }
}
