//! The progress of a download.

use super::data::bar_row;
use crate::streams::{Bar, talk};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time between two lines of progress without a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// A bar on a terminal; elsewhere a line every few seconds.
pub struct DownloadProgress {
    bar: Option<Bar>,
    total: Bytes,
    /// Bytes that were already on disk.
    before: Bytes,
    done: Cell<u64>,
    start: Instant,
    said: Cell<Instant>,
}

impl DownloadProgress {
    /// A download of `total` bytes, of which `before` are already on disk.
    pub fn new(total: Bytes, before: Bytes) -> Self {
        let now = Instant::now();
        Self { bar: Bar::on_terminal(), total, before, done: Cell::new(before.0), start: now, said: Cell::new(now) }
    }

    /// Adds downloaded bytes.
    pub fn advance(&self, bytes: u64) {
        self.done.set(self.done.get() + bytes);
        self.show();
    }

    /// Removes discarded bytes.
    pub fn retreat(&self, bytes: u64) {
        self.done.set(self.done.get().saturating_sub(bytes));
        self.show();
    }

    /// Removes the bar, and prints the time of the download.
    pub fn finish(self) {
        drop(self.bar);
        let came = Bytes(self.done.get()).saturating_sub(self.before);
        talk(format_args!("fetched {came} in {}", format_duration(Seconds(self.start.elapsed().as_secs_f64()))));
    }

    fn show(&self) {
        let done = Bytes(self.done.get());
        match &self.bar {
            Some(bar) => {
                let part = done.as_f64() / self.total.as_f64();
                bar.show(|columns| vec![bar_row(part, &self.text(done), columns)]);
            }
            None if self.said.get().elapsed() >= BETWEEN_LINES => {
                talk(format_args!("fetched {}", self.text(done)));
                self.said.set(Instant::now());
            }
            None => {}
        }
    }

    fn text(&self, done: Bytes) -> String {
        text(done, self.total, done.saturating_sub(self.before), Seconds(self.start.elapsed().as_secs_f64()))
    }
}

/// Progress, speed and time left, in at most 60 columns. `came`: bytes in this time.
fn text(done: Bytes, total: Bytes, came: Bytes, elapsed: Seconds) -> String {
    let rate = came.as_f64() / elapsed.0.max(0.001);
    let left = match rate > 0.0 {
        true => format!(", {} left", format_duration(Seconds(total.saturating_sub(done).as_f64() / rate))),
        false => String::new(),
    };
    format!("{done} of {total}, {}/s{left}", Bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_progress_speed_and_time_left() {
        let of = |done, came, s| text(Bytes::mib(done), Bytes::gib(4), Bytes::mib(came), Seconds(s));
        assert_eq!(of(2048, 1024, 16.0), "2.00 GiB of 4.00 GiB, 64.0 MiB/s, 32 s left");
        assert_eq!(of(1024, 0, 0.0), "1.00 GiB of 4.00 GiB, 0 B/s");
        // A bar always keeps some of 80 columns.
        let longest = text(Bytes(u64::MAX / 2), Bytes(u64::MAX), Bytes(1), Seconds(1e9));
        assert!(of(1023, 1, 99.0).len() <= 60 && longest.len() <= 75, "{longest}");
    }
}
