//! Launches of `kernels/layer_norm.cu` and `kernels/rms_norm.cu`.

use super::row_sums::join;
use super::shape::{extent, in_vectors, launch, many, named, number, threads_of_row, threads_with_a_vector};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
use plimsoll_graph::{Target, TensorType};

/// Dynamic shared memory that no driver has to be asked for.
const USUAL_SHARED_BYTES: usize = 46 << 10;

/// Threads of the largest block whose threads keep their columns in registers.
const MOST_THREADS: usize = 512;

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
/// behind the other in each part. `arguments` are what both kernels of a module take first.
fn grad(
    module: &'static str,
    operands: &Operands,
    sets: usize,
    wanted: &[(usize, u64)],
    accumulate: bool,
    arguments: Arguments,
) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let (columns, parts) = (x.columns(), Target::cuda_norm_parts(x.rows()));
    let threads = threads_with_a_vector(x);
    let gradient = if in_vectors(x) && threads <= MOST_THREADS {
        Launch {
            threads: extent(threads),
            ..launch(module, named(&format!("{module}_grad"), x), many(parts), arguments)
        }
    } else {
        let sums_bytes = 4 * sets * columns;
        let on_chip = sums_bytes <= USUAL_SHARED_BYTES;
        Launch {
            threads: threads_of_row(x),
            shared_bytes: if on_chip && !wanted.is_empty() { extent(sums_bytes) } else { 0 },
            ..launch(module, format!("{module}_grad_any"), many(parts), arguments.flag(on_chip).int(number(x.dtype)))
        }
    };
    let joins = wanted.iter().map(|&(set, result)| {
        let partial = operands.scratch.address + (4 * set * columns) as u64;
        join(partial, result, parts, [sets * columns, columns], accumulate)
    });
    std::iter::once(gradient).chain(joins).collect()
}

pub(super) fn layer_norm_grad(op: &LayerNormGrad, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let residual = if op.residual { operands.inputs[5] } else { 0 };
    let sums = [(op.weight, 0), (op.bias, 1)].into_iter().filter(|(made, _)| *made).map(|(_, set)| set);
    let wanted = sums.zip(operands.outputs[1..].iter().copied()).collect::<Vec<_>>();
    let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
    let arguments = Arguments::default()
        .addresses(&operands.inputs[..5])
        .addresses(&[residual, operands.outputs[0], partial])
        .int(x.rows())
        .int(x.columns())
        .flag(op.bias);
    grad("layer_norm", operands, 1 + usize::from(op.bias), &wanted, op.accumulate, arguments)
}

pub(super) fn rms_norm_grad(op: &RmsNormGrad, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[1];
    let residual = if op.residual { operands.inputs[4] } else { 0 };
    let wanted = operands.outputs[1..].iter().map(|&result| (0, result)).collect::<Vec<_>>();
    let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
    let arguments = Arguments::default()
        .addresses(&operands.inputs[..4])
        .addresses(&[residual, operands.outputs[0], partial])
        .int(x.rows())
        .int(x.columns());
    grad("rms_norm", operands, 1, &wanted, op.accumulate, arguments)
}
