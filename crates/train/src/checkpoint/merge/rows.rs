//! A matrix that is written with the product of an adapter added to it, in parts of whole rows.

use super::super::CheckpointError;
use super::super::bitsandbytes::Quantized;
use plimsoll_exec::{CodedMatrix, Encoder, converted};
use plimsoll_graph::{DType, WeightCodes};
use rayon::prelude::*;
use std::io::{self, Write};
use std::ops::Range;

/// Values computed and written at a time, in whole rows.
const PART: usize = 1 << 20;

/// The values of a matrix in the files of weights.
pub(super) enum Source<'a> {
    /// Floats of this dtype.
    Floats(&'a [u8], DType),
    /// Codes of bitsandbytes.
    Codes(Quantized<'a>),
}

impl Source<'_> {
    /// The values from index `first` on, in single precision.
    fn read(&self, first: usize, into: &mut [f32]) {
        match self {
            Self::Codes(weight) => weight.decode(first, into),
            Self::Floats(bytes, dtype) => {
                let size = dtype.size_bytes() as usize;
                into.copy_from_slice(&floats(&bytes[first * size..][..into.len() * size], *dtype));
            }
        }
    }

    /// Whether its codes of these elements are those of a format.
    fn has_codes(&self, format: WeightCodes, elements: &Range<usize>) -> bool {
        matches!(self, Self::Codes(weight) if weight.coded(format, elements).is_some())
    }
}

/// The values of bytes in single precision.
pub(super) fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let bytes = converted(bytes, dtype, DType::F32);
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

/// scale · left · right: (rows, rank) and (rank, columns).
pub(super) struct Product {
    pub(super) left: Vec<f32>,
    pub(super) right: Vec<f32>,
    pub(super) rank: usize,
    pub(super) scale: f32,
}

impl Product {
    /// Adds one of its rows.
    fn add_row(&self, row: usize, to: &mut [f32]) {
        let mut sum = vec![0.0_f32; to.len()];
        for (&factor, right) in self.left[row * self.rank..][..self.rank].iter().zip(self.right.chunks_exact(to.len()))
        {
            sum.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * value);
        }
        to.iter_mut().zip(sum).for_each(|(value, sum)| *value += self.scale * sum);
    }
}

/// A matrix that is written.
pub(super) struct Matrix<'a> {
    pub(super) name: &'a str,
    pub(super) shape: [usize; 2],
    pub(super) source: Source<'a>,
    /// The dtype to write.
    pub(super) dtype: DType,
    /// Parts that are encoded and decoded first.
    pub(super) codes: &'a [CodedPart],
    /// What is added.
    pub(super) product: Option<Product>,
}

impl Matrix<'_> {
    /// Writes the sum of the matrix and the product, rounded once. The outer error is the disk's; the inner one is
    /// `NotFinite`.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<Result<(), CheckpointError>> {
        let [rows, columns] = self.shape;
        let other = self.codes.iter().filter(|part| !self.source.has_codes(part.format, &part.elements));
        let coded = other.map(|part| Coded::encode(&self.source, columns, part)).collect::<Vec<_>>();
        let of_part = (PART / columns).max(1);
        for first in (0..rows).step_by(of_part) {
            let mut values = vec![0.0; of_part.min(rows - first) * columns];
            let fill = |(row, values): (usize, &mut [f32])| {
                let row = first + row;
                self.source.read(row * columns, values);
                coded.iter().for_each(|coded| coded.decode(row, values));
                if let Some(product) = &self.product {
                    product.add_row(row, values);
                }
            };
            values.par_chunks_mut(columns).enumerate().for_each(fill);
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
            let merged = converted(&bytes, DType::F32, self.dtype);
            if floats(&merged, self.dtype).iter().any(|value| !value.is_finite()) {
                return Ok(Err(CheckpointError::NotFinite { tensor: self.name.to_owned() }));
            }
            out.write_all(&merged)?;
        }
        Ok(Ok(()))
    }
}

/// Elements of a layer that are encoded, with scales of their own.
pub(super) struct CodedPart {
    pub(super) format: WeightCodes,
    pub(super) elements: Range<usize>,
}

/// Rows of a matrix in codes.
struct Coded {
    format: WeightCodes,
    rows: Range<usize>,
    codes: Vec<u8>,
    /// Words, so that scales in single precision are aligned; and the bytes of each.
    scales: Vec<(Vec<u32>, usize)>,
}

impl Coded {
    fn encode(source: &Source, columns: usize, part: &CodedPart) -> Self {
        let mut encoder = Encoder::new(part.format, columns);
        let step = encoder.multiple() * (PART / encoder.multiple()).max(1);
        let mut codes = Vec::new();
        for first in part.elements.clone().step_by(step) {
            let mut values = vec![0.0; step.min(part.elements.end - first)];
            source.read(first, &mut values);
            codes.extend(encoder.encode(&values));
        }
        let scales = encoder.scales().into_iter().map(|bytes| {
            let mut words = vec![0_u32; bytes.len().div_ceil(size_of::<u32>())];
            bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
            (words, bytes.len())
        });
        let scales = scales.collect();
        let rows = part.elements.start / columns..part.elements.end / columns;
        Self { format: part.format, rows, codes, scales }
    }

    /// Replaces a row of the matrix by the decoded one, if it is here.
    fn decode(&self, row: usize, into: &mut [f32]) {
        if self.rows.contains(&row) {
            let scales = self.scales.iter().map(|(words, bytes)| &bytemuck::cast_slice(words)[..*bytes]);
            let scales = scales.collect::<Vec<_>>();
            let matrix = CodedMatrix::new(self.format, into.len(), &self.codes, &scales);
            matrix.decode(row - self.rows.start, 0, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::contents::transposed;
    use super::*;

    #[test]
    fn a_product_is_added_in_either_layout() {
        // B A = [[1, -1], [2, 0.5]] · [[1, 2, 3], [4, 5, 6]] = [[-3, -3, -3], [4, 6.5, 9]].
        let (down, up) = (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![1.0, -1.0, 2.0, 0.5]);
        let rows = |product: &Product, rows: usize, columns: usize| {
            let mut all = vec![1.0; rows * columns];
            all.chunks_exact_mut(columns).enumerate().for_each(|(row, values)| product.add_row(row, values));
            all
        };
        let straight = Product { left: up.clone(), right: down.clone(), rank: 2, scale: 2.0 };
        assert_eq!(rows(&straight, 2, 3), [-5.0, -5.0, -5.0, 9.0, 14.0, 19.0]);
        let (left, right) = (transposed(&down, 3), transposed(&up, 2));
        let turned = Product { left, right, rank: 2, scale: 2.0 };
        assert_eq!(rows(&turned, 3, 2), [-5.0, 9.0, -5.0, 14.0, -5.0, 19.0]);
    }
}
