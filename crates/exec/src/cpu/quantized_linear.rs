//! The linear layer with its weight in codes: a product whose factor is decoded part by part while it is packed into
//! panels (`tiled/pack.rs`), so that the decoded matrix never exists. Experts have a weight each (`expert_linear.rs`).

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
    weights(call, codes).next().expect("a matrix")
}

/// The weights of each expert in the precision of the first operand, as they are stored.
pub(super) fn weights<'a>(call: &Call<'a>, codes: WeightCodes) -> impl Iterator<Item = Factor<'a>> {
    let shape = codes.shape(call.io.inputs[1]);
    let [rows, columns] = [2, 1].map(|from_last| shape[shape.len() - from_last]);
    let experts = shape[..shape.len() - 2].iter().product::<usize>();
    let tensors = (1..2 + codes.scale_count()).map(|index| call.bytes(index)).collect::<Vec<_>>();
    let dtype = call.io.inputs[0].dtype;
    (0..experts).map(move |expert| {
        let own = tensors.iter().map(|bytes| &bytes[bytes.len() / experts * expert..][..bytes.len() / experts]);
        let own = own.collect::<Vec<_>>();
        Factor::Coded(Coded::new(CodedMatrix::new(codes, columns, own[0], &own[1..]), rows, columns, dtype))
    })
}
