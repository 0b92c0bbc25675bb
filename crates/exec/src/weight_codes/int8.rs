//! Integers of 8 bits, with the largest absolute weight of a row as its scale: the same values as bitsandbytes'
//! `int8_vectorwise_quant` and `int8_vectorwise_dequant`. The integers are stored as bytes in two's complement.

/// The largest code.
const MOST: f32 = 127.0;

/// The codes of whole rows; appends the rows' scales. A row of zeros has the scale zero and the codes zero.
pub(super) fn encode(weights: &[f32], columns: usize, absmax: &mut Vec<f32>) -> Vec<u8> {
    let mut codes = Vec::with_capacity(weights.len());
    for row in weights.chunks(columns) {
        let largest = row.iter().fold(0.0f32, |most, weight| most.max(weight.abs()));
        // A conversion from NaN, which is zero times infinity, is zero.
        let factor = MOST / largest;
        codes.extend(row.iter().map(|weight| ((weight * factor).round_ties_even() as i8).cast_unsigned()));
        absmax.push(largest);
    }
    codes
}

/// The weights of codes of a row.
pub(super) fn decode(codes: &[u8], absmax: f32, into: &mut [f32]) {
    for (weight, code) in into.iter_mut().zip(codes) {
        *weight = f32::from(code.cast_signed()) * absmax * (1.0 / MOST);
    }
}
