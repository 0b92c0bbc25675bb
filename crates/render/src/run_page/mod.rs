//! The page of a run: loss, speed, memory and settings. It is made from the run's folder
//! alone (`story.rs`), so a run that crashed or still runs has one too. Unknown values are `-`.

mod curves;
mod heat;
mod markdown;
mod story;

pub use markdown::run_markdown;
pub use story::{CardStory, RunStory};

#[cfg(test)]
mod tests;

use super::gpus_csv::timestamp;
use super::page::{escape, figures, page, table};
use super::plan_table::grouped;
use crate::picture::run_picture;
use curves::{grad_norm_chart, learning_rate_chart, loss_chart, memory_chart, speed_chart};
use heat::{CLASSES, power_chart, temperature_chart};
use plimsoll_telemetry::{Attempts, Curve, Level};
use plimsoll_train::Report;
use plimsoll_units::{Bytes, Seconds, format_duration};
use plimsoll_watch::{EventLine, RunView, Sample, Standing};
use std::fmt::Write;

/// The maximum length of untrusted text, in letters.
const NAME: usize = 200;
const TEXT: usize = 4_000;
const SETTINGS: usize = 20_000;

/// The maximum number of rows of tables.
const ROWS: usize = 20;

/// The number of newest events that are listed.
const EVENTS: usize = 40;

const STYLE: &str = ".curve,.points{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}.points{stroke-width:5}\
.range{fill-opacity:.22}.first{stroke:var(--first)}.second{stroke:var(--second)}.third{stroke:var(--quiet)}\
.range.first{fill:var(--first)}.range.second{fill:var(--second)}.range.third{fill:var(--quiet)}.chart .range{stroke:none}\
.sample b{color:var(--second)}.settings{columns:20em}\
.events td{text-align:left;white-space:normal;overflow-wrap:anywhere}.events th{white-space:nowrap}\
.events thead th{text-align:left}\n";

/// The page.
pub fn run_html(story: &RunStory) -> String {
    let run = &story.run;
    let picture = story.plan.as_ref().map(run_picture);
    let title = format!("{}: {}", cut(&run.name, NAME), standing_words(run.standing));
    let body = format!(
        "<header>\n<h1>{}</h1>\n<p>{}</p>\n{}</header>\n{}<main>\n<section>\n{}{}{}{}{}{}</section>\n<aside>\n{}{}{}{}{}{}</aside>\n</main>\n",
        escape(&title),
        escape(&what(run)),
        problems(run),
        key_figures(story),
        pictures(story),
        heat(story),
        notes(run),
        picture.as_ref().map_or(String::new(), |(_, html)| format!("<h2>The plan</h2>\n{html}")),
        sample(run),
        settings(story),
        memory(story),
        attempts(story),
        held_out(story),
        training(story),
        checkpoints(run),
        happened(story)
    );
    let style = picture.map_or(STYLE.to_owned(), |(style, _)| format!("{style}{STYLE}"));
    page(&title, &style, &body)
}

fn standing_words(standing: Standing) -> &'static str {
    match standing {
        Standing::Finished => "finished",
        Standing::Interrupted => "interrupted; it can be resumed",
        Standing::TooHot => "stopped for heat; it can be resumed",
        Standing::Diverged => "diverged",
        Standing::Unsaved => "ended, and its last state is not on disk",
        Standing::Failed => "failed",
        Standing::Running => "running when this page was made",
        Standing::CutShort => "cut short, its last session has no end",
        Standing::NotStarted => "not started",
    }
}

/// The beginning of a text, and whether there was more.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn what(run: &RunView) -> String {
    let parameters = run.parameters.map_or(String::new(), |n| format!(", {} trained parameters", grouped(n)));
    let sessions =
        if run.sessions > 1 { format!(", in {} sessions", grouped(run.sessions as u64)) } else { String::new() };
    format!("{}{parameters}{sessions}", cut(run.model.as_deref().unwrap_or("-"), NAME))
}

fn problems(run: &RunView) -> String {
    run.problems.iter().map(|problem| format!("<p class=\"over\">{}</p>\n", escape(&cut(problem, NAME)))).collect()
}

/// A loss with the digits that people compare.
fn loss_text(value: f64) -> String {
    if value.abs() < 1e6 { format!("{value:.4}") } else { format!("{value:.3e}") }
}

fn key_figures(story: &RunStory) -> String {
    figures(&figures_of(story))
}

/// The most important figures: for each its name, the figure, and a note.
fn figures_of(story: &RunStory) -> Vec<(&'static str, String, String)> {
    let run = &story.run;
    let none = || "-".to_owned();
    let of = run.last_step.map_or(String::new(), |last| format!("of {}", grouped(last)));
    let report = story.report.as_ref();
    let last = |curve: &Curve| curve.whole().map_or_else(none, |whole| loss_text(whole.last.value));
    let lowest = |curve: &Curve| {
        let best = curve.whole().map(|whole| whole.lowest);
        best.map_or(String::new(), |best| format!("lowest {} after step {}", loss_text(best.value), grouped(best.step)))
    };
    let (speed, of_speed) = speed(story);
    let seconds = report.map_or(run.seconds, |report| report.seconds);
    let tokens = report.map_or(String::new(), |report| format!("{} tokens", grouped(report.tokens_seen)));
    let time = if run.sessions > 0 { format_duration(Seconds(seconds)) } else { none() };
    let planned = run.planned_bytes.map_or_else(none, |bytes| Bytes(bytes).to_string());
    let budget = run.budget_bytes.map_or(String::new(), |bytes| format!("of a budget of {}", Bytes(bytes)));
    let mut figures = vec![
        ("steps", grouped(run.step), of),
        ("loss", last(&run.losses), lowest(&run.losses)),
        ("held-out loss", last(&run.held_out), lowest(&run.held_out)),
        ("tokens/s", speed, of_speed.to_owned()),
        ("time", time, tokens),
        ("memory, planned", planned, budget),
    ];
    if let Some(energy) = &run.energy {
        let token = report.and_then(|report| report.energy_j_per_token);
        let note = token.map_or(String::new(), |joules| format!("{joules:.3} J a token"));
        figures.push(("energy", energy.to_string(), note));
    // Without a summary at the end, the samples have the energy, if it was measured.
    } else if let Some(joules) = story.energy_j() {
        let per_token = report.filter(|report| report.tokens_seen > 0).map(|report| joules / report.tokens_seen as f64);
        let note = per_token.map_or("all GPUs".to_owned(), |joules| format!("all GPUs; {joules:.3} J per token"));
        figures.push(("energy", format!("{} kWh", kwh(joules)), note));
    }
    figures
}

/// Kilowatt-hours of joules.
fn kwh(joules: f64) -> String {
    format!("{:.4}", joules / 3.6e6)
}

/// Tokens a second, and the kind of average.
fn speed(story: &RunStory) -> (String, &'static str) {
    let median = story.report.as_ref().and_then(|report| report.measured.tokens_per_s);
    let mean = story.run.tokens_per_s.whole().map(|whole| whole.mean);
    match (median, mean) {
        (Some(median), _) => (grouped(median as u64), "median of the last session"),
        (None, Some(mean)) => (grouped(mean as u64), "mean of all steps"),
        (None, None) => ("-".to_owned(), ""),
    }
}

/// The charts, each with a description.
fn pictures(story: &RunStory) -> String {
    let run = &story.run;
    let mut html = "<h2>Loss, speed and memory over the steps</h2>\n".to_owned();
    let averaged = if run.averaged.whole().is_some() {
        "<li><i style=\"background:var(--quiet)\"></i>held out, averaged weights</li>\n"
    } else {
        ""
    };
    let _ = write!(
        html,
        "<ul class=\"legend\">\n<li><i style=\"background:var(--first)\"></i>training</li>\n\
         <li><i style=\"background:var(--second)\"></i>held out</li>\n{averaged}</ul>\n"
    );
    let range = run.losses.stretches().iter().map(|stretch| stretch.count).max().filter(|count| *count > 1);
    if let Some(steps) = range {
        let _ = writeln!(
            html,
            "<p class=\"quiet\">Lines are means of up to {steps} steps; the areas reach from their lowest to their highest.</p>"
        );
    }
    let ends = |what: &str, curve: &Curve| {
        curve.whole().map_or_else(
            || format!("{what}: none"),
            |whole| {
                format!(
                    "{what}: {} after step {}, {} after step {}, lowest {}, highest {}",
                    loss_text(whole.first.value),
                    whole.first.step,
                    loss_text(whole.last.value),
                    whole.last.step,
                    loss_text(whole.lowest.value),
                    loss_text(whole.highest.value)
                )
            },
        )
    };
    let losses = format!("{}; {}", ends("training loss", &run.losses), ends("held-out loss", &run.held_out));
    let charts = [
        (loss_chart(story), losses),
        (learning_rate_chart(run), ends("learning rate", &run.learning_rate)),
        (grad_norm_chart(run), ends("norm of the gradient before clipping", &run.grad_norm)),
        (speed_chart(run), ends("tokens per second", &run.tokens_per_s)),
        (memory_chart(run), ends("bytes held on the device", &run.memory_bytes)),
    ];
    for (chart, summary) in charts {
        match chart {
            Some(chart) => {
                let _ = write!(html, "<figure>\n{}</figure>\n", chart.html(&summary));
            }
            None => {
                let _ = writeln!(html, "<p class=\"quiet\">{}</p>", escape(&summary));
            }
        }
    }
    html
}

/// Temperatures and power over the run's time, with a table of the cards; empty without a card.
fn heat(story: &RunStory) -> String {
    let rows = heat_rows(story);
    if rows.is_empty() {
        return String::new();
    }
    let legend = story.cards.iter().enumerate().map(|(index, card)| {
        let colour = ["first", "second", "quiet"][index.min(CLASSES.len() - 1)];
        format!("<li><i style=\"background:var(--{colour})\"></i>{}</li>\n", escape(&cut(&card.title(), NAME)))
    });
    let mut html =
        format!("<h2>Heat and power over the time</h2>\n<ul class=\"legend\">\n{}</ul>\n", legend.collect::<String>());
    for (chart, summary) in [
        (temperature_chart(story), "temperatures of the GPUs, in degrees Celsius"),
        (power_chart(story), "power of the GPUs, in watts"),
    ] {
        if let Some(chart) = chart {
            let _ = write!(html, "<figure>\n{}</figure>\n", chart.html(summary));
        }
    }
    html + &table("", "", &["GPU", "°C, highest", "watts, mean", "kWh"], &rows)
}

fn heat_rows(story: &RunStory) -> Vec<Vec<String>> {
    let rows = story.cards.iter().map(|card| {
        let none = || "-".to_owned();
        let slowdown = card.slowdown_c().map_or(String::new(), |slowdown| format!(" of {slowdown:.0}"));
        let hottest = card.temperature_c.whole().map(|whole| whole.highest.value);
        vec![
            cut(&card.title(), NAME),
            hottest.map_or_else(none, |celsius| format!("{celsius:.0}{slowdown}")),
            card.power_w.whole().map_or_else(none, |whole| format!("{:.0}", whole.mean)),
            card.energy_j.map_or_else(none, kwh),
        ]
    });
    rows.collect()
}

/// The events, newest first.
fn happened(story: &RunStory) -> String {
    let rows = events(story);
    if rows.is_empty() {
        return String::new();
    }
    format!("<h2>Events</h2>\n{}", table("events", "", &["UTC", "", "what"], &rows))
}

fn events(story: &RunStory) -> Vec<Vec<String>> {
    let events = story.run.events.iter().rev().take(EVENTS);
    let row = |event: &EventLine| {
        let level = match event.level {
            Level::Info => "",
            Level::Warn => "warning",
            Level::Error => "error",
        };
        vec![moment(event.time_s), level.to_owned(), cut(&event.text, NAME)]
    };
    events.map(row).collect()
}

/// `2026/11/23 18:43`, UTC.
fn moment(time_s: f64) -> String {
    timestamp(time_s).chars().take("2026/11/23 18:43".len()).collect()
}

/// Planned and measured bytes, each with its source.
fn memory(story: &RunStory) -> String {
    let caption = "Parentheses name the source of a count; budget and plan come from the planner.";
    let rows = memory_rows(story);
    format!("<h2>Memory, planned and measured</h2>\n{}", table("memory", caption, &["", "size", "bytes"], &rows))
}

fn memory_rows(story: &RunStory) -> Vec<Vec<String>> {
    let (run, report) = (&story.run, story.report.as_ref());
    let held = run.memory_bytes.whole().map(|whole| whole.highest.value as u64);
    let footprint = report.map(|report| report.measured.footprint);
    let rows = [
        ("budget", run.budget_bytes),
        ("planned peak", run.planned_bytes),
        ("planned for the batches that ran", report.map(|r| r.measured.planned_bytes_of_what_ran)),
        ("touched (the device, by its highest region)", report.map(|r| r.measured.touched_bytes)),
        (
            "in memory for the plan (the system, by pages of this process)",
            footprint.and_then(|f| f.arena_resident_peak_bytes),
        ),
        ("held while training, at most (the system, else the device)", held),
        ("outside the plan (the system)", footprint.and_then(|f| f.outside_plan_bytes)),
        ("the process at its peak (the system)", footprint.and_then(|f| f.peak_rss_bytes)),
    ];
    // A line that stays flat shows that nothing leaks.
    let at_steps = report.iter().flat_map(|report| &report.memory);
    let at_steps = at_steps.map(|at| (format!("held in step {}", grouped(at.step)), Some(at.memory_bytes)));
    let rows = rows.into_iter().map(|(what, bytes)| (what.to_owned(), bytes)).chain(at_steps);
    let row = |(what, bytes): (String, Option<u64>)| {
        let (size, exact) = bytes.map_or(("-".to_owned(), "-".to_owned()), |b| (Bytes(b).to_string(), grouped(b)));
        vec![what, size, exact]
    };
    rows.map(row).collect()
}

/// The attempts of the run, how they ended, and the health of the system during them.
fn attempts(story: &RunStory) -> String {
    let caption = "An attempt that was stopped, by the user or for heat, neither succeeded nor failed.";
    format!("<h2>Attempts and system health</h2>\n{}", table("", caption, &["", ""], &attempt_rows(story)))
}

fn attempt_rows(story: &RunStory) -> Vec<Vec<String>> {
    let Attempts { count, success_rate, failures, health } = &story.attempts;
    let rate = success_rate.map_or("-".to_owned(), |rate| format!("{:.0} %", rate * 100.0));
    let by_kind = |what: &str, kind: &str, count: u64| {
        vec![format!("{what}: {}", cut(&kind.replace('_', " "), NAME)), grouped(count)]
    };
    let mut rows = vec![vec!["attempts".to_owned(), grouped(*count)], vec!["success rate".to_owned(), rate]];
    rows.extend(failures.iter().map(|(kind, count)| by_kind("failed", kind, *count)));
    rows.push(vec!["health findings".to_owned(), grouped(health.values().sum())]);
    rows.extend(health.iter().take(ROWS).map(|(kind, count)| by_kind("health", kind, *count)));
    rows
}

fn held_out(story: &RunStory) -> String {
    let heads = ["after step", "held out"];
    let rows = held_out_rows(&story.run);
    if rows.is_empty() {
        return String::new();
    }
    format!("<h2>Held-out loss</h2>\n{}", table("", story.loss_unit(), &heads, &rows))
}

fn held_out_rows(run: &RunView) -> Vec<Vec<String>> {
    rows_of(&run.held_out)
}

/// Single values if there are few, else the last of each stretch, and the lowest of all.
fn rows_of(curve: &Curve) -> Vec<Vec<String>> {
    let stretches = curve.in_stretches(ROWS);
    let mut points = stretches.iter().map(|stretch| stretch.last).collect::<Vec<_>>();
    points.extend(curve.whole().iter().flat_map(|whole| [whole.first, whole.lowest]));
    points.sort_by_key(|point| point.step);
    points.dedup_by_key(|point| point.step);
    points.iter().map(|point| vec![grouped(point.step), loss_text(point.value)]).collect()
}

/// The curve of the loss as a table.
fn training(story: &RunStory) -> String {
    let (run, rows) = (&story.run, training_rows(&story.run));
    if rows.is_empty() {
        return String::new();
    }
    let skipped = match run.skipped_updates {
        0 => String::new(),
        n => format!("; {} updates were skipped, since gradients overflowed", grouped(n)),
    };
    let caption = format!("{}{skipped}", story.loss_unit());
    format!("<h2>Training loss</h2>\n{}", table("", &caption, &["steps", "mean", "lowest", "highest"], &rows))
}

fn training_rows(run: &RunView) -> Vec<Vec<String>> {
    let stretches = run.losses.in_stretches(ROWS);
    let rows = stretches.iter().map(|stretch| {
        let steps = match (stretch.first.step, stretch.last.step) {
            (first, last) if first == last => grouped(first),
            (first, last) => format!("{} to {}", grouped(first), grouped(last)),
        };
        vec![steps, loss_text(stretch.mean), loss_text(stretch.lowest.value), loss_text(stretch.highest.value)]
    });
    rows.collect()
}

fn checkpoint_rows(run: &RunView) -> Vec<Vec<String>> {
    let rows = run.checkpoints.iter().map(|saved| {
        vec![
            grouped(saved.step),
            Bytes(saved.bytes).to_string(),
            format_duration(Seconds(saved.milliseconds / 1e3)),
            if saved.is_there { "yes" } else { "no" }.to_owned(),
        ]
    });
    rows.collect()
}

fn checkpoints(run: &RunView) -> String {
    let rows = checkpoint_rows(run);
    if rows.is_empty() {
        return "<h2>Checkpoints</h2>\n<p>-</p>\n".to_owned();
    }
    let more =
        if run.more_checkpoints > 0 { format!("and {} earlier ones", run.more_checkpoints) } else { String::new() };
    format!("<h2>Checkpoints</h2>\n{}", table("", &more, &["after step", "size", "saved in", "there still"], &rows))
}

/// Warnings and findings about heat, health and memory; empty if there are none.
fn notes(run: &RunView) -> String {
    if run.notes.is_empty() {
        return String::new();
    }
    let began_s = run.notes.front().map_or(0.0, |note| note.time_s);
    let rows = run.notes.iter().map(|note| {
        let since = Seconds((note.time_s - began_s).max(0.0));
        let advice = note.advice.as_ref().map_or(String::new(), |advice| format!(" ({advice})"));
        let level = match note.level {
            Level::Info => "",
            Level::Warn => "warning",
            Level::Error => "error",
        };
        vec![format_duration(since), level.to_owned(), cut(&format!("{}{advice}", note.what), TEXT)]
    });
    let rows = rows.collect::<Vec<_>>();
    let more = if run.more_notes > 0 { format!("and {} earlier ones", run.more_notes) } else { String::new() };
    format!("<h2>Warnings and findings</h2>\n{}", table("", &more, &["after the first", "", "what"], &rows))
}

fn sample(run: &RunView) -> String {
    let Some(Sample { step, prompt, text }) = &run.sample else { return String::new() };
    format!(
        "<h2>A sample after step {}</h2>\n<p class=\"quiet\">Held-out text, then after ▶ the model's continuation.</p>\n\
         <pre class=\"sample\">{}<b>▶</b>{}</pre>\n",
        grouped(*step),
        escape(&cut(prompt, TEXT)),
        escape(&cut(text, TEXT))
    )
}

fn settings(story: &RunStory) -> String {
    let plan = story.report.as_ref().map(shape).unwrap_or_default();
    let text = story.run.settings.as_deref().map_or("-".to_owned(), |text| cut(text.trim_end(), SETTINGS));
    format!("<h2>Settings</h2>\n{plan}<pre class=\"settings\">{}</pre>\n", escape(&text))
}

/// The size of a step.
fn shape(report: &Report) -> String {
    let plan = &report.plan;
    let target = plan.target_len.map_or(String::new(), |target| format!(" and {target}"));
    format!(
        "<p>A step is {} samples of up to {}{target} tokens, {} at a time.</p>\n",
        grouped(plan.global_batch as u64),
        grouped(plan.seq_len as u64),
        grouped(plan.micro_batch as u64)
    )
}
