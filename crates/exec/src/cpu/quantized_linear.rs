//! The linear layer with its weight in codes: a product whose factor is decoded part by part while it is packed into
//! panels (`tiled/pack.rs`), so that the decoded matrix never exists.

use super::CpuKernel;
use super::tiled::{Coded, Factor, Sums, any_product};
use crate::CodedMatrix;
use crate::call::Call;
use plimsoll_graph::WeightCodes;
use plimsoll_graph::ops::{QuantizedLinear, QuantizedLinearInputGrad};

impl CpuKernel for QuantizedLinear {
    fn run(&self, call: Call) {
        let weight = weight(&call, self.codes).transposed();
        let bias = self.bias.then(|| call.bytes(call.inputs.len() - 1));
        multiply(call, weight, bias);
    }
}

impl CpuKernel for QuantizedLinearInputGrad {
    fn run(&self, call: Call) {
        let weight = weight(&call, self.codes);
        multiply(call, weight, None);
    }
}

/// The first operand times the weight.
fn multiply<'a>(mut call: Call<'a>, weight: Factor<'a>, bias: Option<&'a [u8]>) {
    let (x, y) = (call.io.inputs[0], call.io.outputs[0]);
    let rows = x.rows();
    let into = call.take_byte_outputs().next().expect("a product has a result");
    let into = Sums::of(into, y.dtype, [rows, y.columns()], bias, false);
    any_product(into, 1.0, Factor::of(&call, 0, rows, x.columns()), weight, call.take_scratch(), call.threads);
}

/// The weight (O, I) in the precision of the first operand.
fn weight<'a>(call: &Call<'a>, codes: WeightCodes) -> Factor<'a> {
    let [rows, columns] = codes.extents(call.io.inputs[1]);
    let scales = (2..call.inputs.len()).map(|index| call.bytes(index)).collect::<Vec<_>>();
    let matrix = CodedMatrix::new(codes, columns, call.bytes(1), &scales);
    Factor::Coded(Coded::new(matrix, rows, columns, call.io.inputs[0].dtype))
}
