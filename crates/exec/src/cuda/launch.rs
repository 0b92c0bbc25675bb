//! Launches of kernels as plain data: the same for a card, for its stand-in, and for plans of other machines' cards.
//! Independent of the driver.

use super::product::Product;
use plimsoll_graph::{Io, Scalars};
use std::borrow::Cow;

/// A kernel's launch. Launches of one op run one after the other: each sees the writes of the previous ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The kernel's file without folder and extension: `add` for `kernels/add.cu`.
    pub module: &'static str,
    /// The kernel's name in that file.
    pub entry: Cow<'static, str>,
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block, all along the first axis.
    pub threads: u32,
    /// Dynamic shared memory of a block. More than 48 KiB must be requested from the driver.
    pub shared_bytes: u32,
    /// The kernel's arguments.
    pub arguments: Arguments,
}

/// A part of an op, to enqueue on its stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    /// A kernel.
    Kernel(Launch),
    /// A product.
    Product {
        /// How a library may compute it: as products, one after the other, each with kernels for the case that the
        /// library has no algorithm for it.
        pieces: Vec<(Product, Vec<Launch>)>,
        /// The kernels that compute it without a library.
        kernels: Vec<Launch>,
    },
}

impl Part {
    /// The kernels of this part without a library.
    pub(super) fn into_kernels(self) -> Vec<Launch> {
        match self {
            Self::Kernel(launch) => vec![launch],
            Self::Product { kernels, .. } => kernels,
        }
    }
}

impl From<Launch> for Part {
    fn from(launch: Launch) -> Self {
        Self::Kernel(launch)
    }
}

/// A kernel's arguments in the layout of its parameters: each at a multiple of its own size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
}

impl Arguments {
    fn push(mut self, align: usize, value: &[u8]) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        self.offsets.push(self.bytes.len());
        self.bytes.extend_from_slice(value);
        self
    }

    /// An address of the device; 0 for an absent operand.
    #[must_use]
    pub fn address(self, address: u64) -> Self {
        self.push(8, &address.to_le_bytes())
    }

    /// Addresses, each an argument of its own.
    #[must_use]
    pub fn addresses(self, addresses: &[u64]) -> Self {
        addresses.iter().fold(self, |arguments, &address| arguments.address(address))
    }

    /// A `u64`.
    #[must_use]
    pub fn long(self, value: u64) -> Self {
        self.push(8, &value.to_le_bytes())
    }

    /// An `int`, which must hold the value. Panics if it does not: no tensor that fits a card has such an extent.
    #[must_use]
    pub fn int(self, value: usize) -> Self {
        let value = i32::try_from(value).unwrap_or_else(|_| panic!("an extent of {value}"));
        self.push(4, &value.to_le_bytes())
    }

    /// A `u32`.
    #[must_use]
    pub fn word(self, value: u32) -> Self {
        self.push(4, &value.to_le_bytes())
    }

    /// A boolean as an `int`.
    #[must_use]
    pub fn flag(self, value: bool) -> Self {
        self.push(4, &u32::from(value).to_le_bytes())
    }

    /// A `float`.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.push(4, &value.to_le_bytes())
    }

    /// A structure of `double`s, by value.
    #[must_use]
    pub fn doubles(self, values: &[f64]) -> Self {
        self.push(8, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A structure of `float`s, by value.
    #[must_use]
    pub fn floats(self, values: &[f32]) -> Self {
        self.push(4, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A structure of `int`s, by value.
    #[must_use]
    pub fn ints(self, values: &[i32]) -> Self {
        self.push(4, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// A structure with these fields, by value, padded to a multiple of 8 bytes.
    #[must_use]
    pub fn record(self, fields: &Self) -> Self {
        let mut bytes = fields.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        self.push(8, &bytes)
    }

    /// All of them in the layout of the kernel's parameters.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The offset of each in [`bytes`](Self::bytes): drivers take a pointer to each.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The arguments of the size of an address, and all words of this size in structures.
    pub(super) fn longs(&self) -> impl Iterator<Item = u64> {
        let ends = self.offsets.iter().skip(1).copied().chain([self.bytes.len()]);
        let sized = self.offsets.iter().zip(ends).filter(|(from, to)| (to - *from).is_multiple_of(8));
        let words = sized.flat_map(|(&from, to)| self.bytes[from..to].chunks_exact(8));
        words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
    }
}

/// Working memory of an op.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Where it begins; a multiple of 256.
    pub address: u64,
    /// At least the bytes that the op declares.
    pub bytes: u64,
}

/// The addresses of an op's operands, results and scratch on the device. Operands begin at multiples of 256; an operand
/// that shares the memory of a result (the op's `reuse`) has the result's address.
#[derive(Debug, Clone)]
pub struct Operands<'a> {
    /// Addresses of the operands.
    pub inputs: Vec<u64>,
    /// Addresses of the results.
    pub outputs: Vec<u64>,
    /// Working memory.
    pub scratch: Scratch,
    /// Address of the [`device_scalars`].
    pub scalars: u64,
    /// Types of operands and results.
    pub io: Io<'a>,
    /// The card's compute capability: major and minor.
    pub compute_capability: (u8, u8),
    /// Whether products in single precision round their operands to TF32, if the card supports it.
    pub tf32: bool,
}

/// Bytes of `struct Scalars` of `kernels/common.cuh`.
const STRUCT_BYTES: usize = 64;

/// Offsets after that struct of the values that a library of products reads: alpha, which is the scale of the loss
/// times that of gradients, and zero and one for beta.
pub(super) const ALPHA: u64 = STRUCT_BYTES as u64;
pub(super) const ZERO_AND_ONE: [u64; 2] = [ALPHA + 4, ALPHA + 8];

/// The run's scalars as kernels and libraries read them from the device's memory.
pub fn device_scalars(scalars: &Scalars) -> [u8; STRUCT_BYTES + 16] {
    let longs = [scalars.seed, scalars.step, scalars.update, scalars.first_sample];
    let words = [
        scalars.learning_rate.to_bits(),
        scalars.loss_scale.to_bits(),
        scalars.gradient_scale.to_bits(),
        scalars.position,
        scalars.row,
        scalars.micro_batch_share.to_bits(),
        scalars.reference_point.to_bits(),
        0,
    ];
    let of_products = [scalars.loss_scale * scalars.gradient_scale, 0.0, 1.0, 0.0];
    let mut bytes = [0; STRUCT_BYTES + 16];
    bytes[..32].copy_from_slice(&longs.map(u64::to_le_bytes).concat());
    bytes[32..STRUCT_BYTES].copy_from_slice(&words.map(u32::to_le_bytes).concat());
    bytes[STRUCT_BYTES..].copy_from_slice(&of_products.map(f32::to_le_bytes).concat());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_at_multiples_of_their_size() {
        let arguments = Arguments::default().address(1).float(1.0).long(2).flag(true).int(7);
        assert_eq!(arguments.offsets(), [0, 8, 16, 24, 28]);
        assert_eq!(arguments.bytes().len(), 32);
        assert_eq!(arguments.bytes()[28..], 7u32.to_le_bytes());
    }
}
