//! Weights in 4 bits as bitsandbytes stores them: `functional.py` (`quantize_4bit`, `QuantState`).

use super::loader::Loader;
use crate::ops::Packed;
use crate::runtime::DType;

/// Number of 8-bit scales that share one scale in single precision.
const SCALES: u64 = 256;

/// Loads a weight (outputs, inputs).
pub(super) fn load(loader: &Loader, name: &str, shape: [u64; 2]) -> Packed {
    loader.original(&format!("{name}.weight"), shape[0] * shape[1], true, || packed(loader, name, shape))
}

fn packed(loader: &Loader, name: &str, shape: [u64; 2]) -> Packed {
    let quantized = loader.quantized().expect("only runs with 4-bit weights load them");
    let elements = shape[0] * shape[1];
    let blocks = elements.div_ceil(quantized.block);
    let of = |part: &str, shape: &[u64], dtype| loader.weight(&format!("{name}.weight{part}"), shape, dtype);
    let packed = of("", &[elements.div_ceil(2), 1], DType::U8);
    let map = || of(".quant_map", &[16], DType::F32);
    let (scales, held) = match quantized.double {
        false => (of(".absmax", &[blocks], DType::F32), vec![packed, map()]),
        true => {
            let held = vec![packed, map(), of(".offset", &[], DType::F32)];
            let scales = of(".absmax", &[blocks], DType::U8);
            let nested = of(".nested_absmax", &[blocks.div_ceil(SCALES)], DType::F32);
            (scales, [held, vec![nested, of(".nested_quant_map", &[256], DType::F32)]].concat())
        }
    };
    Packed { shape, dtype: loader.compute, scales, is_nested: quantized.double, held }
}
