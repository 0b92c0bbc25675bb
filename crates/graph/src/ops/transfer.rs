//! A copy from one memory to another.

use super::{Example, Io, Operation, operands};
use crate::{GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = x, where x and y are in different memories. x: any type -> y the same.
/// A device may run other nodes during the transfer: nodes that read y wait for it, and x must stay until the
/// [`AwaitTransfer`](super::AwaitTransfer) that marks its end. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer;

impl Operation for Transfer {
    fn name(&self) -> &'static str {
        "transfer"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("transfer", inputs)?;
        Ok(vec![x.clone()])
    }

    fn flops(&self, _io: &Io) -> u64 {
        0
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[3, 5]]), Example::uniform(Self, &[&[70_001]])]
    }
}
