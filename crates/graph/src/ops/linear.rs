//! The linear layer: a matrix product over the last extent, with or without a bias.

use super::{
    Access, Example, Fp8Linear, InnerParts, Io, LinearAdd, Nature, Op, Operation, QuantizedLinear,
    QuantizedLinearInputGrad, Target, accumulating, expect_type, operands, product_scratch,
};
use crate::{Backward, DType, DeviceKind, GraphError, TensorId, TensorType, WeightCodes};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The layout of a weight matrix in memory; with both, no checkpoint needs transposing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightLayout {
    /// (in, out), as in GPT-2.
    InOut,
    /// (out, in), as in all other families and in tied heads.
    OutIn,
}

impl WeightLayout {
    /// The layout in which the same elements are the transposed weight.
    const fn transposed(self) -> Self {
        match self {
            Self::InOut => Self::OutIn,
            Self::OutIn => Self::InOut,
        }
    }

    /// The extents (in, out) of a weight.
    pub fn extents(self, weight: &TensorType) -> (usize, usize) {
        match self {
            Self::InOut => (weight.shape[0], weight.shape[1]),
            Self::OutIn => (weight.shape[1], weight.shape[0]),
        }
    }
}

/// y = x W + b. x: (.., I), weight: (I, O) or (O, I), bias: (O,) if `bias` -> y: (.., O).
/// Saves x. Scratch: on the processor [`product_scratch`], on a card none.
/// Errors: `ShapeMismatch` if the channels differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    /// Layout of the weight.
    pub layout: WeightLayout,
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx = dy Wᵀ. dy: (.., O), weight -> dx: (.., I).
/// Scratch: on the processor [`product_scratch`], on a card none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearInputGrad {
    /// Layout of the weight.
    pub layout: WeightLayout,
}

/// dW = xᵀ dy and db = Σ dy. x: (.., I), dy: (.., O) -> dweight in its layout if `weight`, dbias: (O,) if `bias`; both
/// `F32`.
/// Scratch: `Target::row_parts` partial sums of dbias, which share their bytes with the [`InnerParts`] of dweight on a
/// card and with [`product_scratch`] on the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearWeightGrad {
    /// Layout of the weight.
    pub layout: WeightLayout,
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether dbias is computed.
    pub bias: bool,
    /// Whether the results are added to the existing values.
    pub accumulate: bool,
}

/// Scratch of a product on the processor, for operands of one precision and a result of another.
pub(super) fn scratch_of(dtypes: [DType; 2], extents: [usize; 3], target: &Target) -> Bytes {
    match target.kind() {
        DeviceKind::Cpu => product_scratch(dtypes, extents, target.threads()),
        DeviceKind::Cuda => Bytes::ZERO,
    }
}

pub(super) fn product_flops(rows: usize, inner: usize, columns: usize) -> u64 {
    2 * (rows * inner * columns) as u64
}

impl Linear {
    /// Emits the gradients of the parameters, if they are trained: operands `weight` and, if there is a bias, `bias`.
    pub(super) fn push_weight_grad(
        self,
        cx: &mut Backward,
        x: TensorId,
        dy: TensorId,
        operands: &[usize],
    ) -> Result<(), GraphError> {
        let trained = cx.trained(operands);
        if trained.is_empty() {
            return Ok(());
        }
        let weight = trained.contains(&operands[0]);
        let bias = operands.get(1).is_some_and(|bias| trained.contains(bias));
        let make = |accumulate| LinearWeightGrad { layout: self.layout, weight, bias, accumulate }.into();
        cx.push_to_parameters(make, &[x, dy], &[], &trained).map(drop)
    }

    /// Whether the gradient of x is a product of so few terms that memory traffic limits it, so that it is added in
    /// place to the gradient of x's other readers: a low-rank adapter's first half.
    fn is_thin(self, weight: &TensorType) -> bool {
        let (from, to) = self.layout.extents(weight);
        to * 16 <= from
    }
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
        expect_type("linear", "x", x, &x.with_columns(from).with_dtype(weight.dtype))?;
        Ok(vec![x.with_columns(to)])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (x, y) = (io.inputs[0], io.outputs[0]);
        scratch_of([x.dtype, y.dtype], [x.rows(), x.columns(), y.columns()], target)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()])
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns())
    }

    fn with_codes(&self, index: usize, codes: WeightCodes) -> Option<Op> {
        (index == 1 && self.layout == WeightLayout::OutIn).then(|| QuantizedLinear { codes, bias: self.bias }.into())
    }

    fn in_fp8(&self, reads: &dyn Fn(usize) -> bool, _writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        reads(1).then(|| Fp8Linear::Forward(*self).into())
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (dy, x, weight) = (cx.upstream(0)?, cx.input(0), cx.input(1));
        let layout = self.layout;
        self.push_weight_grad(cx, x, dy, if self.bias { &[1, 2] } else { &[1] })?;
        if cx.wants(0) {
            // A frozen weight may be in codes, which this product does not read.
            let adds = self.is_thin(cx.type_of_input(1)) && !cx.trained(&[1]).is_empty();
            let pending = if adds { cx.take_pending(0) } else { None };
            let dx = match pending {
                None => cx.push(LinearInputGrad { layout }, &[dy, weight])?[0],
                Some(pending) => cx.push(LinearAdd { layout: layout.transposed() }, &[pending, dy, weight])?[0],
            };
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
        expect_type("linear_input_grad", "dy", dy, &dy.with_columns(to).with_dtype(weight.dtype))?;
        Ok(vec![dy.with_columns(from)])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (dy, dx) = (io.inputs[0], io.outputs[0]);
        scratch_of([dy.dtype, dx.dtype], [dy.rows(), dy.columns(), dx.columns()], target)
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

    fn with_codes(&self, index: usize, codes: WeightCodes) -> Option<Op> {
        (index == 1 && self.layout == WeightLayout::OutIn).then(|| QuantizedLinearInputGrad { codes }.into())
    }

    fn in_fp8(&self, reads: &dyn Fn(usize) -> bool, _writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        reads(1).then(|| Fp8Linear::InputGrad(*self).into())
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
        expect_type("linear_weight_grad", "dy", dy, &x.with_columns(dy.columns()))?;
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

    fn blocks(&self, io: &Io) -> usize {
        let of = |[rows, terms, columns]: [usize; 3]| InnerParts::of([rows, columns, terms]).blocks(rows, columns);
        self.product(io).map_or(0, of)
    }

    fn flops(&self, io: &Io) -> u64 {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        if self.weight { product_flops(x.rows(), x.columns(), dy.columns()) } else { dy.elements() as u64 }
    }

    /// x is read only for the product.
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
                // The two uses are sequential.
                let parts = InnerParts::of([x.columns(), dy.columns(), x.rows()]);
                of_bias.max(parts.scratch(x.columns(), dy.columns()))
            }
            DeviceKind::Cpu if self.weight => {
                let extents = match self.layout {
                    WeightLayout::InOut => [x.columns(), x.rows(), dy.columns()],
                    WeightLayout::OutIn => [dy.columns(), x.rows(), x.columns()],
                };
                of_bias.max(scratch_of([x.dtype, DType::F32], extents, target))
            }
            _ => of_bias,
        }
    }

    fn in_fp8(&self, _reads: &dyn Fn(usize) -> bool, writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        (self.weight && writes(0)).then(|| Fp8Linear::WeightGrad(*self).into())
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
