//! The weights of a model in a folder, read without an engine: any part of any tensor, in single precision.
//! Not here: filling an engine (`read.rs`).

use super::archive::{Archive, describe, wrong};
use super::bitsandbytes::Quantized;
use super::mxfp4::Packed;
use super::read::{averages, dtype_of, is_float, matched, verify_weights};
use super::{ADAPTER_FILE, CheckpointError, MODEL_FILE};
use half::{bf16, f16};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{DType, Graph};
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::path::Path;
use std::slice;

/// The tensors of a model or of its adapters, by the model's names for them.
pub struct StoredWeights {
    archive: Archive,
    tensors: BTreeMap<String, StoredTensor>,
}

/// A tensor of the files.
struct StoredTensor {
    /// Its name there.
    stored: String,
    /// Its shape in the model.
    shape: Vec<usize>,
}

impl StoredWeights {
    /// Opens the weights of a model, ours, or those of a folder that `transformers` saved; if `averaged`, the averages of a
    /// checkpoint. Reads no tensor.
    /// Errors: those of [`load_weights`](super::load_weights).
    pub fn open(folder: &Path, model: &ModelConfig, averaged: bool) -> Result<Self, CheckpointError> {
        let archive = if averaged {
            averages(folder, MODEL_FILE)?
        } else {
            verify_weights(folder, MODEL_FILE)?;
            Archive::file_or_shards(folder, MODEL_FILE)?
        };
        let shapes = tensors_of(model);
        let names = shapes.keys().cloned().collect::<Vec<_>>();
        let stored_as = matched(&archive, &names, true)?;
        let tensors = shapes.into_iter().map(|(name, shape)| {
            let stored = stored_as[name.as_str()].to_owned();
            check(&archive, &stored, &shape)?;
            Ok((name, StoredTensor { stored, shape }))
        });
        let tensors = tensors.collect::<Result<_, CheckpointError>>()?;
        Ok(Self { archive, tensors })
    }

    /// Opens the adapters of a folder, under PEFT's names, or if `averaged` their averages. Errors: as for
    /// [`StoredWeights::open`].
    pub fn open_adapters(folder: &Path, averaged: bool) -> Result<Self, CheckpointError> {
        let archive = if averaged {
            averages(folder, ADAPTER_FILE)?
        } else {
            verify_weights(folder, ADAPTER_FILE)?;
            Archive::file(&folder.join(ADAPTER_FILE))?
        };
        let tensors = archive.names().map(|name| {
            let shape = archive.view(name)?.shape().to_vec();
            check(&archive, name, &shape)?;
            Ok((name.to_owned(), StoredTensor { stored: name.to_owned(), shape }))
        });
        let tensors = tensors.collect::<Result<_, CheckpointError>>()?;
        Ok(Self { archive, tensors })
    }

    /// The names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor; `None` if there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Reads the elements of a tensor from `first` on, `step` elements apart. Panics if there are fewer.
    /// Errors: `MissingTensor`.
    pub fn read(&self, name: &str, first: usize, step: usize, values: &mut [f32]) -> Result<(), CheckpointError> {
        let missing = || CheckpointError::MissingTensor { path: self.archive.path().into(), tensor: name.to_owned() };
        let StoredTensor { stored, shape } = self.tensors.get(name).ok_or_else(missing)?;
        if let Some(weight) = Quantized::find(&self.archive, stored, shape)? {
            match step {
                1 => weight.decode(first, values),
                _ => values.iter_mut().enumerate().for_each(|(number, value)| {
                    weight.decode(first + number * step, slice::from_mut(value));
                }),
            }
            return Ok(());
        }
        if let Some(packed) = Packed::find(&self.archive, stored, shape)? {
            match step {
                1 => packed.read(first, values),
                _ => values.iter_mut().enumerate().for_each(|(number, value)| {
                    packed.read(first + number * step, slice::from_mut(value));
                }),
            }
            return Ok(());
        }
        let view = self.archive.view(stored)?;
        match dtype_of(&view) {
            Some(DType::F16) => widen(&view, first, step, values, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Some(DType::Bf16) => widen(&view, first, step, values, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            _ => widen(&view, first, step, values, f32::from_le_bytes),
        }
        Ok(())
    }

    /// Drops the pages of a tensor that was read from the process's memory.
    pub fn release(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name) {
            self.archive.release(&tensor.stored);
        }
    }
}

/// The tensors of a model's files and their shapes.
pub(super) fn tensors_of(model: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let mut graph = Graph::default();
    model.declare(&mut graph);
    let tensors = graph.parameters.iter().flat_map(|parameter| {
        let tensor = &graph[parameter.tensor];
        let whole = parameter.stored.is_empty().then(|| (tensor.name.to_string(), tensor.ty.shape.to_vec()));
        let pieces = parameter.stored.iter().map(|piece| (piece.tensor.to_string(), piece.shape.clone()));
        whole.into_iter().chain(pieces)
    });
    tensors.collect()
}

/// Errors: `WrongTensor`, `UnsupportedDtype`, `UnsupportedCodes`, `BadCodes`, `MissingTensor`.
fn check(archive: &Archive, stored: &str, shape: &[usize]) -> Result<(), CheckpointError> {
    if let Some(weight) = Quantized::find(archive, stored, shape)? {
        return weight.check();
    }
    if Packed::find(archive, stored, shape)?.is_some() {
        return Ok(());
    }
    let view = archive.view(stored)?;
    if !dtype_of(&view).is_some_and(is_float) {
        let (path, tensor) = (archive.file_of(stored).to_owned(), stored.to_owned());
        return Err(CheckpointError::UnsupportedDtype { path, tensor, found: describe(&view) });
    }
    match view.shape() == shape {
        true => Ok(()),
        false => Err(wrong(archive.file_of(stored), stored, format!("F32 {shape:?}"), &view)),
    }
}

fn widen<const N: usize>(
    view: &TensorView<'_>,
    first: usize,
    step: usize,
    values: &mut [f32],
    widen: impl Fn([u8; N]) -> f32,
) {
    let numbers = view.data().as_chunks::<N>().0[first..].iter().step_by(step);
    values.iter_mut().zip(numbers).for_each(|(value, bytes)| *value = widen(*bytes));
}
