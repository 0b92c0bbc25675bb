//! transformers' Adafactor: `transformers/optimization.py`.

use super::{Stepper, gradient, state};
use crate::runtime::{DType, Rt, Tensor};

/// Adafactor without a first moment: for a matrix it keeps sums of rows and of columns.
#[derive(Default)]
pub(super) struct Adafactor {
    moments: Vec<Vec<Tensor>>,
}

/// Tensors of the last parameter that Python's loop variables still hold.
#[derive(Default)]
struct Locals {
    gradient: Option<Tensor>,
    weight: Option<Tensor>,
    update: Option<Tensor>,
}

fn like(tensor: &Tensor, op: &'static str) -> Tensor {
    tensor.empty_like(tensor.dtype(), op)
}

impl Locals {
    fn step(&mut self, rt: &Rt, parameter: &Tensor, gradient: Tensor, moments: &[Tensor]) {
        self.gradient = Some(gradient);
        if parameter.dtype().is_half() {
            self.gradient = Some(parameter.empty_like(DType::F32, "_to_copy"));
        }
        let Some(gradient) = self.gradient.clone() else { return };
        self.weight = None;
        if parameter.dtype().is_half() {
            self.weight = Some(parameter.empty_like(DType::F32, "_to_copy"));
        }
        let mut square = like(&gradient, "pow");
        square = like(&square, "add");
        self.update = Some(square);
        match moments {
            [rows, columns] => {
                drop(like(rows, "mean"));
                drop(like(columns, "mean"));
                let mut mean_shape = rows.shape().to_vec();
                let last = mean_shape.len() - 1;
                mean_shape[last] = 1;
                let mean = Tensor::new(rt, &mean_shape, DType::F32, "mean");
                let row_factor = like(rows, "div");
                drop(mean);
                let column_factor = like(columns, "rsqrt");
                self.update = Some(Tensor::new(rt, gradient.shape(), DType::F32, "mul"));
                drop((row_factor, column_factor));
            }
            moments => self.update = moments.first().map(|moment| like(moment, "rsqrt")),
        }
        drop(like(&gradient, "neg"));
    }
}

impl Stepper for Adafactor {
    fn step(&mut self, rt: &Rt, parameters: &[Tensor]) {
        let is_first = self.moments.is_empty();
        let mut locals = Locals::default();
        for (index, parameter) in parameters.iter().enumerate() {
            if is_first {
                let (shape, new) = (parameter.shape(), |shape: &[u64]| state(rt, shape, DType::F32, "exp_avg_sq"));
                self.moments.push(match shape {
                    [outer @ .., rows, columns] => {
                        let with = |last: u64| outer.iter().copied().chain([last]).collect::<Vec<_>>();
                        vec![new(&with(*rows)), new(&with(*columns))]
                    }
                    shape => vec![new(shape)],
                });
            }
            if let Some(gradient) = gradient(parameter) {
                locals.step(rt, parameter, gradient, &self.moments[index]);
            }
        }
    }
}
