//! Merged files with other tensors than the files below: weights that bitsandbytes quantized, or that are in MXFP4 and get
//! adapters, are floats, without tensors of scales, and an output head may have a weight of its own. The header and the index list
//! what there is.

use super::super::CheckpointError;
use super::super::archive::ArchiveFile;
use super::super::bitsandbytes::{Quantized, weight_of};
use super::super::mxfp4::{Packed, blocks_of};
use super::super::read::{dtype_of, is_float};
use super::super::stored::tensors_of;
use super::super::tensors::{dtype_name, head, order};
use super::{Merge, stored_name};
use plimsoll_graph::DType;
use plimsoll_graph::models::ModelConfig;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{self, Write};

/// A quantized weight that is written as floats.
#[derive(Clone)]
pub(super) struct Decoded {
    /// Its name in the merged file.
    name: String,
    pub(super) shape: Vec<usize>,
    /// The dtype to write.
    pub(super) dtype: DType,
    pub(super) format: Format,
}

/// How the files store a quantized weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    BitsAndBytes,
    Mxfp4,
}

/// A tensor of a file that is written.
type Output = (String, Dtype, Vec<usize>);

impl Merge {
    /// Finds the quantized weights that are decoded: all of bitsandbytes, in the precision that they had before, or if the file
    /// lacks it, in that of the other weights; and if one of `changed` is in MXFP4, all of that format. Errors: those of reading
    /// them.
    pub(super) fn find_quantized(
        &mut self,
        model: &ModelConfig,
        names: &HashSet<&str>,
        changed: &HashSet<String>,
    ) -> Result<(), CheckpointError> {
        let mut packed = Vec::new();
        for (name, shape) in tensors_of(model) {
            let Some(stored) = stored_name(&self.weights, &name, names) else { continue };
            if let Some(weight) = Quantized::find(&self.weights, &stored, &shape)? {
                weight.check()?;
                let dtype = weight.dtype().unwrap_or(self.usual_dtype());
                let decoded = Decoded { name: stored.clone(), shape, dtype, format: Format::BitsAndBytes };
                self.decoded.insert(stored, decoded);
            } else if Packed::find(&self.weights, &stored, &shape)?.is_some() {
                let is_changed = changed.contains(&name);
                let decoded = Decoded { name, shape, dtype: self.usual_dtype(), format: Format::Mxfp4 };
                packed.push((is_changed, stored, decoded));
            }
        }
        if packed.iter().any(|(is_changed, ..)| *is_changed) {
            self.decoded.extend(packed.into_iter().map(|(_, stored, decoded)| (stored, decoded)));
        }
        Ok(())
    }

    /// The dtype of the first float among the weights themselves.
    fn usual_dtype(&self) -> DType {
        let own = self.weights.names().filter(|name| weight_of(name).is_none());
        let dtypes = own.filter_map(|name| dtype_of(&self.weights.view(name).ok()?));
        dtypes.into_iter().find(|dtype| is_float(*dtype)).unwrap_or(DType::F32)
    }

    /// Whether a file has quantized weights or scales of some, or the tensor that is copied.
    pub(super) fn has_other_tensors(&self, file: &ArchiveFile) -> bool {
        let is_copied = |name: &str| self.copy.as_ref().is_some_and(|copy| copy.from == name);
        let is_other = |name: &String| self.decoded.contains_key(name) || self.is_left_out(name) || is_copied(name);
        file.tensors.iter().any(|(name, _)| is_other(name))
    }

    fn is_left_out(&self, name: &str) -> bool {
        [weight_of(name), blocks_of(name)].iter().flatten().any(|weight| self.decoded.contains_key(weight))
    }

    /// The tensor of the files that a merged tensor has the values of.
    fn source<'n>(&'n self, name: &'n str) -> &'n str {
        let renamed = self.decoded.iter().find(|(_, decoded)| decoded.name == name);
        renamed.map_or(name, |(stored, _)| stored)
    }

    /// The tensors of a file in the order in which they are written.
    fn outputs(&self, file: &ArchiveFile) -> Vec<Output> {
        let names = file.tensors.iter().map(|(name, _)| name).filter(|name| !self.is_left_out(name));
        let mut outputs = names.filter_map(|name| self.output(name, name)).collect::<Vec<_>>();
        let copy = self.copy.iter().filter(|copy| file.tensors.iter().any(|(name, _)| *name == copy.from));
        outputs.extend(copy.filter_map(|copy| self.output(&copy.name, &copy.from)));
        outputs.sort_by(|a, b| order(a.1, &a.0).cmp(&order(b.1, &b.0)));
        outputs
    }

    /// A tensor that is written with the values of one in the files, which are decoded if they are quantized.
    fn output(&self, name: &str, from: &str) -> Option<Output> {
        if let Some(decoded) = self.decoded.get(from) {
            let name = if name == from { &decoded.name } else { name };
            return Some((name.to_owned(), dtype_name(decoded.dtype), decoded.shape.clone()));
        }
        let view = self.weights.view(from).ok()?;
        Some((name.to_owned(), view.dtype(), view.shape().to_vec()))
    }

    /// Size of a file after it is merged.
    pub(super) fn output_bytes(&self, file: &ArchiveFile) -> u64 {
        let (head, bytes) = head(self.outputs(file).into_iter());
        head.len() as u64 + bytes
    }

    /// Writes a file with its outputs. `refused` receives an error that is not the disk's.
    pub(super) fn write_outputs(
        &self,
        file: &ArchiveFile,
        out: &mut impl Write,
        refused: &mut Option<CheckpointError>,
    ) -> io::Result<()> {
        let outputs = self.outputs(file);
        out.write_all(&head(outputs.iter().cloned()).0)?;
        for (name, ..) in outputs {
            let copy = self.copy.as_ref().filter(|copy| copy.name == name);
            let source = self.source(&name);
            let (from, change) =
                copy.map_or((source, self.changes.get(source)), |copy| (&*copy.from, copy.change.as_ref()));
            let (_, range) = file.tensors.iter().find(|(other, _)| other == from).expect("a tensor of the file");
            self.write_tensor(from, change, &file.bytes[range.clone()], out, refused)?;
        }
        Ok(())
    }

    /// The index without the tensors that are left out, and with the one that is copied.
    pub(super) fn index_of_outputs(&self, index: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let mut index = serde_json::from_slice::<Value>(index)?;
        if let Some(map) = index["weight_map"].as_object_mut() {
            map.retain(|name, _| !self.is_left_out(name));
            for (stored, decoded) in &self.decoded {
                let file = map.remove(stored);
                map.extend(file.map(|file| (decoded.name.clone(), file)));
            }
            let file = self.copy.as_ref().and_then(|copy| Some((copy.name.clone(), map.get(&copy.from)?.clone())));
            map.extend(file);
        }
        let bytes = self.weights.files().map(|file| head(self.outputs(&file).into_iter()).1).sum::<u64>();
        index["metadata"] = json!({ "total_size": bytes });
        serde_json::to_vec_pretty(&index)
    }
}
