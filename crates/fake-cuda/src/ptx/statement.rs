//! A statement before decoding.

use super::program::{Action, MatrixType, Reg};
use super::types::Type;

/// An operand in the text.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    /// A register, constant or special register.
    Register(Reg),
    /// `!%p`
    Negated(Reg),
    /// `{%a, %b}`
    Vector(Vec<Reg>),
    /// `[%a+8]`
    Memory { base: Reg, offset: i64 },
    /// A name of no register: a label.
    Label(String),
}

/// A statement before decoding.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    /// Opcode with modifiers.
    pub word: &'a str,
    /// Operands, in order.
    pub operands: Vec<Operand>,
    /// A register that holds 0.
    pub zero: Reg,
    /// Of its module.
    pub level: Level,
}

/// The PTX that a module is written in and the cards that it is for: `.version` and `.target`, as in
/// [`Module`](super::Module).
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    pub version: u32,
    pub target: u32,
}

impl Level {
    /// The level that an instruction needs, if it is above this one. Only those of 8-bit floats are checked.
    /// Source: the ISA's notes for `cvt` and `mma`, and NVIDIA's assembler.
    pub fn missing(self, action: &Action) -> Option<Self> {
        let needed = match action {
            Action::Convert { convert, .. } if matches!(convert.to, Type::E4m3x2 | Type::E5m2x2) => {
                // sm_90 had it first.
                Self { version: if self.target < 90 { 81 } else { 78 }, target: 89 }
            }
            Action::Multiply { types: [MatrixType::E4m3 | MatrixType::E5m2, _], .. } => {
                Self { version: 84, target: 89 }
            }
            _ => return None,
        };
        (self.version < needed.version || self.target < needed.target).then_some(needed)
    }
}
