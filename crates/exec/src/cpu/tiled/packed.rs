//! Small products on one worker whose operands are multiplied several times, as in attention: each operand is packed
//! once, in the panels that the kernels of larger products read, and tiles or terms that are known to be zero are
//! skipped.

use super::kernel::{Kernel, MOST_TILE, Panels};
use super::pack::{MOST_ROWS, pack, words};
use super::{Factor, Instructions, LINE, Sums, instructions, store};
use plimsoll_graph::DType;
use std::ops::Range;

/// An operand in panels, or a part of one.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Packed<'a> {
    words: &'a [f32],
    panels: Panels,
    /// Rows of a left operand, columns of a right one.
    lines: usize,
    /// Words of the sum in a packed panel.
    groups: usize,
    /// The words that are in this part.
    first: usize,
    count: usize,
}

impl Packed<'_> {
    /// Some of the rows, or columns of a right operand. Panics if they begin within a panel or are out of bounds.
    pub(in crate::cpu) fn lines(self, lines: Range<usize>) -> Self {
        let begins = lines.start.is_multiple_of(self.panels.width);
        assert!(begins && lines.end <= self.lines, "lines {lines:?} of {}", self.lines);
        Self { words: &self.words[(lines.start * self.groups).min(self.words.len())..], lines: lines.len(), ..self }
    }

    /// Some of the terms, padded to whole steps of the kernel. Panics if they begin within a step or are out of bounds.
    pub(in crate::cpu) fn terms(self, terms: Range<usize>) -> Self {
        let first = self.panels.groups(terms.start);
        let count = self.panels.groups(terms.end) - first;
        let begins = terms.start == first * self.panels.terms();
        assert!(begins && first + count <= self.count, "terms {terms:?} of {} groups", self.count);
        Self { first: self.first + first, count, ..self }
    }

    /// The words of panel `index`.
    fn panel(&self, index: usize) -> &[f32] {
        let width = self.panels.width;
        &self.words[(index * self.groups + self.first) * width..][..self.count * width]
    }

    /// The rows or columns of each panel.
    fn panel_lines(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (lines, width) = (self.lines, self.panels.width);
        (0..lines).step_by(width).map(move |first| first..lines.min(first + width))
    }
}

/// Multiplies operands in panels, with this process's instructions.
pub(in crate::cpu) struct PackedProducts(Kernel);

/// A tile that is aligned to a cache line.
#[repr(align(64))]
struct Tile([f32; MOST_TILE]);

impl PackedProducts {
    /// For operands in this precision; either kernel accepts operands in single precision.
    pub(in crate::cpu) fn of(dtype: DType) -> Self {
        Self::by(instructions(), dtype)
    }

    /// With the given instructions.
    fn by(path: Instructions, dtype: DType) -> Self {
        Self(Kernel::of(path, dtype == DType::Bf16, true))
    }

    /// Packs a left operand, (rows, terms), at the beginning of `room`, which becomes the memory after it.
    pub(in crate::cpu) fn left<'r>(&self, factor: Factor, room: &mut &'r mut [f32]) -> Packed<'r> {
        packed(self.0.left(), factor, room)
    }

    /// Packs a right operand, (terms, columns), as [`left`](Self::left) does.
    pub(in crate::cpu) fn right<'r>(&self, factor: Factor, room: &mut &'r mut [f32]) -> Packed<'r> {
        packed(self.0.right(), factor.transposed(), room)
    }

    /// into = scale · a b in the tiles for whose rows and columns `is_wanted` is true, and zeros in the others. Panics
    /// if the extents don't match.
    pub(in crate::cpu) fn multiply(
        &self,
        into: &mut Sums,
        scale: f32,
        a: Packed,
        b: Packed,
        is_wanted: impl Fn(&Range<usize>, &Range<usize>) -> bool,
    ) {
        assert_eq!((into.extents(), a.count), ((a.lines, b.lines), b.count), "extents of a product");
        let Self(kernel) = self;
        let mut tile = Tile([0.0; _]);
        let tile = &mut tile.0[..kernel.rows * kernel.columns];
        for (index, rows) in a.panel_lines().enumerate() {
            for (column, columns) in b.panel_lines().enumerate() {
                if is_wanted(&rows, &columns) {
                    kernel.multiply(a.panel(index), b.panel(column), tile, false);
                } else {
                    tile.fill(0.0);
                }
                store::store(into, rows.clone(), columns, scale, tile, kernel.columns);
            }
        }
    }

    /// into = a b, where the sums of rows are over the terms that `terms` returns for them. Packs `a` a panel at a
    /// time.
    pub(in crate::cpu) fn multiply_unpacked(
        &self,
        into: &mut Sums,
        a: Factor,
        b: Packed,
        room: &mut [f32],
        terms: impl Fn(&Range<usize>) -> Range<usize>,
    ) {
        let (panels, (count, inner)) = (self.0.left(), a.extents());
        let step = panels.multiple * panels.terms();
        for first in (0..count).step_by(panels.width) {
            let rows = first..count.min(first + panels.width);
            let terms = terms(&rows);
            let terms = terms.start / step * step..terms.end.min(inner);
            let panel = self.left(a.rows(rows.clone()).columns(terms.clone()), &mut &mut *room);
            self.multiply(&mut into.part(rows, 0..b.lines), 1.0, panel, b.terms(terms), |_, _| true);
        }
    }
}

fn packed<'r>(panels: Panels, factor: Factor, room: &mut &'r mut [f32]) -> Packed<'r> {
    let (lines, terms) = factor.extents();
    let groups = panels.groups(terms);
    let all = words(lines, terms, panels);
    let (into, rest) = std::mem::take(room).split_at_mut(all.next_multiple_of(LINE));
    *room = rest;
    // Whole panels that are packed at a time.
    let most = MOST_ROWS / panels.width * panels.width;
    for (first, into) in (0..lines).step_by(most).zip(into[..all].chunks_mut((most * groups).max(1))) {
        pack(panels, factor, first..lines.min(first + most), 0..terms, into);
    }
    Packed { words: &into[..all], panels, lines, groups, first: 0, count: groups }
}

#[cfg(test)]
mod tests {
    use super::super::super::matrix::{Matrix, MatrixMut};
    use super::super::tests::{element, matrix, numbers};
    use super::*;
    use ::half::{bf16, f16};
    use plimsoll_graph::ops::{TILE_MULTIPLE, panel_words};

    /// Rows, columns and terms of the packed operands.
    const SHAPES: [[usize; 3]; 6] =
        [[1, 1, 1], [97, 5, 33], [130, 70, 100], [40, 1100, 3], [2, 33, 193], [200, 64, 97]];

    /// Panics unless products of the whole operands, and of parts after some rows and terms, are exact with all
    /// available instructions, and packed operands fit the declared memory.
    fn check<E: super::super::super::half::Float>() {
        for path in Instructions::ALL.into_iter().filter(|path| path.is_available()) {
            for (seed, [rows, columns, inner]) in (1..).zip(SHAPES) {
                for transposed in [false, true] {
                    let (a, b) = (numbers::<E>(rows * inner, seed), numbers::<E>(inner * columns, seed + 100));
                    let (a, b) = (matrix(&a, rows, inner, 0, transposed), matrix(&b, inner, columns, 0, transposed));
                    check_packed(&PackedProducts::by(path, E::DTYPE), a, b);
                }
            }
        }
    }

    fn check_packed<E: super::super::super::half::Float>(products: &PackedProducts, a: Matrix<E>, b: Matrix<E>) {
        let ((rows, inner), columns) = (a.extents(), b.extents().1);
        let mut room = vec![f32::NAN; panel_words(rows, inner)];
        let left = products.left(E::factor(a), &mut &mut *room);
        let mut room = vec![f32::NAN; panel_words(columns, inner)];
        let right = products.right(E::factor(b), &mut &mut *room);
        for (row, term) in [(0, 0), (TILE_MULTIPLE, 0), (0, TILE_MULTIPLE), (TILE_MULTIPLE, TILE_MULTIPLE)] {
            if row >= rows || term >= inner {
                continue;
            }
            let exact = |i: usize, j: usize, terms: Range<usize>| {
                terms.map(|k| element(a, i, k) * element(b, k, j)).sum::<f32>()
            };
            let mut found = vec![f32::NAN; (rows - row) * columns];
            let mut into = Sums::F32 { into: MatrixMut::new(&mut found, rows - row, columns), keep: false, bias: None };
            let (left, right) = (left.lines(row..rows).terms(term..inner), right.terms(term..inner));
            products.multiply(&mut into, 0.5, left, right, |rows, columns| rows.start <= columns.start);
            for (index, found) in found.iter().enumerate() {
                let (i, j) = (index / columns, index % columns);
                let first = |line: usize, width: usize| line / width * width;
                let wanted = first(i, products.0.rows) <= first(j, products.0.columns);
                let expected = if wanted { 0.5 * exact(row + i, j, term..inner) } else { 0.0 };
                assert_eq!(*found, expected, "{rows} {columns} {inner}, from {row}, {term}: {i}, {j}");
            }
            // Sums of later rows begin at later terms, and are added to the previous values.
            let mut room = vec![f32::NAN; panel_words(1, inner)];
            let mut found = vec![1.0; (rows - row) * columns];
            let mut into = Sums::F32 { into: MatrixMut::new(&mut found, rows - row, columns), keep: true, bias: None };
            let factor = E::factor(a.rows(row..rows).columns(term..inner));
            products.multiply_unpacked(&mut into, factor, right, &mut room, |rows| {
                rows.start.min(inner - term)..inner - term
            });
            for (index, found) in found.iter().enumerate() {
                let (i, j) = (index / columns, index % columns);
                let step = products.0.left().multiple * products.0.left().terms();
                let begins = (i / products.0.rows * products.0.rows).min(inner - term) / step * step;
                let expected = 1.0 + exact(row + i, j, term + begins..inner);
                assert_eq!(*found, expected, "{rows} {columns} {inner}, from {row}, {term}: {i}, {j}");
            }
        }
    }

    #[test]
    fn products_of_packed_operands_are_exact_from_any_panel_on() {
        check::<bf16>();
        check::<f16>();
    }
}
