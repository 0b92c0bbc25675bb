//! The products of linear layers with their factors rounded to numbers of 8 bits. Gradient rules do not emit them: the precision
//! `fp8` replaces `Linear`, `LinearInputGrad` and `LinearWeightGrad`.
//!
//! A factor is multiplied by a power of two, the largest for which all its numbers are in the format's range, and rounded to
//! nearest; the product is divided by both powers. So a step has no state of scales, and a rounded number has the exponent of the
//! number that it is rounded from. Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv:2209.05433).

use super::{
    Access, Example, Io, Linear, LinearInputGrad, LinearWeightGrad, Nature, Op, Operation, Target, WeightLayout,
};
use crate::{DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// A format of floating point numbers of 8 bits, whose largest number is 1.75 times a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of fraction; up to 448.
    E4m3,
    /// 5 bits of exponent, 2 of fraction; up to 57,344.
    E5m2,
}

impl Fp8 {
    /// Bits of the fraction.
    pub const fn fraction_bits(self) -> i32 {
        match self {
            Self::E4m3 => 3,
            Self::E5m2 => 2,
        }
    }

    /// The exponent of the largest number.
    pub const fn largest_exponent(self) -> i32 {
        match self {
            Self::E4m3 => 8,
            Self::E5m2 => 15,
        }
    }

    /// The exponent of the smallest number with all bits of the fraction.
    pub const fn smallest_exponent(self) -> i32 {
        match self {
            Self::E4m3 => -6,
            Self::E5m2 => -14,
        }
    }
}

/// A product of a linear layer with the types, results and errors of the op that it wraps. Activations and weights are rounded to
/// [`Fp8::E4m3`], gradients to [`Fp8::E5m2`]; sums are in single precision, and a gradient of a bias has unrounded terms. If a
/// number of a factor isn't finite, all results of the product are NaN.
/// Scratch: the rounded factors, and the scratch of the wrapped op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fp8Linear {
    /// y = x W + b.
    Forward(Linear),
    /// dx = dy Wᵀ.
    InputGrad(LinearInputGrad),
    /// dW = xᵀ dy, and db if there is a bias.
    WeightGrad(LinearWeightGrad),
}

/// The rounded factors of a product on a card, in the order of the operands: tensor cores need matrices whose rows have the terms
/// of the sums. Rows are padded with zeros to [`ALIGNED`](Self::ALIGNED) terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8Factors {
    /// Rows of each factor: rows of the result, and its columns, or the other way around.
    pub rows: [usize; 2],
    /// Numbers of a row, without padding.
    pub terms: usize,
    /// Whether a factor's rows are columns of its operand.
    pub is_transposed: [bool; 2],
    /// The formats.
    pub formats: [Fp8; 2],
}

impl Fp8Factors {
    /// Rows begin at multiples of this many numbers.
    pub const ALIGNED: usize = 16;
    /// Parts of an operand whose largest numbers are found separately.
    pub const PARTS: usize = 256;
    /// Alignment of what is in scratch.
    const ALIGNMENT: u64 = 256;

    /// Numbers of a row, with padding.
    pub fn stride(&self) -> usize {
        self.terms.next_multiple_of(Self::ALIGNED)
    }

    /// Offsets in scratch: of both scales, of each factor's largest numbers by part, of each factor, and of the wrapped op's
    /// scratch.
    pub fn offsets(&self) -> [u64; 6] {
        let codes = self.rows.map(|rows| (rows * self.stride()) as u64);
        let largest = 4 * Self::PARTS as u64;
        let mut end = 0;
        [8, largest, largest, codes[0], codes[1], 0].map(|bytes| {
            let start = end;
            end += bytes.next_multiple_of(Self::ALIGNMENT);
            start
        })
    }
}

impl Fp8Linear {
    /// The wrapped op.
    fn wrapped(&self) -> &dyn Operation {
        match self {
            Self::Forward(op) => op,
            Self::InputGrad(op) => op,
            Self::WeightGrad(op) => op,
        }
    }

    /// An op with its factors rounded; `None` if it is no product of a linear layer.
    fn wrapping(op: &Op) -> Option<Self> {
        match op {
            Op::Linear(op) => Some(Self::Forward(*op)),
            Op::LinearInputGrad(op) => Some(Self::InputGrad(*op)),
            Op::LinearWeightGrad(op) if op.weight => Some(Self::WeightGrad(*op)),
            _ => None,
        }
    }

    /// The formats of the first two operands, which are the factors.
    pub fn formats(&self) -> [Fp8; 2] {
        match self {
            Self::Forward(_) => [Fp8::E4m3; 2],
            Self::InputGrad(_) => [Fp8::E5m2, Fp8::E4m3],
            Self::WeightGrad(_) => [Fp8::E4m3, Fp8::E5m2],
        }
    }

    /// The factors on a card.
    pub fn factors(&self, io: &Io) -> Fp8Factors {
        let [first, second] = [io.inputs[0], io.inputs[1]];
        let (rows, terms, is_transposed) = match self {
            Self::Forward(op) => {
                let is_in_out = op.layout == WeightLayout::InOut;
                ([first.rows(), io.outputs[0].columns()], first.columns(), [false, is_in_out])
            }
            Self::InputGrad(op) => {
                let is_out_in = op.layout == WeightLayout::OutIn;
                ([first.rows(), io.outputs[0].columns()], first.columns(), [false, is_out_in])
            }
            Self::WeightGrad(_) => ([first.columns(), second.columns()], first.rows(), [true; 2]),
        };
        Fp8Factors { rows, terms, is_transposed, formats: self.formats() }
    }

    /// Bytes of the rounded copy of a factor on a processor, which has the factor's type.
    pub fn on_processor(factor: &TensorType) -> Bytes {
        const VECTOR: u64 = 64;
        Bytes(factor.bytes().0.next_multiple_of(VECTOR))
    }
}

impl Operation for Fp8Linear {
    fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "fp8_linear",
            Self::InputGrad(_) => "fp8_linear_input_grad",
            Self::WeightGrad(_) => "fp8_linear_weight_grad",
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.wrapped().infer(inputs)
    }

    fn access(&self, index: usize) -> Access {
        self.wrapped().access(index)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        self.wrapped().product(io)
    }

    fn blocks(&self, io: &Io) -> usize {
        self.wrapped().blocks(io)
    }

    fn flops(&self, io: &Io) -> u64 {
        self.wrapped().flops(io)
    }

    /// Of the passes before the product, which read each factor twice and write it in 8 bits. The product's own traffic passes while it
    /// computes.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        Bytes(io.inputs[..2].iter().map(|ty| 2 * ty.bytes().0 + ty.elements() as u64).sum())
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let rounded = match target.kind() {
            DeviceKind::Cpu => io.inputs[..2].iter().map(|ty| Self::on_processor(ty)).sum(),
            DeviceKind::Cuda => Bytes(self.factors(io).offsets()[5]),
        };
        rounded + self.wrapped().scratch(io, target)
    }

    fn examples() -> Vec<Example> {
        let wrapped = [Linear::examples(), LinearInputGrad::examples(), LinearWeightGrad::examples()].concat();
        let rounded = |example: Example| Some(Example { op: Self::wrapping(&example.op)?.into(), ..example });
        wrapped.into_iter().filter_map(rounded).collect()
    }
}
