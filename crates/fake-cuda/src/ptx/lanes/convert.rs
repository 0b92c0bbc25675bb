//! `cvt`: between all types, with rounding, saturation and packing.

use super::super::types::Type;
use super::fp8::{e4m3_bits, e5m2_bits};
use super::half::{bf16_bits, bf16_value, f16_bits, f16_value, tf32_bits};

/// How a conversion rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even (`.rn`, `.rni`); to TF32, ties away from zero (`.rna`).
    Nearest,
    /// Toward zero (`.rz`, `.rzi`).
    Zero,
    /// Down (`.rm`, `.rmi`).
    Down,
    /// Up (`.rp`, `.rpi`).
    Up,
}

/// A `cvt` instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convert {
    /// Type of the result.
    pub to: Type,
    /// Type of the operand.
    pub from: Type,
    /// Rounding mode.
    pub rounding: Rounding,
    /// Whether a float is rounded to an integer, even if the result type is a float.
    pub whole: bool,
    /// Whether floats are clamped to 0 to 1, and integers to the range of the result.
    pub saturate: bool,
    /// Whether subnormal numbers are flushed to 0.
    pub flush: bool,
    /// Negative numbers become 0.
    pub relu: bool,
}

impl Convert {
    /// Converts one operand or, for a packed result, two, the first into the upper half.
    pub fn apply(&self, a: u64, b: u64) -> u64 {
        match self.to {
            Type::F16x2 | Type::Bf16x2 => {
                let to = if self.to == Type::F16x2 { Type::F16 } else { Type::Bf16 };
                let half = Self { to, ..*self };
                half.apply(a, 0) << 16 | half.apply(b, 0)
            }
            // The operands are in single precision.
            Type::E4m3x2 => pair(a, b, e4m3_bits),
            Type::E5m2x2 => pair(a, b, e5m2_bits),
            _ => match self.float(a) {
                Some(x) => self.of_float(x),
                None => self.of_whole(whole(a, self.from)),
            },
        }
    }

    /// The operand, if it is a float.
    fn float(&self, a: u64) -> Option<f64> {
        let x = match self.from {
            Type::F16 => f16_value(a as u16).into(),
            Type::Bf16 => bf16_value(a as u16).into(),
            Type::F32 => f32::from_bits(a as u32).into(),
            Type::F64 => f64::from_bits(a),
            _ => return None,
        };
        let subnormal = self.flush && self.from == Type::F32 && (x as f32).is_subnormal();
        Some(if subnormal { 0f64.copysign(x) } else { x })
    }

    fn of_float(&self, x: f64) -> u64 {
        let x = if self.relu && x < 0.0 { 0.0 } else { x };
        let x = if self.whole || !is_float(self.to) { self.rounded(x) } else { x };
        if !is_float(self.to) {
            return self.whole_of(x);
        }
        let x = match self.saturate {
            true if x.is_nan() => 0.0,
            true => x.clamp(0.0, 1.0),
            false => x,
        };
        self.float_bits(x)
    }

    fn of_whole(&self, x: i128) -> u64 {
        if is_float(self.to) {
            // Double precision cannot hold all 64-bit integers, so round to single precision directly.
            return match self.to {
                Type::F32 if self.rounding == Rounding::Nearest => u64::from((x as f32).to_bits()),
                _ => self.float_bits(x as f64),
            };
        }
        let x = if self.saturate { clamped(x, self.to) } else { x };
        narrow(x as u64, self.to.bits())
    }

    fn rounded(&self, x: f64) -> f64 {
        match self.rounding {
            Rounding::Nearest => x.round_ties_even(),
            Rounding::Zero => x.trunc(),
            Rounding::Down => x.floor(),
            Rounding::Up => x.ceil(),
        }
    }

    /// An integral float, clamped to the range; NaN gives 0.
    fn whole_of(&self, x: f64) -> u64 {
        narrow(clamped(x as i128, self.to) as u64, self.to.bits())
    }

    fn float_bits(&self, x: f64) -> u64 {
        let bits = match self.to {
            Type::F64 => return x.to_bits(),
            Type::F16 => f16_bits(x).into(),
            Type::Bf16 => bf16_bits(x).into(),
            Type::Tf32 => tf32_bits(x as f32).into(),
            _ => u64::from((x as f32).to_bits()),
        };
        let back = match self.to {
            Type::F16 => f16_value(bits as u16).into(),
            Type::Bf16 => bf16_value(bits as u16).into(),
            Type::Tf32 => return bits,
            _ => f64::from(f32::from_bits(bits as u32)),
        };
        self.directed(x, back, bits)
    }

    /// Adjusts a number rounded to nearest to another rounding mode.
    fn directed(&self, x: f64, nearest: f64, bits: u64) -> u64 {
        let wrong = match self.rounding {
            Rounding::Nearest => false,
            Rounding::Zero => nearest.abs() > x.abs(),
            Rounding::Down => nearest > x,
            Rounding::Up => nearest < x,
        };
        // For either sign, the bits minus one are one unit nearer to zero.
        match wrong {
            false => bits,
            true if nearest.abs() > x.abs() => bits - 1,
            true => bits + 1,
        }
    }
}

/// Two numbers in single precision, as bytes.
fn pair(upper: u64, lower: u64, bits: fn(f64) -> u8) -> u64 {
    let byte = |operand: u64| u64::from(bits(f32::from_bits(operand as u32).into()));
    byte(upper) << 8 | byte(lower)
}

fn is_float(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32 | Type::F64)
}

fn narrow(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The number in the bits of an integer type.
fn whole(bits: u64, ty: Type) -> i128 {
    let unused = 64 - ty.bits().max(8);
    match ty {
        Type::Signed(_) => ((bits << unused) as i64 >> unused).into(),
        _ => (bits << unused >> unused).into(),
    }
}

fn clamped(x: i128, ty: Type) -> i128 {
    let bits = ty.bits();
    match ty {
        Type::Signed(_) => x.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => x.clamp(0, (1 << bits) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(to: Type, from: Type, rounding: Rounding) -> Convert {
        Convert { to, from, rounding, whole: false, saturate: false, flush: false, relu: false }
    }

    #[test]
    fn floats_become_integers_within_range() {
        let f = |x: f32| u64::from(x.to_bits());
        let down = plain(Type::Signed(32), Type::F32, Rounding::Down);
        let nearest = plain(Type::Unsigned(8), Type::F32, Rounding::Nearest);
        assert_eq!(down.apply(f(-1.5), 0), 0xffff_fffe);
        assert_eq!(down.apply(f(1e20), 0), 0x7fff_ffff);
        assert_eq!(down.apply(f(f32::NAN), 0), 0);
        assert_eq!(nearest.apply(f(2.5), 0), 2);
        assert_eq!(nearest.apply(f(-3.0), 0), 0);
        assert_eq!(nearest.apply(f(300.0), 0), 255);
    }

    #[test]
    fn narrower_floats_round_by_their_mode() {
        let x = u64::from((1.0f32 + 3.0 / 512.0).to_bits());
        let negative = u64::from((-1.0f32 - 3.0 / 512.0).to_bits());
        for (rounding, expected) in [
            (Rounding::Nearest, [0x3f81, 0xbf81]),
            (Rounding::Zero, [0x3f80, 0xbf80]),
            (Rounding::Down, [0x3f80, 0xbf81]),
            (Rounding::Up, [0x3f81, 0xbf80]),
        ] {
            let convert = plain(Type::Bf16, Type::F32, rounding);
            assert_eq!([x, negative].map(|x| convert.apply(x, 0)), expected, "{rounding:?}");
        }
    }

    #[test]
    fn the_first_operand_of_a_pair_is_the_upper_half() {
        let f = |x: f32| u64::from(x.to_bits());
        let convert = plain(Type::Bf16x2, Type::F32, Rounding::Nearest);
        assert_eq!(convert.apply(f(1.0), f(2.0)), 0x3f80_4000);
        let convert = plain(Type::F16x2, Type::F32, Rounding::Nearest);
        assert_eq!(convert.apply(f(1.0), f(2.0)), 0x3c00_4000);
        let convert = plain(Type::E4m3x2, Type::F32, Rounding::Nearest);
        assert_eq!(convert.apply(f(-1.0), f(500.0)), 0xb87e);
        let convert = plain(Type::E5m2x2, Type::F32, Rounding::Nearest);
        assert_eq!(convert.apply(f(-1.0), f(500.0)), 0xbc60);
    }

    #[test]
    fn widening_integers_keeps_their_signs() {
        assert_eq!(plain(Type::Signed(64), Type::Signed(32), Rounding::Zero).apply(0xffff_ffff, 0), !0);
        assert_eq!(plain(Type::Unsigned(64), Type::Unsigned(32), Rounding::Zero).apply(0xffff_ffff, 0), 0xffff_ffff);
        assert_eq!(plain(Type::Unsigned(16), Type::Unsigned(32), Rounding::Zero).apply(0x1_2345, 0), 0x2345);
        let largest = plain(Type::F32, Type::Unsigned(64), Rounding::Nearest).apply(!0, 0);
        assert_eq!(f32::from_bits(largest as u32), 18_446_744_073_709_551_615f32);
    }
}
