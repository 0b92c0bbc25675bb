//! Where a step's time goes, op by op.

use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;
use train::TimedStep;

/// What all nodes of an op come to in a training step.
#[derive(Default)]
struct Sum {
    nodes: usize,
    seconds: f64,
    flops: f64,
    bytes: f64,
}

/// A line for each op, the longest first: its nodes in a step, their time and its share, and what they reach. `steps`
/// is the number of training steps that were timed.
pub fn profile_table(timed: &[TimedStep], steps: u64) -> String {
    let mut sums = BTreeMap::<&str, Sum>::new();
    for TimedStep { sample, runs, .. } in timed {
        let times = *runs as f64 / steps as f64;
        let sum = sums.entry(&sample.op).or_default();
        sum.nodes += runs / steps as usize;
        sum.seconds += times * sample.seconds;
        sum.flops += times * sample.flops as f64;
        sum.bytes += times * sample.bytes as f64;
    }
    let total = sums.values().map(|sum| sum.seconds).sum::<f64>();
    let mut rows = sums.into_iter().collect::<Vec<_>>();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["op", "nodes", "ms a step", "share", "GFLOP/s", "GB/s"]);
    for (op, sum) in &rows {
        table.add_row(vec![
            (*op).to_owned(),
            sum.nodes.to_string(),
            format!("{:.2}", sum.seconds * 1e3),
            format!("{:.1} %", 100.0 * sum.seconds / total),
            format!("{:.1}", sum.flops / sum.seconds / 1e9),
            format!("{:.1}", sum.bytes / sum.seconds / 1e9),
        ]);
    }
    for column in 1..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
