//! The list of runs, one line each.

use super::Pen;
use super::text::{NONE, grouped, loss, put, put_right, size, time};
use crate::palette::Role;
use crate::state::Pane;
use plimsoll_units::Bytes;
use plimsoll_watch::{RunView, Standing};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// A column: heading, width, and its text for a run.
type Column = (&'static str, u16, fn(&RunView) -> String);

/// Columns in order of importance; the leading ones that fit are shown.
const COLUMNS: [Column; 9] = [
    ("RUN", 18, |run| run.name.clone()),
    ("STATE", 12, |run| run.standing_words().to_owned()),
    ("STEP", 15, steps),
    ("LOSS", 9, |run| run.last.map_or(NONE.to_owned(), |last| loss(last.loss))),
    ("TOK/S", 11, |run| run.last.map_or(NONE.to_owned(), |last| grouped(last.tokens_per_s.max(0.0) as u64))),
    ("LEFT", 13, |run| time(run.seconds_left)),
    ("PLANNED", 11, |run| size(run.planned_bytes.map(Bytes))),
    ("HELD OUT", 10, |run| run.held_out.whole().map_or(NONE.to_owned(), |whole| loss(whole.last.value))),
    ("MODEL", 24, |run| run.model.clone().or(run.command.first().cloned()).unwrap_or_else(|| NONE.to_owned())),
];

fn steps(run: &RunView) -> String {
    match run.last_step {
        Some(last) => format!("{}/{last}", run.step),
        None => run.step.to_string(),
    }
}

/// Style of a run's state.
pub(super) fn role(run: &RunView) -> Role {
    match run.standing {
        // The run waits for the user.
        _ if run.is_paused => Role::Warn,
        Standing::Running => Role::Ours,
        Standing::Finished => Role::Good,
        Standing::Interrupted | Standing::NotStarted => Role::Quiet,
        Standing::CutShort | Standing::Unsaved => Role::Warn,
        Standing::TooHot | Standing::Diverged | Standing::Failed => Role::Bad,
    }
}

pub(super) fn draw(pen: &mut Pen, area: Rect) {
    if area.height == 0 {
        return;
    }
    let state = pen.state;
    let has_keys = state.focus == Pane::Runs;
    let runs = state.shown_runs();
    pen.title(Rect { height: 1, ..area }, "runs", has_keys);
    let line = |row: u16| Rect { y: area.y + row, height: 1, ..area };
    let mut x = area.x + 1;
    let columns = COLUMNS.iter().map_while(|(name, width, text)| {
        let start = x;
        x += width;
        (x <= area.right()).then_some((*name, start, *width, *text))
    });
    let columns = columns.collect::<Vec<_>>();
    let quiet = pen.style(Role::Quiet);
    for (name, x, width, _) in columns.iter().filter(|_| area.height > 1) {
        put(pen.buffer, *x, area.y + 1, x + width - 1, name, quiet);
    }
    let shown = usize::from(area.height.saturating_sub(2));
    let ids = runs.iter().map(|run| run.id.clone()).collect::<Vec<_>>();
    let selected = state.runs.index(ids.iter()).unwrap_or(0);
    let first = (selected + 1).saturating_sub(shown);
    for (place, (number, run)) in runs.iter().enumerate().skip(first).take(shown).enumerate() {
        let area = line(place as u16 + 2);
        let is_selected = number == selected;
        if is_selected && has_keys {
            let style = pen.style(Role::Selected);
            pen.buffer.set_style(area, style);
        }
        for (name, x, width, text) in &columns {
            let style = match is_selected {
                true if has_keys => pen.style(Role::Selected),
                true if *name == "RUN" => pen.style(Role::Marked),
                _ if *name == "STATE" => pen.style(role(run)),
                _ => Style::new(),
            };
            put(pen.buffer, *x, area.y, x + width - 1, &text(run), style);
        }
    }
    if runs.is_empty() && area.height > 2 {
        let words = if state.filter.is_empty() { "no runs found" } else { "no run matches the filter" };
        put(pen.buffer, area.x + 1, area.y + 2, area.right(), words, quiet);
    }
    let hidden = runs.len().saturating_sub(shown) + state.snapshot().more_runs;
    if hidden > 0 {
        put_right(pen.buffer, line(0), &format!(" {hidden} more "), quiet);
    }
}
