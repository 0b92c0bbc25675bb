//! A run's report as Markdown: its figures, tables and events, for issues and notes. Not here: the page (`mod.rs`).

use super::story::RunStory;
use super::{
    NAME, SETTINGS, attempt_rows, checkpoint_rows, cut, events, figures_of, heat_rows, held_out_rows, memory_rows,
    standing_words, training_rows, what,
};
use crate::printable::printable;
use std::fmt::Write;

/// The report.
pub fn run_markdown(story: &RunStory) -> String {
    let run = &story.run;
    let mut text =
        format!("# {}: {}\n\n{}\n", inline(&cut(&run.name, NAME)), standing_words(run.standing), inline(&what(run)));
    for problem in &run.problems {
        let _ = writeln!(text, "\n> {}", inline(&cut(problem, NAME)));
    }
    let figures = figures_of(story).into_iter().map(|(what, figure, note)| vec![what.to_owned(), figure, note]);
    table(&mut text, "", &["", "", ""], &figures.collect::<Vec<_>>());
    table(&mut text, "Held-out loss", &["after step", story.loss_unit()], &held_out_rows(run));
    table(&mut text, "Training loss", &["steps", "mean", "lowest", "highest"], &training_rows(run));
    table(&mut text, "Memory, planned and measured", &["", "size", "bytes"], &memory_rows(story));
    table(&mut text, "Attempts and system health", &["", ""], &attempt_rows(story));
    table(&mut text, "GPUs", &["GPU", "°C, highest", "watts, mean", "kWh"], &heat_rows(story));
    table(&mut text, "Checkpoints", &["after step", "size", "saved in", "there still"], &checkpoint_rows(run));
    table(&mut text, "Events", &["UTC", "", "what"], &events(story));
    if let Some(settings) = &run.settings {
        let settings = printable(settings.trim_end()).into_owned();
        // A fence that nothing inside can close.
        let longest = settings.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        let _ = writeln!(text, "\n## Settings\n\n{fence}yaml\n{}\n{fence}", cut(&settings, SETTINGS));
    }
    text
}

fn table(text: &mut String, heading: &str, heads: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    if !heading.is_empty() {
        let _ = write!(text, "\n## {heading}\n");
    }
    let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    let _ = writeln!(text, "\n{}", line(&mut heads.iter().map(|head| inline(head))));
    let _ = writeln!(
        text,
        "{}",
        line(&mut heads.iter().enumerate().map(|(n, _)| if n == 0 { "---" } else { "---:" }.to_owned()))
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(&mut row.iter().map(|cell| inline(cell))));
    }
}

/// Text on a line of Markdown, with all markup escaped.
fn inline(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '\n' | '\t' => escaped.push(' '),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => escaped.extend(['\\', character]),
            other => escaped.push(other),
        }
    }
    escaped
}
