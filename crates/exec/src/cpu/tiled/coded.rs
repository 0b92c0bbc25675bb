//! Factors in codes, which are decoded in small tiles while they are packed (`pack.rs`).

use super::super::half::Float;
use crate::CodedMatrix;
use plimsoll_graph::DType;
use std::ops::Range;

/// Most elements of a decoded line.
pub(super) const MOST_LINE: usize = 256;

/// Part of a matrix in codes, whose decoded elements are rounded to a precision.
#[derive(Clone, Copy)]
pub(in super::super) struct Coded<'a> {
    matrix: CodedMatrix<'a>,
    pub(super) dtype: DType,
    /// The first row and column of the matrix, and their numbers.
    first: [usize; 2],
    extents: [usize; 2],
    /// Whether this is the part's transpose.
    pub(super) transposed: bool,
}

impl<'a> Coded<'a> {
    /// A whole matrix of (rows, columns).
    pub(in super::super) fn new(matrix: CodedMatrix<'a>, rows: usize, columns: usize, dtype: DType) -> Self {
        Self { matrix, dtype, first: [0, 0], extents: [rows, columns], transposed: false }
    }

    pub(super) fn extents(self) -> (usize, usize) {
        let [rows, columns] = self.extents;
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    pub(super) fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Some of the rows. Panics if the range is out of bounds.
    pub(super) fn rows(mut self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.extents().0, "rows {range:?} of {}", self.extents().0);
        let axis = usize::from(self.transposed);
        self.first[axis] += range.start;
        self.extents[axis] = range.len();
        self
    }

    /// Some of the columns. Panics if the range is out of bounds.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// Decodes lines of the matrix, which begin `stride` elements apart: some of its rows and columns, counted from the
    /// part's first.
    pub(super) fn decode<E: Float>(&self, rows: Range<usize>, columns: Range<usize>, stride: usize, into: &mut [E]) {
        let mut line = [0.0; MOST_LINE];
        let line = &mut line[..columns.len()];
        for (row, into) in rows.zip(into.chunks_mut(stride)) {
            self.matrix.decode(self.first[0] + row, self.first[1] + columns.start, line);
            E::round(line, &mut into[..line.len()]);
        }
    }
}
