//! Functions that instructions compute in one lane, of up to four registers. They are selected when the text is parsed.

mod convert;
mod float;
pub(crate) mod half;
mod integer;

pub use convert::{Convert, Rounding};
pub use half::{bf16_bits, bf16_value, f16_bits, f16_value, round_to, tf32_bits};

use super::types::Type;

/// A function of the bits of four registers; unused ones are ignored.
pub type Lane = fn(u64, u64, u64, u64) -> u64;

/// The function of an opcode. `variant` selects among several: `wide`, `hi`, a comparison.
pub fn lane(opcode: &str, variant: &str, ty: Type) -> Option<Lane> {
    match ty {
        Type::F32 | Type::F64 => float::lane(opcode, variant, ty),
        Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => half::lane(opcode, variant, ty),
        Type::Pred => predicate(opcode),
        Type::Tf32 => None,
        Type::Bits(_) | Type::Unsigned(_) | Type::Signed(_) => integer::lane(opcode, variant, ty),
    }
}

fn predicate(opcode: &str) -> Option<Lane> {
    Some(match opcode {
        "mov" => |a, _, _, _| a,
        "and" => |a, b, _, _| a & b,
        "or" => |a, b, _, _| a | b,
        "xor" => |a, b, _, _| a ^ b,
        "not" => |a, _, _, _| a ^ 1,
        _ => return None,
    })
}
