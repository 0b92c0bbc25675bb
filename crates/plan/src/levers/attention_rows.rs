//! How many rows of scores an attention kernel holds at a time, on each worker.

use super::{Lever, SCRATCHES};
use crate::request::Request;
use crate::settings::{LeverRequest, Levers, Settings};
use plimsoll_graph::ops::ATTENTION_ROWS;
use plimsoll_graph::{Graph, Op};

/// Rows that may be chosen: fewer need less scratch, and cost a little in smaller products.
pub const ATTENTION_ROW_CHOICES: [usize; SCRATCHES] = [ATTENTION_ROWS, ATTENTION_ROWS, 16, 16, 4];

/// Sets the rows of every attention node.
pub fn attention_rows(graph: &mut Graph, rows: usize) {
    let nodes = graph.programs.iter_mut().flat_map(|program| &mut program.nodes);
    nodes.filter_map(|node| rows_of(&mut node.op)).for_each(|of_node| *of_node = rows);
}

/// The rows of scores that an attention kernel has at a time.
pub(super) fn rows_of(op: &mut Op) -> Option<&mut usize> {
    match op {
        Op::Attention(op) => Some(&mut op.rows),
        Op::AttentionGrad(op) => Some(&mut op.forward.rows),
        _ => None,
    }
}

pub(super) struct AttentionRowsLever;

impl Lever for AttentionRowsLever {
    fn name(&self) -> &'static str {
        "attention-rows"
    }

    fn describe(&self, now: &Settings, request: &Request) -> String {
        format!("{} of {}", now.levers.attention_rows.min(request.seq_len), request.seq_len)
    }

    fn off(&self, now: &Settings, request: &Request) -> Settings {
        let attention_rows = now.levers.attention_rows.max(request.seq_len);
        Settings { levers: Levers { attention_rows, ..now.levers }, ..*now }
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.attention_rows.take().is_some()
    }
}
