//! How many rows of scores an attention kernel holds at a time, on each worker.

use graph::ops::ATTENTION_ROWS;
use graph::{Graph, Op};

/// Rows that may be chosen: fewer need less scratch, and cost a little in smaller products.
pub const ATTENTION_ROW_CHOICES: [usize; 3] = [ATTENTION_ROWS, 16, 4];

/// Sets the rows of every attention node.
pub fn attention_rows(graph: &mut Graph, rows: usize) {
    for node in graph.programs.iter_mut().flat_map(|p| &mut p.nodes) {
        match &mut node.op {
            Op::Attention(op) => op.rows = rows,
            Op::AttentionGrad(op) => op.forward.rows = rows,
            _ => {}
        }
    }
}
