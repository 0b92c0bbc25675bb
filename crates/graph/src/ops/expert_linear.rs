//! The linear layers of experts: a matrix product for the rows of each expert.

use super::linear::{product_flops, scratch_of};
use super::{
    Access, Example, Fill, Io, Nature, Op, Operation, QuantizedExpertLinear, QuantizedExpertLinearInputGrad, Target,
    WeightLayout, accumulating, expect_rank, expect_type, operands,
};
use crate::{Backward, DType, DeviceKind, GraphError, TensorType, WeightCodes};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y[r] = x[r] W[e] + b[e] for the rows r from bounds[e] to bounds[e + 1], which are those of expert e.
/// x: (1, R, I), weight: (E, I, O) or (E, O, I), bounds: (E + 1,) `I32`, ascending from 0 to R, and if `bias`, bias:
/// (E, O) -> y: (1, R, O). An expert may have no rows. Saves x. Scratch: on the processor that of a product of
/// [`MOST_EXPERT_ROWS`] rows, on a card none.
/// Errors: `ShapeMismatch` if the channels or the numbers of experts differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLinear {
    /// Layout of each expert's weight.
    pub layout: WeightLayout,
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx[r] = dy[r] W[e]ᵀ. dy: (1, R, O), weight, bounds -> dx: (1, R, I). Scratch: as for [`ExpertLinear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLinearInputGrad {
    /// Layout of each expert's weight.
    pub layout: WeightLayout,
}

/// dW[e] = xᵀ dy and db[e] = Σ dy over the rows of expert e, in their order: zero without rows.
/// x: (1, R, I), dy: (1, R, O), bounds: (E + 1,) `I32` -> dweight in its layout if `weight`, dbias: (E, O) if `bias`; both
/// `F32`. Scratch: on the processor that of the product of all rows, on a card none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLinearWeightGrad {
    /// Layout of each expert's weight.
    pub layout: WeightLayout,
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether dbias is computed.
    pub bias: bool,
    /// Whether the results are added to the existing values.
    pub accumulate: bool,
}

/// Rows that the processor multiplies at a time. With at most this many, a product's scratch grows with its rows, so
/// that of this many is enough for any routing.
pub const MOST_EXPERT_ROWS: usize = 1056;

/// The extents (in, out) of each expert's weight. Errors: `ShapeMismatch` unless there is a matrix for each expert.
fn extents(
    op: &'static str,
    layout: WeightLayout,
    weight: &TensorType,
    bounds: &TensorType,
) -> Result<(usize, usize), GraphError> {
    expect_rank(op, "weight", weight, 3)?;
    expect_type(op, "bounds", bounds, &TensorType::i32(&[weight.shape[0] + 1]))?;
    Ok(layout.extents(&weight.with_shape(&weight.shape[1..])))
}

/// `ShapeMismatch` unless rows are (1, R, `columns`) in the precision of `like`.
fn expect_rows(
    op: &'static str,
    what: &str,
    rows: &TensorType,
    columns: usize,
    like: &TensorType,
) -> Result<(), GraphError> {
    expect_type(op, what, rows, &like.with_shape(&[1, rows.rows(), columns]))
}

/// Scratch of the processor for the rows of any expert, of `rows` in all. `scratch` returns that of a product.
pub(super) fn scratch_rows(rows: usize, scratch: impl Fn(usize) -> Bytes) -> Bytes {
    scratch(rows.min(MOST_EXPERT_ROWS))
}

fn scratch_of_rows(x: &TensorType, y: &TensorType, target: &Target) -> Bytes {
    scratch_rows(x.rows(), |rows| scratch_of([x.dtype, y.dtype], [rows, x.columns(), y.columns()], target))
}

impl Operation for ExpertLinear {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, weight, bounds] = if self.bias {
            let [x, weight, bounds, _] = operands("expert_linear", inputs)?;
            [x, weight, bounds]
        } else {
            operands("expert_linear", inputs)?
        };
        let (from, to) = extents("expert_linear", self.layout, weight, bounds)?;
        if let Some(bias) = inputs.get(3) {
            expect_type("expert_linear", "bias", bias, &weight.with_shape(&[weight.shape[0], to]))?;
        }
        expect_rows("expert_linear", "x", x, from, weight)?;
        Ok(vec![x.with_columns(to)])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()])
    }

    fn uses_library(&self) -> bool {
        false
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns())
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch_of_rows(io.inputs[0], io.outputs[0], target)
    }

    fn with_codes(&self, index: usize, codes: WeightCodes) -> Option<Op> {
        let Self { layout, bias } = *self;
        (index == 1).then(|| QuantizedExpertLinear { codes, layout, bias }.into())
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (dy, x, weight, bounds) = (cx.upstream(0)?, cx.input(0), cx.input(1), cx.input(2));
        let Self { layout, bias } = *self;
        let trained = cx.trained(if bias { &[1, 3] } else { &[1] });
        if !trained.is_empty() {
            let [weight, bias] = [1, 3].map(|index| trained.contains(&index));
            let make = |accumulate| ExpertLinearWeightGrad { layout, weight, bias, accumulate }.into();
            cx.push_to_parameters(make, &[x, dy, bounds], &[], &trained)?;
        }
        if cx.wants(0) {
            let dx = cx.push(ExpertLinearInputGrad { layout }, &[dy, weight, bounds])?[0];
            cx.give(0, dx)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let case = |layout, bias, [experts, rows, from, to]: [usize; 4]| {
            let weight = if layout == WeightLayout::InOut { [experts, from, to] } else { [experts, to, from] };
            let shapes = [&[1, rows, from][..], &weight, &[experts + 1], &[experts, to]];
            let shapes = if bias { &shapes[..] } else { &shapes[..3] };
            Example::uniform(Self { layout, bias }, shapes).fill(2, Fill::Bounds(rows as i32))
        };
        vec![
            case(WeightLayout::InOut, true, [3, 6, 5, 7]),
            case(WeightLayout::OutIn, false, [5, 40, 33, 17]),
            case(WeightLayout::OutIn, true, [2, 150, 40, 72]),
            case(WeightLayout::InOut, false, [7, 3, 16, 8]),
            case(WeightLayout::InOut, true, [1, 70, 64, 65]),
        ]
    }
}

impl Operation for ExpertLinearInputGrad {
    fn name(&self) -> &'static str {
        "expert_linear_input_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, weight, bounds] = operands("expert_linear_input_grad", inputs)?;
        let (from, to) = extents("expert_linear_input_grad", self.layout, weight, bounds)?;
        expect_rows("expert_linear_input_grad", "dy", dy, to, weight)?;
        Ok(vec![dy.with_columns(from)])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns()])
    }

    fn uses_library(&self) -> bool {
        false
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[0].rows(), io.inputs[0].columns(), io.outputs[0].columns())
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        scratch_of_rows(io.inputs[0], io.outputs[0], target)
    }

    fn with_codes(&self, index: usize, codes: WeightCodes) -> Option<Op> {
        (index == 1).then(|| QuantizedExpertLinearInputGrad { codes, layout: self.layout }.into())
    }

    fn examples() -> Vec<Example> {
        let case = |layout, rows: usize, weight: &[usize]| {
            let to = layout_of(layout, weight).1;
            Example::uniform(Self { layout }, &[&[1, rows, to], weight, &[weight[0] + 1]])
                .fill(2, Fill::Bounds(rows as i32))
        };
        vec![
            case(WeightLayout::InOut, 6, &[3, 5, 7]),
            case(WeightLayout::OutIn, 40, &[5, 17, 33]),
            case(WeightLayout::InOut, 150, &[2, 72, 40]),
        ]
    }
}

/// The extents (in, out) of each expert's weight of this shape.
fn layout_of(layout: WeightLayout, weight: &[usize]) -> (usize, usize) {
    layout.extents(&TensorType::f32(&weight[1..]))
}

impl Operation for ExpertLinearWeightGrad {
    fn name(&self) -> &'static str {
        "expert_linear_weight_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, dy, bounds] = operands("expert_linear_weight_grad", inputs)?;
        expect_rank("expert_linear_weight_grad", "x", x, 3)?;
        expect_rows("expert_linear_weight_grad", "x", x, x.columns(), x)?;
        expect_type("expert_linear_weight_grad", "dy", dy, &x.with_columns(dy.columns()))?;
        expect_rank("expert_linear_weight_grad", "bounds", bounds, 1)?;
        expect_type("expert_linear_weight_grad", "bounds", bounds, &bounds.with_dtype(DType::I32))?;
        let (experts, from, to) = (bounds.shape[0] - 1, x.columns(), dy.columns());
        let weight = match self.layout {
            WeightLayout::InOut => TensorType::f32(&[experts, from, to]),
            WeightLayout::OutIn => TensorType::f32(&[experts, to, from]),
        };
        let bias = TensorType::f32(&[experts, to]);
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

    fn uses_library(&self) -> bool {
        false
    }

    fn flops(&self, io: &Io) -> u64 {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        if self.weight { product_flops(x.rows(), x.columns(), dy.columns()) } else { dy.elements() as u64 }
    }

    /// x is read only for the product.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let read = io.inputs[1].bytes() + if self.weight { io.inputs[0].bytes() } else { Bytes::ZERO };
        let written = io.outputs.iter().map(|ty| ty.bytes()).sum::<Bytes>();
        read + io.inputs[2].bytes() + Bytes(if self.accumulate { 2 * written.0 } else { written.0 })
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (x, dy) = (io.inputs[0], io.inputs[1]);
        match target.kind() {
            // Sums in single precision need no more scratch with fewer terms.
            DeviceKind::Cpu if self.weight => {
                let [rows, columns] = match self.layout {
                    WeightLayout::InOut => [x.columns(), dy.columns()],
                    WeightLayout::OutIn => [dy.columns(), x.columns()],
                };
                scratch_of([x.dtype, DType::F32], [rows, x.rows(), columns], target)
            }
            _ => Bytes::ZERO,
        }
    }

    fn examples() -> Vec<Example> {
        let case = |layout, [weight, bias, accumulate]: [bool; 3], [experts, rows, from, to]: [usize; 4]| {
            let op = Self { layout, weight, bias, accumulate };
            Example::uniform(op, &[&[1, rows, from], &[1, rows, to], &[experts + 1]]).fill(2, Fill::Bounds(rows as i32))
        };
        vec![
            case(WeightLayout::InOut, [true, true, false], [3, 6, 5, 7]),
            case(WeightLayout::OutIn, [true, false, true], [5, 40, 33, 17]),
            case(WeightLayout::OutIn, [true, true, true], [2, 150, 40, 72]),
            case(WeightLayout::InOut, [true, false, false], [7, 3, 16, 8]),
            case(WeightLayout::InOut, [false, true, false], [3, 50, 5, 65]),
            case(WeightLayout::OutIn, [false, true, true], [4, 2, 5, 7]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tiled_scratch;
    use super::*;

    /// No routing needs more scratch than what is declared for it.
    #[test]
    fn scratch_is_enough_for_any_number_of_rows() {
        let target = Target::Cpu { threads: 3 };
        let dtypes = [[DType::F32; 2], [DType::Bf16; 2], [DType::Bf16, DType::F32]];
        for (dtypes, channels) in
            dtypes.into_iter().flat_map(|dtypes| [8, 40, 700, 1100, 2048, 6000].map(|c| (dtypes, c)))
        {
            for other in [16, 768, 1056, 1057, 3000] {
                let of_rows = |rows| scratch_of(dtypes, [rows, channels, other], &target);
                let over_rows = |rows| scratch_of([dtypes[0], DType::F32], [channels, rows, other], &target);
                let in_tiles = |rows| tiled_scratch(dtypes[1], [rows, channels, other], 3);
                for rows in (1..=MOST_EXPERT_ROWS).step_by(5) {
                    assert!(of_rows(rows) <= of_rows(MOST_EXPERT_ROWS), "{rows} {channels} {other} {dtypes:?}");
                    assert!(in_tiles(rows) <= in_tiles(MOST_EXPERT_ROWS), "{rows} {channels} {other} {dtypes:?}");
                }
                for rows in (1..9000).step_by(53) {
                    assert!(over_rows(rows) <= over_rows(9000), "{rows} {channels} {other} {dtypes:?}");
                }
            }
        }
    }
}
