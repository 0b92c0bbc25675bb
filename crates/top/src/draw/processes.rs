//! The process pane.

use super::Pen;
use super::text::{NONE, put, put_right, size};
use crate::palette::Role;
use crate::state::{Pane, ProcessRow};
use ratatui::layout::Rect;

/// Widths of the columns pid, owner, card and memory; the name gets the rest.
const COLUMNS: [u16; 4] = [9, 12, 6, 12];

pub(super) fn draw(pen: &mut Pen, area: Rect) {
    if area.height == 0 {
        return;
    }
    let state = pen.state;
    let has_keys = state.focus == Pane::Processes;
    let rows = state.shown_processes();
    pen.title(area, &format!("processes by {}", state.sort.words()), has_keys);
    let line = |row: u16| Rect { y: area.y + row, height: 1, ..area };
    if area.height > 1 {
        let head = pen.style(Role::Quiet);
        cells(pen, line(1), ["PID", "OWNER", "GPU", "MEMORY", "PROGRAM"].map(str::to_owned), head);
    }
    let shown = usize::from(area.height.saturating_sub(2));
    let keys = rows.iter().map(ProcessRow::key).collect::<Vec<_>>();
    let selected = state.processes.index(keys.iter()).unwrap_or(0);
    let first = (selected + 1).saturating_sub(shown);
    for (place, (number, row)) in rows.iter().enumerate().skip(first).take(shown).enumerate() {
        let area = line(place as u16 + 2);
        let style = match number == selected {
            true if has_keys => pen.style(Role::Selected),
            _ if row.run.is_some() => pen.style(Role::Ours),
            _ => ratatui::style::Style::new(),
        };
        if number == selected && has_keys {
            pen.buffer.set_style(area, style);
        }
        cells(pen, area, texts(row), style);
    }
    if rows.is_empty() && area.height > 2 {
        let quiet = pen.style(Role::Quiet);
        put(pen.buffer, area.x + 1, area.y + 2, area.right(), "no processes on GPUs or in runs", quiet);
    }
    if rows.len() > shown {
        let quiet = pen.style(Role::Quiet);
        put_right(pen.buffer, line(0), &format!(" {} more ", rows.len() - shown), quiet);
    }
}

fn texts(row: &ProcessRow) -> [String; 5] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    let run = row.run.as_ref().map_or(String::new(), |run| format!("  run {run}"));
    let name = match (&row.name, row.card) {
        (Some(name), _) => name.clone(),
        // The driver does not report the name of a run's own process.
        (None, None) => String::new(),
        (None, Some(_)) => NONE.to_owned(),
    };
    [
        row.pid.to_string(),
        text(&row.owner),
        row.card.map_or("CPU".to_owned(), |card| card.to_string()),
        size(row.memory),
        format!("{name}{run}").trim_start().to_owned(),
    ]
}

fn cells(pen: &mut Pen, area: Rect, texts: [String; 5], style: ratatui::style::Style) {
    let mut x = area.x + 1;
    for (text, width) in texts.iter().zip(COLUMNS.into_iter().chain([area.width])) {
        put(pen.buffer, x, area.y, area.right().min(x.saturating_add(width - 1)), text, style);
        x = x.saturating_add(width);
    }
}
