//! Types of elements.

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DType {
    U8,
    Bool,
    F16,
    BF16,
    F32,
    I32,
    I64,
}

impl DType {
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::Bool => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    pub fn is_float(self) -> bool {
        self.is_half() || self == Self::F32
    }

    /// The type of a result of both.
    pub fn promote(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (a, b) if a.is_half() && b.is_half() => Self::F32,
            (a, b) => {
                let rank = |dtype| match dtype {
                    Self::Bool => 0,
                    Self::U8 => 1,
                    Self::I32 => 2,
                    Self::I64 => 3,
                    Self::F16 | Self::BF16 => 4,
                    Self::F32 => 5,
                };
                if rank(a) >= rank(b) { a } else { b }
            }
        }
    }
}
