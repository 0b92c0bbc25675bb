//! One writer's thread: opens, writes, and tries again what is worth it. Everything slow happens here.

use crate::queue::{Next, Queue};
use crate::writer::{Open, WriteError};
use plimsoll_notify::{Backoff, Redactor};
use std::sync::Arc;
use std::time::Duration;

/// Rows that are written at once.
const BATCH: usize = 256;

/// Between two tries of what a server did not take.
const DELAYS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

/// Writes until the queue is closed and empty, or its deadline has come.
pub(crate) fn work(queue: &Queue, open: &Open, redactor: &Redactor) {
    let (mut begin, mut writer) = (None, None);
    let mut backoff = Backoff::new(DELAYS[0], DELAYS[1], std::process::id().into());
    loop {
        match queue.next(BATCH) {
            Next::Begin(session) => {
                let session = begin.insert(session);
                // What fails now is tried again with the first rows.
                writer = open(session).map_err(|error| queue.note(redactor.clean(&error.text))).ok();
            }
            Next::Rows(rows) => {
                let Some(session) = &begin else {
                    queue.lost();
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
                    queue.note(redactor.clean(&error.text));
                    failures += 1;
                    if !(error.is_passing && queue.pause(backoff.delay(failures))) {
                        queue.lost();
                        break;
                    }
                }
                queue.written();
            }
            Next::End(end) => {
                if let (Some(mut writer), Some(end)) = (writer, end)
                    && let Err(error) = writer.end(end)
                {
                    queue.note(redactor.clean(&error.text));
                }
                // Whoever waits for the end may rely on the folder being free.
                drop::<Option<Arc<_>>>(begin);
                return queue.ended();
            }
        }
    }
}
