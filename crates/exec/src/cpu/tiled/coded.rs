//! Factors in codes, which are decoded in small tiles while they are packed.

use super::super::half::Float;
use super::kernel::Panels;
use super::pack::{Part, pack_part, pack_single, words};
use crate::CodedMatrix;
use ::half::{bf16, f16};
use plimsoll_graph::DType;
use std::ops::Range;

/// Part of a matrix in codes, whose decoded elements are rounded to a precision.
#[derive(Clone, Copy)]
pub(in super::super) struct Coded<'a> {
    matrix: CodedMatrix<'a>,
    dtype: DType,
    /// The first row and column of the matrix, and their numbers.
    first: [usize; 2],
    extents: [usize; 2],
    /// Whether this is the part's transpose.
    transposed: bool,
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
    fn decode<E: Float>(&self, rows: Range<usize>, columns: Range<usize>, stride: usize, into: &mut [E]) {
        let mut line = [0.0; MOST_LINE];
        let line = &mut line[..columns.len()];
        for (row, into) in rows.zip(into.chunks_mut(stride)) {
            self.matrix.decode(self.first[0] + row, self.first[1] + columns.start, line);
            E::round(line, &mut into[..line.len()]);
        }
    }
}

/// Elements of a decoded tile: it stays in the first-level cache.
const TILE: usize = 1 << 13;

/// Most elements of a decoded line.
const MOST_LINE: usize = 256;

/// Lines of a tile whose lines are the terms of a sum, and rows of the panels in it: a multiple of every panel's width.
const LINES: usize = 32;
const ROWS: usize = 192;

/// Packs all rows of a factor, whose columns are the terms of the sum, in panels.
pub(super) fn pack_coded(panels: Panels, factor: Coded, into: &mut [f32]) {
    match factor.dtype {
        DType::Bf16 => pack_tiles::<bf16>(panels, factor, into, pack_part),
        DType::F16 => pack_tiles::<f16>(panels, factor, into, |panels, part, into| pack_single(part, panels, into)),
        _ => pack_tiles::<f32>(panels, factor, into, pack_part),
    }
}

fn pack_tiles<E: Float>(panels: Panels, factor: Coded, into: &mut [f32], pack: impl Fn(Panels, Part<E>, &mut [f32])) {
    let (rows, terms) = factor.extents();
    let along = !factor.transposed;
    let [tile_rows, tile_terms] = if along { [panels.width, MOST_LINE] } else { [ROWS, LINES] };
    let panel = words(panels.width, terms, panels);
    let mut tile = [E::zeroed(); TILE];
    for (first_row, into) in (0..rows).step_by(tile_rows).zip(into.chunks_mut(tile_rows / panels.width * panel)) {
        let rows = first_row..rows.min(first_row + tile_rows);
        for first_term in (0..terms).step_by(tile_terms) {
            let terms = first_term..terms.min(first_term + tile_terms);
            let stride = if along { terms.len() } else { rows.len() };
            match along {
                true => factor.decode(rows.clone(), terms.clone(), stride, &mut tile),
                false => factor.decode(terms.clone(), rows.clone(), stride, &mut tile),
            }
            // The words of some terms are contiguous in a panel.
            let before = panels.groups(first_term) * panels.width;
            for (number, into) in into.chunks_mut(panel).enumerate() {
                let first = number * panels.width;
                let rows = panels.width.min(rows.len() - first);
                let data = &tile[first * if along { stride } else { 1 }..];
                let into = &mut into[before..][..words(panels.width, terms.len(), panels)];
                pack(panels, Part { data, stride, rows, terms: terms.len(), along }, into);
            }
        }
    }
}
