//! A chain of ops as one node that works through its rows tile by tile, so that what the ops pass to each other exists for one
//! tile only. The node keeps none of it for the backward pass, which computes it again.
//!
//! ```text
//!   x ──► norm ─┬► gate ─► gated ─► down ──► y      x, y: all rows; the others: `rows` rows
//!               └► up ──────┘
//! ```
//!
//! Not here: chains (`chain.rs`), which nodes become one (`row_tiles.rs`).

use super::chain::{Chain, ChainOp, Slot, Tile};
use super::{
    Access, Activation, Add, ColumnScale, Example, Fill, Gated, Gelu, Io, Linear, LinearAdd, Nature, Op, Operation,
    RmsNorm, Scale, Target, WeightLayout, accumulating,
};
use crate::{Backward, GraphError, TensorType, WeightCodes};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A chain with one result. Operands with rows: (B, T, ..), weights -> y: (B, T, ..).
/// Saves the operands. Scratch: the inner tensors of a tile, and the most that an op of the chain needs.
/// Errors: those of the ops, `ShapeMismatch` if rows do not match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ByRows {
    /// The ops.
    pub chain: Arc<Chain>,
    /// Rows of a tile.
    pub rows: usize,
}

/// The gradient of [`ByRows`].
/// dy, and the operands that are needed -> the gradients of operands with rows, and of weights in `F32`.
/// Scratch: as [`ByRows`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ByRowsGrad {
    /// The ops of the first tile.
    pub first: Arc<Chain>,
    /// The ops of all further tiles, which add to the gradients of weights.
    pub further: Arc<Chain>,
    /// Rows of a tile.
    pub rows: usize,
    /// Whether the first tile adds to the gradients of weights, too.
    pub accumulate: bool,
}

impl ByRowsGrad {
    /// The ops of a tile.
    pub fn chain(&self, tile: usize) -> &Chain {
        if tile == 0 { &self.first } else { &self.further }
    }
}

impl Operation for ByRows {
    fn name(&self) -> &'static str {
        "by_rows"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.chain.infer("by_rows", inputs)
    }

    fn flops(&self, io: &Io) -> u64 {
        self.chain.sum(io, |op, io| op.flops(io))
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        self.chain.bytes_moved(io, self.rows)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        Bytes(self.chain.workspace(&io.inputs, self.rows, target).bytes)
    }

    fn with_codes(&self, operand: usize, codes: WeightCodes) -> Option<Op> {
        let chain = Arc::new(self.chain.with_codes(operand, codes)?);
        Some(Self { chain, rows: self.rows }.into())
    }

    fn in_fp8(&self, reads: &dyn Fn(usize) -> bool, writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        let chain = Arc::new(self.chain.in_fp8(reads, writes)?);
        Some(Self { chain, rows: self.rows }.into())
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        let all = cx.inputs().to_vec();
        let constants = self.chain.constants();
        let (with_rows, weights) = (0..all.len())
            .filter(|index| !constants.contains(index))
            .partition::<Vec<_>, _>(|&index| self.chain.has_rows[index]);
        let (with_rows, trained) =
            (with_rows.into_iter().filter(|&index| cx.wants(index)).collect::<Vec<_>>(), cx.trained(&weights));
        let wanted = with_rows.iter().chain(&trained).copied().collect::<BTreeSet<_>>();
        let types = (0..all.len()).map(|index| cx.type_of_input(index).clone()).collect::<Vec<_>>();
        let types = types.iter().collect::<Vec<_>>();
        let (sets, read) = self.chain.gradient(&types, &wanted, false)?;
        let (adds, _) = self.chain.gradient(&types, &wanted, true)?;
        let (sets, further, rows) = (Arc::new(sets), Arc::new(adds), self.rows);
        let inputs = read.iter().map(|&index| index.checked_sub(1).map_or(upstream, |operand| all[operand]));
        let make = |accumulate: bool| {
            let first = if accumulate { further.clone() } else { sets };
            ByRowsGrad { first, further, rows, accumulate }.into()
        };
        let leading = vec![None; with_rows.len()];
        let made = cx.push_to_parameters(make, &inputs.collect::<Vec<_>>(), &leading, &trained)?;
        with_rows.into_iter().zip(made).try_for_each(|(index, gradient)| cx.give(index, gradient))
    }

    fn examples() -> Vec<Example> {
        let of_norms = [feed_forward([2, 8, 32], 64, 4), feed_forward([1, 11, 32], 32, 4)];
        let others =
            [adapted([1, 10, 32], 64, 8), end_of_block([1, 9, 32], 64, 4), with_magnitudes([1, 10, 32], 64, 8)];
        of_norms.into_iter().chain(others).collect()
    }
}

impl Operation for ByRowsGrad {
    fn name(&self) -> &'static str {
        "by_rows_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.first.infer("by_rows_grad", inputs)
    }

    fn access(&self, index: usize) -> Access {
        if index < self.first.results_with_rows { Access::Write } else { accumulating(self.accumulate) }
    }

    fn flops(&self, io: &Io) -> u64 {
        self.first.sum(io, |op, io| op.flops(io))
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        self.further.bytes_moved(io, self.rows)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        Bytes(self.further.workspace(&io.inputs, self.rows, target).bytes)
    }

    fn with_codes(&self, operand: usize, codes: WeightCodes) -> Option<Op> {
        let first = Arc::new(self.first.with_codes(operand, codes)?);
        let further = Arc::new(self.further.with_codes(operand, codes)?);
        Some(Self { first, further, rows: self.rows, accumulate: self.accumulate }.into())
    }

    fn in_fp8(&self, reads: &dyn Fn(usize) -> bool, writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        let first = Arc::new(self.first.in_fp8(reads, writes)?);
        let further = Arc::new(self.further.in_fp8(reads, writes)?);
        Some(Self { first, further, rows: self.rows, accumulate: self.accumulate }.into())
    }

    fn examples() -> Vec<Example> {
        let with = |(example, [trained, accumulate]): (Example, [bool; 2])| {
            let Op::ByRows(ByRows { chain, rows }) = &example.op else {
                unreachable!("the examples have the forward op")
            };
            let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
            let constants = chain.constants();
            let is_wanted = |index: &usize| (trained || chain.has_rows[*index]) && !constants.contains(index);
            let wanted = (0..types.len()).filter(is_wanted).collect::<BTreeSet<_>>();
            let gradient = |accumulate| chain.gradient(&types, &wanted, accumulate).expect("the chain has a gradient");
            let ((first, read), (further, _)) = (gradient(accumulate), gradient(true));
            let upstream = example.op.infer(&types).expect("the example is valid")[0].clone();
            let all = [&[(upstream, Fill::Uniform)], &example.inputs[..]].concat();
            let inputs = read.iter().map(|&index| all[index].clone()).collect();
            let op = Self { first: Arc::new(first), further: Arc::new(further), rows: *rows, accumulate };
            Example { op: op.into(), inputs, ..example }
        };
        ByRows::examples()
            .into_iter()
            .zip([[true, false], [true, true], [false, false], [true, false], [true, true]])
            .map(with)
            .collect()
    }
}

impl Op {
    /// The chain of an op that works through tiles of rows, with its first tile, which is as large as all but the last, and its last
    /// one, each with the number of tiles like it; `None` for other ops.
    pub fn tiles(&self, io: &Io) -> Option<(&Chain, [(Tile, usize); 2])> {
        let (chain, rows) = match self {
            Self::ByRows(op) => (&*op.chain, op.rows),
            Self::ByRowsGrad(op) => (&*op.further, op.rows),
            _ => return None,
        };
        let ([first, last], count) = chain.ends(&io.inputs, rows);
        Some((chain, [(first, count - 1), (last, 1)]))
    }
}

/// An op of a chain.
fn op(op: impl Into<Op>, inputs: &[Slot], outputs: &[Slot]) -> ChainOp {
    ChainOp { op: op.into(), inputs: inputs.to_vec(), outputs: outputs.to_vec() }
}

/// A gated feed-forward layer after its norm.
fn feed_forward(x: [usize; 3], width: usize, rows: usize) -> Example {
    use Slot::{Inner, Operand, Result};
    let linear = Linear { layout: WeightLayout::OutIn, bias: false };
    let ops = vec![
        op(RmsNorm { eps: 1e-5, unit_offset: false }, &[Operand(0), Operand(1)], &[Inner(0), Inner(1)]),
        op(linear, &[Inner(0), Operand(2)], &[Inner(2)]),
        op(linear, &[Inner(0), Operand(3)], &[Inner(3)]),
        op(Gated { activation: Activation::Silu }, &[Inner(2), Inner(3)], &[Inner(4)]),
        op(linear, &[Inner(4), Operand(4)], &[Result(0)]),
    ];
    let chain = Arc::new(Chain { ops, has_rows: vec![true, false, false, false, false], results_with_rows: 1 });
    let (norm, up, down) = ([x[2]], [width, x[2]], [x[2], width]);
    Example::uniform(ByRows { chain, rows }, &[&x, &norm, &up, &up, &down])
}

/// A linear layer with an adapter, which is added to another tensor.
fn adapted(x: [usize; 3], width: usize, rows: usize) -> Example {
    use Slot::{Inner, Operand, Result};
    let layout = WeightLayout::OutIn;
    let linear = Linear { layout, bias: false };
    let ops = vec![
        op(linear, &[Operand(0), Operand(2)], &[Inner(0)]),
        op(linear, &[Operand(0), Operand(3)], &[Inner(1)]),
        op(LinearAdd { layout }, &[Inner(0), Inner(1), Operand(4)], &[Inner(2)]),
        op(Scale { factor: 0.5 }, &[Operand(1)], &[Inner(3)]),
        op(Add, &[Inner(2), Inner(3)], &[Result(0)]),
    ];
    let chain = Arc::new(Chain { ops, has_rows: vec![true, true, false, false, false], results_with_rows: 1 });
    let (other, down, up) = ([x[0], x[1], width], [4, x[2]], [width, 4]);
    Example::uniform(ByRows { chain, rows }, &[&x, &other, &[width, x[2]], &down, &up])
}

/// A linear layer whose adapter has magnitudes. The norms of its weight are an operand without a gradient.
fn with_magnitudes(x: [usize; 3], width: usize, rows: usize) -> Example {
    use Slot::{Inner, Operand, Result};
    let layout = WeightLayout::OutIn;
    let linear = Linear { layout, bias: false };
    let ops = vec![
        op(linear, &[Operand(0), Operand(1)], &[Inner(0)]),
        op(linear, &[Operand(0), Operand(2)], &[Inner(1)]),
        op(LinearAdd { layout }, &[Inner(0), Inner(1), Operand(3)], &[Inner(2)]),
        op(ColumnScale { bias: false }, &[Inner(2), Operand(4), Operand(5)], &[Inner(3)]),
        op(linear, &[Inner(3), Operand(6)], &[Result(0)]),
    ];
    let has_rows = vec![true, false, false, false, false, false, false];
    let chain = Arc::new(Chain { ops, has_rows, results_with_rows: 1 });
    let (up, down, columns) = ([width, 4], [4, x[2]], [width]);
    Example::uniform(ByRows { chain, rows }, &[&x, &[width, x[2]], &down, &up, &columns, &columns, &[x[2], width]])
        .fill(5, Fill::Positive)
}

/// Everything after attention in a block. The gradient of the sum is that of both its operands: a result that ops read.
fn end_of_block(x: [usize; 3], width: usize, rows: usize) -> Example {
    use Slot::{Inner, Operand, Result};
    let linear = Linear { layout: WeightLayout::InOut, bias: false };
    let ops = vec![
        op(linear, &[Operand(0), Operand(2)], &[Inner(0)]),
        op(Add, &[Operand(1), Inner(0)], &[Inner(1)]),
        op(RmsNorm { eps: 1e-5, unit_offset: false }, &[Inner(1), Operand(3)], &[Inner(2), Inner(3)]),
        op(linear, &[Inner(2), Operand(4)], &[Inner(4)]),
        op(Gelu, &[Inner(4)], &[Inner(5)]),
        op(linear, &[Inner(5), Operand(5)], &[Inner(6)]),
        op(Add, &[Inner(1), Inner(6)], &[Result(0)]),
    ];
    let has_rows = vec![true, true, false, false, false, false];
    let chain = Arc::new(Chain { ops, has_rows, results_with_rows: 1 });
    let (projection, norm, up, down) = ([x[2], x[2]], [x[2]], [x[2], width], [width, x[2]]);
    Example::uniform(ByRows { chain, rows }, &[&x, &x, &projection, &norm, &up, &down])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Products, Target};

    /// The inner tensors of a tile take what one tile needs, whatever the number of rows.
    #[test]
    fn scratch_is_that_of_a_tile() {
        let scratch = |tokens, rows| {
            let example = feed_forward([1, tokens, 32], 64, rows);
            let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
            let results = example.op.infer(&types).expect("valid");
            example
                .op
                .scratch(
                    &Io::new(types, &results),
                    &Target::Cuda { compute_capability: (8, 6), products: Products::default() },
                )
                .0
        };
        assert_eq!(scratch(64, 8), scratch(4096, 8));
        assert_eq!(scratch(64, 16), 2 * scratch(64, 8));
        // The gate, the up projection and their product, in single precision.
        assert_eq!(scratch(4096, 8), 3 * 8 * 64 * 4);
    }
}
