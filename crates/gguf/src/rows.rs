//! The rows of tensors: read from the weights, put in llama.cpp's order, encoded in parallel.

use crate::Encoding;
use crate::error::WriteError;
use crate::tensor::{Order, Piece, Tensor};
use plimsoll_train::checkpoint::{CheckpointError, StoredWeights};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::io::Write;

/// Numbers that are read and encoded at a time, so that memory is needed for no more.
const PART: usize = 1 << 20;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of tensors by encoding.
    pub tensors: BTreeMap<&'static str, usize>,
    /// Number of weights that are not finite numbers.
    pub not_finite: u64,
}

/// Writes tensors one after another.
pub(crate) struct Rows<'a> {
    weights: &'a StoredWeights,
    summary: Summary,
    bytes: Vec<u8>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(weights: &'a StoredWeights) -> Self {
        Self { weights, summary: Summary::default(), bytes: Vec::new() }
    }

    pub(crate) fn summary(self) -> Summary {
        self.summary
    }

    /// Writes a tensor, and returns its bytes.
    pub(crate) fn write(
        &mut self,
        tensor: &Tensor,
        encoding: Encoding,
        to: &mut impl Write,
    ) -> Result<u64, WriteError> {
        *self.summary.tensors.entry(encoding.name()).or_default() += 1;
        let columns = tensor.columns();
        let of_row = encoding.bytes(columns as u64) as usize;
        for piece in &tensor.pieces {
            let rows_of_part = (PART / columns).max(1);
            let mut first = 0;
            while first < piece.rows {
                let count = rows_of_part.min(piece.rows - first);
                self.bytes.resize(count * of_row, 0);
                let rows = self.bytes.par_chunks_exact_mut(of_row).enumerate();
                let encoded = rows.map_init(
                    || vec![0.0; columns],
                    |numbers, (row, bytes)| {
                        read(self.weights, piece, first + row, numbers)?;
                        encoding.encode(numbers, bytes);
                        Ok::<_, CheckpointError>(numbers.iter().filter(|number| !number.is_finite()).count() as u64)
                    },
                );
                self.summary.not_finite += encoded.try_reduce(|| 0, |a, b| Ok(a + b))?;
                to.write_all(&self.bytes)?;
                first += count;
            }
            self.weights.release(&piece.stored);
        }
        Ok(encoding.bytes(tensor.elements()))
    }
}

/// Reads a row of a piece. Errors: those of [`StoredWeights::read`].
fn read(weights: &StoredWeights, piece: &Piece, row: usize, numbers: &mut [f32]) -> Result<(), CheckpointError> {
    let (first, step) = match piece.order {
        Order::Rows => (row * numbers.len(), 1),
        Order::Pairs { head } => (paired(row, head) * numbers.len(), 1),
        Order::PairsInRow { head } => {
            let mut stored = vec![0.0; numbers.len()];
            weights.read(&piece.stored, piece.from, 1, &mut stored)?;
            numbers.iter_mut().enumerate().for_each(|(channel, number)| *number = stored[paired(channel, head)]);
            return Ok(());
        }
        Order::Columns { stride, first, step } => (first + row * step, stride),
        Order::Given(ref given) => {
            numbers.copy_from_slice(given);
            return Ok(());
        }
    };
    weights.read(&piece.stored, piece.from + first, step, numbers)?;
    if (piece.scale, piece.add) != (1.0, 0.0) {
        numbers.iter_mut().for_each(|number| *number = *number * piece.scale + piece.add);
    }
    Ok(())
}

/// The row of queries or keys whose channel llama.cpp has at `row`: it rotates channels 2i and 2i + 1 of a head together,
/// and the weights' own order rotates i and i + head / 2. Source: `LlamaModel.permute` of the converter.
fn paired(row: usize, head: usize) -> usize {
    let (start, within) = (row / head * head, row % head);
    start + within % 2 * (head / 2) + within / 2
}
