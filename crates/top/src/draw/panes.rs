//! Layout of the panes: in one column, or with the runs in a second column from 150 columns on.

use super::{Pen, cards, processes, run, runs, system};
use ratatui::layout::Rect;

/// Minimum width for two columns of panes.
const WIDE: u16 = 150;

/// Rows of the system pane.
const SYSTEM: u16 = 2;

/// Minimum rows of the selected run, below the list.
const RUN: u16 = 7;

pub(super) fn draw(pen: &mut Pen, body: Rect) {
    if body.width >= WIDE {
        let left = Rect { width: body.width / 2, ..body };
        let right = Rect { x: left.right() + 1, width: body.width - left.width - 1, ..body };
        draw_machine(pen, left, left.height);
        draw_runs(pen, right);
    } else {
        let used = draw_machine(pen, body, body.height * 3 / 5);
        draw_runs(pen, Rect { y: body.y + used, height: body.height - used, ..body });
    }
}

/// Draws system, cards and processes into at most `most` rows. Returns the number of rows used.
fn draw_machine(pen: &mut Pen, body: Rect, most: u16) -> u16 {
    let mut rest = Rect { height: most, ..body };
    let mut next = |rows: u16| {
        let area = Rect { height: rows.min(rest.height), ..rest };
        rest = Rect { y: rest.y + area.height, height: rest.height - area.height, ..rest };
        area
    };
    system::draw(pen, next(SYSTEM));
    let processes = 2 + pen.state.shown_processes().len().clamp(1, 50) as u16;
    let left = most.saturating_sub(SYSTEM);
    // Cards take precedence over processes, but at least two processes are shown.
    let of_processes = processes.min((left / 3).max(4));
    let cards = cards::rows(pen, left.saturating_sub(of_processes));
    cards::draw(pen, next(cards));
    let of_processes = processes.min(left.saturating_sub(cards));
    processes::draw(pen, next(of_processes));
    rest.y - body.y
}

fn draw_runs(pen: &mut Pen, area: Rect) {
    let wanted = 2 + pen.state.shown_runs().len().clamp(1, 100) as u16;
    let list = wanted.min(area.height.saturating_sub(RUN).max(3)).min((area.height / 2).max(3)).min(area.height);
    runs::draw(pen, Rect { height: list, ..area });
    run::draw(pen, Rect { y: area.y + list, height: area.height - list, ..area });
}
