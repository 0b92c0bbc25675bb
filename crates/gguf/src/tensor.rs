//! A tensor of a file: its name, its shape, and where its numbers are in the model's files. Not here: which tensors a model has
//! (`tensors.rs`), and reading them (`rows.rs`).

use std::sync::Arc;

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Its extents, the innermost last.
    pub(crate) shape: Vec<usize>,
    /// Its rows.
    pub(crate) pieces: Vec<Piece>,
}

/// Rows of a tensor from one tensor of the model's files.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    /// The name of the latter.
    pub(crate) stored: String,
    /// Its first number.
    pub(crate) from: usize,
    pub(crate) rows: usize,
    pub(crate) order: Order,
    pub(crate) scale: f32,
    pub(crate) add: f32,
}

/// Where the numbers of rows are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    /// One after another.
    Rows,
    /// Rows of heads of this size, whose halves are interleaved.
    Pairs { head: usize },
    /// The same for the numbers of the only row.
    PairsInRow { head: usize },
    /// Row r is from number `first` + r · `step` on, and its numbers are `stride` apart.
    Columns { stride: usize, first: usize, step: usize },
    /// Here: the only row.
    Given(Arc<[f32]>),
}

impl Tensor {
    /// Numbers of a row.
    pub(crate) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64
    }

    /// A tensor that is one tensor of the model's files.
    pub(crate) fn whole(name: impl Into<String>, stored: impl Into<String>, shape: &[usize]) -> Self {
        let rows = shape[..shape.len() - 1].iter().product();
        Self { name: name.into(), shape: shape.to_vec(), pieces: vec![Piece::whole(stored, rows)] }
    }

    /// A tensor of numbers that the model's files do not have.
    pub(crate) fn given(name: &str, numbers: Vec<f32>) -> Self {
        let shape = vec![numbers.len()];
        let piece = Piece { order: Order::Given(numbers.into()), ..Piece::whole("", 1) };
        Self { name: name.to_owned(), shape, pieces: vec![piece] }
    }

    /// This tensor with rows in another order.
    pub(crate) fn ordered(mut self, order: &Order) -> Self {
        self.pieces.iter_mut().for_each(|piece| piece.order = order.clone());
        self
    }

    pub(crate) fn scaled(mut self, scale: f32) -> Self {
        self.pieces.iter_mut().for_each(|piece| piece.scale = scale);
        self
    }
}

impl Piece {
    pub(crate) fn whole(stored: impl Into<String>, rows: usize) -> Self {
        Self { stored: stored.into(), from: 0, rows, order: Order::Rows, scale: 1.0, add: 0.0 }
    }
}
