//! A progress bar in the last rows of a terminal: rows that replace those before.

use super::put;
use console::{Term, style, truncate_str};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two pictures.
const BETWEEN: Duration = Duration::from_millis(50);

/// Whether stderr may be animated. Colors are independent of this: `NO_COLOR` and `CLICOLOR` disable only colors.
fn may_animate() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A bar on stderr until it is dropped. There is one at a time.
#[derive(Debug)]
pub(crate) struct Bar {
    drawn: Mutex<Option<Instant>>,
}

impl Bar {
    /// A bar that shows nothing yet; `None` if stderr is not a terminal that can be animated.
    pub(crate) fn on_terminal() -> Option<Self> {
        may_animate().then(|| Self { drawn: Mutex::new(None) })
    }

    /// Shows the rows that `rows` makes for so many columns, unless the last ones were made a moment ago.
    pub(crate) fn show(&self, rows: impl FnOnce(usize) -> Vec<String>) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if drawn.is_some_and(|drawn| drawn.elapsed() < BETWEEN) {
            return;
        }
        *drawn = Some(Instant::now());
        // The last column stays free: a terminal may wrap after it.
        let columns = usize::from(Term::stderr().size().1).saturating_sub(1);
        let rows = rows(columns).iter().map(|row| truncate_str(row, columns, "").into_owned()).collect();
        put(|waiting| waiting.show(rows));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        put(|waiting| waiting.show(vec![]));
    }
}

/// A bar of so many columns that is filled by a part from 0 to 1.
pub(crate) fn bar_text(done: f64, columns: usize) -> String {
    let filled = ((done.clamp(0.0, 1.0) * columns as f64) as usize).min(columns);
    let head = usize::from(filled < columns && filled > 0);
    let full = "━".repeat(filled - head) + &"╸".repeat(head);
    format!("{}{}", style(full).for_stderr().cyan(), style("─".repeat(columns - filled)).for_stderr().dim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_all_its_columns_at_any_progress() {
        console::set_colors_enabled_stderr(false);
        let cases = [(0.0, "────"), (0.25, "╸───"), (0.6, "━╸──"), (1.0, "━━━━"), (7.0, "━━━━"), (f64::NAN, "────")];
        for (done, bar) in cases {
            assert_eq!(bar_text(done, 4), bar);
        }
        assert_eq!(bar_text(0.5, 0), "");
    }
}
