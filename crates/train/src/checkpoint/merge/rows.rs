//! A matrix that is written with the product of an adapter added to it, in parts of whole rows.

use super::super::CheckpointError;
use super::super::bitsandbytes::Quantized;
use super::super::mxfp4::Packed;
use plimsoll_exec::{CodedMatrix, Encoder, converted};
use plimsoll_graph::ops::WeightLayout;
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
    /// Numbers in MXFP4.
    Packed(Packed<'a>),
}

impl Source<'_> {
    /// The values from index `first` on, in single precision.
    fn read(&self, first: usize, into: &mut [f32]) {
        match self {
            Self::Codes(weight) => weight.decode(first, into),
            Self::Packed(weight) => weight.read(first, into),
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

/// scale · left · right: (rows, rank) and (rank, columns), of experts one below the other.
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
        let experts = self.right.len() / (self.rank * to.len());
        let expert = row * experts / (self.left.len() / self.rank);
        let right = self.right[expert * self.rank * to.len()..].chunks_exact(to.len());
        for (&factor, right) in self.left[row * self.rank..][..self.rank].iter().zip(right) {
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
    /// The norms that the sum gets for each output.
    pub(super) magnitudes: Option<Magnitudes>,
}

/// The magnitudes of the outputs of a layer.
pub(super) struct Magnitudes {
    pub(super) values: Vec<f32>,
    pub(super) layout: WeightLayout,
}

impl Magnitudes {
    /// Factors of outputs whose sums of squares these are; of zeros, zero.
    fn factors(&self, squares: &[f64]) -> Vec<f32> {
        let over = |(&magnitude, &square): (&f32, &f64)| match square > 0.0 {
            true => (f64::from(magnitude) / square.sqrt()) as f32,
            false => 0.0,
        };
        self.values.iter().zip(squares).map(over).collect()
    }
}

impl Matrix<'_> {
    /// Writes the sum of the matrix and the product, rounded once. The outer error is the disk's; the inner one is
    /// `NotFinite`.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<Result<(), CheckpointError>> {
        let [rows, columns] = self.shape;
        let other = self.codes.iter().filter(|part| !self.source.has_codes(part.format, &part.elements));
        let coded = other.map(|part| Coded::encode(&self.source, columns, part)).collect::<Vec<_>>();
        let sum = |row: usize, values: &mut [f32]| {
            self.source.read(row * columns, values);
            coded.iter().for_each(|coded| coded.decode(row, values));
            if let Some(product) = &self.product {
                product.add_row(row, values);
            }
        };
        let factors = self.magnitudes.as_ref().map(|magnitudes| {
            let squares = squares(magnitudes.layout, self.shape, &sum);
            (magnitudes.layout, magnitudes.factors(&squares))
        });
        let of_part = (PART / columns).max(1);
        for first in (0..rows).step_by(of_part) {
            let mut values = vec![0.0; of_part.min(rows - first) * columns];
            let fill = |(row, values): (usize, &mut [f32])| {
                let row = first + row;
                sum(row, values);
                match &factors {
                    Some((WeightLayout::OutIn, factors)) => values.iter_mut().for_each(|value| *value *= factors[row]),
                    Some((WeightLayout::InOut, factors)) => {
                        values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
                    }
                    None => {}
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

/// The sum of squares of each output of a matrix whose rows `read` sets.
fn squares(layout: WeightLayout, [rows, columns]: [usize; 2], read: &(impl Fn(usize, &mut [f32]) + Sync)) -> Vec<f64> {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let row = |values: &mut Vec<f32>, row: usize| {
        read(row, values);
        values.iter().map(square).collect::<Vec<_>>()
    };
    let of_rows = (0..rows).into_par_iter().map_init(|| vec![0.0; columns], row);
    match layout {
        WeightLayout::OutIn => of_rows.map(|squares| squares.into_iter().sum()).collect(),
        WeightLayout::InOut => {
            let add = |mut sums: Vec<f64>, squares: Vec<f64>| {
                sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
                sums
            };
            of_rows.reduce(|| vec![0.0; columns], add)
        }
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
