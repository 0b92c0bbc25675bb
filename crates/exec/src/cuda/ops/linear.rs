//! Products of linear layers and of their gradients, and the sums over rows that are gradients of biases.

use super::transfer::copy_operand;
use super::{CudaKernel, row_sums};
use crate::cuda::launch::{Operands, Part};
use crate::cuda::product::{Factors, Matrix, Product};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{InnerParts, Linear, LinearAdd, LinearInputGrad, LinearWeightGrad, WeightLayout};

impl CudaKernel for Linear {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (x, weight) = (operands.io.inputs[0], operands.io.inputs[1]);
        let (from, to) = self.layout.extents(weight);
        let product = Product {
            factors: if self.layout == WeightLayout::InOut { Factors::Plain } else { Factors::RightTransposed },
            left: Matrix { address: operands.inputs[0], dtype: x.dtype, stride: from },
            right: Matrix { address: operands.inputs[1], dtype: weight.dtype, stride: weight.columns() },
            result: Matrix { address: operands.outputs[0], dtype: x.dtype, stride: to },
            bias: if self.bias { operands.inputs[2] } else { 0 },
            scaled_by: 0,
            codes: None,
            extents: [x.rows(), to, from],
            accumulate: false,
            parts: InnerParts::whole(from),
            partial: 0,
        };
        vec![product.part(operands)]
    }
}

impl CudaKernel for LinearAdd {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let [base, x, weight] = [0, 1, 2].map(|index| operands.io.inputs[index]);
        let (from, to) = self.layout.extents(weight);
        let y = operands.outputs[0];
        let product = Product {
            factors: if self.layout == WeightLayout::InOut { Factors::Plain } else { Factors::RightTransposed },
            left: Matrix { address: operands.inputs[1], dtype: x.dtype, stride: from },
            right: Matrix { address: operands.inputs[2], dtype: weight.dtype, stride: weight.columns() },
            result: Matrix { address: y, dtype: base.dtype, stride: to },
            bias: 0,
            scaled_by: 0,
            codes: None,
            extents: [x.rows(), to, from],
            accumulate: true,
            parts: InnerParts::whole(from),
            partial: 0,
        };
        let copy = (operands.inputs[0] != y).then(|| copy_operand(operands).into());
        copy.into_iter().chain([product.part(operands)]).collect()
    }
}

impl CudaKernel for LinearInputGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (dy, weight) = (operands.io.inputs[0], operands.io.inputs[1]);
        let (from, to) = self.layout.extents(weight);
        let product = Product {
            factors: if self.layout == WeightLayout::InOut { Factors::RightTransposed } else { Factors::Plain },
            left: Matrix { address: operands.inputs[0], dtype: dy.dtype, stride: to },
            right: Matrix { address: operands.inputs[1], dtype: weight.dtype, stride: weight.columns() },
            result: Matrix { address: operands.outputs[0], dtype: dy.dtype, stride: from },
            bias: 0,
            scaled_by: 0,
            codes: None,
            extents: [dy.rows(), from, to],
            accumulate: false,
            parts: InnerParts::whole(to),
            partial: 0,
        };
        vec![product.part(operands)]
    }
}

impl CudaKernel for LinearWeightGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let [x, dy] = [0, 1].map(|index| {
            let ty = operands.io.inputs[index];
            Matrix { address: operands.inputs[index], dtype: ty.dtype, stride: ty.columns() }
        });
        let (left, right) = if self.layout == WeightLayout::InOut { (x, dy) } else { (dy, x) };
        let mut parts = Vec::new();
        let mut results = operands.outputs.iter().copied();
        if let Some(address) = results.next().filter(|_| self.weight) {
            let extents = [left.stride, right.stride, operands.io.inputs[0].rows()];
            let product = Product {
                factors: Factors::LeftTransposed,
                left,
                right,
                result: Matrix { address, dtype: DType::F32, stride: right.stride },
                bias: 0,
                scaled_by: 0,
                codes: None,
                extents,
                accumulate: self.accumulate,
                parts: InnerParts::of(extents),
                partial: operands.scratch.address,
            };
            parts.push(product.part(operands));
        }
        if let Some(&bias) = operands.outputs.last().filter(|_| self.bias) {
            let partial = operands.scratch.address;
            let sums = row_sums::launches(operands.io.inputs[1], dy.address, bias, partial, self.accumulate);
            parts.extend(sums.into_iter().map(Part::Kernel));
        }
        parts
    }
}
