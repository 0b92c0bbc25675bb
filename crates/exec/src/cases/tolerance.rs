//! How far from the reference a kernel's result may lie: the one place that says so, for all who compare.

use super::Case;
use crate::instructions;
use plimsoll_graph::{DType, DeviceKind, Op};

/// What an element of result `output` of a case may be off by on such a device. `expected` is the reference's element,
/// `largest` the absolute value of its largest in that result: sums of terms as large as that are rounded on the way.
pub fn allowed(on: DeviceKind, case: &Case, output: usize, expected: f64, largest: f64) -> f64 {
    let between = match on {
        DeviceKind::Cpu => rounds_on_processor(case, output),
        DeviceKind::Cuda => rounds_between(case, output),
    };
    (2e-5 + between) * (1.0 + largest) + rounding(case.compared_in(output), expected)
}

/// The error, as a part of the largest result, of what an op rounds to 16 bits between its operands and a result on a
/// card: output heads the slopes of the loss, each by up to half a unit of its last place; attention on tensor cores its
/// probabilities and slopes, for results in half precision. In TF32, which stores as many bits as `F16`, output heads round
/// slopes too; other products of a case have operands that it holds exactly, so that nothing more is rounded than in
/// single precision.
///
/// Terms of an attention's results are so off by up to 2^-11 of them, or 2^-8 in `Bf16`. Those of a query's result are
/// probabilities times values, whose sizes sum to no more than the largest value. Slopes and columns of probabilities
/// are not so bounded, but their errors are independent: in cases of 130 terms they came to six tenths of that.
fn rounds_between(case: &Case, output: usize) -> f64 {
    match case.example.op {
        Op::HeadLossGrad(_) | Op::PairedHeadLossGrad(_) => {
            let weight = case.example.inputs.iter().map(|(ty, _)| ty.dtype).find(|dtype| dtype.is_half());
            let in_tf32 = if case.tf32 { 2f64.powi(-11) } else { 0.0 };
            weight.map_or(in_tf32, |dtype| rounding(dtype, 1.0))
        }
        Op::Attention(_) | Op::AttentionGrad(_) => match case.outputs[output].dtype {
            DType::F16 => 2f64.powi(-11),
            DType::Bf16 => 2f64.powi(-8),
            _ => 0.0,
        },
        _ => 0.0,
    }
}

/// The same on a processor, which rounds what it multiplies only to `Bf16`, where it has instructions for that.
fn rounds_on_processor(case: &Case, output: usize) -> f64 {
    let in_bf16 = case.example.inputs.iter().any(|(ty, _)| ty.dtype == DType::Bf16);
    if in_bf16 && instructions().multiplies_bf16() { rounds_between(case, output) } else { 0.0 }
}

/// One code, or the distance to the next value of a precision, since the one may round up where the other rounds down,
/// and some round at random.
fn rounding(dtype: DType, expected: f64) -> f64 {
    match dtype {
        DType::F32 | DType::I32 => 0.0,
        DType::F16 => 2f64.powi(-10) * expected.abs().max(2f64.powi(-14)),
        DType::Bf16 => 2f64.powi(-7) * expected.abs(),
        DType::I16 | DType::U8 => 1.0,
    }
}
