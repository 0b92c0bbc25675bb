//! Launches of `kernels/linear.cu`: products of any extents, and what linear layers and output heads make of them.

use super::shape::{extent, launch, number};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Linear, LinearInputGrad, LinearWeightGrad, WeightLayout};

/// Extents of a tile: `TILE` of `linear.cu`.
const TILE: usize = 64;

/// A matrix where it lies: rows that begin `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) dtype: DType,
    pub(super) stride: usize,
}

/// How the factors of a product lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factors {
    /// (rows, inner) and (inner, columns).
    Plain,
    /// (rows, inner) and (columns, inner).
    RightTransposed,
    /// (inner, rows) and (inner, columns).
    LeftTransposed,
}

/// result = alpha · left · right + bias, or what is there and that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) factors: Factors,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    pub(super) result: Matrix,
    /// Address of as many numbers as there are columns, of the right factor's type; 0 for none.
    pub(super) bias: u64,
    /// Address of the run's scalars where alpha is the scale of the loss and of gradients; 0 where it is one.
    pub(super) scaled_by: u64,
    /// Rows, columns, inner.
    pub(super) extents: [usize; 3],
    pub(super) accumulate: bool,
}

impl Product {
    pub(super) fn launch(&self) -> Launch {
        let entry = match self.factors {
            Factors::Plain => "product_nn",
            Factors::RightTransposed => "product_nt",
            Factors::LeftTransposed => "product_tn",
        };
        let ([rows, columns, inner], matrices) = (self.extents, [self.left, self.right, self.result]);
        let mut arguments = Arguments::default()
            .addresses(&matrices.map(|matrix| matrix.address))
            .addresses(&[self.bias, self.scaled_by])
            .int(rows)
            .int(columns)
            .int(inner);
        arguments = matrices.iter().fold(arguments, |arguments, matrix| arguments.long(matrix.stride as u64));
        arguments = matrices.iter().fold(arguments, |arguments, matrix| arguments.int(number(matrix.dtype)));
        let grid = [extent(columns.div_ceil(TILE)), extent(rows.div_ceil(TILE)), 1];
        launch("linear", entry, grid, arguments.flag(self.accumulate))
    }
}

pub(super) fn linear(op: &Linear, operands: &Operands) -> Vec<Launch> {
    let (x, weight) = (operands.io.inputs[0], operands.io.inputs[1]);
    let (from, to) = op.layout.extents(weight);
    let product = Product {
        factors: if op.layout == WeightLayout::InOut { Factors::Plain } else { Factors::RightTransposed },
        left: Matrix { address: operands.inputs[0], dtype: x.dtype, stride: from },
        right: Matrix { address: operands.inputs[1], dtype: weight.dtype, stride: weight.columns() },
        result: Matrix { address: operands.outputs[0], dtype: x.dtype, stride: to },
        bias: if op.bias { operands.inputs[2] } else { 0 },
        scaled_by: 0,
        extents: [x.rows(), to, from],
        accumulate: false,
    };
    vec![product.launch()]
}

pub(super) fn input_grad(op: &LinearInputGrad, operands: &Operands) -> Vec<Launch> {
    let (dy, weight) = (operands.io.inputs[0], operands.io.inputs[1]);
    let (from, to) = op.layout.extents(weight);
    let product = Product {
        factors: if op.layout == WeightLayout::InOut { Factors::RightTransposed } else { Factors::Plain },
        left: Matrix { address: operands.inputs[0], dtype: dy.dtype, stride: to },
        right: Matrix { address: operands.inputs[1], dtype: weight.dtype, stride: weight.columns() },
        result: Matrix { address: operands.outputs[0], dtype: dy.dtype, stride: from },
        bias: 0,
        scaled_by: 0,
        extents: [dy.rows(), from, to],
        accumulate: false,
    };
    vec![product.launch()]
}

pub(super) fn weight_grad(op: &LinearWeightGrad, operands: &Operands) -> Vec<Launch> {
    let [x, dy] = [0, 1].map(|index| {
        let ty = operands.io.inputs[index];
        Matrix { address: operands.inputs[index], dtype: ty.dtype, stride: ty.columns() }
    });
    let (left, right) = if op.layout == WeightLayout::InOut { (x, dy) } else { (dy, x) };
    let mut launches = Vec::new();
    let mut results = operands.outputs.iter().copied();
    if let Some(address) = results.next().filter(|_| op.weight) {
        let product = Product {
            factors: Factors::LeftTransposed,
            left,
            right,
            result: Matrix { address, dtype: DType::F32, stride: right.stride },
            bias: 0,
            scaled_by: 0,
            extents: [left.stride, right.stride, operands.io.inputs[0].rows()],
            accumulate: op.accumulate,
        };
        launches.push(product.launch());
    }
    if let Some(&bias) = operands.outputs.last().filter(|_| op.bias) {
        let partial = operands.scratch.address;
        launches.extend(super::row_sums::launches(operands.io.inputs[1], dy.address, bias, partial, op.accumulate));
    }
    launches
}
