//! Picking one token's row.

use crate::call::Call;

pub(super) fn run(mut call: Call) {
    let x = call.bytes(0);
    for y in call.take_byte_outputs() {
        let first = call.scalars.row as usize * y.len();
        y.copy_from_slice(&x[first..first + y.len()]);
    }
}
