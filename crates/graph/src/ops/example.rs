//! Examples: the cases of an op that every oracle tests.

use super::{Op, Scalars};
use crate::{DType, TensorType};

/// How an oracle fills an operand of an example.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Uniform in [-1, 1].
    Uniform,
    /// Uniform in [0.5, 1.5]: reciprocal deviations, second moments, scales.
    Positive,
    /// Uniform in [-1.5, -0.5]: log-probabilities.
    Negative,
    /// Integers in [0, n).
    Index(i32),
    /// Integers in [-1, n), where a negative one means no target.
    Target(i32),
    /// Integers in [-1 - n, n): targets of two groups, or -1 for no target.
    Grouped(i32),
    /// Runs of up to n equal integers, numbered from 1, as in consecutive documents.
    Runs(i32),
    /// Integers in [0, n), all different in each row of the last extent.
    Distinct(i32),
    /// A permutation of the elements' indices.
    Permutation,
    /// Ascending integers from 0 to n: bounds of groups, some of which may be empty.
    Bounds(i32),
}

/// A case of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The op with its attributes.
    pub op: Op,
    /// Type and contents of each operand.
    pub inputs: Vec<(TensorType, Fill)>,
    /// Contents of outputs that are updated in place.
    pub state: Fill,
    /// The run's scalars.
    pub scalars: Scalars,
}

impl Example {
    /// A case with float operands filled uniformly.
    pub(crate) fn uniform(op: impl Into<Op>, shapes: &[&[usize]]) -> Self {
        let inputs = shapes.iter().map(|s| (TensorType::f32(s), Fill::Uniform)).collect();
        let scalars = Scalars {
            seed: 7,
            step: 3,
            update: 3,
            learning_rate: 1e-2,
            first_sample: 5,
            loss_scale: 0.25,
            reference_point: 0.3,
            ..Scalars::default()
        };
        Self { op: op.into(), inputs, state: Fill::Uniform, scalars }
    }

    /// Gives operand `index` elements of another type.
    pub(crate) fn of_type(mut self, index: usize, dtype: DType) -> Self {
        self.inputs[index].0.dtype = dtype;
        self
    }

    /// Fills operand `index` differently.
    pub(crate) fn fill(mut self, index: usize, fill: Fill) -> Self {
        self.inputs[index].1 = fill;
        if !matches!(fill, Fill::Uniform | Fill::Positive | Fill::Negative) {
            self.inputs[index].0.dtype = DType::I32;
        }
        self
    }
}
