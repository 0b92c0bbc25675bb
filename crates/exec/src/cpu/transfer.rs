//! Copies of tensors.

use super::{CpuKernel, parallel};
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::Transfer {
    fn run(&self, mut call: Call) {
        let bytes = call.bytes(0);
        call.take_byte_outputs().for_each(|into| parallel::copy(into, bytes));
    }
}
