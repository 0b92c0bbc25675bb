//! Predicted and measured times side by side.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_train::{Agreement, Comparison};
use serde_json::json;

/// A row for each plan, then a summary.
pub fn comparison_table(comparisons: &[Comparison], agreement: &Agreement) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["plan", "predicted ms", "measured ms", "error"]);
    for comparison in comparisons {
        table.add_row(vec![
            comparison.settings.clone(),
            format!("{:.1}", comparison.predicted_ms),
            format!("{:.1}", comparison.measured_ms),
            format!("{:+.1} %", 100.0 * (comparison.predicted_ms / comparison.measured_ms - 1.0)),
        ]);
    }
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{table}\nrank correlation {:.3}, median error {:.1} %, the plan predicted to be fastest takes {:.3} x the fastest",
        agreement.rank_correlation,
        100.0 * agreement.median_error,
        agreement.picked_over_fastest
    )
}

/// The same as JSON.
pub fn comparison_json(comparisons: &[Comparison], agreement: &Agreement) -> String {
    let value = json!({ "plans": comparisons, "agreement": agreement });
    serde_json::to_string_pretty(&value).expect("plain data")
}
