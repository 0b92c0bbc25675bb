//! How many rows of scores an attention kernel holds at a time, on each worker.

use super::{Lever, LeverRequest, Levers};
use crate::candidates::Settings;
use crate::request::Request;
use plimsoll_graph::ops::ATTENTION_ROWS;
use plimsoll_graph::{Graph, Op};

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
