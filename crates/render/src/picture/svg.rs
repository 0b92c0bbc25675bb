//! A still picture of the program with the plan's peak. Each rectangle has a tooltip.

use super::{
    Band, LEGEND, Map, PALETTE, Phase, ProgramScene, ROLES, Rect, STACK, Scene, bands, describe, escape, host_room,
    is_light, is_of_odd_block, title,
};
use crate::page::axis::tick;
use crate::page::steps::{byte_step, decimal_step};
use crate::plan_table::shape_line;
use plimsoll_graph::MemoryId;
use plimsoll_plan::Plan;
use plimsoll_units::Bytes;
use std::fmt::Write;

/// Width of the picture; all lengths are in its units.
const WIDTH: f64 = 1280.0;
/// The ends of the time axes.
const LEFT: f64 = 92.0;
const RIGHT: f64 = 1140.0;
/// Persistent tensors thinner than this are drawn together with their neighbours.
const THIN: f64 = 4.0;

const STYLE: &str = "\
text{font:12px system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1d2329}\
.title{font-size:22px;font-weight:600}.quiet{fill:#5b6570}.name{font-size:10px;pointer-events:none}\
.odd{fill-opacity:.78}.on-dark{fill:#fff}.on-light{fill:#1d2329}\
rect{shape-rendering:crispEdges}.paper{fill:#fff}.ground{fill:#f2f4f6}.edge{stroke:#fff;stroke-width:.6}.mark{stroke:#1d2329;fill:none}\
.grid{stroke:#1d2329;stroke-opacity:.12}.budget{stroke:#c8102e;stroke-width:1.5;stroke-dasharray:7 4}\
text.budget{stroke:none;fill:#c8102e}.over{fill:#c8102e;fill-opacity:.16;pointer-events:none}\
@media (prefers-color-scheme:dark){text{fill:#e6e9ec}.quiet{fill:#9aa5b1}.paper{fill:#14181d}.ground{fill:#1d232a}\
.edge{stroke:#14181d}.mark{stroke:#e6e9ec}.grid{stroke:#e6e9ec}.budget{stroke:#ff6b7d}text.budget{fill:#ff6b7d}\
.on-light{fill:#1d2329}}";

/// The picture as an SVG document.
pub fn plan_svg(model: &str, plan: &Plan) -> String {
    let scene = Scene::of(plan);
    let mut body = String::new();
    text(&mut body, "title", 24.0, 38.0, &title(model, plan));
    text(&mut body, "quiet", 24.0, 60.0, &shape_line(plan));
    let height = match scene.highest() {
        Some(program) => {
            legend(&mut body, program, 84.0);
            draw_program(&mut body, &scene, program)
        }
        None => 110.0,
    };
    let colours = PALETTE.iter().map(|(name, colour)| format!(".{name}{{fill:{colour}}}")).collect::<String>();
    let name = escape(&title(model, plan));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{name}\">\n<style>{STYLE}{colours}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// A part of the picture with moments on the horizontal axis and bytes on the vertical one.
struct Frame {
    top: f64,
    height: f64,
    moments: usize,
    floor: u64,
    ceiling: u64,
}

impl Frame {
    fn x(&self, moment: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * moment as f64 / self.moments as f64
    }

    fn y(&self, bytes: u64) -> f64 {
        let part = (bytes as f64 - self.floor as f64) / (self.ceiling - self.floor) as f64;
        self.top + self.height * (1.0 - part)
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Returns the height of the whole picture.
fn draw_program(out: &mut String, scene: &Scene, program: &ProgramScene) -> f64 {
    let plan = scene.plan;
    let (moments, ceiling) = (program.phases.len(), scene.ceiling());
    let curve = Frame { top: 138.0, height: 130.0, moments, floor: 0, ceiling };
    ground(out, &curve, "live bytes");
    draw_curve(out, &curve, &program.device);
    budget_line(out, &curve, plan.budget().device().0);
    budget_label(out, &curve, plan.budget().device().0);
    let (staying, peak) = (program.device.staying_end(), program.program.peak_bytes());
    let frames = map_frames(program, ceiling);
    for frame in &frames {
        ground(out, frame, "offset");
        draw_map(out, frame, program, &program.device);
        brackets(out, frame, staying, peak);
        budget_line(out, frame, plan.budget().device().0);
    }
    let map = &frames[frames.len() - 1];
    if let [_, small] = &frames[..] {
        text(out, "quiet", RIGHT + 18.0, small.top + small.height / 2.0 + 30.0, "(smaller scale)");
    }
    if let Some(moment) = program.backward() {
        let x = curve.x(moment);
        line(out, "mark", "stroke-dasharray=\"2 3\"", [x, curve.top, x, map.bottom()]);
    }
    mark_peak(out, &curve, program, plan);
    draw_phases(out, map, program);
    let name = &program.program.name;
    time_axis(
        out,
        map,
        map.bottom() + 34.0,
        &format!("plan steps of {name}, in execution order; blocks alternate in shade"),
    );
    if plan.host().0 == 0 {
        return map.bottom() + 72.0;
    }
    let ceiling = plan.host().0 + plan.host().0 / 25;
    let host = Frame { top: map.bottom() + 92.0, height: 130.0, moments, floor: 0, ceiling };
    let peak = program.program.peaks[MemoryId::HOST];
    text(out, "", LEFT, host.top - 8.0, &format!("host memory: {} in this program", Bytes(peak)));
    ground(out, &host, "offset");
    draw_map(out, &host, program, &program.host);
    brackets(out, &host, program.host.staying_end(), peak);
    budget_line(out, &host, host_room(plan));
    host.bottom() + 24.0
}

/// The map of the arena. If persistent tensors would take most of the height, they get a separate scale.
fn map_frames(program: &ProgramScene, ceiling: u64) -> Vec<Frame> {
    let (top, moments) = (286.0, program.phases.len());
    match program.transients() {
        Some((staying, above)) if staying > ceiling / 2 => {
            let transients = Frame { top, height: 300.0, moments, floor: staying, ceiling: above };
            vec![transients, Frame { top: top + 308.0, height: 120.0, moments, floor: 0, ceiling: staying }]
        }
        _ => vec![Frame { top, height: 400.0, moments, floor: 0, ceiling }],
    }
}

fn legend(out: &mut String, program: &ProgramScene, y: f64) {
    let mut x = 24.0;
    for (class, label) in LEGEND.into_iter().filter(|(class, _)| program.uses(class)) {
        let _ = writeln!(out, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\"/>");
        text(out, "", x + 18.0, y + 10.5, label);
        x += 40.0 + 6.4 * label.len() as f64;
    }
}

/// The background of a frame, and its axis of bytes.
fn ground(out: &mut String, frame: &Frame, what: &str) {
    rectangle(out, "ground", [LEFT, frame.top, RIGHT - LEFT, frame.height]);
    let step = byte_step(frame.ceiling - frame.floor, (frame.height / 36.0) as u64);
    for bytes in (frame.floor.next_multiple_of(step)..=frame.ceiling).step_by(step as usize) {
        let y = frame.y(bytes);
        line(out, "grid", "", [LEFT, y, RIGHT, y]);
        anchored(out, "quiet", "end", LEFT - 8.0, y + 4.0, &tick(bytes, step));
    }
    let (x, y) = (18.0, frame.top + frame.height / 2.0);
    let _ = writeln!(
        out,
        "<text class=\"quiet\" text-anchor=\"middle\" transform=\"translate({x} {y}) rotate(-90)\">{what}</text>"
    );
}

/// The held bytes, stacked by role: the total first, then the sum below each role painted over it.
fn draw_curve(out: &mut String, frame: &Frame, map: &Map) {
    for top in (0..ROLES.len()).rev() {
        let heights = map.live.iter().map(|roles| roles[..=top].iter().sum::<u64>());
        let mut path = format!("M{LEFT:.1} {:.1}", frame.bottom());
        let mut before = None;
        for (moment, height) in heights.enumerate() {
            if before != Some(height) {
                let _ = write!(path, "H{:.2}V{:.1}", frame.x(moment), frame.y(height));
                before = Some(height);
            }
        }
        let class = STACK[top];
        let bottom = frame.bottom();
        let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}H{RIGHT:.1}V{bottom:.1}Z\"/>");
    }
}

fn draw_map(out: &mut String, frame: &Frame, program: &ProgramScene, map: &Map) {
    let in_frame = |rect: &&Rect| frame.floor <= rect.region.offset && rect.region.end() <= frame.ceiling;
    let mut staying = map.rects.iter().filter(in_frame).filter(|r| r.stays).collect::<Vec<_>>();
    staying.sort_by_key(|rect| rect.region.offset);
    let is_thin = |rect: &Rect| frame.y(rect.region.offset) - frame.y(rect.region.end()) < THIN;
    for group in staying.chunk_by(|a, b| is_thin(a) && is_thin(b)) {
        match group {
            [rect] => draw_rect(out, frame, program, rect),
            _ => draw_band(out, frame, program, group),
        }
    }
    for rect in map.rects.iter().filter(in_frame).filter(|r| !r.stays) {
        draw_rect(out, frame, program, rect);
    }
}

fn draw_rect(out: &mut String, frame: &Frame, program: &ProgramScene, rect: &Rect) {
    let (x, y) = (frame.x(rect.first), frame.y(rect.region.end()));
    let (width, height) = (frame.x(rect.until) - x, frame.y(rect.region.offset) - y);
    let class = program.colour(rect);
    let edge = if width > 3.0 && height > 5.0 { " edge" } else { "" };
    let odd = if !rect.stays && is_of_odd_block(rect.name) { " odd" } else { "" };
    titled(out, &format!("{class}{edge}{odd}"), [x, y, width, height], &describe(program, rect));
    let name = match rect.stays {
        true => format!("{}, {}", rect.name, Bytes(rect.region.bytes)),
        false => rect.name.to_owned(),
    };
    if height >= 11.0 && width >= 8.0 + 5.6 * name.chars().count() as f64 {
        let ink = if is_light(class) { "name on-light" } else { "name on-dark" };
        text(out, ink, x + 4.0, y + height / 2.0 + 3.5, &name);
    }
}

fn draw_band(out: &mut String, frame: &Frame, program: &ProgramScene, group: &[&Rect]) {
    for Band { colour, region, what, .. } in bands(program, group) {
        let (top, bottom) = (frame.y(region.end()), frame.y(region.offset));
        titled(out, colour, [LEFT, top, RIGHT - LEFT, bottom - top], &what);
    }
}

/// The persistent bytes, and the bytes that the program adds at its peak.
fn brackets(out: &mut String, frame: &Frame, staying: u64, peak: u64) {
    for (from, to, what) in [(0, staying, "persistent"), (staying, peak, "transient")] {
        if from < frame.floor || to > frame.ceiling {
            continue;
        }
        let (bottom, top) = (frame.y(from) - 1.0, frame.y(to) + 1.0);
        if bottom - top < 30.0 {
            continue;
        }
        let (x, middle) = (RIGHT + 6.0, (bottom + top) / 2.0);
        let _ = writeln!(out, "<path class=\"mark\" d=\"M{x} {bottom:.1}h6V{top:.1}h-6\"/>");
        text(out, "", x + 12.0, middle - 2.0, what);
        text(out, "quiet", x + 12.0, middle + 14.0, &Bytes(to - from).to_string());
    }
}

/// The line of the budget, if the frame reaches it. The area above it is red.
fn budget_line(out: &mut String, frame: &Frame, budget: u64) {
    if budget > frame.ceiling {
        return;
    }
    let y = frame.y(budget.max(frame.floor));
    rectangle(out, "over", [LEFT, frame.top, RIGHT - LEFT, y - frame.top]);
    if budget >= frame.floor {
        line(out, "budget", "", [LEFT, y, RIGHT, y]);
    }
}

fn budget_label(out: &mut String, frame: &Frame, budget: u64) {
    let y = if budget > frame.ceiling { frame.top } else { frame.y(budget) };
    text(out, "budget", RIGHT + 8.0, y + 4.0, &format!("budget {}", Bytes(budget)));
    if budget > frame.ceiling {
        text(out, "quiet", RIGHT + 8.0, y + 20.0, "far above");
    }
}

/// The label of the peak above the curve.
fn mark_peak(out: &mut String, frame: &Frame, program: &ProgramScene, plan: &Plan) {
    let (moment, bytes) = program.device.fullest();
    let (x, y) = ((frame.x(moment) + frame.x(moment + 1)) / 2.0, frame.y(bytes));
    let label = format!("peak {} at {}", plan.peak(), program.moment(moment));
    line(out, "mark", "", [x, frame.top - 8.0, x, y]);
    let _ = writeln!(out, "<circle class=\"mark\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"3.5\"/>");
    let half = 3.2 * label.chars().count() as f64;
    let middle = x.clamp(LEFT + half, (RIGHT - half).max(LEFT + half));
    anchored(out, "", "middle", middle, frame.top - 13.0, &label);
}

/// The parts of the program as a ribbon under the map, named if there is room.
fn draw_phases(out: &mut String, frame: &Frame, program: &ProgramScene) {
    for (phase, first, until) in program.runs().into_iter().filter(|run| run.0 != Phase::Host) {
        let (x, width) = (frame.x(first), frame.x(until) - frame.x(first));
        let y = frame.bottom() + 4.0;
        let (class, name) = (phase.colour(), phase.name());
        titled(out, class, [x, y, width, 14.0], &format!("{name}: steps {} to {}", first - 1, until - 2));
        if width >= 10.0 + 5.6 * name.len() as f64 {
            let ink = if is_light(class) { "name on-light" } else { "name on-dark" };
            text(out, ink, x + 4.0, y + 10.5, name);
        }
    }
}

fn time_axis(out: &mut String, frame: &Frame, y: f64, what: &str) {
    let steps = frame.moments - 2;
    let step = decimal_step(steps, 12);
    for index in (0..steps).step_by(step) {
        let x = (frame.x(index + 1) + frame.x(index + 2)) / 2.0;
        anchored(out, "quiet", "middle", x, y, &index.to_string());
    }
    anchored(out, "quiet", "middle", (LEFT + RIGHT) / 2.0, y + 20.0, what);
}

fn text(out: &mut String, class: &str, x: f64, y: f64, what: &str) {
    anchored(out, class, "start", x, y, what);
}

fn anchored(out: &mut String, class: &str, anchor: &str, x: f64, y: f64, what: &str) {
    let what = escape(what);
    let _ = writeln!(out, "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{what}</text>");
}

fn line(out: &mut String, class: &str, more: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let _ =
        writeln!(out, "<line class=\"{class}\" {more} x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\"/>");
}

fn rectangle(out: &mut String, class: &str, [x, y, width, height]: [f64; 4]) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
    );
}

/// A rectangle with a tooltip.
fn titled(out: &mut String, class: &str, [x, y, width, height]: [f64; 4], what: &str) {
    let what = escape(what);
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\">\
         <title>{what}</title></rect>"
    );
}
