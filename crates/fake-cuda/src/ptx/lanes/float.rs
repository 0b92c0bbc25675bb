//! Single and double precision. Functions that cards approximate are computed in double precision and rounded; the
//! interpreter then blurs them if requested.

use super::super::types::Type;
use super::{Lanes, lanes};

/// The function of an opcode for a type.
pub fn lanes_of(opcode: &str, variant: &str, ty: Type) -> Option<Lanes> {
    match ty {
        Type::F32 => arithmetic::<f32>(opcode, variant).or_else(|| functions(opcode)),
        Type::F64 => arithmetic::<f64>(opcode, variant),
        _ => None,
    }
}

/// Operations of a float type.
trait Float: Copy + PartialOrd {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn wide(self) -> f64;
    fn add(self, b: Self) -> Self;
    fn multiply(self, b: Self) -> Self;
    fn divide(self, b: Self) -> Self;
    fn fused(self, b: Self, c: Self) -> Self;
    fn root(self) -> Self;
    fn lower(self, b: Self) -> Self;
    fn upper(self, b: Self) -> Self;
    fn with_sign_of(self, b: Self) -> Self;
}

macro_rules! float {
    ($t:ty, $bits:ty) => {
        impl Float for $t {
            fn of(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn wide(self) -> f64 {
                self.into()
            }
            fn add(self, b: Self) -> Self {
                self + b
            }
            fn multiply(self, b: Self) -> Self {
                self * b
            }
            fn divide(self, b: Self) -> Self {
                self / b
            }
            fn fused(self, b: Self, c: Self) -> Self {
                self.mul_add(b, c)
            }
            fn root(self) -> Self {
                self.sqrt()
            }
            fn lower(self, b: Self) -> Self {
                self.min(b)
            }
            fn upper(self, b: Self) -> Self {
                self.max(b)
            }
            fn with_sign_of(self, b: Self) -> Self {
                self.copysign(b)
            }
        }
    };
}
float!(f32, u32);
float!(f64, u64);

/// The sign bit.
fn sign<T: Float>() -> u64 {
    1 << (8 * size_of::<T>() - 1)
}

fn arithmetic<T: Float>(opcode: &str, variant: &str) -> Option<Lanes> {
    Some(match (opcode, variant) {
        ("mov", "") => lanes!(|a, _, _, _| T::of(a).bits()),
        ("add", "") => lanes!(|a, b, _, _| T::of(a).add(T::of(b)).bits()),
        ("sub", "") => lanes!(|a, b, _, _| T::of(a).add(T::of(b ^ sign::<T>())).bits()),
        ("mul", "") => lanes!(|a, b, _, _| T::of(a).multiply(T::of(b)).bits()),
        ("div", _) => lanes!(|a, b, _, _| T::of(a).divide(T::of(b)).bits()),
        ("fma" | "mad", "") => lanes!(|a, b, c, _| T::of(a).fused(T::of(b), T::of(c)).bits()),
        ("min", "") => lanes!(|a, b, _, _| T::of(a).lower(T::of(b)).bits()),
        ("max", "") => lanes!(|a, b, _, _| T::of(a).upper(T::of(b)).bits()),
        ("min", "NaN") => lanes!(|a, b, _, _| either_nan::<T>(a, b).unwrap_or_else(|| T::of(a).lower(T::of(b)).bits())),
        ("max", "NaN") => lanes!(|a, b, _, _| either_nan::<T>(a, b).unwrap_or_else(|| T::of(a).upper(T::of(b)).bits())),
        ("neg", "") => lanes!(|a, _, _, _| a ^ sign::<T>()),
        ("abs", "") => lanes!(|a, _, _, _| a & !sign::<T>()),
        ("copysign", "") => lanes!(|a, b, _, _| T::of(b).with_sign_of(T::of(a)).bits()),
        ("sqrt", _) => lanes!(|a, _, _, _| T::of(a).root().bits()),
        ("rcp", _) => lanes!(|a, _, _, _| one::<T>().divide(T::of(a)).bits()),
        ("selp", "") => lanes!(|a, b, c, _| if c & 1 == 1 { a } else { b }),
        ("testp", _) => return tested::<T>(variant),
        ("setp", _) => return compare::<T>(variant),
        _ => return None,
    })
}

fn one<T: Float>() -> T {
    T::of(if size_of::<T>() == 4 { u64::from(1f32.to_bits()) } else { 1f64.to_bits() })
}

fn either_nan<T: Float>(a: u64, b: u64) -> Option<u64> {
    let nan = T::of(a).wide().is_nan() || T::of(b).wide().is_nan();
    nan.then_some(if size_of::<T>() == 4 { 0x7fff_ffff } else { 0x7fff_ffff_ffff_ffff })
}

/// Functions of single precision only; all are approximate.
fn functions(opcode: &str) -> Option<Lanes> {
    Some(match opcode {
        "rsqrt" => lanes!(|a, _, _, _| through(a, |x| 1.0 / x.sqrt())),
        "ex2" => lanes!(|a, _, _, _| through(a, f64::exp2)),
        "lg2" => lanes!(|a, _, _, _| through(a, f64::log2)),
        "sin" => lanes!(|a, _, _, _| through(a, f64::sin)),
        "cos" => lanes!(|a, _, _, _| through(a, f64::cos)),
        "tanh" => lanes!(|a, _, _, _| through(a, f64::tanh)),
        _ => return None,
    })
}

fn through(a: u64, f: impl Fn(f64) -> f64) -> u64 {
    (f(f32::of(a).into()) as f32).bits()
}

fn tested<T: Float>(what: &str) -> Option<Lanes> {
    fn infinite<T: Float>(a: u64) -> bool {
        T::of(a).wide().is_infinite()
    }
    Some(match what {
        "finite" => lanes!(|a, _, _, _| T::of(a).wide().is_finite().into()),
        "infinite" => lanes!(|a, _, _, _| infinite::<T>(a).into()),
        "number" => lanes!(|a, _, _, _| (!T::of(a).wide().is_nan()).into()),
        "notanumber" => lanes!(|a, _, _, _| T::of(a).wide().is_nan().into()),
        _ => return None,
    })
}

fn compare<T: Float>(how: &str) -> Option<Lanes> {
    Some(match how {
        "eq" => lanes!(|a, b, _, _| (T::of(a) == T::of(b)).into()),
        "ne" => lanes!(|a, b, _, _| (T::of(a) < T::of(b) || T::of(a) > T::of(b)).into()),
        "lt" => lanes!(|a, b, _, _| (T::of(a) < T::of(b)).into()),
        "le" => lanes!(|a, b, _, _| (T::of(a) <= T::of(b)).into()),
        "gt" => lanes!(|a, b, _, _| (T::of(a) > T::of(b)).into()),
        "ge" => lanes!(|a, b, _, _| (T::of(a) >= T::of(b)).into()),
        "equ" => lanes!(|a, b, _, _| (!(T::of(a) < T::of(b) || T::of(a) > T::of(b))).into()),
        "neu" => lanes!(|a, b, _, _| (T::of(a) != T::of(b)).into()),
        "ltu" => lanes!(|a, b, _, _| unordered_or(T::of(a) < T::of(b), either_nan::<T>(a, b))),
        "leu" => lanes!(|a, b, _, _| unordered_or(T::of(a) <= T::of(b), either_nan::<T>(a, b))),
        "gtu" => lanes!(|a, b, _, _| unordered_or(T::of(a) > T::of(b), either_nan::<T>(a, b))),
        "geu" => lanes!(|a, b, _, _| unordered_or(T::of(a) >= T::of(b), either_nan::<T>(a, b))),
        "num" => lanes!(|a, b, _, _| either_nan::<T>(a, b).is_none().into()),
        "nan" => lanes!(|a, b, _, _| either_nan::<T>(a, b).is_some().into()),
        _ => return None,
    })
}

fn unordered_or(outcome: bool, nan: Option<u64>) -> u64 {
    (outcome || nan.is_some()).into()
}

#[cfg(test)]
mod tests {
    use super::super::in_one_lane;
    use super::*;

    #[test]
    fn comparisons_treat_nan_as_unordered() {
        let nan = u64::from(f32::NAN.to_bits());
        let two = u64::from(2f32.to_bits());
        let expected = [
            ("eq", [0, 1]),
            ("ne", [0, 0]),
            ("lt", [0, 0]),
            ("equ", [1, 1]),
            ("neu", [1, 0]),
            ("ltu", [1, 0]),
            ("geu", [1, 1]),
            ("num", [0, 1]),
            ("nan", [1, 0]),
        ];
        for (how, [with_nan, equal]) in expected {
            let lanes = lanes_of("setp", how, Type::F32).unwrap();
            let found = [nan, two].map(|a| in_one_lane(lanes, [a, two, 0, 0]));
            assert_eq!(found, [with_nan, equal], "{how}");
        }
    }

    #[test]
    fn min_of_a_number_and_nan_is_the_number() {
        let (nan, two) = (u64::from(f32::NAN.to_bits()), u64::from(2f32.to_bits()));
        let least = |variant| in_one_lane(lanes_of("min", variant, Type::F32).unwrap(), [nan, two, 0, 0]);
        assert_eq!(least(""), two);
        assert_eq!(least("NaN"), 0x7fff_ffff);
    }
}
