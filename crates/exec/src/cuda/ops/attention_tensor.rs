//! Shapes of launches of `kernels/attention_tensor.cu` and `attention_tensor_grad.cu`: what lies in a block's shared
//! memory. Read next: `attention.rs`, the launches.

/// Rows of a tile of scores, queries or keys: `ROWS` of `attention_tensor.cuh`.
const ROWS: usize = 64;

/// Keys of a tile of the forward pass: `KEYS` of `attention_tensor.cu`.
const KEYS: usize = 64;

/// Columns of a tile of the gradient's passes: `COLUMNS` of `attention_tensor_grad.cu`.
const COLUMNS: usize = 32;

/// Channels of results that a block makes: `SPAN` of `attention_tensor.cuh`, and of `attention_single.cuh`.
pub(super) const SPAN: usize = 128;

/// Bytes of single precision and of `int`.
const WORD: usize = 4;

/// A kernel on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Results.
    Forward,
    /// Gradients of queries, and of the bias' table if wanted.
    Queries {
        /// Whether it is.
        table: bool,
    },
    /// Gradients of keys and values.
    Keys,
}

/// Bytes of a row of a tile: `row_bytes` of `attention_tensor.cuh`.
fn row_bytes(channels: usize) -> usize {
    match channels {
        ..=64 => 128,
        65..=128 => 256,
        _ => 512,
    }
}

impl Pass {
    /// Its module and its kernels' name without the type's.
    pub(super) fn kernel(self) -> (&'static str, &'static str) {
        match self {
            Self::Forward => ("attention_tensor", "attention_tensor"),
            Self::Queries { .. } => ("attention_tensor_grad", "attention_tensor_grad_queries"),
            Self::Keys => ("attention_tensor_grad", "attention_tensor_grad_keys"),
        }
    }

    /// Stages that tiles of columns pass through shared memory in: two where copies go on meanwhile and two blocks of
    /// two stages each have room on a multiprocessor. Source: CUDA programming guide, "Technical specifications per
    /// compute capability", shared memory per multiprocessor.
    pub(super) fn stages(self, head_size: usize, compute_capability: (u8, u8)) -> usize {
        let roomy = matches!(compute_capability, (8, 0 | 7) | (9 | 10, _));
        let two = match head_size {
            ..=64 => compute_capability >= (8, 0),
            65..=128 => roomy,
            _ => false,
        };
        if two && self != Self::Forward { 2 } else { 1 }
    }

    /// Bytes of a block's shared memory, which the kernels lay out in this order.
    pub(super) fn shared_bytes(self, head_size: usize, stages: usize) -> usize {
        let row = row_bytes(head_size);
        let tiles = (2 * ROWS + stages * 2 * COLUMNS) * row;
        let (bias, column) = (WORD * (ROWS + COLUMNS), WORD * COLUMNS);
        match self {
            // Queries, keys and values; biases by diagonal and segments.
            Self::Forward => (ROWS + KEYS) * row + KEYS * row_bytes(head_size.min(SPAN)) + WORD * (ROWS + KEYS + KEYS),
            // The rows' two tiles, the columns'; biases, segments and buckets; slopes, and their sums by diagonal.
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
    fn every_pass_has_room_on_every_card_and_usual_heads_have_it_twice() {
        for (capability, of_block, of_multiprocessor) in CARDS {
            let heads = if capability < (8, 0) { 1..=128 } else { 1..=256 };
            for head_size in heads {
                for pass in [Pass::Forward, Pass::Keys, Pass::Queries { table: false }, Pass::Queries { table: true }] {
                    let bytes = pass.shared_bytes(head_size, pass.stages(head_size, capability));
                    assert!(bytes <= of_block, "{capability:?} {pass:?} {head_size}: {bytes}");
                    let twice = 2 * (bytes + 1024) <= of_multiprocessor;
                    let usual = capability >= (8, 0) && head_size <= 128 && pass != (Pass::Queries { table: true });
                    assert!(twice || !usual, "{capability:?} {pass:?} {head_size}: {bytes}");
                }
            }
        }
    }

    #[test]
    fn gradients_go_through_two_stages_where_copies_go_on_meanwhile_and_there_is_room() {
        let keys = |head_size, capability| Pass::Keys.stages(head_size, capability);
        assert_eq!([64, 128, 160].map(|head_size| keys(head_size, (7, 5))), [1, 1, 1]);
        assert_eq!([64, 128, 160].map(|head_size| keys(head_size, (8, 0))), [2, 2, 1]);
        assert_eq!([64, 65, 160].map(|head_size| keys(head_size, (8, 6))), [2, 1, 1]);
        assert_eq!(Pass::Forward.stages(64, (8, 0)), 1);
    }

    /// The figures are those of heads of 128 channels.
    #[test]
    fn figures_of_kernels_know_their_shared_memory() {
        let figures = include_str!("../../../../../bench/results/kernels.csv");
        let rows = figures.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let mut found = 0;
        for row in rows.filter(|row| row[0].starts_with("attention_tensor")) {
            let pass = match row[0].trim_end_matches("_f16").trim_end_matches("_bf16") {
                "attention_tensor_grad_queries" => Pass::Queries { table: false },
                "attention_tensor_grad_keys" => Pass::Keys,
                _ => Pass::Forward,
            };
            let target = row[1].trim_start_matches("sm_").parse::<u8>().expect("a target");
            let bytes = pass.shared_bytes(128, pass.stages(128, (target / 10, target % 10)));
            assert_eq!(row[6], bytes.to_string(), "{row:?}");
            found += 1;
        }
        assert_eq!(found, 3 + 5 * 6, "three kernels for 7.5, twice as many for each of the others");
    }
}
