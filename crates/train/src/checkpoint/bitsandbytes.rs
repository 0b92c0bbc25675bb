//! Weights that bitsandbytes quantized, as `save_pretrained` of transformers writes them.
//!
//! ```text
//!   NF4    X.weight U8 (O·I/2, 1)          two codes per byte, the higher bits first; rows follow each other
//!          X.weight.absmax                 a scale for each 64 weights: U8 codes, or F32 without double quantization
//!          X.weight.nested_absmax F32      a scale for each 256 of these codes
//!          X.weight.quant_map, X.weight.nested_quant_map    F32: the values of the codes
//!          X.weight.quant_state.bitsandbytes__nf4           JSON in bytes: sizes of blocks, shape, offset of the scales
//!   int8   X.weight I8 (O, I)
//!          X.SCB F32 (O)                   a scale for each row
//!          X.weight_format U8              0 for rows
//! ```
//!
//! The codes are those of `WeightCodes`, so that a run with the same format takes them as they are. Nothing in the files is
//! trusted: sizes are compared with the model's, and scales are checked before the first weight is used.
//!
//! Source: `QuantState.as_dict` of bitsandbytes 0.50 and `Linear8bitLt._save_to_state_dict`.

use super::archive::{Archive, describe};
use super::{CheckpointError, MODEL_FILE};
use bytemuck::try_cast_slice;
use plimsoll_exec::{CodedMatrix, nf4_levels};
use plimsoll_graph::{DType, NESTED_BLOCK, NF4_BLOCK, WeightCodes};
use safetensors::tensor::Dtype;
use serde::Deserialize;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// After the name of a weight: the beginning of the name of its state, which ends with the format.
const STATE: &str = ".quant_state.bitsandbytes__";

/// The ends of the names of a weight's other tensors, after its name; and after its name without `weight`.
const OF_WEIGHT: [&str; 4] = [".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map"];
const OF_LAYER: [&str; 2] = ["SCB", "weight_format"];

/// Longer than any state.
const LONGEST_STATE: usize = 4096;

/// Largest difference of a value of codes from ours: machines round them differently.
const LEVEL_TOLERANCE: f32 = 1e-5;

/// The format of the first quantized weight in a folder; `None` if none is quantized, or the weights can't be read, which
/// loading them reports. Errors: `UnsupportedCodes`.
pub fn bitsandbytes_codes(folder: &Path) -> Result<Option<WeightCodes>, CheckpointError> {
    let Ok(archive) = Archive::file_or_shards(folder, MODEL_FILE) else { return Ok(None) };
    for name in archive.names() {
        if let Some((weight, format)) = name.split_once(STATE) {
            let is_read = format == WeightCodes::Nf4.name();
            return if is_read { Ok(Some(WeightCodes::Nf4)) } else { Err(unsupported(&archive, weight, format)) };
        }
        // Our own checkpoints have such a tensor for `X.weight`, not for `X`.
        let of_layer = name.strip_suffix("SCB").filter(|stem| archive.has(&format!("{stem}weight")));
        if of_layer.is_some() {
            return Ok(Some(WeightCodes::Int8));
        }
    }
    Ok(None)
}

/// A weight in a file.
pub(super) struct Quantized<'a> {
    name: &'a str,
    archive: &'a Archive,
    /// The extents (out, in).
    extents: [usize; 2],
    codes: &'a [u8],
    scales: Scales<'a>,
    /// The precision of the weight before it was quantized, if the file has it.
    dtype: Option<DType>,
}

enum Scales<'a> {
    /// Codes, their scales, and the offset that is added to them.
    Nested(&'a [u8], Cow<'a, [f32]>, f32),
    Plain(Cow<'a, [f32]>),
    Rows(Cow<'a, [f32]>),
}

/// The JSON of a state.
#[derive(Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// The name of the weight that a tensor of this name belongs to, if it has a name of a scale, state or map.
pub(super) fn weight_of(name: &str) -> Option<String> {
    let of_weight = OF_WEIGHT.iter().find_map(|end| name.strip_suffix(end));
    let of_state = || name.find(STATE).map(|at| &name[..at]);
    let of_layer = || OF_LAYER.iter().find_map(|end| name.strip_suffix(end)).filter(|stem| stem.ends_with('.'));
    let found = of_weight.or_else(of_state).map(str::to_owned);
    found.or_else(|| of_layer().map(|stem| format!("{stem}weight")))
}

impl<'a> Quantized<'a> {
    /// The weight of this name in the files; `None` if it is not quantized. Compares all sizes with the model's `shape`.
    /// Errors: `UnsupportedCodes`, `BadCodes`.
    pub(super) fn find(archive: &'a Archive, name: &'a str, shape: &[usize]) -> Result<Option<Self>, CheckpointError> {
        let in_rows = name.strip_suffix("weight").map(|stem| format!("{stem}SCB"));
        if let Some(state) = archive.first_with(&format!("{name}{STATE}")) {
            return Self::of_four_bits(archive, name, state, extents(archive, name, shape)?).map(Some);
        }
        if let Some(scales) = in_rows.as_deref().filter(|scales| archive.has(scales)) {
            return Self::of_eight_bits(archive, name, scales, extents(archive, name, shape)?).map(Some);
        }
        let missing = match archive.view(name)?.dtype() {
            Dtype::I8 => in_rows,
            Dtype::U8 if archive.has(&format!("{name}.absmax")) && !archive.has(&format!("{name}.nested_offset")) => {
                Some(format!("{name}{STATE}nf4"))
            }
            _ => None,
        };
        missing.map_or(Ok(None), |missing| Err(bad(archive, name, format!("has no `{missing}` next to it"))))
    }

    fn of_four_bits(
        archive: &'a Archive,
        name: &'a str,
        state: &str,
        extents: [usize; 2],
    ) -> Result<Self, CheckpointError> {
        let format = state.rsplit("__").next().unwrap_or_default();
        let text = archive.view(state)?.data();
        if format != WeightCodes::Nf4.name() {
            return Err(unsupported(archive, name, format));
        }
        let parsed = match serde_json::from_slice::<State>(&text[..text.len().min(LONGEST_STATE)]) {
            Ok(parsed) if parsed.quant_type == format => parsed,
            Ok(parsed) => return Err(unsupported(archive, name, &parsed.quant_type)),
            Err(error) => return Err(bad(archive, state, format!("is not the state of a weight: {error}"))),
        };
        let nested_block = parsed.nested_blocksize.unwrap_or(NESTED_BLOCK);
        if (parsed.blocksize, nested_block) != (NF4_BLOCK, NESTED_BLOCK) {
            let found = format!("has blocks of {} weights and {nested_block} scales", parsed.blocksize);
            return Err(bad(archive, state, format!("{found}; only {NF4_BLOCK} and {NESTED_BLOCK} are read")));
        }
        if parsed.shape != extents {
            return Err(bad(archive, state, format!("has the shape {:?}, the model {extents:?}", parsed.shape)));
        }
        let dtype = match parsed.dtype.as_str() {
            "float32" => DType::F32,
            "float16" => DType::F16,
            "bfloat16" => DType::Bf16,
            other => return Err(bad(archive, state, format!("has the dtype {other:?}"))),
        };
        let weights = extents[0] * extents[1];
        let blocks = weights.div_ceil(NF4_BLOCK);
        // The codes may be stored as any type.
        let codes = archive.view(name)?;
        if codes.data().len() != weights.div_ceil(2) {
            let needed = format!("is {}, but {weights} weights have {} bytes", describe(&codes), weights.div_ceil(2));
            return Err(bad(archive, name, needed));
        }
        let scales = match parsed.nested_offset {
            None => Scales::Plain(floats(archive, &format!("{name}.absmax"), blocks)?),
            Some(offset) => Scales::Nested(
                bytes(archive, &format!("{name}.absmax"), Dtype::U8, blocks)?,
                floats(archive, &format!("{name}.nested_absmax"), blocks.div_ceil(NESTED_BLOCK))?,
                offset as f32,
            ),
        };
        Ok(Self { name, archive, extents, codes: codes.data(), scales, dtype: Some(dtype) })
    }

    fn of_eight_bits(
        archive: &'a Archive,
        name: &'a str,
        scales: &str,
        extents: [usize; 2],
    ) -> Result<Self, CheckpointError> {
        let codes = archive.view(name)?;
        if codes.dtype() != Dtype::I8 || codes.shape() != extents {
            return Err(bad(archive, name, format!("is {}, but the model needs I8 {extents:?}", describe(&codes))));
        }
        let order = format!("{name}_format");
        if archive.has(&order) && archive.view(&order)?.data() != [0] {
            return Err(unsupported(archive, name, "int8 in an order of a GPU's tiles"));
        }
        let scales = Scales::Rows(floats(archive, scales, extents[0])?);
        Ok(Self { name, archive, extents, codes: codes.data(), scales, dtype: None })
    }

    /// Errors: `BadCodes` if a scale is not finite, or the file's codes have other values than ours.
    pub(super) fn check(&self) -> Result<(), CheckpointError> {
        let (scales, offset): (&[f32], f32) = match &self.scales {
            Scales::Nested(_, nested, offset) => (nested, *offset),
            Scales::Plain(scales) | Scales::Rows(scales) => (scales, 0.0),
        };
        if !offset.is_finite() || scales.iter().any(|scale| !scale.is_finite()) {
            return Err(bad(self.archive, self.name, "has scales that are not finite".to_owned()));
        }
        let maps: &[&str] = match &self.scales {
            Scales::Nested(..) => &["quant_map", "nested_quant_map"],
            Scales::Plain(_) => &["quant_map"],
            Scales::Rows(_) => &[],
        };
        for (map, levels) in maps.iter().zip(nf4_levels()) {
            let map = format!("{}.{map}", self.name);
            let found = floats(self.archive, &map, levels.len())?;
            if found
                .iter()
                .zip(levels)
                .any(|(a, b)| (a - b).abs().partial_cmp(&LEVEL_TOLERANCE).is_none_or(|o| o.is_gt()))
            {
                return Err(bad(self.archive, &map, "has other values than those of nf4".to_owned()));
            }
        }
        Ok(())
    }

    /// The precision of the weight before it was quantized, if the file has it.
    pub(super) fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// Columns of the matrix.
    pub(super) fn columns(&self) -> usize {
        self.extents[1]
    }

    /// The codes of these elements, followed by their scales in the order of [`WeightCodes::scales`]; `None` if they are in
    /// another format, or share a scale with others.
    pub(super) fn coded(&self, format: WeightCodes, elements: &Range<usize>) -> Option<Vec<Cow<'_, [u8]>>> {
        let part = |of: usize| elements.start / of..elements.end.div_ceil(of);
        match (format, &self.scales) {
            (WeightCodes::Nf4, Scales::Nested(absmax, nested, offset)) => {
                let of_nested = NF4_BLOCK * NESTED_BLOCK;
                let is_apart = elements.start.is_multiple_of(of_nested);
                is_apart.then(|| {
                    vec![
                        Cow::Borrowed(&self.codes[part(2)]),
                        Cow::Borrowed(&absmax[part(NF4_BLOCK)]),
                        Cow::Borrowed(bytemuck::cast_slice(&nested[part(of_nested)])),
                        Cow::Owned(offset.to_ne_bytes().to_vec()),
                    ]
                })
            }
            (WeightCodes::Int8, Scales::Rows(scales)) => {
                let scales = bytemuck::cast_slice(&scales[part(self.columns())]);
                Some(vec![Cow::Borrowed(&self.codes[elements.clone()]), Cow::Borrowed(scales)])
            }
            _ => None,
        }
    }

    /// Decodes the elements from index `first` on. Panics if there are fewer.
    pub(super) fn decode(&self, mut first: usize, mut into: &mut [f32]) {
        let columns = self.columns();
        let words: [&[u8]; 3];
        let offset;
        let matrix = match &self.scales {
            Scales::Nested(absmax, nested, by) => {
                offset = *by;
                words = [absmax, bytemuck::cast_slice(nested), bytemuck::bytes_of(&offset)];
                CodedMatrix::new(WeightCodes::Nf4, columns, self.codes, &words)
            }
            Scales::Plain(scales) => CodedMatrix::plain_nf4(columns, self.codes, scales),
            Scales::Rows(scales) => {
                CodedMatrix::new(WeightCodes::Int8, columns, self.codes, &[bytemuck::cast_slice(scales)])
            }
        };
        while !into.is_empty() {
            let count = into.len().min(columns - first % columns);
            let (row, rest) = into.split_at_mut(count);
            matrix.decode(first / columns, first % columns, row);
            (first, into) = (first + count, rest);
        }
    }
}

/// The extents of a matrix. Errors: it is none.
fn extents(archive: &Archive, name: &str, shape: &[usize]) -> Result<[usize; 2], CheckpointError> {
    let problem = || bad(archive, name, format!("is quantized, but the model's is no matrix: {shape:?}"));
    shape.try_into().map_err(|_| problem())
}

/// The bytes of a tensor of this many elements. Errors: it is missing, or another.
fn bytes<'a>(archive: &'a Archive, name: &str, dtype: Dtype, elements: usize) -> Result<&'a [u8], CheckpointError> {
    if !archive.has(name) {
        return Err(bad(archive, name, "is missing".to_owned()));
    }
    let view = archive.view(name)?;
    let found = view.shape().iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
    if view.dtype() != dtype || found != Some(elements) {
        return Err(bad(archive, name, format!("is {}, but its weight needs {dtype:?} [{elements}]", describe(&view))));
    }
    Ok(view.data())
}

/// The values of a tensor in single precision.
fn floats<'a>(archive: &'a Archive, name: &str, elements: usize) -> Result<Cow<'a, [f32]>, CheckpointError> {
    let bytes = bytes(archive, name, Dtype::F32, elements)?;
    let copied = || bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    Ok(try_cast_slice(bytes).map_or_else(|_| Cow::Owned(copied()), Cow::Borrowed))
}

fn bad(archive: &Archive, tensor: &str, problem: String) -> CheckpointError {
    CheckpointError::BadCodes { path: archive.file_of(tensor).to_owned(), tensor: tensor.to_owned(), problem }
}

fn unsupported(archive: &Archive, tensor: &str, found: &str) -> CheckpointError {
    let (path, tensor) = (archive.file_of(tensor).to_owned(), tensor.to_owned());
    let found = found.chars().take(40).collect();
    CheckpointError::UnsupportedCodes { path, tensor, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_their_weight() {
        for name in [
            "a.weight.absmax",
            "a.weight.nested_absmax",
            "a.weight.quant_map",
            "a.weight.nested_quant_map",
            "a.weight.quant_state.bitsandbytes__nf4",
            "a.SCB",
            "a.weight_format",
        ] {
            assert_eq!(weight_of(name).as_deref(), Some("a.weight"), "{name}");
        }
        for name in ["a.weight", "a.bias", "aSCB", "SCB", "absmax"] {
            assert_eq!(weight_of(name), None, "{name}");
        }
    }
}
