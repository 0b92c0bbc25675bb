//! The report for a terminal.

use super::{
    StressReport, VERDICT_HEADS, WORKLOAD_HEADS, headline, mismatch_lines, reading_lines, subject, verdict_rows,
    workload_rows,
};
use comfy_table::{Table, presets};

/// The verdicts, the workloads, and what the card reported.
pub fn stress_text(report: &StressReport) -> String {
    let findings = &report.findings;
    let mut parts = vec![subject(report), table(&WORKLOAD_HEADS, workload_rows(findings))];
    let lines = reading_lines(findings);
    parts.extend((!lines.is_empty()).then(|| lines.join("\n")));
    parts.push(table(&VERDICT_HEADS, verdict_rows(report)));
    let wrong = mismatch_lines(findings);
    parts.extend((!wrong.is_empty()).then(|| wrong.join("\n")));
    parts.push(headline(report));
    parts.join("\n\n")
}

fn table<const N: usize>(heads: &[&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(*heads);
    table.add_rows(rows);
    table.to_string()
}
