//! A program of a plan as a chart: the curve of live bytes, and under it the arena, with the host's under that.
//! Tensors too small to see are drawn together, in as many columns as a page has room for.

use super::{
    Map, Phase, ProgramScene, ROLES, Rect, STACK, Scene, bands, describe, host_room, is_light, is_of_odd_block,
};
use crate::page::axis::ByteAxis;
use crate::page::chart::{Chart, LINE, Label, Place, fine};
use plimsoll_graph::MemoryId;
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Heights in pixels.
const CURVE: f64 = 130.0;
const ARENA: f64 = 330.0;
const STAYING: f64 = 110.0;
const HOST: f64 = 110.0;
const RIBBON: f64 = 17.0;

/// Persistent tensors thinner than this, in pixels, are drawn together with their neighbours.
const THIN: f64 = LINE + 2.0;

/// The level of detail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// The maximum number of columns.
    pub(super) columns: usize,
    /// The maximum number of tensors with a tooltip.
    pub(super) pointed: usize,
}

/// The chart of a program.
pub(super) fn program_chart(scene: &Scene, program: &ProgramScene, detail: Detail) -> Chart {
    let mut chart = Chart::new(program.phases.len().min(detail.columns));
    let across = Across { moments: program.phases.len(), columns: chart.columns() };
    draw_curve(&mut chart, &across, scene, program);
    draw_arena(&mut chart, &across, scene, program, detail);
    draw_time(&mut chart, &across, program);
    if scene.plan.host().0 > 0 {
        draw_host(&mut chart, &across, scene, program, detail);
    }
    // The last tick's lower half.
    chart.extend(LINE / 2.0 + 1.0);
    chart
}

/// Moments as columns, of which there may be fewer.
struct Across {
    moments: usize,
    columns: usize,
}

impl Across {
    fn column(&self, moment: usize) -> usize {
        (2 * moment * self.columns + self.moments) / (2 * self.moments)
    }

    fn part(&self, moment: usize) -> f64 {
        moment as f64 / self.moments as f64
    }

    /// The moments of each column.
    fn spans(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let first = |column: usize| (column * self.moments).div_ceil(self.columns);
        (0..self.columns).map(move |column| first(column)..first(column + 1).max(first(column) + 1))
    }
}

/// The held bytes, stacked by role, with their peak and the budget.
fn draw_curve(chart: &mut Chart, across: &Across, scene: &Scene, program: &ProgramScene) {
    chart.title("bytes in use".to_owned());
    let row = chart.extend(LINE + 4.0);
    let (plan, ceiling) = (scene.plan, scene.ceiling());
    // Room for the budget's label above its line.
    let ceiling = (ceiling as f64 * CURVE / (CURVE - LINE)) as u64;
    let axis = ByteAxis::new(chart, CURVE, [0, ceiling], Some(plan.budget().device().0));
    axis.draw_ground(chart);
    let columns = across.spans().map(|moments| {
        let fullest = program.device.live[moments].iter().max_by_key(|roles| roles.iter().sum::<u64>());
        *fullest.expect("a column has a moment")
    });
    let columns = columns.collect::<Vec<_>>();
    for top in (0..ROLES.len()).rev() {
        if columns.iter().all(|roles| roles[top] == 0) {
            continue;
        }
        let heights = columns.iter().map(|roles| fine(axis.y(roles[..=top].iter().sum::<u64>())));
        chart.path(STACK[top], &stairs(heights, fine(axis.bottom)));
    }
    let label = format!("budget {}", plan.budget().device());
    axis.draw_budget(chart, Some(label));
    let (moment, bytes) = program.device.fullest();
    let (at, middle) = (across.column(moment), (across.part(moment) + across.part(moment + 1)) / 2.0);
    chart.line("mark", [at, at], [row + LINE, axis.y(bytes)]);
    let place = match middle {
        0.3..0.7 => Place::About(middle),
        ..0.3 => Place::From(middle),
        _ => Place::UpTo(middle),
    };
    chart.label(Label::new(format!("peak {}", Bytes(program.program.peak_bytes())), row, place, ""));
}

/// A filled area under heights, one a column.
fn stairs(heights: impl Iterator<Item = i64>, bottom: i64) -> String {
    let (mut path, mut now, mut run) = (format!("M0 {bottom}"), bottom, 0);
    for height in heights {
        if height != now {
            let _ = if run > 0 { write!(path, "h{run}v{}", height - now) } else { write!(path, "v{}", height - now) };
            (now, run) = (height, 0);
        }
        run += 1;
    }
    let _ = write!(path, "h{run}V{bottom}z");
    path
}

/// The map of the tensors. If persistent tensors would take most of the height, they get a separate scale.
fn draw_arena(chart: &mut Chart, across: &Across, scene: &Scene, program: &ProgramScene, detail: Detail) {
    let (ceiling, budget) = (scene.ceiling(), Some(scene.plan.budget().device().0));
    let mut draw = |what: &str, height: f64, span: [u64; 2], budget: Option<u64>| {
        chart.title(what.to_owned());
        let axis = ByteAxis::new(chart, height, span, budget);
        axis.draw_ground(chart);
        draw_map(chart, across, &axis, program, &program.device, detail.pointed);
        axis.draw_budget(chart, None);
    };
    match program.transients() {
        Some((staying, above)) if staying > ceiling / 2 => {
            draw("the arena, by offset: what passes", ARENA - STAYING, [staying, above], budget);
            draw("what stays, on a smaller scale", STAYING, [0, staying], None);
        }
        _ => draw("the arena, by offset", ARENA, [0, ceiling], budget),
    }
}

fn draw_host(chart: &mut Chart, across: &Across, scene: &Scene, program: &ProgramScene, detail: Detail) {
    let plan = scene.plan;
    let (peak, room) = (program.program.peaks[MemoryId::HOST], host_room(plan));
    chart.title(format!("host memory: {} of {}", Bytes(peak), Bytes(room)));
    let axis = ByteAxis::new(chart, HOST, [0, plan.host().0 + plan.host().0 / 25], Some(room));
    axis.draw_ground(chart);
    draw_map(chart, across, &axis, program, &program.host, detail.pointed / 4);
    axis.draw_budget(chart, None);
}

fn draw_map(chart: &mut Chart, across: &Across, axis: &ByteAxis, program: &ProgramScene, map: &Map, pointed: usize) {
    let is_in = |rect: &&Rect| axis.holds([rect.region.offset, rect.region.end()]);
    let down = |rect: &Rect| [axis.y(rect.region.end()), axis.y(rect.region.offset)];
    let height = |rect: &Rect| down(rect)[1] - down(rect)[0];
    let (mut staying, mut passing) = map.rects.iter().filter(is_in).partition::<Vec<_>, _>(|rect| rect.stays);
    staying.sort_by_key(|rect| rect.region.offset);
    let mut together = Together::default();
    for group in staying.chunk_by(|a, b| height(a) < THIN && height(b) < THIN) {
        match group {
            [rect] => draw_rect(chart, across, program, rect, down(rect)),
            _ => draw_bands(chart, axis, program, group),
        }
    }
    passing.sort_by(|a, b| {
        let area = |rect: &Rect| height(rect) * (rect.until - rect.first) as f64;
        area(b).total_cmp(&area(a)).then_with(|| a.name.cmp(b.name))
    });
    let (pointed, others) = passing.split_at(passing.len().min(pointed));
    pointed.iter().for_each(|rect| draw_rect(chart, across, program, rect, down(rect)));
    for rect in others {
        let odd = is_of_odd_block(rect.name);
        together.add((program.colour(rect), odd), [rect.first, rect.until].map(|m| across.column(m)), down(rect));
    }
    together.draw(chart);
}

fn draw_rect(chart: &mut Chart, across: &Across, program: &ProgramScene, rect: &Rect, down: [f64; 2]) {
    let colour = program.colour(rect);
    let odd = if !rect.stays && is_of_odd_block(rect.name) { " odd" } else { "" };
    let columns = [rect.first, rect.until].map(|moment| across.column(moment));
    let edge = if down[1] - down[0] > 4.0 { " edge" } else { "" };
    chart.rectangle(&format!("{colour}{odd}{edge}"), columns, down, Some(&describe(program, rect)));
    let name = match rect.stays {
        true => format!("{}, {}", rect.name, Bytes(rect.region.bytes)),
        false => rect.name.to_owned(),
    };
    let parts = [rect.first, rect.until].map(|moment| across.part(moment));
    Label::within(name, parts, down, ink_on(colour)).into_iter().for_each(|label| chart.label(label));
}

fn draw_bands(chart: &mut Chart, axis: &ByteAxis, program: &ProgramScene, group: &[&Rect]) {
    for band in bands(program, group) {
        let down = [axis.y(band.region.end()), axis.y(band.region.offset)];
        chart.rectangle(band.colour, [0, chart.columns()], down, Some(&band.what));
        Label::within(band.name, [0.0, 1.0], down, ink_on(band.colour)).into_iter().for_each(|l| chart.label(l));
    }
}

fn ink_on(colour: &str) -> &'static str {
    if is_light(colour) { "on-light" } else { "on-dark" }
}

/// Rectangles without a tooltip, by colour and shade.
#[derive(Default)]
struct Together(BTreeMap<(&'static str, bool), Rows>);

/// By upper and lower edge: the horizontal ends of pieces.
type Rows = BTreeMap<[i64; 2], Vec<[usize; 2]>>;

impl Together {
    fn add(&mut self, shade: (&'static str, bool), across: [usize; 2], down: [f64; 2]) {
        let down = down.map(fine);
        if across[0] < across[1] && down[0] < down[1] {
            self.0.entry(shade).or_default().entry(down).or_default().push(across);
        }
    }

    /// A path for each shade. Pieces of a row that touch become one.
    fn draw(self, chart: &mut Chart) {
        for ((colour, odd), rows) in self.0 {
            let mut path = String::new();
            for ([y, bottom], mut pieces) in rows {
                pieces.sort_unstable();
                let joined = pieces.into_iter().fold(Vec::<[usize; 2]>::new(), |mut joined, [from, until]| {
                    match joined.last_mut() {
                        Some(last) if from <= last[1] => last[1] = last[1].max(until),
                        _ => joined.push([from, until]),
                    }
                    joined
                });
                for [from, until] in joined {
                    let _ = write!(path, "M{from} {y}H{until}V{bottom}H{from}z");
                }
            }
            chart.path(&format!("{colour}{}", if odd { " odd" } else { "" }), &path);
        }
    }
}

/// The runs of moments that belong to one phase. A transfer belongs to the phase around it: there may
/// be one for each parameter.
fn runs_with_transfers(program: &ProgramScene) -> Vec<(Phase, usize, usize)> {
    let mut runs = Vec::<(Phase, usize, usize)>::new();
    for run in program.runs().into_iter().filter(|run| run.0 != Phase::Host) {
        match runs.last_mut() {
            Some(last) if run.0 == last.0 || run.0 == Phase::Transfer => last.2 = run.2,
            Some(last) if last.0 == Phase::Transfer => (last.0, last.2) = (run.0, run.2),
            _ => runs.push(run),
        }
    }
    runs
}

/// The parts of the program as a ribbon, named if there is room, and the numbers of its steps.
fn draw_time(chart: &mut Chart, across: &Across, program: &ProgramScene) {
    chart.extend(4.0);
    let top = chart.extend(RIBBON);
    for (phase, first, until) in runs_with_transfers(program) {
        let (colour, name) = (phase.colour(), phase.name());
        let (columns, down) = ([first, until].map(|moment| across.column(moment)), [top, top + RIBBON - 2.0]);
        chart.rectangle(colour, columns, down, Some(&format!("{name}: steps {} to {}", first - 1, until - 2)));
        let parts = [first, until].map(|moment| across.part(moment));
        let label = Label::within(name.to_owned(), parts, down, ink_on(colour));
        label.into_iter().for_each(|label| chart.label(label));
    }
    let row = chart.extend(LINE + 4.0);
    let steps = (across.moments - 2) as u64;
    chart.ticks_across(row, [0, steps.saturating_sub(1)], |step| (step as f64 + 1.5) / across.moments as f64);
}
