//! `Bytes`: an exact number of bytes, with the usual spellings of memory sizes.

use crate::{ParseQuantityError, split_number};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const EXAMPLE: &str = "12, 20.5, 16gb or 600MiB (a bare number is GiB)";

/// A number of bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n * GIB)
    }

    /// The next multiple of `alignment` (a power of two). Saturates at the largest multiple.
    pub const fn align_up(self, alignment: u64) -> Self {
        let mask = alignment - 1;
        Self(self.0.saturating_add(mask) & !mask)
    }

    /// `self - other`, or zero if that is negative.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The count as a float, for ratios.
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|b| b.0).sum())
    }
}

/// Three significant digits in the largest binary unit that keeps the number at or above one: `3.25 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= TIB => (TIB, "TiB"),
            n if n >= GIB => (GIB, "GiB"),
            n if n >= MIB => (MIB, "MiB"),
            n if n >= KIB => (KIB, "KiB"),
            n => return f.pad(&format!("{n} B")),
        };
        let value = self.0 as f64 / unit as f64;
        let digits = if value < 10.0 {
            2
        } else if value < 100.0 {
            1
        } else {
            0
        };
        f.pad(&format!("{value:.digits$} {name}"))
    }
}

/// A bare number is GiB. `gb` and `gib` are equal, because a card sold as "12 GB" has 12 GiB. Accepts `b`, `k`, `m`,
/// `g` and `t`, with or without `b` or `ib`, in upper or lower case.
impl FromStr for Bytes {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split_number(text, "size", EXAMPLE)?;
        let scale = match unit.as_str() {
            "" | "g" | "gb" | "gib" => GIB,
            "b" | "byte" | "bytes" => 1,
            "k" | "kb" | "kib" => KIB,
            "m" | "mb" | "mib" => MIB,
            "t" | "tb" | "tib" => TIB,
            _ => {
                return Err(ParseQuantityError::UnknownUnit {
                    text: text.to_owned(),
                    unit,
                    what: "size",
                    example: EXAMPLE,
                });
            }
        };
        let bytes = (number * scale as f64).round();
        if bytes >= 9.0e18 {
            return Err(ParseQuantityError::TooLarge { text: text.to_owned() });
        }
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_spellings_of_sizes_are_parsed() {
        for (text, bytes) in [
            ("12", 12 * GIB),
            ("20.5", 20 * GIB + GIB / 2),
            ("16gb", 16 * GIB),
            ("16 GB", 16 * GIB),
            ("600MiB", 600 * MIB),
            ("768mib", 768 * MIB),
            ("1_000 b", 1000),
            ("0", 0),
            ("2t", 2 * TIB),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected_with_an_example() {
        for text in ["", "gb", "-3", "nan", "inf", "1e9", "12 parsecs", "99999999999t", "1..2"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("for example") || error.contains("too large"), "{text}: {error}");
        }
    }

    #[test]
    fn display_keeps_three_digits() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (12 * GIB, "12.0 GiB"), (640 * MIB, "640 MiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn exact_byte_counts_round_trip(n in 0u64..1 << 50) {
            prop_assert_eq!(format!("{n}b").parse::<Bytes>(), Ok(Bytes(n)));
        }

        #[test]
        fn aligned_is_a_multiple_and_not_smaller(n in 0u64..1 << 60, shift in 0u32..12) {
            let aligned = Bytes(n).align_up(1 << shift);
            prop_assert!(aligned.0 >= n && aligned.0 - n < 1 << shift && aligned.0.is_multiple_of(1 << shift));
        }
    }
}
