//! Shapes of launches of `kernels/attention_tensor_results.cuh` and `attention_tensor_grad.cuh`: kernels, contents of a
//! block's shared memory, and order of blocks. Read next: `attention.rs`, the launches.

use super::shape::extent;
use plimsoll_graph::DType;

/// Rows of a tile of scores, queries or keys: `ROWS` of `attention_tensor.cuh`.
const ROWS: usize = 64;

/// Keys of a tile of the forward pass: `KEYS` of `attention_tensor_results.cuh`.
const KEYS: usize = 64;

/// Channels of results per block: `SPAN` of `attention_tensor.cuh`, and of `attention_single.cuh`.
pub(super) const SPAN: usize = 128;

/// Most channels of small heads, which have separate kernels: `HEAD` of `attention_tensor.cuh`.
const SMALL_HEAD: usize = 64;

/// Bytes of single precision and of `int`.
const WORD: usize = 4;

/// Bytes of a number in half precision.
const HALF: usize = 2;

/// Most bytes that the blocks of a group of heads read repeatedly: a part of a card's second-level cache. Of 4 to 16
/// MiB, an H100 with 50 MiB is fastest with 16 (`bench/results/2026-11-22-h100-attention.md`).
const GROUP_BYTES: usize = 16 << 20;

/// Largest extent of a grid along z. Source: CUDA programming guide, "Technical specifications per compute capability".
const MOST_GROUPS: usize = 65_535;

/// A kernel on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Results.
    Forward,
    /// Gradients of queries, and of the bias' table if requested.
    Queries {
        /// Whether it is requested.
        table: bool,
    },
    /// Gradients of keys and values.
    Keys,
}

/// Bytes of a row of a tile with all spans: `ROW_BYTES` of `attention_tensor.cuh`.
fn row_bytes(channels: usize) -> usize {
    HALF * if channels <= SMALL_HEAD { SMALL_HEAD } else { channels.next_multiple_of(SPAN) }
}

/// Columns of a tile of the gradient's passes: `COLUMNS` of `attention_tensor_grad.cuh`.
fn columns(head_size: usize, compute_capability: (u8, u8)) -> usize {
    if head_size <= SMALL_HEAD && compute_capability >= (8, 0) { 64 } else { 32 }
}

/// A grid of `samples_heads` heads of samples by tiles of tokens. Heads are in groups whose data, `read_bytes` for each
/// head, stays in the second-level cache, with the largest group size that divides their number; spans of channels
/// follow along z.
pub(super) fn grid(samples_heads: usize, tiles: usize, head_size: usize, read_bytes: usize) -> [u32; 3] {
    let spans = head_size.div_ceil(SPAN);
    let most = (GROUP_BYTES / read_bytes.max(1)).max(1);
    let even = |group: &usize| samples_heads.is_multiple_of(*group) && samples_heads / group * spans <= MOST_GROUPS;
    let fitting = (1..=most.min(samples_heads)).rev().find(even);
    let group = fitting.or_else(|| (most..=samples_heads).find(even)).unwrap_or(samples_heads);
    [extent(group), extent(tiles), extent(samples_heads / group * spans)]
}

/// Bytes that blocks of a head read of keys and values, or of queries and their gradients.
pub(super) fn read_bytes(tokens: usize, head_size: usize) -> usize {
    2 * HALF * tokens * head_size
}

impl Pass {
    /// Its module and its kernel.
    pub(super) fn kernel(self, head_size: usize, dtype: DType) -> (&'static str, String) {
        let (small, half) = (head_size <= SMALL_HEAD, dtype == DType::F16);
        let module = match (self, small, half) {
            (Self::Forward, true, true) => "attention_tensor_64_f16",
            (Self::Forward, true, false) => "attention_tensor_64_bf16",
            (Self::Forward, false, true) => "attention_tensor_256_f16",
            (Self::Forward, false, false) => "attention_tensor_256_bf16",
            (_, true, true) => "attention_tensor_grad_64_f16",
            (_, true, false) => "attention_tensor_grad_64_bf16",
            (_, false, true) => "attention_tensor_grad_256_f16",
            (_, false, false) => "attention_tensor_grad_256_bf16",
        };
        let entry = match self {
            Self::Forward => module.to_owned(),
            Self::Queries { .. } => module.replace("grad", "grad_queries"),
            Self::Keys => module.replace("grad", "grad_keys"),
        };
        (module, entry)
    }

    /// Stages in shared memory for tiles of columns: two if copies are asynchronous and a multiprocessor has space for
    /// two blocks of two stages. Source: CUDA programming guide, "Technical specifications per compute capability",
    /// shared memory per multiprocessor.
    pub(super) fn stages(self, head_size: usize, compute_capability: (u8, u8)) -> usize {
        let roomy = matches!(compute_capability, (8, 0 | 7) | (9 | 10, _));
        let two = if head_size <= SMALL_HEAD { compute_capability >= (8, 0) } else { roomy && head_size <= SPAN };
        if two && self != Self::Forward { 2 } else { 1 }
    }

    /// Bytes of a block's shared memory on a card of this compute capability, in the kernels' order.
    pub(super) fn shared_bytes(self, head_size: usize, compute_capability: (u8, u8)) -> usize {
        let (row, columns) = (row_bytes(head_size), columns(head_size, compute_capability));
        let stages = self.stages(head_size, compute_capability);
        // The rows' tiles of small heads are in the last stage until they are loaded into registers.
        let own_stage = if head_size <= SMALL_HEAD { stages - 1 } else { stages };
        let tiles = (2 * own_stage * columns + 2 * ROWS) * row;
        let (bias, column) = (WORD * (ROWS + columns), WORD * columns);
        match self {
            // Keys and values, of small heads queries before values; biases by diagonal and segments.
            Self::Forward => {
                let queries = if head_size <= SMALL_HEAD { 0 } else { ROWS * row };
                KEYS * (row + row_bytes(head_size.min(SPAN))) + queries + WORD * (ROWS + KEYS + KEYS)
            }
            // The columns' tiles, the rows' two; biases, segments and buckets; slopes, and their sums by diagonal.
            Self::Queries { table } => {
                let slopes = if table && head_size <= SPAN { ROWS * (column + WORD * 8) + bias } else { 0 };
                tiles + stages * (2 * bias + column) + slopes
            }
            // The same tiles; biases, segments, and lse and delta.
            Self::Keys => tiles + stages * (bias + 3 * column),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Capability, the most shared memory of a block, and that of a multiprocessor. Source: CUDA programming guide,
    /// "Technical specifications per compute capability".
    const CARDS: [((u8, u8), usize, usize); 6] = [
        ((7, 5), 64 << 10, 64 << 10),
        ((8, 0), 163 << 10, 164 << 10),
        ((8, 6), 99 << 10, 100 << 10),
        ((8, 9), 99 << 10, 100 << 10),
        ((9, 0), 227 << 10, 228 << 10),
        ((12, 0), 99 << 10, 100 << 10),
    ];

    #[test]
    fn every_pass_fits_on_every_card_and_usual_heads_fit_twice() {
        for (capability, of_block, of_multiprocessor) in CARDS {
            let heads = if capability < (8, 0) { 1..=128 } else { 1..=256 };
            for head_size in heads {
                for pass in [Pass::Forward, Pass::Keys, Pass::Queries { table: false }, Pass::Queries { table: true }] {
                    let bytes = pass.shared_bytes(head_size, capability);
                    assert!(bytes <= of_block, "{capability:?} {pass:?} {head_size}: {bytes}");
                    let twice = 2 * (bytes + 1024) <= of_multiprocessor;
                    let usual = capability >= (8, 0) && head_size <= 128 && pass != (Pass::Queries { table: true });
                    assert!(twice || !usual, "{capability:?} {pass:?} {head_size}: {bytes}");
                }
            }
        }
    }

    #[test]
    fn gradients_have_two_stages_if_copies_are_asynchronous_and_there_is_space() {
        let keys = |head_size, capability| Pass::Keys.stages(head_size, capability);
        assert_eq!([64, 128, 160].map(|head_size| keys(head_size, (7, 5))), [1, 1, 1]);
        assert_eq!([64, 128, 160].map(|head_size| keys(head_size, (8, 0))), [2, 2, 1]);
        assert_eq!([64, 65, 160].map(|head_size| keys(head_size, (8, 6))), [2, 1, 1]);
        assert_eq!(Pass::Forward.stages(64, (8, 0)), 1);
    }

    /// The statistics are for heads of 64 and of 128 channels.
    #[test]
    fn kernel_statistics_use_the_launches_shared_memory() {
        let figures = include_str!("../../../../../bench/results/kernels.csv");
        let rows = figures.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let mut found = BTreeSet::new();
        for row in rows.filter(|row| row[0].starts_with("attention_tensor")) {
            let entry = row[0].trim_end_matches("_f16").trim_end_matches("_bf16");
            let (name, head_size) = match entry.strip_suffix("_64") {
                Some(name) => (name, 64),
                None => (entry.trim_end_matches("_256"), 128),
            };
            let pass = match name {
                "attention_tensor_grad_queries" => Pass::Queries { table: false },
                "attention_tensor_grad_keys" => Pass::Keys,
                _ => Pass::Forward,
            };
            let target = row[1].trim_start_matches("sm_").parse::<u8>().expect("a target");
            let bytes = pass.shared_bytes(head_size, (target / 10, target % 10));
            assert_eq!(row[7], bytes.to_string(), "{row:?}");
            found.insert((row[0], row[1]));
        }
        assert_eq!(found.len(), 6 + 5 * 12, "six kernels for 7.5, twice as many for each of the others");
    }

    #[test]
    fn heads_of_a_group_fit_the_second_level_cache() {
        // GPT-2: 32 samples of 12 heads of 64 channels and 1024 tokens, 256 KiB of keys and values each.
        assert_eq!(grid(384, 16, 64, read_bytes(1024, 64)), [64, 16, 6]);
        // All heads at once, and one at a time.
        assert_eq!(grid(12, 4, 64, read_bytes(256, 64)), [12, 4, 1]);
        assert_eq!(grid(16, 2048, 128, read_bytes(131_072, 128)), [1, 2048, 16]);
        // A prime number of heads.
        assert_eq!(grid(127, 16, 64, read_bytes(1024, 64)), [1, 16, 127]);
        // Spans of large heads.
        assert_eq!(grid(8, 16, 256, read_bytes(8192, 256)), [2, 16, 8]);
        // At most the largest extent of a grid.
        assert_eq!(grid(131_072, 1, 256, usize::MAX), [8, 1, 32_768]);
    }
}
