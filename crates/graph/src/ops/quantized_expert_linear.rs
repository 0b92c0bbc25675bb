//! The linear layers of experts whose weights are stored in codes ([`WeightCodes`]), and their gradient of x. Gradient rules do not
//! emit them: a lever replaces `ExpertLinear` and `ExpertLinearInputGrad` of frozen weights.

use super::expert_linear::scratch_rows;
use super::linear::product_flops;
use super::quantized_linear::{MOST_DECODED, bytes_moved, example, expect_codes, expect_count, expect_rows, extents};
use super::{
    Example, ExpertLinear, ExpertLinearInputGrad, Fill, Io, Nature, Operation, Target, WeightLayout, tiled_scratch,
};
use crate::{DeviceKind, GraphError, TensorType, WeightCodes};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// y[r] = x[r] W[e] + b[e] for the rows r from bounds[e] to bounds[e + 1], as [`ExpertLinear`] computes them.
/// x: (1, R, I), codes of the weight (E, I, O) or (E, O, I), [scales](WeightCodes::scales), bounds: (E + 1,) `I32`, ascending from
/// 0 to R, and if `bias`, bias: (E, O) -> y: (1, R, O). Each decoded weight is rounded to the precision of x.
/// Scratch: on the processor that of a product of as many rows as [`ExpertLinear`] multiplies at a time, on a card the decoded
/// weights of one of the [`groups`] of experts.
/// Errors: `ShapeMismatch` if the channels or the numbers of experts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizedExpertLinear {
    /// Format of the weights.
    pub codes: WeightCodes,
    /// Layout of each expert's weight.
    pub layout: WeightLayout,
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx[r] = dy[r] W[e]ᵀ. dy: (1, R, O), codes of the weight, [scales](WeightCodes::scales), bounds -> dx: (1, R, I). Each decoded
/// weight is rounded to the precision of dy. Scratch: as [`QuantizedExpertLinear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizedExpertLinearInputGrad {
    /// Format of the weights.
    pub codes: WeightCodes,
    /// Layout of each expert's weight.
    pub layout: WeightLayout,
}

/// Most experts whose weights a card decodes at a time. Published mixtures reach [`MOST_DECODED`] with about this many; models that
/// are small enough for tests reach this limit first, so tests run several groups too.
const MOST_EXPERTS: usize = 8;

/// The experts whose weights a card decodes at a time, if each has this many weights.
pub fn groups(experts: usize, weights: usize) -> impl Iterator<Item = Range<usize>> {
    let most = (MOST_DECODED / weights.max(1)).clamp(1, MOST_EXPERTS);
    (0..experts).step_by(most).map(move |first| first..experts.min(first + most))
}

/// The type of the decoded weights, and the operands of the op that reads them.
fn decoded<'a>(
    op: &'static str,
    codes: WeightCodes,
    inputs: &[&'a TensorType],
) -> Result<(TensorType, Vec<&'a TensorType>), GraphError> {
    let weight = expect_codes(op, codes, inputs, 3)?;
    let x = inputs[0];
    expect_rows(op, "x", x, x.columns())?;
    Ok((x.with_shape(&weight), inputs[2 + codes.scale_count()..].to_vec()))
}

fn scratch(io: &Io, codes: WeightCodes, target: &Target) -> Bytes {
    let [rows, inner, columns] = extents(io);
    match target.kind() {
        DeviceKind::Cpu => {
            let dtype = io.outputs[0].dtype;
            scratch_rows(rows, |rows| tiled_scratch(dtype, [rows, inner, columns], target.threads()))
        }
        DeviceKind::Cuda => {
            let experts = codes.shape(io.inputs[1])[0];
            let most = groups(experts, inner * columns).map(|group| group.len()).max().unwrap_or(0);
            Bytes((most * inner * columns) as u64 * io.inputs[0].dtype.size_bytes())
        }
    }
}

fn flops(io: &Io) -> u64 {
    let [rows, inner, columns] = extents(io);
    product_flops(rows, inner, columns)
}

impl Operation for QuantizedExpertLinear {
    fn name(&self) -> &'static str {
        "quantized_expert_linear"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (weight, further) = decoded(self.name(), self.codes, inputs)?;
        expect_count(self.name(), inputs, 3 + self.codes.scale_count() + usize::from(self.bias))?;
        let operands = [&[inputs[0], &weight], &further[..]].concat();
        ExpertLinear { layout: self.layout, bias: self.bias }.infer(&operands)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(extents(io))
    }

    fn uses_library(&self) -> bool {
        false
    }

    fn flops(&self, io: &Io) -> u64 {
        flops(io)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        bytes_moved(io, self.codes)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch(io, self.codes, target)
    }

    fn examples() -> Vec<Example> {
        let case = |codes, layout, bias: bool, sizes: [usize; 4]| {
            let [experts, rows, from, to] = sizes;
            let biases = bias.then(|| (TensorType::f32(&[experts, to]), Fill::Uniform));
            case_of(Self { codes, layout, bias }, codes, [rows, from], &weight_of(layout, experts, from, to), biases)
        };
        let both = WeightCodes::ALL.into_iter().flat_map(|codes| {
            [
                case(codes, WeightLayout::InOut, true, [3, 6, 5, 8]),
                case(codes, WeightLayout::OutIn, false, [5, 40, 34, 17]),
                case(codes, WeightLayout::OutIn, true, [2, 150, 40, 72]),
                case(codes, WeightLayout::InOut, false, [7, 3, 16, 6]),
                case(codes, WeightLayout::InOut, true, [1, 70, 65, 64]),
            ]
        });
        both.chain([case(WeightCodes::Nf4, WeightLayout::OutIn, false, [2, 9, 520, 33])]).collect()
    }
}

impl Operation for QuantizedExpertLinearInputGrad {
    fn name(&self) -> &'static str {
        "quantized_expert_linear_input_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (weight, further) = decoded(self.name(), self.codes, inputs)?;
        expect_count(self.name(), inputs, 3 + self.codes.scale_count())?;
        let operands = [&[inputs[0], &weight], &further[..]].concat();
        ExpertLinearInputGrad { layout: self.layout }.infer(&operands)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(extents(io))
    }

    fn uses_library(&self) -> bool {
        false
    }

    fn flops(&self, io: &Io) -> u64 {
        flops(io)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        bytes_moved(io, self.codes)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch(io, self.codes, target)
    }

    fn examples() -> Vec<Example> {
        let case = |codes, layout, sizes: [usize; 4]| {
            let [experts, rows, from, to] = sizes;
            case_of(Self { codes, layout }, codes, [rows, to], &weight_of(layout, experts, from, to), None)
        };
        let both = WeightCodes::ALL.into_iter().flat_map(|codes| {
            [
                case(codes, WeightLayout::InOut, [3, 6, 5, 8]),
                case(codes, WeightLayout::OutIn, [5, 40, 34, 17]),
                case(codes, WeightLayout::InOut, [2, 150, 72, 40]),
            ]
        });
        both.chain([case(WeightCodes::Nf4, WeightLayout::InOut, [2, 9, 33, 520])]).collect()
    }
}

fn weight_of(layout: WeightLayout, experts: usize, from: usize, to: usize) -> [usize; 3] {
    match layout {
        WeightLayout::InOut => [experts, from, to],
        WeightLayout::OutIn => [experts, to, from],
    }
}

fn case_of(
    op: impl Into<super::Op>,
    codes: WeightCodes,
    [rows, columns]: [usize; 2],
    weight: &[usize],
    bias: Option<(TensorType, Fill)>,
) -> Example {
    let bounds = (TensorType::i32(&[weight[0] + 1]), Fill::Bounds(rows as i32));
    example(op, codes, &[1, rows, columns], weight, [bounds].into_iter().chain(bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_all_experts_and_decode_no_more_than_fits() {
        for (experts, weights, expected) in
            [(128, 2048 * 768, 16), (32, 2880 * 5760, 32), (8, 4096 * 14336, 8), (60, 1, 8), (6, 9, 1)]
        {
            let all = groups(experts, weights).collect::<Vec<_>>();
            assert_eq!(all.len(), expected, "{experts} {weights}");
            assert!(all[0].start == 0 && all.last().is_some_and(|last| last.end == experts));
            assert!(all.windows(2).all(|two| two[0].end == two[1].start));
            assert!(all.iter().all(|group| group.len() == 1 || group.len() * weights <= MOST_DECODED));
        }
    }
}
