//! Weights in MXFP4, as gpt-oss is published: 32 numbers of four bits share a scale, a power of two.
//!
//! ```text
//!   NAME_blocks (E, O, I/32, 16)   two numbers per byte, the lower bits first
//!   NAME_scales (E, O, I/32)       the exponent plus 127
//!   NAME        (E, I, O)          the weight of a layer of all experts
//! ```
//!
//! Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification"; `convert_moe_packed_tensors` of
//! transformers.

use super::CheckpointError;
use super::archive::{Archive, wrong};
use safetensors::tensor::Dtype;

/// The numbers of four bits.
const NUMBERS: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Numbers that share a scale.
const GROUP: usize = 32;

/// Bytes of a group.
const BYTES: usize = GROUP / 2;

const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// The name of the blocks of a weight.
pub(super) fn blocks(weight: &str) -> String {
    format!("{weight}{BLOCKS}")
}

/// The name of the blocks that these scales belong to, if it is a name of scales.
pub(super) fn blocks_of(scales: &str) -> Option<String> {
    scales.strip_suffix(SCALES).map(blocks)
}

/// The name of the scales of these blocks, if it is a name of blocks.
fn scales_of(blocks: &str) -> Option<String> {
    blocks.strip_suffix(BLOCKS).map(|weight| format!("{weight}{SCALES}"))
}

/// A weight of all experts in a file.
pub(super) struct Packed<'a> {
    /// I/32.
    groups: usize,
    /// O.
    outputs: usize,
    blocks: &'a [[u8; BYTES]],
    scales: &'a [u8],
}

impl<'a> Packed<'a> {
    /// The weight whose blocks have this name in a file; `None` if it is not the name of blocks. `shape`: the weight's.
    /// Errors: `MissingTensor` without scales; `WrongTensor` if the shapes differ.
    pub(super) fn find(archive: &'a Archive, name: &str, shape: &[usize]) -> Result<Option<Self>, CheckpointError> {
        let Some(of_scales) = scales_of(name) else { return Ok(None) };
        let (blocks, scales) = (archive.view(name)?, archive.view(&of_scales)?);
        let &[experts, inputs, outputs] = shape else {
            let expected = format!("F32 {shape:?}");
            return Err(wrong(archive.file_of(name), name, expected, &blocks));
        };
        let groups = inputs.div_ceil(GROUP);
        let expected = [experts, outputs, groups, BYTES];
        for (name, view, shape) in [(name, &blocks, &expected[..]), (&of_scales, &scales, &expected[..3])] {
            if view.dtype() != Dtype::U8 || view.shape() != shape || !inputs.is_multiple_of(GROUP) {
                return Err(wrong(archive.file_of(name), name, format!("U8 {shape:?}"), view));
            }
        }
        let (blocks, scales) = (blocks.data().as_chunks().0, scales.data());
        Ok(Some(Self { groups, outputs, blocks, scales }))
    }

    /// Sets `into` to the elements in single precision from index `first` on. Panics if there are fewer.
    pub(super) fn read(&self, mut first: usize, mut into: &mut [f32]) {
        while !into.is_empty() {
            let (row, output) = (first / self.outputs, first % self.outputs);
            let (of_row, rest) = into.split_at_mut(into.len().min(self.outputs - output));
            let (expert, input) = (row / (self.groups * GROUP), row % (self.groups * GROUP));
            let group = (expert * self.outputs + output) * self.groups + input / GROUP;
            let (byte, shift) = (input % GROUP / 2, input % 2 * 4);
            let groups = self.blocks[group..].iter().zip(&self.scales[group..]).step_by(self.groups);
            for (value, (block, &scale)) in of_row.iter_mut().zip(groups) {
                *value = NUMBERS[usize::from(block[byte] >> shift & 15)] * power(scale);
            }
            (first, into) = (first + of_row.len(), rest);
        }
    }
}

/// 2 to the power of the scale minus 127; infinite for 255, as in transformers.
fn power(scale: u8) -> f32 {
    match scale {
        0 => f32::from_bits(1 << 22),
        scale => f32::from_bits(u32::from(scale) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_powers_of_two() {
        for scale in 0..=254 {
            assert_eq!(f64::from(power(scale)), 2f64.powi(i32::from(scale) - 127));
        }
        assert_eq!(power(255), f32::INFINITY);
    }
}
