//! Views of matrices in slices. A view's bounds are checked when it is created, so that a product may use its pointers.
//! Products are in `product.rs`.

use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;

/// A read-only matrix; only this file creates one. Element (i, j) is at `i * row_stride + j * column_stride`.
pub(super) struct Matrix<'a, T = f32> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

// Derived implementations would require `T: Copy`.
impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<'_, T> {}

impl<'a, T> Matrix<'a, T> {
    /// The first `columns` of each of `rows` rows that begin `stride` elements apart. Panics if they are not within the
    /// slice.
    pub(super) fn strided(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert_inside(data.len(), rows, columns, stride);
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Contiguous rows. Panics if they don't fill the slice exactly.
    pub(super) fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a {rows} by {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// Rows and columns.
    pub(super) fn extents(self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Some of the rows. Panics if the range is out of bounds.
    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // Without rows, the first one may begin after the slice's end.
        let start = (range.start * self.row_stride).min(self.data.len());
        Self { data: &self.data[start..], rows: range.len(), ..self }
    }

    /// Row `row`, which is contiguous. Panics if it is out of bounds, or if the matrix is transposed.
    pub(super) fn row(self, row: usize) -> &'a [T] {
        assert!(row < self.rows && self.column_stride == 1, "row {row} of {}", self.rows);
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// The transpose, as a view of the same elements.
    pub(super) fn transposed(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self { data, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// Some of the columns. Panics if the range is out of bounds.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }
}

/// A mutable matrix: contiguous rows, `stride` apart, without the gaps between them. Only this file creates one.
pub(super) struct MatrixMut<'a, T = f32> {
    pub(super) start: *mut T,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: a view has exclusive access to its elements, as `&mut [T]` has, which is `Send` too.
unsafe impl<T: Send> Send for MatrixMut<'_, T> {}

impl<'a, T: Pod> Matrix<'a, T> {
    /// The same bits as numbers of another type. Panics if its size differs.
    pub(super) fn cast<U: Pod>(self) -> Matrix<'a, U> {
        assert_eq!(size_of::<T>(), size_of::<U>(), "bytes of an element");
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Matrix { data: bytemuck::cast_slice(data), rows, columns, row_stride, column_stride }
    }
}

impl<T: Pod> MatrixMut<'_, T> {
    /// The same bits as numbers of another type. Panics if its size differs.
    pub(super) fn cast<U: Pod>(&mut self) -> MatrixMut<'_, U> {
        assert_eq!((size_of::<T>(), align_of::<T>()), (size_of::<U>(), align_of::<U>()), "an element");
        // All bit patterns are valid for both types.
        MatrixMut {
            start: self.start.cast(),
            rows: self.rows,
            columns: self.columns,
            stride: self.stride,
            owner: PhantomData,
        }
    }
}

impl<'a, T: Copy + Send> MatrixMut<'a, T> {
    /// Contiguous rows. Panics if they don't fill the slice exactly.
    pub(super) fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a {rows} by {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// The first `columns` of each of `rows` rows that begin `stride` elements apart. Panics if they are not within the
    /// slice, or overlap.
    pub(super) fn strided(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows of {columns} elements overlap at a stride of {stride}");
        assert_inside(data.len(), rows, columns, stride);
        Self { start: data.as_mut_ptr(), rows, columns, stride, owner: PhantomData }
    }

    /// Cuts the matrix into blocks of `width` columns; the last may be narrower. Panics if `width` is zero.
    pub(super) fn column_blocks(self, width: usize) -> impl Iterator<Item = MatrixMut<'a, T>> + Send {
        (0..self.columns.div_ceil(width)).map(move |block| self.column_block(block * width, width))
    }

    /// At most `width` columns from `first` on. The caller must not request the same column twice.
    fn column_block(&self, first: usize, width: usize) -> MatrixMut<'a, T> {
        MatrixMut { start: self.start.wrapping_add(first), columns: width.min(self.columns - first), ..*self }
    }

    /// Cuts the matrix into blocks of `height` rows; the last may have fewer. Panics if `height` is zero.
    pub(super) fn row_blocks(self, height: usize) -> impl Iterator<Item = MatrixMut<'a, T>> + Send {
        (0..self.rows.div_ceil(height)).map(move |block| self.row_block(block * height, height))
    }

    /// At most `height` rows from `first` on. The caller must not request the same row twice.
    fn row_block(&self, first: usize, height: usize) -> MatrixMut<'a, T> {
        MatrixMut { start: self.start.wrapping_add(first * self.stride), rows: height.min(self.rows - first), ..*self }
    }

    /// Splits the matrix into these columns. Panics if the ranges don't ascend or are out of bounds.
    pub(super) fn column_parts(
        self,
        parts: impl Iterator<Item = Range<usize>> + Send,
    ) -> impl Iterator<Item = MatrixMut<'a, T>> + Send {
        ascending(parts, self.columns).map(move |columns| self.column_block(columns.start, columns.len()))
    }

    /// Splits the matrix into these rows. Panics if the ranges don't ascend or are out of bounds.
    pub(super) fn row_parts(
        self,
        parts: impl Iterator<Item = Range<usize>> + Send,
    ) -> impl Iterator<Item = MatrixMut<'a, T>> + Send {
        ascending(parts, self.rows).map(move |rows| self.row_block(rows.start, rows.len()))
    }

    /// Some of the rows. Panics if the range is out of bounds.
    pub(super) fn rows(&mut self, range: Range<usize>) -> MatrixMut<'_, T> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        MatrixMut { start: self.start.wrapping_add(range.start * self.stride), rows: range.len(), ..*self }
    }

    /// Some of the columns. Panics if the range is out of bounds.
    pub(super) fn columns(&mut self, range: Range<usize>) -> MatrixMut<'_, T> {
        assert!(range.start <= range.end && range.end <= self.columns, "columns {range:?} of {}", self.columns);
        MatrixMut { start: self.start.wrapping_add(range.start), columns: range.len(), ..*self }
    }

    /// Some of the rows and columns. Panics if a range is out of bounds.
    pub(super) fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'_, T> {
        let part = self.rows(rows);
        assert!(columns.start <= columns.end && columns.end <= part.columns, "columns {columns:?} of {}", part.columns);
        MatrixMut { start: part.start.wrapping_add(columns.start), columns: columns.len(), ..part }
    }

    /// Number of rows.
    pub(super) fn row_count(&self) -> usize {
        self.rows
    }

    /// Sets all elements.
    pub(super) fn fill(&mut self, value: T) {
        (0..self.rows).for_each(|row| self.row(row).fill(value));
    }

    /// Row `row`. Panics if it is out of bounds.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the constructor checked that all rows are within the slice, the assertion that this is one of them,
        // and the view has exclusive access to its elements while it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.columns) }
    }
}

/// The same ranges. Panics if one begins before the previous one's end, or ends after `end`.
fn ascending(
    ranges: impl Iterator<Item = Range<usize>> + Send,
    end: usize,
) -> impl Iterator<Item = Range<usize>> + Send {
    let mut free = 0;
    ranges.inspect(move |range| {
        assert!(free <= range.start && range.start <= range.end && range.end <= end, "{range:?} of {free}..{end}");
        free = range.end;
    })
}

/// Panics unless `rows` rows of `columns` elements, `stride` apart, end within `length` elements.
fn assert_inside(length: usize, rows: usize, columns: usize, stride: usize) {
    let end = rows.saturating_sub(1).saturating_mul(stride).saturating_add(columns);
    assert!(rows == 0 || end <= length, "{rows} rows of {columns} elements, {stride} apart, in {length} elements");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_blocks_cover_a_matrix_once() {
        let mut data = vec![0.0; 3 * 10];
        for (number, mut block) in MatrixMut::strided(&mut data, 3, 8, 10).column_blocks(3).enumerate() {
            for row in 0..block.row_count() {
                for x in block.row(row) {
                    *x += (number + 1) as f32;
                }
            }
        }
        assert_eq!(data, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 0.0, 0.0].repeat(3));
    }

    #[test]
    #[should_panic(expected = "2..4 of 3..10")]
    fn parts_that_overlap_are_refused() {
        let mut data = vec![0.0; 10 * 2];
        MatrixMut::new(&mut data, 10, 2).row_parts([0..3, 2..4].into_iter()).for_each(drop);
    }

    #[test]
    #[should_panic(expected = "4 rows of 3 elements, 5 apart, in 17 elements")]
    fn a_matrix_that_ends_beyond_its_slice_is_refused() {
        MatrixMut::strided(&mut [0.0; 17], 4, 3, 5);
    }
}
