//! The allowed error of a kernel's results, for all comparisons with the reference.

use super::Case;
use crate::instructions;
use plimsoll_graph::{DType, DeviceKind, Op};

/// The allowed error of an element of result `output` of a case on a device of this kind. `expected` is the reference's
/// element, `largest` the largest absolute value in that result: sums of terms of that size are rounded on the way.
/// Integers must be equal.
pub fn allowed(on: DeviceKind, case: &Case, output: usize, expected: f64, largest: f64) -> f64 {
    if case.outputs[output].dtype == DType::I32 {
        return 0.0;
    }
    let between = rounds_in_chain(case)
        + match on {
            DeviceKind::Cpu => rounds_on_processor(case, output),
            DeviceKind::Cuda => rounds_between(case, output),
        };
    (2e-5 + between) * (1.0 + largest) + rounding(case.compared_in(output), expected)
}

/// The error, relative to the largest result, of values that an op rounds to 16 bits between its operands and a result
/// on a card: output heads round the slopes of the loss, by up to half a unit in the last place; attention on tensor
/// cores rounds its probabilities and slopes, if results are in half precision. In TF32, which has the fraction bits of
/// `F16`, output heads round slopes too, and products round decoded weights; other products have operands that TF32
/// represents exactly, so they round as in single precision.
///
/// Terms of an attention's results thus have a relative error of up to 2^-11, or 2^-8 in `Bf16`. The terms of a query's
/// result are probabilities times values, and their sum is at most the largest value. Slopes and columns of
/// probabilities have no such bound, but their errors are independent: with 130 terms their sum was 0.6 of this error.
fn rounds_between(case: &Case, output: usize) -> f64 {
    match case.example.op {
        Op::HeadLossGrad(_) | Op::HeadLogProbsGrad(_) | Op::PairedHeadLossGrad(_) => {
            let weight = case.example.inputs.iter().map(|(ty, _)| ty.dtype).find(|dtype| dtype.is_half());
            let in_tf32 = if case.tf32 { 2f64.powi(-11) } else { 0.0 };
            weight.map_or(in_tf32, |dtype| rounding(dtype, 1.0))
        }
        Op::QuantizedLinear(_)
        | Op::QuantizedLinearInputGrad(_)
        | Op::QuantizedExpertLinear(_)
        | Op::QuantizedExpertLinearInputGrad(_)
            if case.tf32 =>
        {
            2f64.powi(-11)
        }
        Op::Attention(_) | Op::AttentionGrad(_) => match case.outputs[output].dtype {
            DType::F16 => 2f64.powi(-11),
            DType::Bf16 => 2f64.powi(-8),
            _ => 0.0,
        },
        _ => 0.0,
    }
}

/// The same for the tensors that the ops of a chain pass to each other, each of which is rounded to 16 bits if the operands are,
/// and to TF32 for the products that read it.
fn rounds_in_chain(case: &Case) -> f64 {
    let ops = match &case.example.op {
        Op::ByRows(op) => op.chain.ops.len(),
        Op::ByRowsGrad(op) => op.first.ops.len(),
        _ => return 0.0,
    };
    let half = case.example.inputs.iter().map(|(ty, _)| ty.dtype).find(|dtype| dtype.is_half());
    let dtype = half.or_else(|| case.tf32.then_some(DType::F16));
    dtype.map_or(0.0, |dtype| ops as f64 * rounding(dtype, 1.0))
}

/// The same on a processor, which rounds operands of products to `Bf16` only if it has instructions for it.
fn rounds_on_processor(case: &Case, output: usize) -> f64 {
    let in_bf16 = case.example.inputs.iter().any(|(ty, _)| ty.dtype == DType::Bf16);
    if in_bf16 && instructions().multiplies_bf16() { rounds_between(case, output) } else { 0.0 }
}

/// One code, or the distance to the next value of a precision: kernel and reference may round in different directions,
/// and some kernels round stochastically.
fn rounding(dtype: DType, expected: f64) -> f64 {
    match dtype {
        DType::F32 | DType::I32 => 0.0,
        DType::F16 => 2f64.powi(-10) * expected.abs().max(2f64.powi(-14)),
        DType::Bf16 => 2f64.powi(-7) * expected.abs(),
        DType::I16 | DType::U8 => 1.0,
    }
}
