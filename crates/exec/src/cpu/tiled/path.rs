//! Which instructions multiply matrices on this processor.

use std::sync::OnceLock;

/// Instructions for products, from the fastest to the ones that every processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// Pairs of `Bf16` by `TDPBF16PS` in tiles of sixteen by sixteen; `F16` as with `Avx512`.
    Amx,
    /// Pairs of `Bf16` by `VDPBF16PS` in vectors of 512 bits; `F16` as with `Avx512`.
    Avx512Bf16,
    /// Single precision in vectors of 512 bits; operands are widened tile by tile.
    Avx512,
    /// The same in vectors of 256 bits.
    Avx2,
    /// The same in the vectors of the target's baseline.
    Baseline,
}

impl Instructions {
    /// All, fastest first.
    pub const ALL: [Self; 5] = [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Baseline];

    /// Its name in the environment variable.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Baseline => "baseline",
        }
    }

    /// Estimated speedup of products of `Bf16` over single precision, `None` if there is none: on two cores of a Xeon
    /// with AMX, 930 to 1,000 GFLOP/s against 311 to 334, by `bench --profile`; for an EPYC with AVX512-BF16, the
    /// instructions' rate.
    pub const fn bf16_speedup(self) -> Option<f64> {
        match self {
            Self::Amx => Some(3.0),
            Self::Avx512Bf16 => Some(2.0),
            Self::Avx512 | Self::Avx2 | Self::Baseline => None,
        }
    }

    /// Whether products in single precision are at least as fast as the library's: on two cores of an EPYC 9004, 98 to
    /// 104 % with AVX-512 and AVX2, by `bench --profile`.
    pub const fn multiplies_single(self) -> bool {
        !matches!(self, Self::Baseline)
    }

    /// Whether products of `Bf16` are faster than those in single precision.
    pub const fn multiplies_bf16(self) -> bool {
        self.bf16_speedup().is_some()
    }

    /// Whether no later entry is faster on this processor. Intel's processors multiply pairs of `Bf16` in vectors at
    /// half the rate of single precision: 164 against 331 GFLOP/s on two cores of a Xeon with AMX, by `bench
    /// --profile`; AMD's at twice the rate.
    fn is_fast(self) -> bool {
        self != Self::Avx512Bf16 || !is_intel()
    }

    /// Whether the processor has the instructions, and the system lets programs use them.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512Bf16.is_available() && super::amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => pulp::x86::V4::is_available() && std::arch::is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 | Self::Avx2 => false,
            Self::Baseline => true,
        }
    }
}

/// Whether this is an Intel processor.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let maker = std::arch::x86_64::__cpuid(0);
        [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Environment variable with the instructions to use instead of the fastest, for tests; an unknown or unavailable name
/// is ignored.
const SWITCH: &str = "PLIMSOLL_INSTRUCTIONS";

/// The instructions of this process's products: the fastest of the processor.
pub fn instructions() -> Instructions {
    static CHOSEN: OnceLock<Instructions> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var(SWITCH).ok();
        let is_wanted = |path: &Instructions| wanted.as_deref() == Some(path.name());
        let available = || Instructions::ALL.into_iter().filter(|path| path.is_available());
        available()
            .find(is_wanted)
            .or_else(|| available().find(|path| path.is_fast()))
            .expect("the baseline is always available")
    })
}
