//! The linear layer whose weight is stored in codes ([`WeightCodes`]), and its gradient of x. Gradient rules do not emit
//! them: a lever replaces `Linear` and `LinearInputGrad` of frozen weights.

use super::linear::product_flops;
use super::{Example, Fill, Io, Nature, Operation, Target, expect_rank, expect_type, tiled_scratch};
use crate::{DType, DeviceKind, GraphError, Shape, TensorType, WeightCodes};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// y = x Wᵀ + b. x: (.., I), codes of W: (O, I), [scales](WeightCodes::scales), bias: (O,) if `bias` -> y: (.., O). Each
/// decoded weight is rounded to the precision of x.
/// Scratch: on the processor [`tiled_scratch`], on a card the decoded weights of one of the [`strips`].
/// Errors: `ShapeMismatch` if the channels differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizedLinear {
    /// Format of the weight.
    pub codes: WeightCodes,
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx = dy W. dy: (.., O), codes of W: (O, I), [scales](WeightCodes::scales) -> dx: (.., I). Each decoded weight is
/// rounded to the precision of dy.
/// Scratch: as [`QuantizedLinear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantizedLinearInputGrad {
    /// Format of the weight.
    pub codes: WeightCodes,
}

/// Most weights that a card decodes at a time: the whole matrix of 4,096 by 4,096, so that each product is large enough
/// for all multiprocessors.
pub(super) const MOST_DECODED: usize = 1 << 24;

/// Columns of a strip are a multiple of this.
const STRIP_MULTIPLE: usize = 128;

/// The columns of the result whose weights a card decodes at a time, for a product with sums of `inner` terms.
pub fn strips(inner: usize, columns: usize) -> impl Iterator<Item = Range<usize>> {
    let count = columns.div_ceil((MOST_DECODED / inner).max(1));
    let width = columns.div_ceil(count).next_multiple_of(STRIP_MULTIPLE);
    (0..columns).step_by(width).map(move |first| first..columns.min(first + width))
}

/// Checks the codes and scales that are operands from index 1 on, and returns the shape of the weight, which has this rank.
pub(super) fn expect_codes(
    op: &'static str,
    codes: WeightCodes,
    inputs: &[&TensorType],
    rank: usize,
) -> Result<Shape, GraphError> {
    let Some(stored) = inputs.get(1) else {
        let problem = format!("takes codes, found {} operands", inputs.len());
        return Err(GraphError::ShapeMismatch { op, problem });
    };
    expect_rank(op, "codes", stored, rank)?;
    expect_type(op, "codes", stored, &stored.with_dtype(DType::U8))?;
    let weight = codes.shape(stored);
    for (index, (name, ty)) in codes.scales(&weight).iter().enumerate() {
        let found = inputs.get(2 + index).copied();
        expect_type(op, name, found.unwrap_or(&TensorType::f32(&[])), ty)?;
    }
    Ok(weight)
}

/// The extents (out, in) of the weight.
fn expect_matrix(op: &'static str, codes: WeightCodes, inputs: &[&TensorType]) -> Result<[usize; 2], GraphError> {
    let weight = expect_codes(op, codes, inputs, 2)?;
    Ok([weight[0], weight[1]])
}

/// `ShapeMismatch` unless x holds floats in rows of this many channels.
pub(super) fn expect_rows(op: &'static str, what: &str, x: &TensorType, channels: usize) -> Result<(), GraphError> {
    let dtype = if x.dtype.is_half() { x.dtype } else { DType::F32 };
    expect_type(op, what, x, &x.with_columns(channels).with_dtype(dtype))
}

pub(super) fn expect_count(op: &'static str, inputs: &[&TensorType], count: usize) -> Result<(), GraphError> {
    if inputs.len() == count {
        return Ok(());
    }
    let problem = format!("takes {count} operands, found {}", inputs.len());
    Err(GraphError::ShapeMismatch { op, problem })
}

/// Rows, terms and columns of the product.
pub(super) fn extents(io: &Io) -> [usize; 3] {
    [io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()]
}

fn scratch(io: &Io, target: &Target) -> Bytes {
    let [_, inner, columns] = extents(io);
    match target.kind() {
        DeviceKind::Cpu => tiled_scratch(io.outputs[0].dtype, extents(io), target.threads()),
        DeviceKind::Cuda => {
            let widest = strips(inner, columns).map(|strip| strip.len()).max().unwrap_or(0);
            Bytes((inner * widest) as u64 * io.inputs[0].dtype.size_bytes())
        }
    }
}

/// The operands and results, and the decoded weights, which are written and read once.
pub(super) fn bytes_moved(io: &Io, codes: WeightCodes) -> Bytes {
    let weights = codes.shape(io.inputs[1]).iter().product::<usize>();
    let decoded = Bytes(weights as u64 * io.inputs[0].dtype.size_bytes());
    io.inputs.iter().chain(&io.outputs).map(|ty| ty.bytes()).sum::<Bytes>() + decoded + decoded
}

impl Operation for QuantizedLinear {
    fn name(&self) -> &'static str {
        "quantized_linear"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [to, from] = expect_matrix(self.name(), self.codes, inputs)?;
        let scales = self.codes.scale_count();
        expect_count(self.name(), inputs, 2 + scales + usize::from(self.bias))?;
        let x = inputs[0];
        expect_rows(self.name(), "x", x, from)?;
        if let Some(bias) = inputs.get(2 + scales) {
            expect_type(self.name(), "bias", bias, &x.with_shape(&[to]))?;
        }
        Ok(vec![x.with_columns(to)])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(extents(io))
    }

    fn flops(&self, io: &Io) -> u64 {
        let [rows, inner, columns] = extents(io);
        product_flops(rows, inner, columns)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        bytes_moved(io, self.codes)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch(io, target)
    }

    fn examples() -> Vec<Example> {
        let case = |codes, x: &[usize], to: usize, bias: bool| {
            let from = *x.last().expect("x has channels");
            let biases = bias.then(|| (TensorType::f32(&[to]), Fill::Uniform));
            example(Self { codes, bias }, codes, x, &[to, from], biases)
        };
        let both = WeightCodes::ALL.into_iter().flat_map(|codes| {
            [
                case(codes, &[2, 3, 6], 7, true),
                case(codes, &[1, 19, 34], 17, false),
                case(codes, &[1, 1, 34], 65, true),
                case(codes, &[2, 65, 390], 5, true),
                case(codes, &[1, 40, 64], 130, false),
            ]
        });
        both.chain([case(WeightCodes::Nf4, &[1, 3, 520], 33, false)]).collect()
    }
}

impl Operation for QuantizedLinearInputGrad {
    fn name(&self) -> &'static str {
        "quantized_linear_input_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [to, from] = expect_matrix(self.name(), self.codes, inputs)?;
        expect_count(self.name(), inputs, 2 + self.codes.scale_count())?;
        expect_rows(self.name(), "dy", inputs[0], to)?;
        Ok(vec![inputs[0].with_columns(from)])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(extents(io))
    }

    fn flops(&self, io: &Io) -> u64 {
        let [rows, inner, columns] = extents(io);
        product_flops(rows, inner, columns)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        bytes_moved(io, self.codes)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch(io, target)
    }

    fn examples() -> Vec<Example> {
        let case = |codes, dy: &[usize], from: usize| {
            let to = *dy.last().expect("dy has channels");
            example(Self { codes }, codes, dy, &[to, from], None)
        };
        let both = WeightCodes::ALL.into_iter().flat_map(|codes| {
            [case(codes, &[2, 3, 7], 6), case(codes, &[1, 19, 17], 34), case(codes, &[2, 64, 401], 12)]
        });
        both.chain([case(WeightCodes::Nf4, &[1, 3, 33], 520)]).collect()
    }
}

/// A case for x and a weight of these shapes, followed by further operands.
pub(super) fn example(
    op: impl Into<super::Op>,
    codes: WeightCodes,
    x: &[usize],
    weight: &[usize],
    further: impl IntoIterator<Item = (TensorType, Fill)>,
) -> Example {
    let mut example = Example::uniform(op, &[x]);
    let stored = codes.codes(&TensorType::f32(weight)).expect("examples have rows of whole bytes");
    let scales = codes.scales(weight).into_iter().map(|(_, ty)| (ty, Fill::Positive));
    example.inputs.extend([(stored, Fill::Uniform)].into_iter().chain(scales).chain(further));
    example
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_the_columns_and_none_decodes_too_much() {
        for (inner, columns, expected) in
            [(4096, 4096, 1), (4096, 14336, 4), (14336, 4096, 4), (64, 5, 1), (1 << 25, 300, 3), (8192, 28672, 14)]
        {
            let all = strips(inner, columns).collect::<Vec<_>>();
            assert_eq!(all.len(), expected, "{inner} {columns}");
            assert!(all[0].start == 0 && all.last().is_some_and(|last| last.end == columns));
            assert!(
                all.windows(2).all(|two| two[0].end == two[1].start && two[1].start.is_multiple_of(STRIP_MULTIPLE))
            );
            let most = all.iter().map(Range::len).max().unwrap_or(0);
            assert!(most * inner <= MOST_DECODED + STRIP_MULTIPLE * inner, "{inner} {columns}");
        }
    }
}
