//! The end of a transfer, for the source memory.

use super::{Example, Io, Operation, operands};
use crate::{GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Waits until a running transfer has read x; its bytes must stay until then. x: any type -> nothing. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitTransfer;

impl Operation for AwaitTransfer {
    fn name(&self) -> &'static str {
        "await_transfer"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        operands::<1>("await_transfer", inputs)?;
        Ok(Vec::new())
    }

    fn flops(&self, _io: &Io) -> u64 {
        0
    }

    fn bytes_moved(&self, _io: &Io) -> Bytes {
        Bytes::ZERO
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[3, 5]])]
    }
}
