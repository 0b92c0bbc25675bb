//! Frozen weight matrices in codes: encoding, part by part while a model is loaded, and decoding, for kernels on the
//! processor. The tensors of each format: `WeightCodes` in `graph`.

mod int8;
mod nf4;
#[cfg(test)]
mod tests;

pub(crate) use nf4::{LEVELS, scale_levels};

use plimsoll_graph::{NF4_BLOCK, WeightCodes};

/// The values of the codes of [`WeightCodes::Nf4`], as parts of a scale: those of weights, and those of scales.
pub fn nf4_levels() -> [&'static [f32]; 2] {
    [&LEVELS, scale_levels()]
}

/// Encodes a matrix (out, in), part by part from its first weight.
#[derive(Debug)]
pub struct Encoder {
    format: WeightCodes,
    columns: usize,
    /// The scales so far.
    absmax: Vec<f32>,
}

impl Encoder {
    /// Encodes matrices whose rows have this many columns.
    pub fn new(format: WeightCodes, columns: usize) -> Self {
        Self { format, columns, absmax: Vec::new() }
    }

    /// Weights of which all parts but the last must be a multiple: whole rows with whole scales.
    pub fn multiple(&self) -> usize {
        match self.format {
            WeightCodes::Nf4 => self.columns * NF4_BLOCK,
            WeightCodes::Int8 => self.columns,
        }
    }

    /// The codes of the next weights. Their number must be a multiple of [`multiple`](Self::multiple), unless they are
    /// the last.
    pub fn encode(&mut self, weights: &[f32]) -> Vec<u8> {
        match self.format {
            WeightCodes::Nf4 => nf4::encode(weights, &mut self.absmax),
            WeightCodes::Int8 => int8::encode(weights, self.columns, &mut self.absmax),
        }
    }

    /// The bytes of the scales' tensors, in the order of [`WeightCodes::scales`].
    pub fn scales(self) -> Vec<Vec<u8>> {
        match self.format {
            WeightCodes::Nf4 => {
                let offset = nf4::mean(&self.absmax);
                let (codes, nested) = nf4::encode_scales(&self.absmax, offset);
                vec![codes, bytemuck::cast_slice(&nested).to_vec(), offset.to_ne_bytes().to_vec()]
            }
            WeightCodes::Int8 => vec![bytemuck::cast_slice(&self.absmax).to_vec()],
        }
    }
}

/// The tensors of a matrix in codes.
#[derive(Debug, Clone, Copy)]
pub struct CodedMatrix<'a> {
    columns: usize,
    codes: &'a [u8],
    scales: Scales<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Scales<'a> {
    Nf4 { absmax: &'a [u8], nested_absmax: &'a [f32], offset: f32 },
    PlainNf4 { absmax: &'a [f32] },
    Int8 { absmax: &'a [f32] },
}

impl<'a> CodedMatrix<'a> {
    /// The matrix whose rows have this many columns, from the bytes of its codes and of its scales in the order of
    /// [`WeightCodes::scales`]. Panics if there are fewer scales, or if floats are not aligned.
    pub fn new(format: WeightCodes, columns: usize, codes: &'a [u8], scales: &[&'a [u8]]) -> Self {
        let floats = |index: usize| bytemuck::cast_slice::<u8, f32>(scales[index]);
        let scales = match format {
            WeightCodes::Nf4 => Scales::Nf4 { absmax: scales[0], nested_absmax: floats(1), offset: floats(2)[0] },
            WeightCodes::Int8 => Scales::Int8 { absmax: floats(0) },
        };
        Self { columns, codes, scales }
    }

    /// The matrix in [`WeightCodes::Nf4`] whose scales, one for each block, are not quantized: the form of bitsandbytes
    /// without double quantization.
    pub fn plain_nf4(columns: usize, codes: &'a [u8], absmax: &'a [f32]) -> Self {
        Self { columns, codes, scales: Scales::PlainNf4 { absmax } }
    }

    /// Decodes consecutive weights of a row from column `first` on. Panics if the row has fewer.
    pub fn decode(&self, row: usize, first: usize, into: &mut [f32]) {
        assert!(first + into.len() <= self.columns, "{} columns from {first} of {}", into.len(), self.columns);
        let from = row * self.columns + first;
        match self.scales {
            Scales::Nf4 { absmax, nested_absmax, offset } => {
                nf4::decode(self.codes, from, |block| nf4::scale(absmax, nested_absmax, offset, block), into);
            }
            Scales::PlainNf4 { absmax } => nf4::decode(self.codes, from, |block| absmax[block], into),
            Scales::Int8 { absmax } => int8::decode(&self.codes[from..][..into.len()], absmax[row], into),
        }
    }
}
