//! The page of a snapshot, and the same as a picture.

use super::charts::{COLORS, Colors, map_chart, time_chart};
use super::text::{
    NO_HISTORY, SETTING_HEADS, copies_lines, growth_lines, headline, least_line, out_of_memory_lines, owner_rows,
    recommendation, setting_rows,
};
use super::{ReplayReport, reasons};
use crate::page::{escape, figures, page, picture, prose, table};
use crate::plan_table::grouped;
use plimsoll_torch_memory::examine::Examined;
use plimsoll_units::Bytes;
use std::fmt::Write;

/// The number of cards with charts; others have figures only.
const DRAWN: usize = 2;

/// The width of the picture in pixels.
const WIDTH: f64 = 1280.0;

/// The maximum length of untrusted text, in letters.
const NAME: usize = 200;

fn style() -> String {
    let colors = COLORS.iter().map(|(class, color)| format!(".{class}{{fill:{color}}}")).collect::<String>();
    format!("{colors}.edge{{stroke:var(--ink);fill:none;stroke-width:1}}\n")
}

fn name(report: &ReplayReport) -> String {
    report.name.chars().take(NAME).collect()
}

/// The page. It loads nothing and runs nothing.
pub fn replay_html(report: &ReplayReport) -> String {
    let title = format!("{}: where its memory went", name(report));
    let mut body = format!("<header>\n<h1>{}</h1>\n</header>\n", escape(&title));
    for (index, card) in report.cards.iter().enumerate() {
        body += &card_html(report, card, index < DRAWN);
    }
    page(&title, &style(), &body)
}

fn card_html(report: &ReplayReport, card: &Examined, is_drawn: bool) -> String {
    let mut html = format!("<h2>GPU {}</h2>\n<p>{}</p>\n", card.record.card, escape(&headline(card)));
    let more = reasons(report, card).into_iter().map(|reason| format!("<p class=\"over\">{}</p>\n", escape(&reason)));
    html.extend(more);
    html.extend(out_of_memory_lines(card).iter().map(|line| format!("<p class=\"over\">{}</p>\n", escape(line))));
    let peak = card.at_its_peak();
    let best = card.outcomes.get(card.best);
    let best =
        best.map_or(("-".to_owned(), String::new()), |o| (Bytes(o.peak_reserved).to_string(), o.settings.conf()));
    html += &figures(&[
        ("in use at the peak", Bytes(peak.in_use).to_string(), format!("after {} events", grouped(card.peak as u64))),
        ("reserved at most", Bytes(card.peak_reserved()).to_string(), String::new()),
        ("with the best setting", best.0, best.1),
        (
            "at the least",
            card.least.map_or("-".to_owned(), |least| Bytes(least.bound).to_string()),
            "in use at once".to_owned(),
        ),
    ]);
    if is_drawn {
        let colors = Colors::of(card, report.owners);
        html += &legend(report, card);
        for (heading, chart) in [
            ("Memory over the events", time_chart(card, report.owners, &colors)),
            ("Memory map at the peak", map_chart(card, report.owners, &colors)),
        ] {
            let summary = format!("{heading}: {} of {} in use", Bytes(peak.in_use), Bytes(peak.reserved));
            let _ = write!(html, "<h2>{heading}</h2>\n<figure>\n{}</figure>\n", chart.html(&summary));
        }
    }
    html += "<main>\n<section>\n";
    html += "<h2>Other settings</h2>\n";
    if card.has_history() {
        let _ = writeln!(html, "<p>{}</p>", prose(&format!("`{}`", recommendation(card))));
        let caption = "the same program, each from an empty allocator";
        html += &table("settings", caption, &SETTING_HEADS, &setting_rows(card));
    } else {
        let _ = writeln!(html, "<p>{}</p>", prose(NO_HISTORY));
    }
    let growth = if card.has_history() { growth_lines(report, card) } else { vec![] };
    let lines = least_line(card).into_iter().chain(growth).chain(copies_lines(report, card));
    html.extend(lines.map(|line| format!("<p>{}</p>\n", escape(&line))));
    html += "</section>\n<aside>\n<h2>At the peak</h2>\n";
    html += &table("alive", "", &["allocated by", "bytes", "part", "blocks"], &owner_rows(report, card));
    html + "</aside>\n</main>\n"
}

/// The owners that have a color, with their colors.
fn colored(report: &ReplayReport, card: &Examined) -> Vec<(&'static str, String)> {
    let owners = card.at_peak.iter().take(COLORS.len() - 1).zip(COLORS);
    let mut colored =
        owners.map(|(owned, (_, color))| (color, report.owners.get(owned.owner).to_string())).collect::<Vec<_>>();
    colored.push((COLORS[COLORS.len() - 1].1, "others".to_owned()));
    colored
}

fn legend(report: &ReplayReport, card: &Examined) -> String {
    let items = colored(report, card).into_iter();
    let items =
        items.map(|(color, owner)| format!("<li><i style=\"background:{color}\"></i>{}</li>\n", escape(&owner)));
    format!("<ul class=\"legend\">\n{}</ul>\n", items.collect::<String>())
}

/// The charts of the card that has the most in use, as a picture.
pub fn replay_svg(report: &ReplayReport) -> String {
    let title = format!("{}: where its memory went", name(report));
    let mut body = format!("<text x=\"16\" y=\"28\">{}</text>\n", escape(&title));
    let mut top = 48.0;
    if let Some(card) = report.cards.iter().max_by_key(|card| card.at_its_peak().in_use) {
        let _ = writeln!(body, "<text class=\"quiet\" x=\"16\" y=\"{top}\">{}</text>", escape(&headline(card)));
        top += 18.0;
        for (color, owner) in colored(report, card) {
            let _ = write!(body, "<rect x=\"16\" y=\"{}\" width=\"11\" height=\"11\" fill=\"{color}\"/>", top - 9.0);
            let _ = writeln!(body, "<text x=\"33\" y=\"{top}\">{}</text>", escape(&owner));
            top += 15.0;
        }
        let colors = Colors::of(card, report.owners);
        for chart in [time_chart(card, report.owners, &colors), map_chart(card, report.owners, &colors)] {
            let (svg, height) = chart.svg(WIDTH - 16.0, top);
            body += &svg;
            top += height + 12.0;
        }
    }
    picture(&title, &style(), [WIDTH, top], &body)
}
