//! Overlays: the help and the question before a process is ended.

use super::Pen;
use super::text::{columns, put, wrapped};
use crate::palette::Role;
use crate::state::Confirm;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Clear, Widget};

/// Keys and their actions.
const KEYS: [(&str, &str); 19] = [
    ("F1 h ?", "these keys"),
    ("q F10 Ctrl-C", "leave"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
    ("Tab Shift-Tab", "next pane, previous pane"),
    ("↑ ↓ j k", "select (k kills in the pane of processes)"),
    ("PgUp PgDn", "up or down ten rows"),
    ("Home End g G", "first row, last row"),
    ("Enter", "details of the selection; Esc closes them"),
    ("F6 s", "sort processes by memory, GPU, pid, owner, name"),
    ("F4 /", "filter processes and runs; Esc clears"),
    ("F9 k", "end a process: SIGTERM first, then SIGKILL"),
    ("space", "freeze or unfreeze the view"),
    ("+ -", "longer or shorter time between samples"),
    ("Ctrl-L", "redraw the screen"),
    ("", ""),
    ("█ ░ ▒ ▓ │", "memory: these runs, planned, others, driver; │ plan"),
    ("┊ │ ┃", "heat: slows from ┊, stops above │, throttles at ┃"),
    ("← → Home End", "replay: back, forward, start, end"),
    ("space", "replay: play or stop"),
];

/// Draws a frame in the middle of an area, sized for the lines in it.
fn framed(pen: &mut Pen, area: Rect, title: &str, lines: usize, widest: usize) -> Rect {
    let width = (widest as u16 + 4).min(area.width);
    let height = (lines as u16 + 2).min(area.height);
    let frame = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(frame, pen.buffer);
    let style = pen.style(Role::Title);
    let block = ratatui::widgets::Block::bordered().title(format!(" {title} ")).border_style(style);
    let inner = block.inner(frame);
    block.render(frame, pen.buffer);
    inner
}

pub(super) fn help(pen: &mut Pen, area: Rect, line: usize) {
    let inner = framed(pen, area, "keys", KEYS.len(), 74);
    let first = line.min(KEYS.len().saturating_sub(usize::from(inner.height)));
    for (y, (keys, what)) in (inner.top()..inner.bottom()).zip(&KEYS[first..]) {
        let title = pen.style(Role::Strong);
        put(pen.buffer, inner.x + 1, y, inner.right(), keys, title);
        put(pen.buffer, inner.x + 16, y, inner.right(), what, Style::new());
    }
}

pub(super) fn confirm(pen: &mut Pen, area: Rect, confirm: &Confirm) {
    let process = &confirm.process;
    let name = process.name.as_deref().unwrap_or("a process");
    let owner = process.uid.map(|uid| pen.state.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string()));
    let owner = owner.map_or(String::new(), |owner| format!(" of {owner}"));
    let what = match confirm.is_kill {
        false => "Sends SIGTERM: the process can save its work before it ends.",
        true => "It did not end after SIGTERM. Sends SIGKILL: unsaved work is lost.",
    };
    let width = usize::from(area.width).saturating_sub(8).min(72);
    let mut lines = wrapped(&format!("{name}{owner}, process {}", process.pid), width);
    lines.extend(process.command.iter().flat_map(|command| wrapped(command, width)).take(3));
    lines.push(String::new());
    lines.extend(wrapped(what, width));
    lines.push(String::new());
    lines.push("y confirms, any other key cancels".to_owned());
    let widest = lines.iter().map(|line| columns(line)).max().unwrap_or(0);
    let title = if confirm.is_kill { "kill this process?" } else { "end this process?" };
    let inner = framed(pen, area, title, lines.len(), widest);
    for (y, line) in (inner.top()..inner.bottom()).zip(&lines) {
        put(pen.buffer, inner.x + 1, y, inner.right(), line, Style::new());
    }
}
