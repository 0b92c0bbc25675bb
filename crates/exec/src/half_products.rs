//! Which instructions multiply matrices in half precision on this processor.

/// Instructions that products in half precision are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfProducts {
    /// Pairs of `Bf16` by `VDPBF16PS` in vectors of 512 bits.
    Avx512Bf16,
    /// Those of single precision, to which operands are widened.
    Baseline,
}

impl HalfProducts {
    /// As the switch of the environment names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Baseline => "baseline",
        }
    }

    /// Whether products of `Bf16` are faster than those in single precision.
    pub const fn multiplies_bf16(self) -> bool {
        matches!(self, Self::Avx512Bf16)
    }
}

/// What this process multiplies with.
pub fn half_products() -> HalfProducts {
    #[cfg(target_arch = "x86_64")]
    let is_here = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let is_here = false;
    let is_wanted =
        std::env::var("PLIMSOLL_HALF_PRODUCTS").map_or(true, |name| name == HalfProducts::Avx512Bf16.name());
    if is_here && is_wanted { HalfProducts::Avx512Bf16 } else { HalfProducts::Baseline }
}
