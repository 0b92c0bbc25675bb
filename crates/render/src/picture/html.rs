//! The page of a plan: its figures, its levers or changes that would fit, and the scene of each program as a chart. It loads
//! nothing and runs nothing; its size is bounded for any plan.

use super::program::{Detail, program_chart};
use super::{LEGEND, PALETTE, ProgramScene, Scene, title};
use crate::page::{escape, figures, page, prose, table};
use crate::plan_table::{
    LEVER_HEADS, PEAK_HEADS, basis, device_named, found_words, grouped, lever_cells, lever_notes, peak_rows, shape_line,
};
use plimsoll_plan::{Found, LeverEffect, Misfit, Plan, moment_of_peak};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::fmt::Write;

/// The contents of a plan's page.
pub struct PlanPage<'a> {
    /// Preset or path.
    pub model: &'a str,
    /// The request of the plan.
    pub device: &'a str,
    /// The source of the budget.
    pub budget: &'a str,
    /// The source of predicted times.
    pub times: &'a str,
    /// The plan, or why there is none.
    pub result: &'a Result<Found, Box<Misfit>>,
    /// The benefit and cost of each lever.
    pub levers: &'a [LeverEffect],
    /// If nothing fits: the shortfall, and changes that would fit.
    pub ways_out: &'a [String],
    /// Answers to additional questions of the command.
    pub answers: &'a [&'a str],
}

/// Groups of tensors that are listed at the moment of the peak.
const LISTED: usize = 12;

/// The limit of all charts together: most of a page that must stay below 300 kB.
const CHARTS: usize = 220_000;

/// The levels of detail of charts, from the finest to one that is always small.
const DETAILS: [Detail; 5] = [
    Detail { columns: 1000, pointed: 160 },
    Detail { columns: 1000, pointed: 90 },
    Detail { columns: 500, pointed: 60 },
    Detail { columns: 250, pointed: 40 },
    Detail { columns: 120, pointed: 20 },
];

/// The limit of the plan's chart on the page of a run, in bytes.
const CHART_OF_RUN: usize = 110_000;

const STYLE: &str = ".odd{fill-opacity:.78}.edge{stroke:var(--paper);stroke-width:.6}\
.on-dark{color:#fff}.on-light{color:#14181d}.zoom{border:0;padding:0;margin:0 0 6px;font-size:13px}.zoom label{margin-right:12px}\
body:has(#zoom-2:checked) .plot{width:200%}body:has(#zoom-4:checked) .plot{width:400%}\
body:has(#zoom-8:checked) .plot{width:800%}\n";

/// The picture of a plan for a run's page, of the program with its peak: rules of style, and the chart with its legend.
pub(crate) fn run_picture(plan: &Plan) -> (String, String) {
    let scene = Scene::of(plan);
    let Some(program) = scene.highest().or(scene.programs.first()) else { return (String::new(), String::new()) };
    let mut drawn = String::new();
    for detail in DETAILS {
        drawn = chart(&scene, program, detail, true);
        if drawn.len() <= CHART_OF_RUN {
            break;
        }
    }
    (style(), legend(&scene) + &drawn)
}

/// The colours of a plan.
fn style() -> String {
    let colours = PALETTE.iter().map(|(name, colour)| format!("--{name}:{colour};")).collect::<String>();
    let fills = PALETTE.iter().map(|(name, _)| format!(".{name}{{fill:var(--{name})}}")).collect::<String>();
    format!(":root{{{colours}}}{fills}{STYLE}")
}

fn legend(scene: &Scene) -> String {
    let used = LEGEND.iter().filter(|(name, _)| scene.programs.iter().any(|program| program.uses(name)));
    let legend = used.map(|(name, label)| format!("<li><i style=\"background:var(--{name})\"></i>{label}</li>\n"));
    format!("<ul class=\"legend\">\n{}</ul>\n", legend.collect::<String>())
}

/// The page.
pub fn plan_html(shown: &PlanPage) -> String {
    let plan = match shown.result {
        Ok(found) => &found.plan,
        Err(misfit) => &misfit.plan,
    };
    let scene = Scene::of(plan);
    let title = title(shown.model, plan);
    let body = format!(
        "<header>\n<h1>{}</h1>\n<p>{}</p>\n{}</header>\n{}<main>\n<section>\n{}</section>\n<aside>\n{}</aside>\n</main>\n",
        escape(&title),
        escape(&shape_line(plan)),
        origin(shown),
        key_figures(shown, plan),
        pictures(&scene),
        aside(shown, plan)
    );
    page(&title, &style(), &body)
}

/// The request, the precision and device, and the source of times.
fn origin(shown: &PlanPage) -> String {
    let basis = match shown.result {
        Ok(found) => basis(shown.device, found, shown.times),
        Err(misfit) => format!("on {}; {}", device_named(shown.device, &misfit.plan), shown.times),
    };
    format!("<p class=\"quiet\">{}</p>\n", prose(&basis))
}

fn key_figures(shown: &PlanPage, plan: &Plan) -> String {
    let used = 100.0 * plan.peak().0 as f64 / plan.budget().device().0.max(1) as f64;
    let budget = plan.budget().device();
    let mut list = vec![("peak", plan.peak().to_string(), format!("{used:.0} % of the budget of {budget}"))];
    if plan.host().0 > 0 {
        let room = plan.budget().host().map_or(String::new(), |room| format!("of {room}"));
        list.push(("host memory", plan.host().to_string(), room));
    }
    let (step, speed) = match shown.result {
        Ok(found) => {
            let step = match found.step.0 {
                short if short < 10.0 => format!("{:.0} ms", short * 1e3),
                long => format_duration(Seconds(long)),
            };
            (step, grouped(found.tokens_per_s() as u64))
        }
        Err(_) => ("-".to_owned(), "-".to_owned()),
    };
    list.push(("a step, predicted", step, format!("{} tokens", grouped(plan.tokens_per_step() as u64))));
    list.push(("tokens/s, predicted", speed, String::new()));
    list.push(("micro-batch", plan.micro_batch.to_string(), format!("{} of these a step", plan.accumulation)));
    figures(&list)
}

/// The charts of all programs; the one with the peak is first and open.
fn pictures(scene: &Scene) -> String {
    let zooms = [(1, "the whole width"), (2, "2×"), (4, "4×"), (8, "8×")].map(|(zoom, what)| {
        let checked = if zoom == 1 { " checked=\"\"" } else { "" };
        format!("<label><input type=\"radio\" name=\"zoom\" id=\"zoom-{zoom}\"{checked}/> {what}</label>\n")
    });
    format!(
        "{}<fieldset class=\"zoom\"><legend class=\"quiet\">Steps run from left to right, \
         blocks alternate in shade; what is under the pointer is named. Zoom:</legend>\n{}</fieldset>\n{}",
        legend(scene),
        zooms.concat(),
        charts(scene)
    )
}

/// Draws charts as finely as the limit allows.
fn charts(scene: &Scene) -> String {
    let highest = scene.highest().map(|highest| highest.program.name);
    let (mut first, mut others) = (Vec::new(), Vec::new());
    scene.programs.iter().for_each(|program| match highest == Some(program.program.name) && first.is_empty() {
        true => first.push(program),
        false => others.push(program),
    });
    let mut drawn = String::new();
    for detail in DETAILS {
        // Closed charts have a little less detail.
        let less = Detail { pointed: detail.pointed / 2, ..detail };
        drawn = first.iter().map(|program| chart(scene, program, detail, true)).collect::<String>();
        drawn.extend(others.iter().map(|program| chart(scene, program, less, false)));
        if drawn.len() <= CHARTS {
            break;
        }
    }
    drawn
}

fn chart(scene: &Scene, program: &ProgramScene, detail: Detail, open: bool) -> String {
    let planned = program.program;
    let (peak, steps) = (Bytes(planned.peak_bytes()), grouped(planned.steps.len() as u64));
    let (moment, _) = program.device.fullest();
    let summary = format!(
        "program {}: {steps} steps, peak {peak} at {}; {} of it stays when the program ends",
        planned.name,
        program.moment(moment),
        Bytes(program.device.staying_end())
    );
    let mut html = format!("<details{}>\n", if open { " open=\"\"" } else { "" });
    let _ = writeln!(html, "<summary><b>{}</b>: {steps} steps, peak {peak}</summary>", planned.name);
    let _ = write!(html, "<figure>\n<figcaption>{}</figcaption>\n", escape(&summary));
    html += &program_chart(scene, program, detail).html(&summary);
    html + "</figure>\n</details>\n"
}

/// The text next to the map: changes that would fit, times, levers, and the tensors alive at the peak.
fn aside(shown: &PlanPage, plan: &Plan) -> String {
    let mut html = String::new();
    let mut paragraphs = |heading: &str, lines: &mut dyn Iterator<Item = String>| {
        let lines = lines.map(|line| format!("<p>{}</p>\n", prose(&line))).collect::<String>();
        if !lines.is_empty() {
            let _ = write!(html, "<h2>{heading}</h2>\n{lines}");
        }
    };
    paragraphs("Ways out", &mut shown.ways_out.iter().cloned());
    if let Ok(found) = shown.result {
        paragraphs("Predicted, and what limits it", &mut found_words(found).into_iter());
    }
    let (tables, lines) = shown.answers.iter().partition::<Vec<&str>, _>(|answer| answer.contains('│'));
    paragraphs("Asked besides", &mut lines.iter().flat_map(|answer| answer.lines()).map(str::to_owned));
    for table in tables {
        let _ = writeln!(html, "<pre class=\"rows\">{}</pre>", escape(table));
    }
    if !shown.levers.is_empty() {
        let cells = shown.levers.iter().map(lever_cells).collect::<Vec<_>>();
        let notes = lever_notes(shown.levers).map(|note| format!("<p class=\"quiet\">{}</p>\n", escape(&note)));
        let _ = write!(html, "<h2>Levers</h2>\n{}", table("levers", "", &LEVER_HEADS, &cells));
        html.extend(notes);
    }
    let _ = write!(html, "<h2>At the peak</h2>\n{}", table("parts", "", &PEAK_HEADS, &peak_rows(plan)));
    if let Some(moment) = moment_of_peak(plan, LISTED) {
        let rows = moment.alive.iter().map(|alive| {
            let role = format!("{:?}", alive.role).to_ascii_lowercase();
            vec![alive.words(), role, Bytes(alive.bytes).to_string()]
        });
        let when =
            format!("at plan step {} of {}: {}, which makes {}", moment.step, moment.program, moment.op, moment.makes);
        let rows = rows.collect::<Vec<_>>();
        let _ = write!(
            html,
            "<h2>The largest tensors then</h2>\n{}",
            table("alive", &when, &["tensor", "for", "size"], &rows)
        );
    }
    let budget = shown.budget.trim_start_matches('\n');
    let _ = write!(html, "<h2>The budget</h2>\n<pre>{}</pre>\n", escape(budget.trim_end()));
    html
}
