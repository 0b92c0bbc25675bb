//! The types of PTX.

/// A fundamental or packed type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `.pred`
    Pred,
    /// `.bN`: untyped bits.
    Bits(u32),
    /// `.uN`
    Unsigned(u32),
    /// `.sN`
    Signed(u32),
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.f16x2`
    F16x2,
    /// `.bf16x2`
    Bf16x2,
    /// `.tf32`, only for matrix instructions and conversions.
    Tf32,
    /// `.e4m3x2`, only for results of conversions.
    E4m3x2,
    /// `.e5m2x2`, only for results of conversions.
    E5m2x2,
    /// `.f32`
    F32,
    /// `.f64`
    F64,
}

impl Type {
    /// The type with this name, without its dot. Pairs of 8-bit floats are no operands of other instructions than `cvt`,
    /// whose decoder knows their names.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => {
                let bits = ["8", "16", "32", "64"].iter().position(|bits| name.get(1..) == Some(*bits))?;
                let bits = 8 << bits;
                match name.as_bytes()[0] {
                    b'b' => Self::Bits(bits),
                    b'u' => Self::Unsigned(bits),
                    b's' => Self::Signed(bits),
                    _ => return None,
                }
            }
        })
    }

    /// Width in bits; 1 for a predicate.
    pub fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::Bits(bits) | Self::Unsigned(bits) | Self::Signed(bits) => bits,
            Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 16,
            Self::F16x2 | Self::Bf16x2 | Self::Tf32 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// Width in memory, in bytes.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
}
