//! The linear layer: a matrix product over the last extent, with or without bias.

use super::{
    Access, Example, InnerParts, Io, Nature, Operation, Target, accumulating, expect_type, half_product_scratch,
    operands,
};
use crate::{Backward, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// How a weight matrix lies in memory, so that checkpoints need no transposing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLayout {
    /// (in, out): GPT-2's.
    InOut,
    /// (out, in): everybody else's, and tied heads.
    OutIn,
}

impl WeightLayout {
    /// (in, out) of a weight.
    pub fn extents(self, weight: &TensorType) -> (usize, usize) {
        match self {
            Self::InOut => (weight.shape[0], weight.shape[1]),
            Self::OutIn => (weight.shape[1], weight.shape[0]),
        }
    }
}

/// Columns of a weight that the processor transposes at a time, if a product takes it transposed and that pays: matrix
/// libraries read a transposed operand slowly, and very slowly if its rows lie some multiple of 4 KiB apart.
pub const TRANSPOSED_COLUMNS: usize = 384;

/// Rows of the other operand from which on that pays.
const FEWEST_ROWS: usize = 128;

/// Rows of a weight up to which it pays: above them each strip's sums are too many to be read and written once more.
const MOST_WEIGHT_ROWS: usize = 1024;

/// Room for some columns of a weight, transposed, in a product of `rows` rows with it; none if it is better taken as it is.
fn room_to_transpose(rows: usize, weight: &TensorType, target: &Target) -> Bytes {
    let (height, width) = (weight.shape[0], weight.shape[1]);
    let pays = rows >= FEWEST_ROWS && height <= width.min(MOST_WEIGHT_ROWS);
    match target.kind() {
        DeviceKind::Cpu if pays => Bytes(4 * (height * width.min(TRANSPOSED_COLUMNS)) as u64),
        _ => Bytes::ZERO,
    }
}

/// y = x W + b. x: (.., I), weight: (I, O) or (O, I), bias: (O,) if it has one -> y: (.., O).
/// Saves x. Scratch: on the processor `TRANSPOSED_COLUMNS` x O of a weight (O, I) if that pays, in half precision
/// [`half_product_scratch`].
/// Errors: `ShapeMismatch` if the channels differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    /// Layout of the weight.
    pub layout: WeightLayout,
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx = dy Wᵀ. dy: (.., O), weight -> dx: (.., I).
/// Scratch: on the processor `TRANSPOSED_COLUMNS` x I of a weight (I, O) if that pays, in half precision
/// [`half_product_scratch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearInputGrad {
    /// Layout of the weight.
    pub layout: WeightLayout,
}

/// dW = xᵀ dy and db = Σ dy. x: (.., I), dy: (.., O) -> dweight in its layout if `weight`, dbias: (O,) if `bias`; both
/// `F32`.
/// Scratch: `Target::row_parts` partial sums of dbias; in their place on a card the [`InnerParts`] of dweight, on the
/// processor in half precision [`half_product_scratch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearWeightGrad {
    /// Layout of the weight.
    pub layout: WeightLayout,
    /// Whether dweight is made.
    pub weight: bool,
    /// Whether dbias is made.
    pub bias: bool,
    /// Whether the results add to what is there.
    pub accumulate: bool,
}

/// Whether the processor multiplies in half precision.
fn in_half(operand: &TensorType, target: &Target) -> bool {
    operand.dtype.is_half() && target.kind() == DeviceKind::Cpu
}

fn product_flops(rows: usize, inner: usize, columns: usize) -> u64 {
    2 * (rows * inner * columns) as u64
}

/// `ty` with its last extent replaced.
fn with_columns(ty: &TensorType, columns: usize) -> TensorType {
    let mut ty = ty.clone();
    *ty.shape.last_mut().expect("operands of a linear layer have extents") = columns;
    ty
}

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (x, weight) = if self.bias {
            let [x, weight, bias] = operands("linear", inputs)?;
            expect_type("linear", "bias", bias, &weight.with_shape(&[self.layout.extents(weight).1]))?;
            (x, weight)
        } else {
            let [x, weight] = operands("linear", inputs)?;
            (x, weight)
        };
        let (from, to) = self.layout.extents(weight);
        expect_type("linear", "x", x, &with_columns(x, from).with_dtype(weight.dtype))?;
        Ok(vec![with_columns(x, to)])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (x, y) = (io.inputs[0], io.outputs[0]);
        match self.layout {
            _ if in_half(x, target) => half_product_scratch([x.rows(), x.columns(), y.columns()], target.threads()),
            WeightLayout::InOut => Bytes::ZERO,
            WeightLayout::OutIn => room_to_transpose(x.rows(), io.inputs[1], target),
        }
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()])
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns())
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (dy, x, weight) = (cx.upstream(0)?, cx.input(0), cx.input(1));
        let Self { layout, bias } = *self;
        let trained = cx.trained(if bias { &[1, 2] } else { &[1] });
        if !trained.is_empty() {
            let [weight, bias] = [1, 2].map(|index| trained.contains(&index));
            let make = |accumulate| LinearWeightGrad { layout, weight, bias, accumulate }.into();
            cx.push_to_parameters(make, &[x, dy], &[], &trained)?;
        }
        if cx.wants(0) {
            let dx = cx.push(LinearInputGrad { layout }, &[dy, weight])?[0];
            cx.give(0, dx)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let op = |layout, bias| Self { layout, bias };
        vec![
            Example::uniform(op(WeightLayout::InOut, true), &[&[2, 3, 5], &[5, 7], &[7]]),
            Example::uniform(op(WeightLayout::OutIn, false), &[&[1, 19, 33], &[17, 33]]),
            Example::uniform(op(WeightLayout::OutIn, true), &[&[1, 1, 33], &[65, 33], &[65]]),
            Example::uniform(op(WeightLayout::OutIn, true), &[&[2, 65, 390], &[5, 390], &[5]]),
            Example::uniform(op(WeightLayout::OutIn, false), &[&[1, 130, 33], &[33, 33]]),
        ]
    }
}

impl Operation for LinearInputGrad {
    fn name(&self) -> &'static str {
        "linear_input_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, weight] = operands("linear_input_grad", inputs)?;
        let (from, to) = self.layout.extents(weight);
        expect_type("linear_input_grad", "dy", dy, &with_columns(dy, to).with_dtype(weight.dtype))?;
        Ok(vec![with_columns(dy, from)])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (dy, dx) = (io.inputs[0], io.outputs[0]);
        match self.layout {
            _ if in_half(dy, target) => half_product_scratch([dy.rows(), dy.columns(), dx.columns()], target.threads()),
            WeightLayout::InOut => room_to_transpose(dy.rows(), io.inputs[1], target),
            WeightLayout::OutIn => Bytes::ZERO,
        }
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()])
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns())
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::uniform(Self { layout: WeightLayout::InOut }, &[&[2, 3, 7], &[5, 7]]),
            Example::uniform(Self { layout: WeightLayout::OutIn }, &[&[1, 19, 17], &[17, 33]]),
            Example::uniform(Self { layout: WeightLayout::InOut }, &[&[2, 64, 401], &[11, 401]]),
        ]
    }
}

impl Operation for LinearWeightGrad {
    fn name(&self) -> &'static str {
        "linear_weight_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, dy] = operands("linear_weight_grad", inputs)?;
        expect_type("linear_weight_grad", "dy", dy, &with_columns(x, dy.columns()))?;
        let (from, to) = (x.columns(), dy.columns());
        let weight = match self.layout {
            WeightLayout::InOut => TensorType::f32(&[from, to]),
            WeightLayout::OutIn => TensorType::f32(&[to, from]),
        };
        let bias = TensorType::f32(&[to]);
        Ok([(self.weight, weight), (self.bias, bias)].into_iter().filter(|(made, _)| *made).map(|(_, ty)| ty).collect())
    }

    fn access(&self, _index: usize) -> Access {
        accumulating(self.accumulate)
    }

    fn nature(&self) -> Nature {
        if self.weight { Nature::Products } else { Nature::Streaming }
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        self.weight.then(|| [x.columns(), x.rows(), dy.columns()])
    }

    fn flops(&self, io: &Io) -> u64 {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        if self.weight { product_flops(x.rows(), x.columns(), dy.columns()) } else { dy.elements() as u64 }
    }

    /// Without a product nobody reads x.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let read = io.inputs[1].bytes() + if self.weight { io.inputs[0].bytes() } else { Bytes::ZERO };
        let written = io.outputs.iter().map(|ty| ty.bytes()).sum::<Bytes>();
        read + Bytes(if self.accumulate { 2 * written.0 } else { written.0 })
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        let of_bias =
            if self.bias { Bytes(4 * (target.row_parts(dy.rows()) * dy.columns()) as u64) } else { Bytes::ZERO };
        match target.kind() {
            DeviceKind::Cuda if self.weight => {
                // One after the other.
                let parts = InnerParts::of([x.columns(), dy.columns(), x.rows()]);
                of_bias.max(parts.scratch(x.columns(), dy.columns()))
            }
            DeviceKind::Cpu if self.weight && in_half(x, target) => {
                let extents = match self.layout {
                    WeightLayout::InOut => [x.columns(), x.rows(), dy.columns()],
                    WeightLayout::OutIn => [dy.columns(), x.rows(), x.columns()],
                };
                of_bias.max(half_product_scratch(extents, target.threads()))
            }
            _ => of_bias,
        }
    }

    fn examples() -> Vec<Example> {
        let op = |layout, bias, accumulate| Self { layout, weight: true, bias, accumulate };
        let of_bias = |accumulate| Self { weight: false, ..op(WeightLayout::InOut, true, accumulate) };
        vec![
            Example::uniform(op(WeightLayout::InOut, true, false), &[&[2, 3, 5], &[2, 3, 7]]),
            Example::uniform(op(WeightLayout::OutIn, false, true), &[&[1, 19, 33], &[1, 19, 17]]),
            Example::uniform(op(WeightLayout::OutIn, true, true), &[&[1, 50, 33], &[1, 50, 65]]),
            Example::uniform(op(WeightLayout::InOut, true, true), &[&[1, 4100, 8], &[1, 4100, 9]]),
            Example::uniform(of_bias(false), &[&[2, 3, 5], &[2, 3, 7]]),
            Example::uniform(of_bias(true), &[&[1, 50, 33], &[1, 50, 65]]),
        ]
    }
}
