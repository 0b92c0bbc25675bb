//! Codes, scales and decoded weights against those of bitsandbytes, from `scripts/golden_weight_codes.py`.

use super::nf4::{LEVELS, scale_levels};
use super::*;
use crate::cases::encode;
use half::{bf16, f16};
use plimsoll_graph::DType;
use serde_json::Value;

/// The weights of the golden values, in a precision.
fn weights(count: usize, dtype: DType) -> Vec<f32> {
    let weight = |i: usize| {
        let uniform = ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 2f32.powi(24) - 0.5;
        let block = i / 64;
        if block == 2 { 0.0 } else { uniform * 2f32.powi((block * 5 % 9) as i32 - 4) }
    };
    (0..count).map(|i| rounded(weight(i), dtype)).collect()
}

/// The value rounded to nearest, ties to even.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

fn bytes(golden: &Value) -> Vec<u8> {
    let digits = golden.as_str().expect("hexadecimal digits").as_bytes();
    let byte = |two: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(two).expect("digits"), 16).expect("digits");
    digits.as_chunks::<2>().0.iter().map(byte).collect()
}

fn floats(golden: &Value) -> Vec<f32> {
    bytes(golden).as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn sum_of(golden: &Value) -> u64 {
    golden.as_u64().expect("a checksum")
}

fn golden() -> Value {
    serde_json::from_str(include_str!("golden.json")).expect("JSON")
}

/// Calls `check` with each case: its name, its golden values, its weights, and their columns.
fn each_case(check: impl Fn(&str, &Value, &[f32], usize)) {
    for case in golden()["cases"].as_array().expect("cases") {
        let [rows, columns] = [0, 1].map(|axis| case["shape"][axis].as_u64().expect("an extent") as usize);
        let dtype = dtype(case["dtype"].as_str().expect("a type"));
        check(&format!("{rows} by {columns}, {dtype:?}"), case, &weights(rows * columns, dtype), columns);
    }
}

fn dtype(name: &str) -> DType {
    serde_json::from_value(name.to_lowercase().into()).expect("a type")
}

/// The checksum of decoded weights in a precision.
fn decoded(matrix: &CodedMatrix, [rows, columns]: [usize; 2], to: DType) -> u64 {
    let mut weights = vec![0.0; rows * columns];
    for (row, weights) in weights.chunks_exact_mut(columns).enumerate() {
        // In parts that begin anywhere in a byte and in a block.
        let (first, rest) = weights.split_at_mut(columns / 3);
        matrix.decode(row, 0, first);
        matrix.decode(row, first.len(), rest);
    }
    checksum(&encode(to, &weights))
}

#[test]
fn levels_are_those_of_bitsandbytes() {
    let golden = golden();
    assert_eq!(LEVELS.to_vec(), floats(&golden["levels"]));
    assert_eq!(scale_levels().to_vec(), floats(&golden["scale_levels"]));
}

#[test]
fn codes_of_four_bits_are_those_of_bitsandbytes() {
    each_case(|name, case, weights, columns| {
        let golden = &case["nf4"];
        let mut absmax = Vec::new();
        let codes = nf4::encode(weights, &mut absmax);
        assert_eq!(checksum(&codes), sum_of(&golden["codes"]), "codes of {name}");
        assert_eq!(checksum(bytemuck::cast_slice(&absmax)), sum_of(&golden["plain_absmax"]), "scales of {name}");
        let offset = floats(&golden["nested_offset"])[0];
        // The order in which bitsandbytes adds depends on the machine.
        let off = nf4::mean(&absmax).to_bits().abs_diff(offset.to_bits());
        assert!(off <= 2, "the mean of the scales of {name} is {off} units in the last place off");
        let (scales, nested) = nf4::encode_scales(&absmax, offset);
        assert_eq!(nested, floats(&golden["nested_absmax"]), "scales of scales of {name}");
        assert_eq!(checksum(&scales), sum_of(&golden["absmax"]), "codes of scales of {name}");
        let scales = [&scales[..], bytemuck::cast_slice(&nested), bytemuck::bytes_of(&offset)];
        let matrix = CodedMatrix::new(WeightCodes::Nf4, columns, &codes, &scales);
        for (to, golden) in golden["decoded"].as_object().expect("precisions") {
            let to = dtype(to);
            let found = decoded(&matrix, [weights.len() / columns, columns], to);
            assert_eq!(found, sum_of(golden), "decoded {to:?} of {name}");
        }
    });
}

#[test]
fn codes_of_eight_bits_are_those_of_bitsandbytes() {
    each_case(|name, case, weights, columns| {
        let golden = &case["int8"];
        let mut absmax = Vec::new();
        let codes = int8::encode(weights, columns, &mut absmax);
        assert_eq!(absmax, floats(&golden["SCB"]), "scales of {name}");
        assert_eq!(checksum(&codes), sum_of(&golden["codes"]), "codes of {name}");
        let matrix = CodedMatrix::new(WeightCodes::Int8, columns, &codes, &[bytemuck::cast_slice(&absmax)]);
        let found = decoded(&matrix, [weights.len() / columns, columns], DType::F32);
        assert_eq!(found, sum_of(&golden["decoded"]["F32"]), "decoded {name}");
    });
}

#[test]
fn parts_have_the_codes_of_the_whole() {
    for format in WeightCodes::ALL {
        let (rows, columns) = (150, 26);
        let weights = weights(rows * columns, DType::F32);
        let mut whole = Encoder::new(format, columns);
        let codes = whole.encode(&weights);
        let mut parts = Encoder::new(format, columns);
        let multiple = parts.multiple();
        let in_parts = weights.chunks(multiple).flat_map(|part| parts.encode(part)).collect::<Vec<_>>();
        assert!(weights.len() > 2 * multiple, "{format:?} has parts");
        assert_eq!((in_parts, parts.scales()), (codes, whole.scales()), "{format:?}");
    }
}

#[test]
fn rows_and_blocks_of_zeros_stay_zero() {
    for format in WeightCodes::ALL {
        let mut encoder = Encoder::new(format, 64);
        let weights = [[0.0; 64], [0.5; 64]].concat();
        let (codes, scales) = (encoder.encode(&weights), encoder.scales());
        let scales = scales.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let matrix = CodedMatrix::new(format, 64, &codes, &scales);
        let mut row = [1.0; 64];
        matrix.decode(0, 0, &mut row);
        assert_eq!(row, [0.0; 64], "{format:?}");
    }
}
