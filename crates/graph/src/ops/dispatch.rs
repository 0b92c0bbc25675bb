//! The way of tokens to their experts' rows, and of the experts' results back to their tokens. Each op's gradients are
//! the other op, and for the weights [`CombineWeightGrad`].

use super::{Example, Fill, Io, Operation, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// rows[places[n, k]] = x[n], multiplied by weights[n, k] if `weighted`, for each token n and choice k.
/// x: (B, T, C), places: (B, T, K) `I32`, and if `weighted`, weights: (B, T, K) `F32` -> rows: (1, B·T·K, C).
/// The places are a permutation of the rows, as [`Route`](super::Route) computes them. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Whether rows are multiplied by weights.
    pub weighted: bool,
}

/// y[n] = Σ_k rows[places[n, k]], each multiplied by weights[n, k] if `weighted`, in the order of k.
/// rows: (1, B·T·K, C), places: (B, T, K) `I32`, and if `weighted`, weights: (B, T, K) `F32` -> y: (B, T, C).
/// Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combine {
    /// Whether rows are multiplied by weights.
    pub weighted: bool,
}

/// dweights[n, k] = Σ_c x[n, c] · rows[places[n, k], c]: the gradient of the weights of [`Combine`], with x = dy, and of
/// [`Dispatch`], with rows = drows.
/// x: (B, T, C), rows: (1, B·T·K, C), places: (B, T, K) `I32` -> dweights: (B, T, K) `F32`. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CombineWeightGrad;

/// `ShapeMismatch` unless places are (B, T, K) integers, and weights, if there are any, floats of the same shape.
fn check(op: &'static str, places: &TensorType, weights: Option<&&TensorType>) -> Result<(), GraphError> {
    if places.shape.len() != 3 || places.dtype != DType::I32 {
        let problem = format!("takes places (B, T, K) of integers, found {places:?}");
        return Err(GraphError::ShapeMismatch { op, problem });
    }
    weights.map_or(Ok(()), |weights| expect_type(op, "weights", weights, &places.with_dtype(DType::F32)))
}

/// The type of the tokens of these places, with the channels and the precision of `like`.
fn tokens_of(places: &TensorType, like: &TensorType) -> TensorType {
    like.with_shape(&[places.shape[0], places.shape[1], like.columns()])
}

/// The type of the sorted rows of these places, with the channels and the precision of `like`.
fn rows_of(places: &TensorType, like: &TensorType) -> TensorType {
    like.with_shape(&[1, places.elements(), like.columns()])
}

/// The first two of two operands, or of three if there are weights.
fn two<'a>(op: &'static str, weighted: bool, inputs: &[&'a TensorType]) -> Result<[&'a TensorType; 2], GraphError> {
    let operands_of = if weighted {
        let [first, places, _] = operands(op, inputs)?;
        [first, places]
    } else {
        operands(op, inputs)?
    };
    check(op, operands_of[1], inputs.get(2))?;
    Ok(operands_of)
}

impl Operation for Dispatch {
    fn name(&self) -> &'static str {
        "dispatch"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, places] = two("dispatch", self.weighted, inputs)?;
        expect_type("dispatch", "x", x, &tokens_of(places, x))?;
        Ok(vec![rows_of(places, x)])
    }

    fn flops(&self, io: &Io) -> u64 {
        if self.weighted { io.outputs[0].elements() as u64 } else { 0 }
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (drows, x, places) = (cx.upstream(0)?, cx.input(0), cx.input(1));
        if self.weighted && cx.wants(2) {
            let dweights = cx.push(CombineWeightGrad, &[x, drows, places])?[0];
            cx.give(2, dweights)?;
        }
        if cx.wants(0) {
            let inputs = [&[drows][..], &cx.inputs()[1..]].concat();
            let dx = cx.push(Combine { weighted: self.weighted }, &inputs)?[0];
            cx.give(0, dx)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let case = |weighted, [b, t, k, c]: [usize; 4]| {
            let places: &[usize] = &[b, t, k];
            let shapes = [&[b, t, c], places, places];
            Example::uniform(Self { weighted }, if weighted { &shapes } else { &shapes[..2] })
                .fill(1, Fill::Permutation)
        };
        vec![
            case(false, [2, 3, 2, 5]),
            case(true, [1, 37, 8, 24]),
            case(true, [1, 1, 1, 129]),
            case(false, [1, 5, 3, 64]),
        ]
    }
}

impl Operation for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [rows, places] = two("combine", self.weighted, inputs)?;
        expect_type("combine", "rows", rows, &rows_of(places, rows))?;
        Ok(vec![tokens_of(places, rows)])
    }

    fn flops(&self, io: &Io) -> u64 {
        (1 + u64::from(self.weighted)) * io.inputs[0].elements() as u64
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (dy, rows, places) = (cx.upstream(0)?, cx.input(0), cx.input(1));
        if self.weighted && cx.wants(2) {
            let dweights = cx.push(CombineWeightGrad, &[dy, rows, places])?[0];
            cx.give(2, dweights)?;
        }
        if cx.wants(0) {
            let inputs = [&[dy][..], &cx.inputs()[1..]].concat();
            let drows = cx.push(Dispatch { weighted: self.weighted }, &inputs)?[0];
            cx.give(0, drows)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let case = |weighted, [b, t, k, c]: [usize; 4]| {
            let places: &[usize] = &[b, t, k];
            let shapes = [&[1, b * t * k, c], places, places];
            Example::uniform(Self { weighted }, if weighted { &shapes } else { &shapes[..2] })
                .fill(1, Fill::Permutation)
        };
        vec![
            case(true, [2, 3, 2, 5]),
            case(false, [1, 37, 8, 24]),
            case(false, [1, 1, 1, 129]),
            case(true, [1, 5, 3, 64]),
        ]
    }
}

impl Operation for CombineWeightGrad {
    fn name(&self) -> &'static str {
        "combine_weight_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, rows, places] = operands("combine_weight_grad", inputs)?;
        check("combine_weight_grad", places, None)?;
        expect_type("combine_weight_grad", "x", x, &tokens_of(places, x))?;
        expect_type("combine_weight_grad", "rows", rows, &rows_of(places, x))?;
        Ok(vec![places.with_dtype(DType::F32)])
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * io.inputs[1].elements() as u64
    }

    fn examples() -> Vec<Example> {
        let case = |[b, t, k, c]: [usize; 4]| {
            Example::uniform(Self, &[&[b, t, c], &[1, b * t * k, c], &[b, t, k]]).fill(2, Fill::Permutation)
        };
        vec![case([2, 3, 2, 5]), case([1, 37, 8, 24]), case([1, 3, 2, 129])]
    }
}
