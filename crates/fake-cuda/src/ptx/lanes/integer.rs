//! Integers and bits of 16, 32 and 64 bits. A register holds its value in the lowest bits, with zeros above.

use super::super::types::Type;
use super::{Lanes, lanes};

/// The function of an opcode for a type. Arithmetic uses 128 bits, so it never overflows.
pub fn lanes_of(opcode: &str, variant: &str, ty: Type) -> Option<Lanes> {
    let (bits, signed) = match ty {
        Type::Bits(bits) | Type::Unsigned(bits) => (bits, false),
        Type::Signed(bits) => (bits, true),
        _ => return None,
    };
    match (bits, signed) {
        (16, false) => sized::<16, false>(opcode, variant),
        (16, true) => sized::<16, true>(opcode, variant),
        (32, false) => sized::<32, false>(opcode, variant).or_else(|| words(opcode, variant)),
        (32, true) => sized::<32, true>(opcode, variant).or_else(|| words(opcode, variant)),
        (64, false) => sized::<64, false>(opcode, variant),
        (64, true) => sized::<64, true>(opcode, variant),
        // These types are only moved, never computed with.
        (8, _) if opcode == "mov" => sized::<8, false>(opcode, variant),
        _ => None,
    }
}

/// The lowest bits.
const fn narrow(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The number in the lowest `BITS` bits.
fn number<const BITS: u32, const SIGNED: bool>(bits: u64) -> i128 {
    if SIGNED { (((bits << (64 - BITS)) as i64) >> (64 - BITS)).into() } else { narrow(bits, BITS).into() }
}

/// The lowest `BITS` bits of a number.
fn bits<const BITS: u32>(number: i128) -> u64 {
    narrow(number as u64, BITS)
}

fn sized<const B: u32, const S: bool>(opcode: &str, variant: &str) -> Option<Lanes> {
    Some(match (opcode, variant) {
        ("mov" | "cvta", "") => lanes!(|a, _, _, _| narrow(a, B)),
        ("add", "") => lanes!(|a, b, _, _| narrow(a.wrapping_add(b), B)),
        ("sub", "") => lanes!(|a, b, _, _| narrow(a.wrapping_sub(b), B)),
        ("mul", "lo") => lanes!(|a, b, _, _| narrow(a.wrapping_mul(b), B)),
        ("mul", "hi") => lanes!(|a, b, _, _| high::<B, S>(a, b)),
        ("mul", "wide") if B < 64 => lanes!(|a, b, _, _| wide::<B, S>(a, b)),
        ("mad", "lo") => lanes!(|a, b, c, _| narrow(a.wrapping_mul(b).wrapping_add(c), B)),
        ("mad", "hi") => lanes!(|a, b, c, _| narrow(high::<B, S>(a, b).wrapping_add(c), B)),
        ("mad", "wide") if B == 16 => lanes!(|a, b, c, _| narrow(wide::<B, S>(a, b).wrapping_add(c), 32)),
        ("mad", "wide") if B == 32 => lanes!(|a, b, c, _| wide::<B, S>(a, b).wrapping_add(c)),
        // Division by zero is undefined; cards return all ones.
        ("div", "") => lanes!(|a, b, _, _| divided::<B, S>(a, b).map_or(narrow(!0, B), |(quotient, _)| quotient)),
        ("rem", "") => lanes!(|a, b, _, _| divided::<B, S>(a, b).map_or(narrow(a, B), |(_, rest)| rest)),
        ("min", "") => lanes!(|a, b, _, _| bits::<B>(number::<B, S>(a).min(number::<B, S>(b)))),
        ("max", "") => lanes!(|a, b, _, _| bits::<B>(number::<B, S>(a).max(number::<B, S>(b)))),
        ("neg", "") => lanes!(|a, _, _, _| narrow(a.wrapping_neg(), B)),
        ("abs", "") => lanes!(|a, _, _, _| bits::<B>(number::<B, S>(a).abs())),
        ("and", "") => lanes!(|a, b, _, _| narrow(a & b, B)),
        ("or", "") => lanes!(|a, b, _, _| narrow(a | b, B)),
        ("xor", "") => lanes!(|a, b, _, _| narrow(a ^ b, B)),
        ("not", "") => lanes!(|a, _, _, _| narrow(!a, B)),
        ("shl", "") => {
            lanes!(|a, b, _, _| if narrow(b, 32) >= u64::from(B) { 0 } else { narrow(a << narrow(b, 32), B) })
        }
        ("shr", "") => lanes!(|a, b, _, _| bits::<B>(number::<B, S>(a) >> narrow(b, 32).min(u64::from(B)))),
        ("popc", "") => lanes!(|a, _, _, _| narrow(a, B).count_ones().into()),
        ("clz", "") => lanes!(|a, _, _, _| (narrow(a, B).leading_zeros() - (64 - B)).into()),
        ("brev", "") => lanes!(|a, _, _, _| narrow(a, B).reverse_bits() >> (64 - B)),
        ("bfe", "") => lanes!(|a, b, c, _| extract::<B, S>(a, b, c)),
        ("bfi", "") => lanes!(|a, b, c, e| insert::<B>(a, b, c, e)),
        ("selp", "") => lanes!(|a, b, c, _| narrow(if c & 1 == 1 { a } else { b }, B)),
        ("setp", _) => return compare::<B, S>(variant),
        _ => return None,
    })
}

fn wide<const B: u32, const S: bool>(a: u64, b: u64) -> u64 {
    narrow((number::<B, S>(a) * number::<B, S>(b)) as u64, 2 * B)
}

fn high<const B: u32, const S: bool>(a: u64, b: u64) -> u64 {
    bits::<B>(number::<B, S>(a).wrapping_mul(number::<B, S>(b)) >> B)
}

fn divided<const B: u32, const S: bool>(a: u64, b: u64) -> Option<(u64, u64)> {
    let (a, b) = (number::<B, S>(a), number::<B, S>(b));
    (b != 0).then(|| (bits::<B>(a / b), bits::<B>(a % b)))
}

/// `bfe`: `length` bits from `start`; bits past the end repeat the sign, the field's highest bit.
fn extract<const B: u32, const S: bool>(a: u64, start: u64, length: u64) -> u64 {
    let (start, length) = ((start & 255) as u32, (length & 255) as u32);
    if length == 0 {
        return 0;
    }
    let top = (start + length - 1).min(B - 1);
    let sign = S && narrow(a, B) >> top & 1 == 1;
    let field = if start >= B { 0 } else { narrow(narrow(a, B) >> start, length.min(B - start)) };
    let known = if start >= B { 0 } else { length.min(B - start) };
    narrow(if sign && known < 64 { field | !0 << known } else { field }, B)
}

/// `bfi`: inserts the lowest `length` bits of `a` into `b` at `start`.
fn insert<const B: u32>(a: u64, b: u64, start: u64, length: u64) -> u64 {
    let (start, length) = ((start & 255) as u32, (length & 255) as u32);
    if start >= B {
        return narrow(b, B);
    }
    let mask = narrow(narrow(!0, length) << start, B);
    narrow(b, B) & !mask | (a << start) & mask
}

fn compare<const B: u32, const S: bool>(how: &str) -> Option<Lanes> {
    Some(match how {
        "eq" => lanes!(|a, b, _, _| (narrow(a, B) == narrow(b, B)).into()),
        "ne" => lanes!(|a, b, _, _| (narrow(a, B) != narrow(b, B)).into()),
        "lt" => lanes!(|a, b, _, _| (number::<B, S>(a) < number::<B, S>(b)).into()),
        "le" => lanes!(|a, b, _, _| (number::<B, S>(a) <= number::<B, S>(b)).into()),
        "gt" => lanes!(|a, b, _, _| (number::<B, S>(a) > number::<B, S>(b)).into()),
        "ge" => lanes!(|a, b, _, _| (number::<B, S>(a) >= number::<B, S>(b)).into()),
        "lo" => lanes!(|a, b, _, _| (narrow(a, B) < narrow(b, B)).into()),
        "ls" => lanes!(|a, b, _, _| (narrow(a, B) <= narrow(b, B)).into()),
        "hi" => lanes!(|a, b, _, _| (narrow(a, B) > narrow(b, B)).into()),
        "hs" => lanes!(|a, b, _, _| (narrow(a, B) >= narrow(b, B)).into()),
        _ => return None,
    })
}

/// Functions of 32 bits only.
fn words(opcode: &str, variant: &str) -> Option<Lanes> {
    Some(match (opcode, variant) {
        ("shf", "l.wrap") => lanes!(|a, b, c, _| funnel(a, b) << (c & 31) >> 32),
        ("shf", "l.clamp") => lanes!(|a, b, c, _| {
            let pair = u128::from(funnel(a, b)) << narrow(c, 32).min(32);
            narrow((pair >> 32) as u64, 32)
        }),
        ("shf", "r.wrap") => lanes!(|a, b, c, _| narrow(funnel(a, b) >> (c & 31), 32)),
        ("shf", "r.clamp") => lanes!(|a, b, c, _| narrow(funnel(a, b) >> narrow(c, 32).min(32), 32)),
        ("prmt", "") => lanes!(|a, b, c, _| (0..4).map(|n| permuted(funnel(a, b), c >> (4 * n) & 15) << (8 * n)).sum()),
        ("lop3", "") => lanes!(|a, b, c, e| {
            let bit = |n: u32| (a >> n & 1) << 2 | (b >> n & 1) << 1 | c >> n & 1;
            (0..32).map(|n| (e >> bit(n) & 1) << n).sum()
        }),
        ("sad", "") => lanes!(|a, b, c, _| narrow(narrow(a, 32).abs_diff(narrow(b, 32)).wrapping_add(c), 32)),
        _ => return None,
    })
}

/// Two words as one, `b` in the upper half.
fn funnel(a: u64, b: u64) -> u64 {
    narrow(a, 32) | b << 32
}

/// The byte that a `prmt` selector selects; if its highest bit is set, that byte's sign in all bits.
fn permuted(pair: u64, selector: u64) -> u64 {
    let byte = pair >> (8 * (selector & 7)) & 255;
    match selector & 8 {
        0 => byte,
        _ => (byte >> 7) * 255,
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_one_lane;
    use super::*;

    /// Opcode, variant, type, operands, result; computed by hand from the ISA's text.
    const EXAMPLES: &[(&str, &str, Type, [u64; 4], u64)] = &[
        ("add", "", Type::Signed(16), [0xffff, 2, 0, 0], 1),
        ("sub", "", Type::Unsigned(32), [1, 2, 0, 0], 0xffff_ffff),
        ("mul", "hi", Type::Unsigned(32), [0xD251_1F53, 0xffff_ffff, 0, 0], 0xD251_1F52),
        ("mul", "hi", Type::Signed(32), [0xffff_ffff, 1, 0, 0], 0xffff_ffff),
        ("mul", "wide", Type::Signed(32), [0xffff_ffff, 2, 0, 0], 0xffff_ffff_ffff_fffe),
        ("mul", "wide", Type::Unsigned(16), [0xffff, 0xffff, 0, 0], 0xfffe_0001),
        ("mul", "hi", Type::Unsigned(64), [!0, !0, 0, 0], !1),
        ("mul", "hi", Type::Signed(64), [!0, !0, 0, 0], 0),
        ("mad", "wide", Type::Signed(32), [0xffff_fffe, 4, 16, 0], 8),
        ("mad", "lo", Type::Signed(32), [3, 4, 5, 0], 17),
        ("div", "", Type::Signed(32), [0xffff_fff9, 2, 0, 0], 0xffff_fffd),
        ("div", "", Type::Signed(32), [0x8000_0000, 0xffff_ffff, 0, 0], 0x8000_0000),
        ("rem", "", Type::Signed(32), [0xffff_fff9, 2, 0, 0], 0xffff_ffff),
        ("div", "", Type::Unsigned(32), [5, 0, 0, 0], 0xffff_ffff),
        ("shl", "", Type::Bits(32), [1, 32, 0, 0], 0),
        ("shr", "", Type::Signed(32), [0x8000_0000, 40, 0, 0], 0xffff_ffff),
        ("shr", "", Type::Unsigned(64), [!0, 60, 0, 0], 15),
        ("shf", "l.wrap", Type::Bits(32), [0x8000_0000, 1, 1, 0], 3),
        ("shf", "r.wrap", Type::Bits(32), [0, 1, 1, 0], 0x8000_0000),
        ("shf", "l.clamp", Type::Bits(32), [7, 1, 40, 0], 7),
        ("shf", "r.clamp", Type::Bits(32), [7, 9, 40, 0], 9),
        ("bfe", "", Type::Unsigned(32), [0xabcd_1234, 8, 8, 0], 0x12),
        ("bfe", "", Type::Signed(32), [0x0000_8000, 8, 8, 0], 0xffff_ff80),
        ("bfe", "", Type::Signed(32), [0x8000_0000, 28, 8, 0], 0xffff_fff8),
        ("bfe", "", Type::Signed(32), [0x8000_0000, 40, 8, 0], 0xffff_ffff),
        ("bfi", "", Type::Bits(32), [0xff, 0x1111_1111, 8, 4], 0x1111_1f11),
        ("bfi", "", Type::Bits(32), [0xff, 7, 32, 4], 7),
        ("prmt", "", Type::Bits(32), [0x3322_1100, 0x7766_5544, 0x7531, 0], 0x7755_3311),
        ("prmt", "", Type::Bits(32), [0x0000_0080, 0, 0x1118, 0], 0x0000_00ff),
        ("lop3", "", Type::Bits(32), [0xf0f0_f0f0, 0xcccc_cccc, 0xaaaa_aaaa, 0x96], 0x9696_9696),
        ("clz", "", Type::Bits(32), [1, 0, 0, 0], 31),
        ("popc", "", Type::Bits(64), [!0, 0, 0, 0], 64),
        ("brev", "", Type::Bits(32), [1, 0, 0, 0], 0x8000_0000),
        ("abs", "", Type::Signed(32), [0x8000_0000, 0, 0, 0], 0x8000_0000),
        ("setp", "lt", Type::Signed(32), [0xffff_ffff, 0, 0, 0], 1),
        ("setp", "lo", Type::Unsigned(32), [0xffff_ffff, 0, 0, 0], 0),
        ("setp", "eq", Type::Bits(16), [0x1_0001, 1, 0, 0], 1),
        ("selp", "", Type::Bits(32), [1, 2, 0, 0], 2),
    ];

    #[test]
    fn each_instruction_follows_the_isa() {
        for &(opcode, variant, ty, [a, b, c, e], expected) in EXAMPLES {
            let lanes = lanes_of(opcode, variant, ty).unwrap_or_else(|| panic!("{opcode}.{variant}"));
            assert_eq!(
                in_one_lane(lanes, [a, b, c, e]),
                expected,
                "{opcode}.{variant} {ty:?} {a:#x} {b:#x} {c:#x} {e:#x}"
            );
        }
    }
}
