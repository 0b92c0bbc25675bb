//! How many rows of logits the head holds at a time.

use super::{Lever, LeverRequest};
use crate::candidates::Settings;
use crate::request::Request;
use plimsoll_graph::{Graph, Op};

/// Logits beyond this many bytes buy no speed: products are large enough long before.
const LOGITS_BYTES: usize = 52 << 20;

/// Fewest rows worth a matrix product.
const FEWEST_ROWS: usize = 16;

/// Rows of logits such that they take at most 52 MiB, at least 64 rows, in multiples of 16; all rows if they fit.
pub fn default_head_chunk(rows: usize, vocab_size: usize) -> usize {
    let fitting = LOGITS_BYTES / 4 / vocab_size.max(1);
    if fitting >= rows { rows } else { (fitting / 16 * 16).max(64).min(rows) }
}

/// The default, and ever fewer rows for when the logits are the peak.
pub fn head_chunk_choices(rows: usize, vocab_size: usize) -> [usize; 3] {
    let most = default_head_chunk(rows, vocab_size);
    [most, most.div_ceil(4).max(FEWEST_ROWS.min(most)), most.div_ceil(16).max(FEWEST_ROWS.min(most))]
}

/// Sets the rows of every head.
pub fn head_chunk(graph: &mut Graph, rows: usize) {
    for node in graph.programs.iter_mut().flat_map(|p| &mut p.nodes) {
        match &mut node.op {
            Op::HeadLoss(op) => op.chunk = rows,
            Op::HeadLossGrad(op) => op.chunk = rows,
            Op::PairedHeadLoss(op) => op.chunk = rows,
            Op::PairedHeadLossGrad(op) => op.chunk = rows,
            _ => {}
        }
    }
}

pub(super) struct HeadChunkLever;

/// Rows of logits of a micro-batch.
fn rows(now: &Settings, request: &Request) -> usize {
    now.micro_batch * request.target_len.unwrap_or(request.seq_len)
}

impl Lever for HeadChunkLever {
    fn name(&self) -> &'static str {
        "head-chunk"
    }

    fn describe(&self, now: &Settings, request: &Request) -> String {
        let rows = rows(now, request);
        format!("{} of {rows} rows", now.head_chunk.min(rows))
    }

    fn off(&self, now: &Settings, request: &Request) -> Settings {
        Settings { head_chunk: now.head_chunk.max(rows(now, request)), ..*now }
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.head_chunk.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_heads_are_not_chunked_and_large_ones_stay_small() {
        assert_eq!(default_head_chunk(2048, 256), 2048);
        assert_eq!(default_head_chunk(1024, 50257), 256);
        assert_eq!(default_head_chunk(1024, 1 << 24), 64);
        assert_eq!(default_head_chunk(3, 1 << 24), 3);
    }

    #[test]
    fn choices_descend_and_never_reach_nothing() {
        assert_eq!(head_chunk_choices(1024, 50257), [256, 64, 16]);
        assert_eq!(head_chunk_choices(3, 1 << 24), [3, 3, 3]);
        assert_eq!(head_chunk_choices(2048, 256), [2048, 512, 128]);
    }
}
