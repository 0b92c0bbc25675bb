//! The end of a transfer, for the memory that it is sent from.

use super::{Example, Io, Operation, operands};
use crate::{GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Waits until x, which is being copied to another memory, has been read; until then its bytes stay. x: any type -> nothing. Scratch: none.
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
