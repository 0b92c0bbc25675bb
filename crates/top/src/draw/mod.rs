//! Drawing: a pure function from the state to cells, for any state and size.
//! Read next: `panes.rs`.

mod bar;
mod cards;
mod chart;
mod details;
mod overlay;
mod panes;
mod processes;
mod run;
mod runs;
mod system;
mod text;

use crate::palette::Role;
use crate::state::{Overlay, Pane, State};
use plimsoll_telemetry::Level;
use plimsoll_units::{Seconds, format_duration};
use plimsoll_watch::Standing;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use text::{clock, put, put_right, wrapped};

/// Minimum columns and rows of the screen.
pub(crate) const LEAST: (u16, u16) = (60, 16);

/// State and target of drawing.
pub(crate) struct Pen<'a> {
    pub state: &'a State,
    pub buffer: &'a mut Buffer,
}

impl Pen<'_> {
    pub fn style(&self, role: Role) -> Style {
        self.state.palette.style(role)
    }

    /// Draws a title as a horizontal line.
    pub fn title(&mut self, area: Rect, title: &str, has_keys: bool) {
        let (title_style, line) =
            (self.style(if has_keys { Role::Title } else { Role::Strong }), self.style(Role::Quiet));
        for x in area.left()..area.right() {
            put(self.buffer, x, area.y, area.right(), "─", line);
        }
        let sign = if has_keys { "▶" } else { "─" };
        let end = put(self.buffer, area.x, area.y, area.right(), &format!("{sign} {title} "), title_style);
        debug_assert!(end <= area.right());
    }
}

/// Draws the state into an area of cells.
pub fn draw(state: &State, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    let (columns, rows) = LEAST;
    if area.width < columns || area.height < rows {
        let message = format!(
            "plimsoll top needs {columns} columns and {rows} rows; this terminal has {} and {}. Press `q` to quit.",
            area.width, area.height
        );
        for (y, line) in (area.top()..area.bottom()).zip(wrapped(&message, area.width.into())) {
            put(buffer, area.x, y, area.right(), &line, Style::new());
        }
        return;
    }
    let mut pen = Pen { state, buffer };
    let slider_rows = u16::from(state.replay.is_some());
    let row = |y: u16| Rect { y, height: 1, ..area };
    header(&mut pen, row(area.y));
    let body = Rect { y: area.y + 1, height: area.height - 2 - slider_rows, ..area };
    match state.overlay {
        Overlay::Details(pane, line) => details::draw(&mut pen, body, pane, line),
        _ => panes::draw(&mut pen, body),
    }
    if state.replay.is_some() {
        slider(&mut pen, row(area.bottom() - 2));
    }
    footer(&mut pen, row(area.bottom() - 1));
    match &state.overlay {
        Overlay::Help(line) => overlay::help(&mut pen, body, *line),
        Overlay::Confirm(confirm) => overlay::confirm(&mut pen, body, confirm),
        Overlay::None | Overlay::Details(..) => {}
    }
}

fn header(pen: &mut Pen, area: Rect) {
    let edge = pen.style(Role::Edge);
    pen.buffer.set_style(area, edge);
    let snapshot = pen.state.snapshot();
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let running = snapshot.runs.iter().filter(|run| run.standing == Standing::Running).count();
    let there = snapshot.machine.cards.iter().filter(|card| card.is_there).count();
    let left = format!(
        " plimsoll top   {}   {}, {} active",
        clock(snapshot.now_s),
        count(there, "GPU"),
        count(running, "run")
    );
    let right = match (&pen.state.replay, pen.state.is_paused()) {
        (Some(_), _) => "replay ".to_owned(),
        (None, true) => "PAUSED; space resumes ".to_owned(),
        (None, false) => format!("every {} s ", pen.state.interval_s),
    };
    put(pen.buffer, area.x, area.y, area.right(), &left, edge);
    put_right(pen.buffer, area, &right, edge);
}

/// The footer: the main keys, or a message.
fn footer(pen: &mut Pen, area: Rect) {
    let edge = pen.style(Role::Edge);
    pen.buffer.set_style(area, edge);
    let state = pen.state;
    let words = match (&state.message, state.is_filtering, &state.overlay) {
        (Some((level, message)), _, _) => {
            let sign = match level {
                Level::Info => "",
                Level::Warn => "! ",
                Level::Error => "!! ",
            };
            format!(" {sign}{message}")
        }
        (_, true, _) => format!(" filter: {}▏  Enter applies it, Esc clears it", state.filter),
        (_, _, Overlay::Details(..)) => " Esc back   ↑↓ scroll   space pause".to_owned(),
        _ if state.replay.is_some() => {
            " ←→ time  Home End  space plays  Tab pane  Enter details  F1 help  q quit".to_owned()
        }
        _ => {
            let kill = if state.focus == Pane::Processes { "k kill" } else { "F9 kill" };
            format!(" F1 help  Tab pane  Enter more  / filter  s sort  {kill}  space pause  q quit")
        }
    };
    put(pen.buffer, area.x, area.y, area.right(), &words, edge);
    if !state.filter.is_empty() && !state.is_filtering {
        put_right(pen.buffer, area, &format!(" filter: {} (Esc clears) ", state.filter), edge);
    }
}

/// `▶ ━━━━━━━━━●───────  12 min of 1 h 3 min, 60x speed`
fn slider(pen: &mut Pen, area: Rect) {
    let Some(replay) = &pen.state.replay else { return };
    let time = |seconds: f64| format_duration(Seconds(seconds));
    let (at, whole) = (replay.at_s - replay.from_s, replay.to_s - replay.from_s);
    let words = format!("  {} of {}, {:.0}x speed ", time(at), time(whole), replay.speed());
    let sign = if replay.is_playing { " ▶ " } else { " ‖ " };
    let (strong, quiet) = (pen.style(Role::Strong), pen.style(Role::Quiet));
    let start = put(pen.buffer, area.x, area.y, area.right(), sign, strong);
    let end = put_right(pen.buffer, area, &words, strong).max(start + 1);
    let place = start + ((end - start - 1) as f64 * replay.done()).round() as u16;
    for x in start..end {
        let (part, style) = match x.cmp(&place) {
            std::cmp::Ordering::Less => ("━", strong),
            std::cmp::Ordering::Equal => ("●", strong),
            std::cmp::Ordering::Greater => ("─", quiet),
        };
        put(pen.buffer, x, area.y, end, part, style);
    }
}
