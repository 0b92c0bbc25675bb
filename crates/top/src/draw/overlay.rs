//! What lies over the panes: the keys, and questions.

use super::Pen;
use super::text::{columns, put, wrapped};
use crate::palette::Role;
use crate::state::Confirm;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Clear, Widget};

/// Keys, and what they do.
const KEYS: [(&str, &str); 19] = [
    ("F1 h ?", "these keys"),
    ("q F10 Ctrl-C", "leave"),
    ("Ctrl-Z", "stop; `fg` goes on"),
    ("Tab Shift-Tab", "the next pane, the one before"),
    ("↑ ↓ j k", "select (k kills in the pane of processes)"),
    ("PgUp PgDn", "ten rows up, down"),
    ("Home End g G", "the first row, the last"),
    ("Enter", "all about what is selected; Esc back"),
    ("F6 s", "sort processes by memory, card, pid, owner, name"),
    ("F4 /", "filter processes and runs; Esc clears"),
    ("F9 k", "end a process: it is asked first, then killed"),
    ("space", "the view stands still; again, it goes on"),
    ("+ -", "more, less time between samples"),
    ("Ctrl-L", "draw everything again"),
    ("", ""),
    ("█ ░ ▒ ▓ │", "memory: ours, planned, others', the driver's; │ the plan"),
    ("┊ │ ┃", "heat: slowed from ┊, stopped above │, the card slows at ┃"),
    ("← → Home End", "a replay: back, on, to the beginning, the end"),
    ("space", "a replay: it plays, it stops"),
];

/// A frame in the middle, as large as the lines in it, within an area.
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
        false => "It is asked to end (SIGTERM), and may save what it has.",
        true => "It was asked before, and is there still. Now it is killed (SIGKILL): it saves nothing.",
    };
    let width = usize::from(area.width).saturating_sub(8).min(72);
    let mut lines = wrapped(&format!("{name}{owner}, process {}", process.pid), width);
    lines.extend(process.command.iter().flat_map(|command| wrapped(command, width)).take(3));
    lines.push(String::new());
    lines.extend(wrapped(what, width));
    lines.push(String::new());
    lines.push("y ends it, any other key does not".to_owned());
    let widest = lines.iter().map(|line| columns(line)).max().unwrap_or(0);
    let title = if confirm.is_kill { "kill this process?" } else { "end this process?" };
    let inner = framed(pen, area, title, lines.len(), widest);
    for (y, line) in (inner.top()..inner.bottom()).zip(&lines) {
        put(pen.buffer, inner.x + 1, y, inner.right(), line, Style::new());
    }
}
