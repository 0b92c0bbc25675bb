//! How many rows of logits the head holds at a time.

use super::{Lever, SCRATCHES};
use crate::request::Request;
use crate::settings::{LeverRequest, Settings};
use plimsoll_graph::{DeviceKind, Graph, Op};

/// Logits beyond this many bytes buy little speed. With 52 MiB, GPT-2's head took 1.07 times as long in single precision and
/// 1.3 times in half precision, since for each chunk the weight is packed and its gradient added to again. A card's
/// multiprocessors want more rows at a time: on an H100 it took 4.7 times as long with 52 MiB.
const LOGITS_BYTES: usize = 104 << 20;
const CARD_LOGITS_BYTES: usize = 416 << 20;

/// Fewest rows worth a matrix product.
const FEWEST_ROWS: usize = 16;

/// Rows of logits such that they take at most 104 MiB, or 416 MiB on a card: at least 64 rows, in multiples of 16, on a card
/// of 128 where there are that many; all rows if they fit.
pub fn default_head_chunk(rows: usize, vocab_size: usize, device: DeviceKind) -> usize {
    let (bytes, multiple) = match device {
        DeviceKind::Cpu => (LOGITS_BYTES, 16),
        DeviceKind::Cuda => (CARD_LOGITS_BYTES, 128),
    };
    let fitting = bytes / 4 / vocab_size.max(1);
    if fitting >= rows { rows } else { (fitting / multiple * multiple).max(64).min(rows) }
}

/// The default, and ever fewer rows for when the logits are the peak: on all devices they end near the same number. The first are
/// close, since each chunk costs time, as what would be recomputed for its bytes does.
pub fn head_chunk_choices(rows: usize, vocab_size: usize, device: DeviceKind) -> [usize; SCRATCHES] {
    let most = default_head_chunk(rows, vocab_size, device);
    let parts = match device {
        DeviceKind::Cpu => [1, 2, 4, 8, 32],
        DeviceKind::Cuda => [1, 2, 4, 8, 128],
    };
    parts.map(|part| most.div_ceil(part).max(FEWEST_ROWS.min(most)))
}

/// Sets the rows of every head.
pub fn head_chunk(graph: &mut Graph, rows: usize) {
    let nodes = graph.programs.iter_mut().flat_map(|program| &mut program.nodes);
    nodes.filter_map(|node| chunk_of(&mut node.op)).for_each(|chunk| *chunk = rows);
}

/// The rows that a head has at a time.
pub(super) fn chunk_of(op: &mut Op) -> Option<&mut usize> {
    match op {
        Op::HeadLoss(op) => Some(&mut op.chunk),
        Op::HeadLossGrad(op) => Some(&mut op.chunk),
        Op::HeadLogProbs(op) => Some(&mut op.chunk),
        Op::HeadLogProbsGrad(op) => Some(&mut op.chunk),
        Op::PairedHeadLoss(op) => Some(&mut op.chunk),
        Op::PairedHeadLossGrad(op) => Some(&mut op.chunk),
        _ => None,
    }
}

pub(super) struct HeadChunkLever;

/// Rows of logits of a micro-batch.
fn rows(now: &Settings, request: &Request) -> usize {
    request.rows(now.micro_batch) * request.target_len.unwrap_or(request.seq_len)
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
        let rows = |rows, vocab_size| default_head_chunk(rows, vocab_size, DeviceKind::Cpu);
        assert_eq!(rows(2048, 256), 2048);
        assert_eq!(rows(1024, 50257), 528);
        assert_eq!(rows(1024, 1 << 24), 64);
        assert_eq!(rows(3, 1 << 24), 3);
    }

    #[test]
    fn cards_have_more_rows_at_a_time_in_whole_tiles() {
        let rows = |rows, vocab_size| default_head_chunk(rows, vocab_size, DeviceKind::Cuda);
        assert_eq!(rows(1024, 50257), 1024);
        assert_eq!(rows(32768, 50257), 2048);
        assert_eq!(rows(32768, 128256), 768);
        assert_eq!(rows(32768, 1 << 24), 64);
    }

    #[test]
    fn choices_descend_and_never_reach_nothing() {
        let choices = |rows, vocab_size| head_chunk_choices(rows, vocab_size, DeviceKind::Cpu);
        assert_eq!(choices(1024, 50257), [528, 264, 132, 66, 17]);
        assert_eq!(choices(3, 1 << 24), [3; SCRATCHES]);
        assert_eq!(choices(2048, 256), [2048, 1024, 512, 256, 64]);
        assert_eq!(head_chunk_choices(32768, 50257, DeviceKind::Cuda), [2048, 1024, 512, 256, 16]);
    }
}
