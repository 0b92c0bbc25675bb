//! Encodings decoded by the formulas of their formats, which are written here a second time, and bounds of the error.

use half::f16;
use plimsoll_gguf::Encoding;
use proptest::prelude::*;

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Decodes one block.
fn decode(encoding: Encoding, bytes: &[u8]) -> Vec<f32> {
    match encoding {
        Encoding::Q8_0 => bytes[2..].iter().map(|&q| half_at(bytes, 0) * f32::from(q.cast_signed())).collect(),
        Encoding::Q5_0 => {
            let fifth = u32::from_le_bytes(bytes[2..6].try_into().unwrap());
            let low = |at: usize| if at < 16 { bytes[6 + at] & 15 } else { bytes[6 + at - 16] >> 4 };
            let integer = |at: usize| f32::from(low(at) | ((fifth >> at & 1) as u8) << 4) - 16.0;
            (0..32).map(|at| half_at(bytes, 0) * integer(at)).collect()
        }
        Encoding::Q4K | Encoding::Q5K => (0..256).map(|at| asymmetric_number(encoding, bytes, at)).collect(),
        Encoding::Q6K => (0..256).map(|at| q6_number(bytes, at)).collect(),
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 => unreachable!("they have no blocks"),
    }
}

fn asymmetric_number(encoding: Encoding, bytes: &[u8], at: usize) -> f32 {
    let (group, codes) = (at / 32, &bytes[4..16]);
    let [s, t] = match group {
        0..4 => [codes[group] & 63, codes[group + 4] & 63],
        _ => [codes[group + 4] & 15 | (codes[group - 4] >> 6) << 4, codes[group + 4] >> 4 | (codes[group] >> 6) << 4],
    };
    let low = if encoding == Encoding::Q4K { 16 } else { 48 };
    let byte = bytes[low + group / 2 * 32 + at % 32];
    let mut integer = if group.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    if encoding == Encoding::Q5K {
        integer |= (bytes[16 + at % 32] >> group & 1) << 4;
    }
    half_at(bytes, 0) * f32::from(s) * f32::from(integer) - half_at(bytes, 2) * f32::from(t)
}

fn q6_number(bytes: &[u8], at: usize) -> f32 {
    let (half, within) = (at / 128, at % 128);
    let low = bytes[half * 64 + within % 64] >> (within / 64 * 4) & 15;
    let high = bytes[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3;
    let scale = f32::from(bytes[192 + at / 16].cast_signed());
    half_at(bytes, 208) * scale * (f32::from(low | high << 4) - 32.0)
}

const QUANTIZED: [Encoding; 5] = [Encoding::Q8_0, Encoding::Q5_0, Encoding::Q4K, Encoding::Q5K, Encoding::Q6K];

/// What a block becomes.
fn through(encoding: Encoding, numbers: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; encoding.block()[1]];
    encoding.encode(numbers, &mut bytes);
    decode(encoding, &bytes)
}

/// Numbers like those of a layer: sums of twelve uniform ones.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

#[test]
fn the_error_of_normal_numbers_is_that_of_the_bits() {
    let numbers = normal(256 * 64);
    // The error relative to the numbers' deviation. ggml's own encodings have about the same: 0.0051, 0.043, 0.071, 0.036, 0.018.
    for (encoding, most) in QUANTIZED.into_iter().zip([0.0065, 0.055, 0.075, 0.04, 0.02]) {
        let [of_block, _] = encoding.block();
        let squares = numbers.chunks_exact(of_block).flat_map(|numbers| {
            let found = through(encoding, numbers);
            numbers.iter().zip(found).map(|(a, b)| (a - b).powi(2)).collect::<Vec<_>>()
        });
        let [error, square] = [squares.sum::<f32>(), numbers.iter().map(|x| x * x).sum::<f32>()];
        let relative = (error / square).sqrt();
        assert!(relative < most && relative > most / 2.0, "{}: {relative}", encoding.name());
    }
}

#[test]
fn known_blocks_have_known_bytes() {
    let mut bytes = [0; 34];
    let numbers: [f32; 32] = std::array::from_fn(|at| at as f32 * 8.0 - 127.0);
    Encoding::Q8_0.encode(&numbers, &mut bytes);
    // The scale is 1, which is 0x3c00 in half precision.
    assert_eq!(bytes[..6], [0x00, 0x3c, 0x81, 0x89, 0x91, 0x99]);
    let mut bytes = [0; 22];
    Encoding::Q5_0.encode(&std::array::from_fn::<f32, 32, _>(|at| at as f32 - 16.0), &mut bytes);
    assert_eq!(bytes[..8], [0x00, 0x3c, 0x00, 0x00, 0xff, 0xff, 0x00, 0x11]);
    let mut bytes = [0; 4];
    Encoding::F16.encode(&[1.0, -2.0], &mut bytes);
    assert_eq!(bytes, [0x00, 0x3c, 0x00, 0xc0]);
    Encoding::Bf16.encode(&[1.0, -2.0], &mut bytes);
    assert_eq!(bytes, [0x80, 0x3f, 0x00, 0xc0]);
}

#[test]
fn zeros_and_equal_numbers_are_kept() {
    for encoding in QUANTIZED {
        let [of_block, _] = encoding.block();
        for number in [0.0, 1.0, -1.0] {
            for found in through(encoding, &vec![number; of_block]) {
                assert!((found - number).abs() < 2e-3, "{}: {number} becomes {found}", encoding.name());
            }
        }
    }
}

proptest! {
    #[test]
    fn no_number_is_off_by_more_than_a_step(numbers in proptest::collection::vec(-1.0e3_f32..1.0e3, 256)) {
        // The largest number of a block decides its step; of Q6_K, groups have scales of 8 bits, of the others 6.
        for (encoding, part) in QUANTIZED.into_iter().zip([0.005, 0.07, 0.13, 0.08, 0.05]) {
            let [of_block, _] = encoding.block();
            for numbers in numbers.chunks_exact(of_block) {
                let low = numbers.iter().fold(0.0_f32, |a, &b| a.min(b));
                let high = numbers.iter().fold(0.0_f32, |a, &b| a.max(b));
                for (number, found) in numbers.iter().zip(through(encoding, numbers)) {
                    let most = part * (high - low);
                    prop_assert!((number - found).abs() <= most, "{}: {number} becomes {found}", encoding.name());
                }
            }
        }
    }

    #[test]
    fn any_bits_are_encoded(bits in proptest::collection::vec(any::<u32>(), 256)) {
        let numbers = bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        for encoding in QUANTIZED {
            let [of_block, _] = encoding.block();
            for numbers in numbers.chunks_exact(of_block) {
                through(encoding, numbers);
            }
        }
    }
}
