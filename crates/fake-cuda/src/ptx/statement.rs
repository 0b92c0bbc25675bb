//! A statement before decoding.

use super::program::Reg;

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
}
