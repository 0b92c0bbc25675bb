//! Functions that instructions compute in one lane, of up to four registers. They are selected when the text is parsed.

mod convert;
mod float;
mod fp8;
pub(crate) mod half;
mod integer;

pub use convert::{Convert, Rounding};
pub use fp8::{e4m3_bits, e4m3_value, e5m2_bits, e5m2_value};
pub use half::{bf16_bits, bf16_value, f16_bits, f16_value, round_to, tf32_bits};

use super::types::Type;

/// A register of all 32 lanes.
pub type Row = [u64; 32];

/// A function of the bits of four registers, applied in every lane; unused registers are ignored. It takes whole rows,
/// so that one call and vector instructions compute all lanes.
pub type Lanes = fn([&Row; 4]) -> Row;

/// [`Lanes`] of a function of one lane.
macro_rules! lanes {
    (|$a:pat_param, $b:pat_param, $c:pat_param, $e:pat_param| $result:expr) => {
        |rows| {
            std::array::from_fn(|lane| {
                let ($a, $b, $c, $e) = (rows[0][lane], rows[1][lane], rows[2][lane], rows[3][lane]);
                $result
            })
        }
    };
}
pub(crate) use lanes;

/// The function of an opcode. `variant` selects among several: `wide`, `hi`, a comparison.
pub fn lanes_of(opcode: &str, variant: &str, ty: Type) -> Option<Lanes> {
    match ty {
        Type::F32 | Type::F64 => float::lanes_of(opcode, variant, ty),
        Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => half::lanes_of(opcode, variant, ty),
        Type::Pred => predicate(opcode),
        Type::Tf32 | Type::E4m3x2 | Type::E5m2x2 => None,
        Type::Bits(_) | Type::Unsigned(_) | Type::Signed(_) => integer::lanes_of(opcode, variant, ty),
    }
}

fn predicate(opcode: &str) -> Option<Lanes> {
    Some(match opcode {
        "mov" => lanes!(|a, _, _, _| a),
        "and" => lanes!(|a, b, _, _| a & b),
        "or" => lanes!(|a, b, _, _| a | b),
        "xor" => lanes!(|a, b, _, _| a ^ b),
        "not" => lanes!(|a, _, _, _| a ^ 1),
        _ => return None,
    })
}

/// The result of a function in one lane.
#[cfg(test)]
fn in_one_lane(lanes: Lanes, operands: [u64; 4]) -> u64 {
    let rows = operands.map(|operand| [operand; 32]);
    lanes(rows.each_ref())[0]
}
