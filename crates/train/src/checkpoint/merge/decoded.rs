//! Files of weights that bitsandbytes quantized, merged into files of floats: their tensors of scales are left out, and the
//! header and the index list the rest.

use super::super::CheckpointError;
use super::super::archive::ArchiveFile;
use super::super::bitsandbytes::{Quantized, weight_of};
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
#[derive(Clone, Copy)]
pub(super) struct Decoded {
    pub(super) shape: [usize; 2],
    /// The dtype to write.
    pub(super) dtype: DType,
}

/// A tensor of a file that is written.
type Output = (String, Dtype, Vec<usize>);

impl Merge {
    /// Finds the quantized weights. They are written in the precision that they had before, or if the file lacks it, in that
    /// of the other weights. Errors: those of reading them.
    pub(super) fn find_quantized(&mut self, model: &ModelConfig, names: &HashSet<&str>) -> Result<(), CheckpointError> {
        for (name, shape) in tensors_of(model) {
            let Some(stored) = stored_name(&self.weights, &name, names) else { continue };
            let Some(weight) = Quantized::find(&self.weights, &stored, &shape)? else { continue };
            weight.check()?;
            let decoded = Decoded { shape: [shape[0], shape[1]], dtype: weight.dtype().unwrap_or(self.usual_dtype()) };
            self.decoded.insert(stored, decoded);
        }
        Ok(())
    }

    /// The dtype of the first float among the weights themselves.
    fn usual_dtype(&self) -> DType {
        let own = self.weights.names().filter(|name| weight_of(name).is_none());
        let dtypes = own.filter_map(|name| dtype_of(&self.weights.view(name).ok()?));
        dtypes.into_iter().find(|dtype| is_float(*dtype)).unwrap_or(DType::F32)
    }

    /// Whether a file has quantized weights, or scales of some.
    pub(super) fn has_quantized(&self, file: &ArchiveFile) -> bool {
        file.tensors.iter().any(|(name, _)| self.decoded.contains_key(name) || self.is_left_out(name))
    }

    fn is_left_out(&self, name: &str) -> bool {
        weight_of(name).is_some_and(|weight| self.decoded.contains_key(&weight))
    }

    /// The tensors of a file in the order in which they are written.
    fn outputs(&self, file: &ArchiveFile) -> Vec<Output> {
        let names = file.tensors.iter().map(|(name, _)| name).filter(|name| !self.is_left_out(name));
        let outputs = names.filter_map(|name| match self.decoded.get(name) {
            Some(decoded) => Some((name.clone(), dtype_name(decoded.dtype), decoded.shape.to_vec())),
            None => {
                let view = self.weights.view(name).ok()?;
                Some((name.clone(), view.dtype(), view.shape().to_vec()))
            }
        });
        let mut outputs = outputs.collect::<Vec<_>>();
        outputs.sort_by(|a, b| order(a.1, &a.0).cmp(&order(b.1, &b.0)));
        outputs
    }

    /// Size of a file after it is merged.
    pub(super) fn decoded_bytes(&self, file: &ArchiveFile) -> u64 {
        let (head, bytes) = head(self.outputs(file).into_iter());
        head.len() as u64 + bytes
    }

    /// Writes a file of floats. `refused` receives an error that is not the disk's.
    pub(super) fn write_decoded(
        &self,
        file: &ArchiveFile,
        out: &mut impl Write,
        refused: &mut Option<CheckpointError>,
    ) -> io::Result<()> {
        let outputs = self.outputs(file);
        out.write_all(&head(outputs.iter().cloned()).0)?;
        for (name, ..) in outputs {
            let (_, range) = file.tensors.iter().find(|(other, _)| *other == name).expect("a tensor of the file");
            self.write_tensor(&name, &file.bytes[range.clone()], out, refused)?;
        }
        Ok(())
    }

    /// The index without the tensors that are left out.
    pub(super) fn decoded_index(&self, index: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let mut index = serde_json::from_slice::<Value>(index)?;
        if let Some(map) = index["weight_map"].as_object_mut() {
            map.retain(|name, _| !self.is_left_out(name));
        }
        let bytes = self.weights.files().map(|file| head(self.outputs(&file).into_iter()).1).sum::<u64>();
        index["metadata"] = json!({ "total_size": bytes });
        serde_json::to_vec_pretty(&index)
    }
}
