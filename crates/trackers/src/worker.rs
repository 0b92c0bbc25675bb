//! The thread of one writer: opens, writes, and retries after transient errors. Everything slow happens here.

use crate::queue::{Queue, Work};
use crate::writer::{Open, WriteError};
use plimsoll_secrets::{Backoff, Redactor};
use plimsoll_telemetry::Lane;
use std::time::{Duration, Instant};

/// Shortest and longest delay before a retry.
const DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

/// Writes until the lane is closed and empty, or its deadline has passed.
pub(crate) fn work(lane: &Lane<Queue>, open: &Open, redactor: &Redactor) {
    let (mut begin, mut writer) = (None, None);
    let mut backoff = Backoff::new(DELAYS[0], DELAYS[1], std::process::id().into());
    while let Some(work) = lane.next(|queue, deadline| queue.next(Instant::now(), deadline.is_some())) {
        let rows = match work {
            Work::Begin(session) => {
                let session = begin.insert(session);
                // If this fails, it is retried with the first rows.
                writer = open(session).map_err(|error| lane.note(redactor.clean(&error.text))).ok();
                continue;
            }
            Work::Rows(rows) => rows,
        };
        let Some(session) = &begin else {
            lane.settle(Queue::lost);
            continue;
        };
        let mut failures = 0;
        let mut attempt = || -> Result<(), WriteError> {
            let open = match &mut writer {
                Some(open) => open,
                none => none.insert(open(session)?),
            };
            open.write(&rows)
        };
        while let Err(error) = attempt() {
            lane.note(redactor.clean(&error.text));
            failures += 1;
            if !(error.is_passing && lane.pause(backoff.delay(failures))) {
                lane.settle(Queue::lost);
                break;
            }
        }
        lane.settle(Queue::written);
    }
    // Reports how the session ended if there is time.
    let end = lane.settle(|queue, _| queue.end).filter(|_| !lane.is_late());
    if let (Some(mut writer), Some(end)) = (writer, end)
        && let Err(error) = writer.end(end)
    {
        lane.note(redactor.clean(&error.text));
    }
}
