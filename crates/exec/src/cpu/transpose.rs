//! Transposing, with care for caches: of every line that is read, all is used while it is there.

use super::matrix::Matrix;
use super::vectorize::vectorized;

/// Floats of a cache line.
pub(super) const LINE: usize = 16;

/// Rows that are read together, few enough to stay in a cache wherever they lie.
const ROWS: usize = 8;

vectorized! {
    /// Copies columns of the matrix from `first` on to rows, as many as there is room for.
    /// Panics if the matrix has fewer, or is transposed itself.
    pub(super) fn transpose<S: Simd>(simd: S, into: &mut [f32], matrix: Matrix, first: usize) {
        let (height, _) = matrix.extents();
        let columns = into.len() / height;
        for row in (0..height).step_by(ROWS) {
            let rows = row..height.min(row + ROWS);
            for (part, into) in into.chunks_mut(LINE * height).enumerate() {
                let part = part * LINE..columns.min((part + 1) * LINE);
                if (rows.len(), part.len()) == (ROWS, LINE) {
                    let tile: [[f32; LINE]; ROWS] = std::array::from_fn(|r| {
                        *matrix.row(row + r)[first + part.start..].first_chunk().expect("columns that are there")
                    });
                    for (column, into) in into.chunks_exact_mut(height).enumerate() {
                        let into: &mut [f32; ROWS] = into[row..].first_chunk_mut().expect("room for each row");
                        *into = std::array::from_fn(|r| tile[r][column]);
                    }
                } else {
                    for row in rows.clone() {
                        let elements = &matrix.row(row)[first..][part.clone()];
                        for (into, &element) in into.chunks_exact_mut(height).zip(elements) {
                            into[row] = element;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_columns_become_rows() {
        for [height, width, first, count] in
            [[1, 1, 0, 1], [8, 16, 0, 16], [64, 64, 0, 64], [13, 40, 3, 33], [5, 9, 8, 1]]
        {
            let data = (0..height * (width + 2)).map(|i| i as f32).collect::<Vec<_>>();
            let mut rows = vec![f32::NAN; count * height];
            transpose(&mut rows, Matrix::strided(&data, height, width, width + 2), first);
            for (index, found) in rows.into_iter().enumerate() {
                let (column, row) = (first + index / height, index % height);
                assert_eq!(
                    found,
                    data[row * (width + 2) + column],
                    "row {row}, column {column} of {height} by {width}"
                );
            }
        }
    }
}
