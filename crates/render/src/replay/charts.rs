//! Pictures of a card's memory: over time by owner, and a map by address at the peak.
//!
//! ```text
//!   bytes │ ┄┄┄┄┄┄┄┄┄ reserved           segments in a row, by address, wrapped like lines of text:
//!         │   ▄▄▟▇▇▙▄▄                   │▓▓▓▓▒▒ ░░░│▓▓▓▓▓│▒▒▒▒▒▒
//!         └──────────── events           │▒▒▒  ░░│▓▓▓▓▓▓▓▓▓▓ ...
//! ```

use crate::page::axis::ByteAxis;
use crate::page::chart::{Chart, LINE, Label, Place, fine};
use plimsoll_torch_memory::examine::Examined;
use plimsoll_torch_memory::findings::{Mapped, Owners, Stretch, mapped_at, over_time};
use plimsoll_units::Bytes;
use std::fmt::Write;

/// Colors of owners: one for each of the largest owners at the peak; the last is shared by all others.
pub(super) const COLORS: [(&str, &str); 9] = [
    ("o0", "#4e79c7"),
    ("o1", "#dd5a4a"),
    ("o2", "#3fa796"),
    ("o3", "#e9a83b"),
    ("o4", "#8b6fd0"),
    ("o5", "#b0508f"),
    ("o6", "#7a9a3a"),
    ("o7", "#eea3c4"),
    ("o8", "#8a8f98"),
];

/// The color of all other owners.
const OTHERS: usize = COLORS.len() - 1;

/// Units across.
const COLUMNS: usize = 500;

/// In pixels.
const TIME: f64 = 300.0;
const ROW: f64 = 13.0;

/// Lines of the map.
const ROWS: usize = 24;

/// The color of each owner.
pub(super) struct Colors {
    of_owner: Vec<usize>,
}

impl Colors {
    pub(super) fn of(card: &Examined, owners: &Owners) -> Self {
        let mut of_owner = vec![OTHERS; owners.count()];
        for (color, owned) in card.at_peak.iter().take(OTHERS).enumerate() {
            of_owner[owned.owner] = color;
        }
        Self { of_owner }
    }
}

/// Memory over the events by owner, and the reserved memory.
pub(super) fn time_chart(card: &Examined, owners: &Owners, colors: &Colors) -> Chart {
    let stretches = over_time(&card.replay, owners, COLUMNS, COLORS.len(), |owner| colors.of_owner[owner]);
    let events = card.record.events.len().max(1);
    let part = |moment: usize| moment as f64 / (events + 1) as f64;
    let mut chart = Chart::new(stretches.len());
    chart.title("bytes in use, by who allocated them, and reserved (dotted)");
    let row = chart.extend(LINE + 4.0);
    let axis = ByteAxis::new(&mut chart, TIME, [0, card.peak_reserved() + card.peak_reserved() / 50], None);
    axis.draw_ground(&mut chart);
    for top in (0..COLORS.len()).rev() {
        if stretches.iter().any(|stretch| stretch.owned[top] > 0) {
            let heights = stretches.iter().map(|stretch| fine(axis.y(stretch.owned[..=top].iter().sum())));
            chart.path(COLORS[top].0, &steps(heights, Some(fine(axis.bottom))));
        }
    }
    let reserved = stretches.iter().map(|stretch: &Stretch| fine(axis.y(stretch.reserved)));
    chart.path("mark dots", &steps(reserved, None));
    let (at, peak) = (part(card.peak), card.at_its_peak().in_use);
    let column = (at * stretches.len() as f64) as usize;
    chart.line("mark", [column, column], [row + LINE, axis.y(peak)]);
    let place = match at {
        0.3..0.7 => Place::About(at),
        ..0.3 => Place::From(at),
        _ => Place::UpTo(at),
    };
    chart.label(Label::new(format!("peak {}", Bytes(peak)), row, place, ""));
    let row = chart.extend(LINE + 6.0) + 4.0;
    chart.ticks_across(row, [0, events as u64], |event| part(event as usize));
    chart
}

/// Memory map at the peak: all segments in a row by address, wrapped. Memory without a color is free.
pub(super) fn map_chart(card: &Examined, owners: &Owners, colors: &Colors) -> Chart {
    let mapped = mapped_at(card.record, &card.replay, card.peak);
    let all = mapped.iter().map(|mapped| mapped.bytes).sum::<u64>().max(1);
    let mut chart = Chart::new(COLUMNS);
    let a_line = Bytes(all.div_ceil(ROWS as u64));
    chart.title(format!("{} segments by address, {a_line} a line; free where there is no color", mapped.len()));
    let top = chart.extend(ROWS as f64 * (ROW + 2.0) + 2.0);
    let down = |row: usize| top + row as f64 * (ROW + 2.0);
    for row in 0..ROWS {
        chart.rectangle("ground", [0, COLUMNS], [down(row), down(row) + ROW], None);
    }
    let cells = cells(&mapped, all, |stack| colors.of_owner[owners.index(stack)]);
    for (color, (class, _)) in COLORS.iter().enumerate() {
        let mut path = String::new();
        for (row, cells) in cells.chunks(COLUMNS).enumerate() {
            let mut column = 0;
            while let Some(cell) = cells.get(column) {
                let run = cells[column..].iter().take_while(|other| *other == cell).count();
                if *cell == Some(color) {
                    let _ = write!(path, "M{column} {}h{run}v{}h-{run}z", fine(down(row)), fine(ROW));
                }
                column += run;
            }
        }
        chart.path(class, &path);
    }
    let mut edges = String::new();
    let mut before = 0;
    for mapped in &mapped {
        let cell = cell_of(before, all);
        if !cell.is_multiple_of(COLUMNS) && edges.len() < MOST_EDGES {
            let _ = write!(edges, "M{} {}v{}", cell % COLUMNS, fine(down(cell / COLUMNS)), fine(ROW));
        }
        before += mapped.bytes;
    }
    chart.path("edge", &edges);
    chart
}

/// Bytes of markup for the edges of segments.
const MOST_EDGES: usize = 40_000;

fn cell_of(bytes: u64, all: u64) -> usize {
    (u128::from(bytes) * (ROWS * COLUMNS) as u128 / u128::from(all)) as usize
}

/// The majority of each cell of the map: an owner's color, or free.
fn cells(
    mapped: &[Mapped],
    all: u64,
    color: impl Fn(plimsoll_torch_memory::snapshot::StackId) -> usize,
) -> Vec<Option<usize>> {
    let mut most = vec![(0u64, None); ROWS * COLUMNS];
    let mut fill = |from: u64, until: u64, color: Option<usize>| {
        let bounds = |cell: usize| (u128::from(all) * cell as u128).div_ceil((ROWS * COLUMNS) as u128) as u64;
        let last = cell_of(until.saturating_sub(1), all).min(ROWS * COLUMNS - 1);
        for (cell, most) in most.iter_mut().enumerate().take(last + 1).skip(cell_of(from, all)) {
            let here = until.min(bounds(cell + 1)).saturating_sub(from.max(bounds(cell)));
            if here > most.0 {
                *most = (here, color);
            }
        }
    };
    let mut before = 0;
    for Mapped { address, bytes, used } in mapped {
        let mut next = 0;
        for life in used {
            let from = (life.address - address).min(*bytes);
            let until = (from + life.bytes).min(*bytes);
            fill(before + next, before + from.max(next), None);
            fill(before + from, before + until, Some(color(life.stack)));
            next = until;
        }
        fill(before + next, before + bytes, None);
        before += bytes;
    }
    most.into_iter().map(|(_, color)| color).collect()
}

/// Heights, one a column, as a line, or as an area down to `bottom`.
fn steps(heights: impl Iterator<Item = i64>, bottom: Option<i64>) -> String {
    let mut path = String::new();
    let (mut now, mut run) = (None, 0);
    for height in heights {
        if now.is_none() {
            let _ = match bottom {
                Some(bottom) => write!(path, "M0 {bottom}V{height}"),
                None => write!(path, "M0 {height}"),
            };
        } else if now != Some(height) {
            let _ = write!(path, "h{run}V{height}");
            run = 0;
        }
        now = Some(height);
        run += 1;
    }
    let _ = write!(path, "h{run}");
    if let Some(bottom) = bottom {
        let _ = write!(path, "V{bottom}z");
    }
    path
}
