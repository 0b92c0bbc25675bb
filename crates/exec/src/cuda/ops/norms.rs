//! Launches of `kernels/layer_norm.cu` and `kernels/rms_norm.cu`.

use super::row_sums::{join, parts};
use super::shape::{extent, launch, many, named, threads_of_row};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::TensorType;
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};

/// Dynamic shared memory that no driver has to be asked for.
const USUAL_SHARED_BYTES: usize = 46 << 10;

/// A block for each row.
fn rows(module: &'static str, x: &TensorType, arguments: Arguments) -> Vec<Launch> {
    vec![Launch { threads: threads_of_row(x), ..launch(module, named(module, x), many(x.rows()), arguments) }]
}

pub(super) fn layer_norm(op: &LayerNorm, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[0];
    let bias = if op.bias { operands.inputs[2] } else { 0 };
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], operands.inputs[1], bias])
        .addresses(&operands.outputs)
        .int(x.columns())
        .float(op.eps);
    rows("layer_norm", x, arguments)
}

pub(super) fn rms_norm(op: &RmsNorm, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[0];
    let arguments =
        Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs).int(x.columns()).float(op.eps);
    rows("rms_norm", x, arguments)
}

/// The gradient by rows, whose blocks each sum up a part: `wanted` are the results that parts of sums are for, one
/// behind the other in each part. `arguments` are handed whether sums lie on the chip.
fn grad(
    module: &'static str,
    operands: &Operands,
    sets: usize,
    wanted: &[(usize, u64)],
    accumulate: bool,
    arguments: impl FnOnce(bool) -> Arguments,
) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let (columns, blocks) = (x.columns(), parts(x.rows()));
    let sums_bytes = 4 * sets * columns;
    let on_chip = sums_bytes <= USUAL_SHARED_BYTES;
    let gradient = Launch {
        threads: threads_of_row(x),
        shared_bytes: if on_chip && !wanted.is_empty() { extent(sums_bytes) } else { 0 },
        ..launch(module, named(&format!("{module}_grad"), x), many(blocks), arguments(on_chip))
    };
    let joins = wanted.iter().map(|&(set, result)| {
        let partial = operands.scratch.address + (4 * set * columns) as u64;
        join(partial, result, blocks, [sets * columns, columns], accumulate)
    });
    std::iter::once(gradient).chain(joins).collect()
}

pub(super) fn layer_norm_grad(op: &LayerNormGrad, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let residual = if op.residual { operands.inputs[5] } else { 0 };
    let sums = [(op.weight, 0), (op.bias, 1)].into_iter().filter(|(made, _)| *made).map(|(_, set)| set);
    let wanted = sums.zip(operands.outputs[1..].iter().copied()).collect::<Vec<_>>();
    let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
    let arguments = |on_chip| {
        Arguments::default()
            .addresses(&operands.inputs[..5])
            .addresses(&[residual, operands.outputs[0], partial])
            .int(x.rows())
            .int(x.columns())
            .flag(op.bias)
            .flag(on_chip)
    };
    grad("layer_norm", operands, 1 + usize::from(op.bias), &wanted, op.accumulate, arguments)
}

pub(super) fn rms_norm_grad(op: &RmsNormGrad, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let residual = if op.residual { operands.inputs[4] } else { 0 };
    let wanted = operands.outputs[1..].iter().map(|&result| (0, result)).collect::<Vec<_>>();
    let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
    let arguments = |on_chip| {
        Arguments::default()
            .addresses(&operands.inputs[..4])
            .addresses(&[residual, operands.outputs[0], partial])
            .int(x.rows())
            .int(x.columns())
            .flag(on_chip)
    };
    grad("rms_norm", operands, 1, &wanted, op.accumulate, arguments)
}
