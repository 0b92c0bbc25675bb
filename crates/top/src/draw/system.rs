//! The system pane: CPU and RAM, two lines.

use super::bar::bar;
use super::cards::memory_parts;
use super::text::{put, put_parts, reading, size, size_of};
use super::{Pen, text};
use crate::palette::Role;
use plimsoll_telemetry::SystemSample;
use plimsoll_watch::{MemoryMap, RunView};
use ratatui::layout::Rect;

/// Minimum percentage of time in which processes wait for a resource to count it as short.
const PRESSED: f64 = 10.0;

pub(super) fn draw(pen: &mut Pen, area: Rect) {
    let snapshot = pen.state.snapshot();
    let system = snapshot.machine.latest.as_ref().map(|sample| sample.system.clone()).unwrap_or_default();
    let row = |y: u16| Rect { x: area.x + 1, y: area.y + y, width: area.width - 1, height: 1 };
    if area.height > 0 {
        usage(pen, row(0), &system);
    }
    if area.height > 1 {
        let runs = snapshot.runs.iter().map(|run| &**run).collect::<Vec<_>>();
        memory(pen, row(1), &system, &runs);
    }
}

fn usage(pen: &mut Pen, area: Rect, system: &SystemSample) {
    let strong = pen.style(Role::Strong);
    let mut x = put(pen.buffer, area.x, area.y, area.right(), "CPU  ", strong);
    let width = (area.width / 4).clamp(10, 60);
    let part = system.cpu_percent.unwrap_or(0.0) / 100.0;
    bar(pen.buffer, Rect { x, width, ..area }, &[('█', pen.style(Role::Good), part)], &[], pen.style(Role::Quiet));
    x += width + 1;
    let cores = system.cores.map_or(String::new(), |cores| format!(" of {cores} cores"));
    let waits = |percent: Option<f64>, what: &str| {
        let role = if percent.is_some_and(|percent| percent >= PRESSED) { Role::Warn } else { Role::Quiet };
        (percent.map_or(String::new(), |percent| format!("{what} waits {percent:.0} %")), pen.style(role))
    };
    let plain = pen.style(Role::Quiet);
    let swap = system.swap_used.filter(|swap| swap.0 > 0).map_or(String::new(), |swap| format!("swapped out {swap}"));
    let disk = system.disk_free.map_or(String::new(), |free| format!("disk {free} free"));
    // Ignore a limit above the machine's memory.
    let limit = system.group_limit.filter(|limit| system.memory_total.is_none_or(|total| *limit < total));
    let group =
        limit.zip(system.group_used).map_or(String::new(), |(limit, used)| format!("group {}", size_of(used, limit)));
    let parts = [
        (format!("{}{cores}", reading(system.cpu_percent, "%")), strong),
        (disk, plain),
        (group, plain),
        (swap, pen.style(Role::Warn)),
        waits(system.memory_pressure_percent, "memory"),
        waits(system.cpu_pressure_percent, "CPU"),
        waits(system.io_pressure_percent, "disk"),
    ];
    put_parts(pen.buffer, Rect { x, width: area.right() - x, ..area }, &parts);
}

fn memory(pen: &mut Pen, area: Rect, system: &SystemSample, runs: &[&RunView]) {
    let strong = pen.style(Role::Strong);
    let mut x = put(pen.buffer, area.x, area.y, area.right(), "RAM  ", strong);
    let Some(map) = MemoryMap::of_system(system, runs) else {
        put(pen.buffer, x, area.y, area.right(), text::NONE, strong);
        return;
    };
    let width = (area.width / 4).clamp(10, 60);
    let (parts, marks) = memory_parts(pen, &map);
    bar(pen.buffer, Rect { x, width, ..area }, &parts, &marks, pen.style(Role::Quiet));
    x += width + 1;
    let used = map
        .total
        .saturating_sub(map.bytes(plimsoll_watch::Share::Free))
        .saturating_sub(map.bytes(plimsoll_watch::Share::Planned));
    let ours = map.bytes(plimsoll_watch::Share::Ours);
    let parts = [
        (size_of(used, map.total), strong),
        (if ours.0 > 0 { format!("runs {ours}") } else { String::new() }, pen.style(Role::Ours)),
        (
            map.planned.map_or(String::new(), |planned| format!("planned {}", size(Some(planned)))),
            pen.style(Role::Planned),
        ),
    ];
    put_parts(pen.buffer, Rect { x, width: area.right() - x, ..area }, &parts);
}
