//! Rounding to another precision, and widening.

use super::half::{narrow, widen};
use super::parallel;
use crate::call::{Call, Input, Output};

pub(super) fn run(mut call: Call) {
    let (from, to) = (call.io.inputs[0].dtype, call.io.outputs[0].dtype);
    let output = call.outputs.pop().expect("a cast has a result");
    match (call.inputs[0], output) {
        (Input::F32(x), Output::F32(y)) => parallel::copy(y, x),
        (Input::F32(x), Output::Raw(y)) => narrow(to, x, y),
        (Input::Raw(x), Output::F32(y)) => widen(from, x, y),
        (x, y) => panic!("{x:?} is not cast to {y:?}: a model has one half precision"),
    }
}
