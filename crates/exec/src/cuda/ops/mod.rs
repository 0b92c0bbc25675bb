//! Which kernels an op is on a card, and what each is started with: one file an op, as in `cpu`.

mod add;
mod shape;

use super::launch::{Launch, Operands};
use graph::Op;

/// The launches that make up an op, in order; none where nothing is to be done.
/// Panics if operands are not those that the op's types ask for: plans are validated before they get here.
pub fn launches(op: &Op, operands: &Operands) -> Vec<Launch> {
    match op {
        Op::Add(_) => add::launches(operands),
        // A queue ends when its work is done, so that there is nothing to wait for.
        Op::AwaitTransfer(_) => Vec::new(),
        _ => panic!("no kernels of {} for cards", op.variant()),
    }
}
