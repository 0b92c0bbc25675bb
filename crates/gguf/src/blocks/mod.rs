//! Encodings of rows of weights, as tensors of a GGUF file have them.
//!
//! | name | numbers per block | bytes per block | a number |
//! | --- | --- | --- | --- |
//! | F32, F16, BF16 | 1 | 4, 2, 2 | itself, rounded to the nearest |
//! | Q8_0 | 32 | 34 | d · q, q from -127 to 127 |
//! | Q5_0 | 32 | 22 | d · (q - 16), q from 0 to 31 |
//! | Q4_K, Q5_K | 256 | 144, 176 | d · s · q - m · t, with s and t of 6 bits for each 32 numbers |
//! | Q6_K | 256 | 210 | d · s · (q - 32), with s of 8 bits for each 16 numbers |
//!
//! Source of the formats: `ggml-common.h` of ggml. The searches for scales are our own.

mod asymmetric;
mod q6_k;
mod simple;

use half::{bf16, f16};

/// Numbers of a block of the encodings with scales of scales.
pub(crate) const SUPER_BLOCK: usize = 256;
/// Numbers of a block of Q8_0 and Q5_0.
pub(crate) const BLOCK: usize = 32;

/// The inverse of a scale; 0 for numbers that are all zero.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// How a tensor's numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Integers of 8 bits.
    Q8_0,
    /// Integers of 5 bits.
    Q5_0,
    /// Integers of 4 bits with an offset.
    Q4K,
    /// Integers of 5 bits with an offset.
    Q5K,
    /// Integers of 6 bits.
    Q6K,
}

impl Encoding {
    /// ggml's number of the encoding. Source: `enum ggml_type` in `ggml.h`.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q5_0 => 6,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Bf16 => 30,
        }
    }

    /// ggml's name of the encoding.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q5_0 => "Q5_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Numbers and bytes of a block.
    pub fn block(self) -> [usize; 2] {
        match self {
            Self::F32 => [1, 4],
            Self::F16 | Self::Bf16 => [1, 2],
            Self::Q8_0 => [BLOCK, 34],
            Self::Q5_0 => [BLOCK, 22],
            Self::Q4K => [SUPER_BLOCK, 144],
            Self::Q5K => [SUPER_BLOCK, 176],
            Self::Q6K => [SUPER_BLOCK, 210],
        }
    }

    /// Whether rows of this length are whole blocks.
    pub(crate) fn fits(self, columns: usize) -> bool {
        columns.is_multiple_of(self.block()[0])
    }

    /// Bytes of this many numbers, which are whole blocks.
    pub(crate) fn bytes(self, numbers: u64) -> u64 {
        let [of_block, bytes] = self.block();
        numbers / of_block as u64 * bytes as u64
    }

    /// Encodes whole blocks. Panics if the lengths do not fit each other.
    pub fn encode(self, numbers: &[f32], bytes: &mut [u8]) {
        let [of_block, of_bytes] = self.block();
        assert_eq!(numbers.len() / of_block * of_bytes, bytes.len(), "{} of {} numbers", self.name(), numbers.len());
        let blocks = numbers.chunks_exact(of_block).zip(bytes.chunks_exact_mut(of_bytes));
        for (numbers, bytes) in blocks {
            match self {
                Self::F32 => bytes.copy_from_slice(&numbers[0].to_le_bytes()),
                Self::F16 => bytes.copy_from_slice(&f16::from_f32(numbers[0]).to_le_bytes()),
                Self::Bf16 => bytes.copy_from_slice(&bf16::from_f32(numbers[0]).to_le_bytes()),
                Self::Q8_0 => simple::q8_0(numbers, bytes),
                Self::Q5_0 => simple::q5_0(numbers, bytes),
                Self::Q4K => asymmetric::q4_k(numbers, bytes),
                Self::Q5K => asymmetric::q5_k(numbers, bytes),
                Self::Q6K => q6_k::q6_k(numbers, bytes),
            }
        }
    }
}
