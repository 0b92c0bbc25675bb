//! How far reading and tokenizing has come.

use super::live::may_animate;
use crate::streams::talk;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_data::Progress;

/// A bar on a terminal; elsewhere only what matters is said.
pub struct DataProgress {
    bar: ProgressBar,
}

impl DataProgress {
    /// A bar that shows nothing yet.
    pub fn new() -> Self {
        let target = if may_animate() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style =
            ProgressStyle::with_template("{wide_bar:.cyan/dim} {msg}").expect("a valid template").progress_chars("━╸─");
        Self { bar: ProgressBar::with_draw_target(Some(0), target).with_style(style) }
    }

    /// Shows a report; may be called from any thread.
    pub fn show(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Hashing { done, total } => self.at(done.0, total.0, format!("reading {done} of {total}")),
            Progress::Tokenizing { done, total, tokens } => {
                self.at(done.0, total.0, format!("tokenizing {done} of {total}, {tokens} tokens"));
            }
            Progress::CacheDamaged { path, damage } => {
                let text = format!("warning: rebuilding the cache {}: {damage}", path.display());
                self.bar.suspend(|| talk(text));
            }
            Progress::CacheHit { .. } | Progress::Written { .. } => {}
        }
    }

    fn at(&self, done: u64, total: u64, message: String) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for DataProgress {
    fn default() -> Self {
        Self::new()
    }
}
