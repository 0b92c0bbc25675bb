//! Pending output for stderr: lines in their order, and the progress bar below them, of which only the newest is kept.
//! Not here: when it is written, and by which thread.

use plimsoll_telemetry::Pieces;
use std::collections::VecDeque;

/// The most bytes of pending lines. Beyond this, the oldest are dropped.
const MOST: usize = 1 << 20;

/// Lines and a bar.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lines: VecDeque<String>,
    /// Bytes of `lines`.
    bytes: usize,
    /// Lines that were dropped since the last one was taken.
    dropped: usize,
    /// Rows of the bar; empty without a bar.
    bar: Vec<String>,
    /// Whether the terminal does not yet show this bar.
    is_bar_due: bool,
    /// Rows of the bar that the terminal shows.
    shown_rows: usize,
}

impl Waiting {
    /// Adds a line, which may have several rows.
    pub(super) fn say(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > MOST && self.lines.len() > 1 {
            let oldest = self.lines.pop_front().unwrap_or_default();
            self.bytes -= oldest.len();
            self.dropped += oldest.split('\n').count();
        }
    }

    /// Replaces the bar. No rows remove it.
    pub(super) fn show(&mut self, bar: Vec<String>) {
        self.is_bar_due = self.is_bar_due || bar != self.bar;
        self.bar = bar;
    }

    /// Whether nothing is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && !self.is_bar_due
    }

    /// Codes that clear the bar that is shown; its last row has the cursor.
    fn clear_bar(&mut self) -> String {
        match std::mem::take(&mut self.shown_rows) {
            0 => String::new(),
            1 => "\r\u{1b}[J".to_owned(),
            rows => format!("\r\u{1b}[{}A\u{1b}[J", rows - 1),
        }
    }
}

impl Pieces for Waiting {
    fn take(&mut self) -> Option<Vec<u8>> {
        let text = if self.dropped > 0 {
            format!("warning: {} lines were not shown: nothing read them", std::mem::take(&mut self.dropped))
        } else if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            line
        } else if self.is_bar_due {
            self.is_bar_due = false;
            let cleared = self.clear_bar();
            self.shown_rows = self.bar.len();
            return Some((cleared + &self.bar.join("\n")).into_bytes());
        } else {
            return None;
        };
        self.is_bar_due = !self.bar.is_empty();
        Some((self.clear_bar() + &text + "\n").into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(waiting: &mut Waiting) -> String {
        let pieces = std::iter::from_fn(|| waiting.take()).flatten().collect();
        String::from_utf8(pieces).expect("text")
    }

    #[test]
    fn lines_go_above_the_bar_and_only_the_newest_bar_is_shown() {
        let mut waiting = Waiting::default();
        let rows = |rows: &[&str]| rows.iter().map(|row| (*row).to_owned()).collect();
        waiting.say("one".to_owned());
        waiting.show(rows(&["bar", "old"]));
        waiting.show(rows(&["bar", "new"]));
        assert_eq!(taken(&mut waiting), "one\nbar\nnew");
        waiting.show(rows(&["bar", "new"]));
        assert!(waiting.is_empty(), "it is shown already");
        waiting.say("two".to_owned());
        assert_eq!(taken(&mut waiting), "\r\u{1b}[1A\u{1b}[Jtwo\nbar\nnew");
        waiting.show(vec![]);
        assert_eq!(taken(&mut waiting), "\r\u{1b}[1A\u{1b}[J");
        assert!(waiting.is_empty() && taken(&mut waiting).is_empty());
    }

    #[test]
    fn oldest_lines_are_dropped_and_counted_when_new_lines_need_space() {
        let mut waiting = Waiting::default();
        let long = "x".repeat(MOST / 2);
        for line in ["1\nstill 1", &long, &long, "4"] {
            waiting.say(line.to_owned());
        }
        assert_eq!(taken(&mut waiting), format!("warning: 3 lines were not shown: nothing read them\n{long}\n4\n"));
        waiting.say(long.repeat(3));
        assert_eq!(taken(&mut waiting).len(), long.len() * 3 + 1, "one line is always kept");
    }
}
