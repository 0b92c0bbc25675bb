//! The selected run: figures, its curve, and its last events.

use super::Pen;
use super::chart::{Line, chart};
use super::text::{age, grouped, loss, put, put_parts, size_of, time};
use crate::palette::Role;
use plimsoll_telemetry::Level;
use plimsoll_units::Bytes;
use plimsoll_watch::RunView;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Minimum width for events to the right of the curve.
const WIDE: u16 = 110;

pub(super) fn draw(pen: &mut Pen, area: Rect) {
    let Some(run) = pen.state.selected_run().filter(|_| area.height > 0) else { return };
    let title = format!("{}: {}", run.name, what(run));
    pen.title(Rect { height: 1, ..area }, &title, false);
    let row = |y: u16| Rect { x: area.x + 1, y: area.y + y, width: area.width - 1, height: 1 };
    if area.height > 1 {
        figures(pen, row(1), run);
    }
    let rest = Rect { y: area.y + 2, height: area.height.saturating_sub(2), ..area };
    if rest.height == 0 {
        return;
    }
    if area.width >= WIDE && rest.height >= 4 {
        let left = Rect { width: area.width * 3 / 5, ..rest };
        loss_chart(pen, left, run);
        events(pen, Rect { x: left.right() + 1, width: area.width - left.width - 1, ..rest }, run, 0);
    } else {
        let lines = (rest.height / 3).clamp(1, 8).min(rest.height);
        let height = rest.height - lines;
        if height >= 2 {
            loss_chart(pen, Rect { height, ..rest }, run);
            events(pen, Rect { y: rest.y + height, height: lines, ..rest }, run, 0);
        } else {
            events(pen, rest, run, 0);
        }
    }
}

fn what(run: &RunView) -> String {
    let parameters = run.parameters.map_or(String::new(), |count| format!(", {} parameters", grouped(count)));
    let command = || run.command.join(" ");
    format!("{}{parameters}", run.model.clone().unwrap_or_else(command))
}

/// Current figures, the most important first.
pub(super) fn figures(pen: &mut Pen, area: Rect, run: &RunView) {
    let strong = pen.style(Role::Strong);
    let of = |value: Option<String>, style: Style| (value.unwrap_or_default(), style);
    let last = run.last.as_ref();
    let memory = last.map(|last| Bytes(last.memory_bytes)).zip(run.planned_bytes.map(Bytes));
    let parts = [
        of(run.done().map(|done| format!("{:.0} %", done * 100.0)), strong),
        of(last.map(|last| format!("loss {}", loss(last.loss))), strong),
        of(run.held_out.whole().map(|whole| format!("held out {}", loss(whole.last.value))), pen.style(Role::Points)),
        of(last.map(|last| format!("{} tok/s", grouped(last.tokens_per_s.max(0.0) as u64))), Style::new()),
        of(run.seconds_left.map(|left| format!("{} left", time(Some(left)))), strong),
        of(memory.map(|(used, planned)| format!("memory {}", size_of(used, planned))), pen.style(Role::Ours)),
        of(last.map(|last| format!("lr {:.1e}", last.learning_rate)), Style::new()),
        of(last.map(|last| format!("norm {:.2}", last.grad_norm)), Style::new()),
        of(last.map(|last| format!("{:.0} ms a step", last.step_ms)), Style::new()),
        (format!("{} so far", time(Some(run.seconds))), Style::new()),
    ];
    put_parts(pen.buffer, area, &parts);
}

/// Chart of the losses, with held-out losses as points.
pub(super) fn loss_chart(pen: &mut Pen, area: Rect, run: &RunView) {
    let lines = [Line::of(&run.losses, Role::Curve, true), Line::of(&run.held_out, Role::Points, false)];
    chart(pen, area, &lines, steps(run), loss);
}

/// Labels below the ends of a curve over steps.
pub(super) fn steps(run: &RunView) -> [String; 2] {
    let first = run.losses.whole().map_or(1, |whole| whole.first.step);
    [format!("step {first}"), format!("{}", run.step)]
}

/// Events, the newest last; skips the `skipped` newest.
pub(super) fn events(pen: &mut Pen, area: Rect, run: &RunView, newer: usize) {
    let now_s = pen.state.snapshot().now_s;
    let rows = usize::from(area.height);
    let last = run.events.len().saturating_sub(newer);
    let shown = run.events.iter().take(last).skip(last.saturating_sub(rows)).collect::<Vec<_>>();
    for (y, event) in (area.top()..).zip(shown) {
        let role = match event.level {
            Level::Info => None,
            Level::Warn => Some(Role::Warn),
            Level::Error => Some(Role::Bad),
        };
        let style = role.map_or_else(Style::new, |role| pen.style(role));
        let quiet = pen.style(Role::Quiet);
        put(pen.buffer, area.x + 1, y, area.right(), &format!("{:>5}", age(now_s - event.time_s)), quiet);
        let sign = if event.level == Level::Info { "" } else { "! " };
        put(pen.buffer, area.x + 7, y, area.right(), &format!("{sign}{}", event.text), style);
    }
}
