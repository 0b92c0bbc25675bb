//! Writes a file of a device's tensors in the safetensors format. A weight with a separate remainder is combined with
//! it in parts, so that no tensor is copied whole.

use super::CheckpointError;
use super::contents::{Content, Part, transposed_bytes};
use crate::{Engine, TrainError};
use plimsoll_exec::{converted, joined};
use plimsoll_graph::DType;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The metadata of a file of tensors: `transformers` requires the format.
const METADATA: [(&str, &str); 1] = [("format", "pt")];

/// Bytes of a tensor checked and written at a time.
const PART_BYTES: usize = 1 << 17;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// The header, the order of the tensors, and their total size.
struct Layout<'c> {
    /// The header's length and the header, padded to multiples of 8.
    head: Vec<u8>,
    tensors: Vec<&'c Content>,
    bytes: u64,
}

impl<'c> Layout<'c> {
    /// In the order of the format's own library: the widest types first, then by name, without gaps.
    fn of(engine: &Engine, contents: &'c [Content]) -> Self {
        let dtype = |content: &Content| dtype_name(content.dtype(engine));
        let mut tensors = contents.iter().collect::<Vec<_>>();
        tensors.sort_by(|a, b| order(dtype(a), &a.name).cmp(&order(dtype(b), &b.name)));
        let infos = tensors.iter().map(|content| (content.name.clone(), dtype(content), content.shape.clone()));
        let (head, bytes) = head(infos);
        Self { head, tensors, bytes }
    }
}

/// The place of a tensor among those of a file: the widest types first, then by name.
pub(super) fn order(dtype: Dtype, name: &str) -> (Reverse<Dtype>, &str) {
    (Reverse(dtype), name)
}

/// The beginning of a file of these tensors, which follow each other without gaps: the header's length and the header, padded
/// to multiples of 8. And the bytes of all tensors.
pub(super) fn head(tensors: impl Iterator<Item = (String, Dtype, Vec<usize>)>) -> (Vec<u8>, u64) {
    let mut end = 0;
    let infos = tensors.map(|(name, dtype, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name, TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let infos = infos.collect();
    let metadata = HashMap::from(METADATA.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let header = Metadata::new(Some(metadata), infos).expect("offsets follow each other");
    let mut header = serde_json::to_string(&header).expect("plain data").into_bytes();
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    ([&(header.len() as u64).to_le_bytes()[..], &header].concat(), end as u64)
}

/// The size of a file of these tensors.
pub(super) fn file_bytes(engine: &Engine, contents: &[Content]) -> u64 {
    let layout = Layout::of(engine, contents);
    layout.head.len() as u64 + layout.bytes
}

/// Writes a file of these tensors, which must not exist yet. Does not sync it. The inner error is the disk's; the outer
/// one the device's, for a tensor that can't be read, or `NotFinite`.
pub(super) fn write(engine: &Engine, contents: &[Content], path: &Path) -> Result<io::Result<()>, TrainError> {
    let layout = Layout::of(engine, contents);
    let mut file = match File::create_new(path) {
        Ok(file) => BufWriter::with_capacity(BUFFER_BYTES, file),
        Err(error) => return Ok(Err(error)),
    };
    if let Err(error) = file.write_all(&layout.head) {
        return Ok(Err(error));
    }
    for content in layout.tensors {
        if let Err(error) = write_tensor(engine, content, &mut file)? {
            return Ok(Err(error));
        }
    }
    Ok(file.flush())
}

fn write_tensor(engine: &Engine, content: &Content, file: &mut impl Write) -> Result<io::Result<()>, TrainError> {
    for part in &content.parts {
        if let Err(error) = write_part(engine, content, *part, file)? {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

fn write_part(
    engine: &Engine,
    content: &Content,
    part: Part,
    file: &mut impl Write,
) -> Result<io::Result<()>, TrainError> {
    let (own, dtype) = (part.dtype(engine), content.dtype(engine));
    let range = part.bytes(engine);
    let bytes = engine.view(part.tensor)?;
    let remainder = part.remainder.map(|remainder| engine.view(remainder)).transpose()?;
    let remainder = remainder.as_deref().map(|all| &all[range.clone()]);
    // A transpose is written as a whole: only matrices of adapters have one.
    let at_a_time = if part.transposed.is_some() { range.len().max(1) } else { PART_BYTES };
    for (number, piece) in bytes[range].chunks(at_a_time).enumerate() {
        let rest = remainder.map(|all| &all[number * at_a_time..][..piece.len()]);
        let piece = rest.map_or(Cow::Borrowed(piece), |rest| Cow::Owned(joined(piece, rest)));
        if !is_finite(own, &piece) {
            return Err(CheckpointError::NotFinite { tensor: content.name.clone() }.into());
        }
        let piece = converted(&piece, own, dtype);
        let turned = part.transposed.map(|columns| transposed_bytes(&piece, columns, dtype));
        if let Err(error) = file.write_all(turned.as_deref().unwrap_or(&piece)) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// Whether no value is NaN or infinite: no exponent consists of ones alone. Integers are finite.
fn is_finite(dtype: DType, bytes: &[u8]) -> bool {
    let narrow = |exponent: u16| {
        let values = bytes.as_chunks().0.iter().map(|&value| u16::from_le_bytes(value));
        values.fold(true, |finite, value| finite & (value & exponent != exponent))
    };
    match dtype {
        DType::F32 => {
            let values = bytes.as_chunks().0.iter().map(|&value| u32::from_le_bytes(value));
            values.fold(true, |finite, value| finite & (value & 0x7f80_0000 != 0x7f80_0000))
        }
        DType::F16 => narrow(0x7c00),
        DType::Bf16 => narrow(0x7f80),
        DType::I32 | DType::I16 | DType::U8 => true,
    }
}

/// The safetensors name of a dtype.
pub(super) fn dtype_name(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::U8 => Dtype::U8,
    }
}
