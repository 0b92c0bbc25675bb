//! The progress of reading and tokenizing.

use crate::streams::{Bar, bar_text, talk};
use console::measure_text_width;
use plimsoll_data::Progress;

/// A bar on a terminal; elsewhere only important messages.
pub struct DataProgress {
    bar: Option<Bar>,
}

impl DataProgress {
    /// A bar that shows nothing yet.
    pub fn new() -> Self {
        Self { bar: Bar::on_terminal() }
    }

    /// Shows a report; may be called from any thread.
    pub fn show(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Hashing { done, total } => {
                self.at(done.as_f64() / total.as_f64(), || format!("reading {done} of {total}"))
            }
            Progress::Tokenizing { done, total, tokens } => {
                self.at(done.as_f64() / total.as_f64(), || format!("tokenizing {done} of {total}, {tokens} tokens"));
            }
            Progress::CacheDamaged { path, damage } => {
                talk(format_args!("warning: rebuilding the cache {}: {damage}", path.display()));
            }
            Progress::CacheHit { .. } | Progress::Written { .. } => {}
        }
    }

    fn at(&self, done: f64, message: impl Fn() -> String) {
        if let Some(bar) = &self.bar {
            bar.show(|columns| vec![bar_row(done, &message(), columns)]);
        }
    }
}

/// A row with this many columns: a message, and a bar in the remaining columns.
pub(super) fn bar_row(done: f64, message: &str, columns: usize) -> String {
    format!("{} {message}", bar_text(done, columns.saturating_sub(measure_text_width(message) + 1)))
}

impl Default for DataProgress {
    fn default() -> Self {
        Self::new()
    }
}
