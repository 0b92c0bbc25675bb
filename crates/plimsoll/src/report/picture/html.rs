//! A page that draws the scene itself: one file, nothing fetched, to be looked at closely. `page.html`, `page.css` and
//! `page.js` beside this file are what it is made of; numbers and names reach the script as JSON.

use super::{
    LEGEND, Map, PALETTE, ProgramScene, Rect, Scene, escape, host_room, is_of_odd_block, role_words, title, type_text,
};
use crate::report::plan_table::{grouped, parts, shape_line};
use plimsoll_plan::{Plan, moment_of_peak};
use plimsoll_units::Bytes;
use serde_json::{Value, json};

/// Tensors that are listed at the moment of the peak.
const LISTED: usize = 10;

/// The page. `budget` says how the budget came about.
pub fn plan_html(model: &str, plan: &Plan, budget: &str) -> String {
    let scene = Scene::of(plan);
    let title = title(model, plan);
    let colours = PALETTE.iter().map(|(name, colour)| format!("--{name}:{colour};")).collect::<String>();
    let used = LEGEND.iter().filter(|(name, _)| scene.programs.iter().any(|program| program.uses(name)));
    let legend = used.map(|(name, label)| format!("<span><i style=\"background:var(--{name})\"></i>{label}</span>"));
    fill(
        include_str!("page.html"),
        &[
            ("title", &escape(&title)),
            ("shape", &escape(&shape_line(plan))),
            ("budget", &escape(budget)),
            ("style", &format!(":root{{{colours}}}\n{}", include_str!("page.css"))),
            ("legend", &legend.collect::<Vec<_>>().join("\n")),
            ("programs", &choices(&scene)),
            ("parts", &parts_rows(plan)),
            ("peak", &peak_rows(plan)),
            ("data", &data(&scene)),
            ("script", include_str!("page.js")),
        ],
    )
}

/// Puts values in the place of `{{their names}}`. What is put in is not looked at again.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut pieces = template.split("{{");
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").expect("a name ends with braces");
        let (_, value) = values.iter().find(|(known, _)| *known == name).expect("a name of the template is known");
        filled.push_str(value);
        filled.push_str(rest);
    }
    filled
}

fn choices(scene: &Scene) -> String {
    let highest = scene.highest().map(|highest| &highest.program.name);
    let options = scene.programs.iter().enumerate().map(|(index, program)| {
        let name = &program.program.name;
        let selected = if Some(name) == highest { " selected=\"\"" } else { "" };
        let peak = Bytes(program.program.peak_bytes);
        format!("<option value=\"{index}\"{selected}>{}: {peak}</option>", escape(name))
    });
    options.collect::<Vec<_>>().join("\n")
}

fn parts_rows(plan: &Plan) -> String {
    let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / plan.peak_bytes.max(1) as f64);
    let row = |class: &str, what: &str, bytes: u64, part: String| {
        let exact = grouped(bytes);
        format!(
            "<tr class=\"{class}\"><th>{what}</th><td title=\"{exact} bytes\">{}</td><td>{part}</td></tr>",
            Bytes(bytes)
        )
    };
    let mut rows = parts(&plan.breakdown).map(|(what, bytes)| row("", what, bytes, percent(bytes))).to_vec();
    rows.push(row("sum", "peak", plan.peak_bytes, percent(plan.peak_bytes)));
    rows.push(row("", "lower bound", plan.lower_bound_bytes, percent(plan.lower_bound_bytes)));
    rows.push(row("", "budget", plan.budget_bytes, String::new()));
    if plan.host_bytes > 0 {
        rows.push(row("", "host memory", plan.host_bytes, String::new()));
    }
    rows.join("\n")
}

/// The moment of the peak, and a row for each of the largest tensors that are alive then.
fn peak_rows(plan: &Plan) -> String {
    let Some(moment) = moment_of_peak(plan, LISTED) else { return String::new() };
    let largest = moment.alive.first().map_or(1, |alive| alive.bytes.max(1));
    let rows = moment.alive.iter().map(|alive| {
        let role = format!("{:?}", alive.role).to_ascii_lowercase();
        let (name, width) = (escape(&alive.name), alive.bytes as f64 * 100.0 / largest as f64);
        format!(
            "<tr><th title=\"{name}\">{name}<small>{role}</small><b style=\"width:{width:.1}%\"></b></th><td>{}</td></tr>",
            Bytes(alive.bytes)
        )
    });
    let when = format!("plan step {} of {}: {}, which makes {}", moment.step, moment.program, moment.op, moment.makes);
    format!("<caption>{}</caption>\n{}", escape(&when), rows.collect::<Vec<_>>().join("\n"))
}

/// What the script draws. JSON in which no markup can begin or end.
fn data(scene: &Scene) -> String {
    let plan = scene.plan;
    let tensors =
        plan.tensors.iter().map(|t| json!([t.name, type_text(&t.ty), is_of_odd_block(&t.name)])).collect::<Vec<_>>();
    let value = json!({
        "colours": PALETTE.map(|(name, _)| name),
        "roles": PALETTE.map(|(name, _)| role_words(name)),
        "peak": plan.peak_bytes,
        "budget": plan.budget_bytes,
        "ceiling": scene.ceiling(),
        "hostPeak": plan.host_bytes,
        "hostBudget": host_room(plan),
        "tensors": tensors,
        "programs": scene.programs.iter().map(program_data).collect::<Vec<_>>(),
    });
    value.to_string().replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

fn program_data(scene: &ProgramScene) -> Value {
    let runs = scene.runs().into_iter();
    json!({
        "name": scene.program.name,
        "peak": scene.program.peak_bytes,
        "moments": (0..scene.phases.len()).map(|moment| scene.moment(moment)).collect::<Vec<_>>(),
        "runs": runs.map(|(phase, first, until)| json!([phase.name(), colour(phase.colour()), first, until])).collect::<Vec<_>>(),
        "backward": scene.backward(),
        "fullest": scene.device.fullest(),
        "transients": scene.transients(),
        "device": map_data(scene, &scene.device),
        "host": map_data(scene, &scene.host),
    })
}

/// Rectangles as [index of the tensor or name of the op, colour, first, last, until, stays, offset, bytes].
fn map_data(scene: &ProgramScene, map: &Map) -> Value {
    let rect = |rect: &Rect| {
        let what = rect.tensor.map_or_else(|| json!(rect.name), |id| json!(id.0));
        let colour = colour(scene.colour(rect));
        let Rect { first, last, until, stays, region, .. } = *rect;
        json!([what, colour, first, last, until, u8::from(stays), region.offset, region.bytes])
    };
    let live = (0..super::ROLES.len()).map(|role| {
        let sums = map.live.iter().map(|sums| sums[role]).collect::<Vec<_>>();
        match sums.iter().all(|sum| *sum == sums[0]) {
            true => json!(sums[0]),
            false => json!(sums),
        }
    });
    json!({
        "rects": map.rects.iter().map(rect).collect::<Vec<_>>(),
        "live": live.collect::<Vec<_>>(),
        "staying": map.staying_end(),
    })
}

/// The index of a colour.
fn colour(name: &str) -> usize {
    PALETTE.iter().position(|(known, _)| *known == name).unwrap_or_default()
}
