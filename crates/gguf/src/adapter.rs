//! Adapters as a file, which llama.cpp adds to the model's.
//! Source: `convert_lora_to_gguf.py` and `llama-adapter.cpp` of llama.cpp: the layer of W x + (alpha / rank) B A x.

use crate::architecture::Architecture;
use crate::tensor::{Order, Piece, Tensor};
use crate::tensors::{Layer, Tensors};
use crate::value::Metadata;
use crate::{Contents, Encoding, FileType, GgufError};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{ADAPTER_PREFIX, Adapter, Adapters, LayerRole};
use plimsoll_train::checkpoint::StoredWeights;
use std::path::Path;

/// The type of an adapters' file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterFileType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl AdapterFileType {
    /// The same type as that of a model's file; `None` for encodings of integers, which rows of a rank's length do not fit.
    pub fn of(file: FileType) -> Option<Self> {
        match file {
            FileType::F32 => Some(Self::F32),
            FileType::F16 => Some(Self::F16),
            FileType::Bf16 => Some(Self::Bf16),
            FileType::Q8_0 | FileType::Q4KM => None,
        }
    }

    fn encoding(self) -> Encoding {
        match self {
            Self::F32 => Encoding::F32,
            Self::F16 => Encoding::F16,
            Self::Bf16 => Encoding::Bf16,
        }
    }

    fn file(self) -> FileType {
        match self {
            Self::F32 => FileType::F32,
            Self::F16 => FileType::F16,
            Self::Bf16 => FileType::Bf16,
        }
    }
}

/// The file of the adapters in a folder. `model`: the model below them; `name`: for people. Errors: `Unsupported`, `Adapters`,
/// `Checkpoint`.
pub fn adapter(
    model: &ModelConfig,
    adapters: &Adapters,
    folder: &Path,
    averaged: bool,
    name: &str,
    file: AdapterFileType,
) -> Result<Contents, GgufError> {
    let architecture = Architecture::of(model)?;
    if let Some(saved) = adapters.saved.first() {
        return Err(GgufError::Adapters { problem: format!("`{saved}` was trained whole") });
    }
    if adapters.has_magnitudes {
        return Err(GgufError::Adapters { problem: "they have magnitudes (DoRA)".to_owned() });
    }
    let alpha = adapters.layers.values().next().map_or(1.0, |adapter| adapter.scale * adapter.rank as f32);
    let mut metadata = Metadata::default();
    metadata.put("general.architecture", architecture.name);
    metadata.put("general.type", "adapter");
    metadata.put("general.name", name);
    metadata.put("general.file_type", file.file().code());
    metadata.put("adapter.type", "lora");
    metadata.put("adapter.lora.alpha", alpha);
    let weights = StoredWeights::open_adapters(folder, averaged)?;
    let layers = Tensors::of(&architecture, &model.describe()).layers;
    let mut tensors = Vec::new();
    for (module, adapter) in &adapters.layers {
        let layer = layers.iter().find(|layer| layer.module == *module);
        let layer = layer.ok_or_else(|| GgufError::Adapters { problem: not_there(model, module) })?;
        tensors.extend(matrices(&weights, layer, adapter, alpha)?.map(|tensor| (tensor, file.encoding())));
    }
    Ok(Contents { metadata, tensors, weights })
}

/// Why a layer of a model is not one in a file.
fn not_there(model: &ModelConfig, module: &str) -> String {
    let layers = model.adaptable_layers().unwrap_or_default();
    match layers.iter().find(|layer| layer.module == module).map(|layer| layer.role) {
        Some(LayerRole::Head) => format!("`{module}` shares the weight of the embedding, and is no layer there"),
        _ => format!("`{module}` is not one layer there"),
    }
}

/// The matrices A (rank, I) and B (O, rank) of a layer; of a layer of experts (E, rank, I) and (E, O, rank). llama.cpp has one
/// alpha for all of them, so that B has the rest of the layer's own factor, and the factor of its weight.
/// Errors: `Adapters` if one is missing.
fn matrices(weights: &StoredWeights, layer: &Layer, adapter: &Adapter, alpha: f32) -> Result<[Tensor; 2], GgufError> {
    let rest = layer.scale * adapter.scale * adapter.rank as f32 / alpha;
    let matrix = |stored: &str, end: &str, order: &Order, scale: f32| {
        let piece = |module: &str| {
            let stored = format!("{ADAPTER_PREFIX}{module}.{stored}.weight");
            let shape = weights.shape(&stored).filter(|shape| shape.len() == 2).map(<[usize]>::to_vec);
            let shape = shape.ok_or_else(|| GgufError::Adapters { problem: format!("`{stored}` is not a matrix") })?;
            Ok::<_, GgufError>((Piece { order: order.clone(), scale, ..Piece::whole(stored, shape[0]) }, shape))
        };
        let of_expert = |expert: usize| piece(&layer.module.replace(".*.", &format!(".{expert}.")));
        let (pieces, shapes): (Vec<_>, Vec<_>) = match layer.experts {
            Some(count) => (0..count).map(of_expert).collect::<Result<Vec<_>, _>>()?,
            None => vec![piece(&layer.module)?],
        }
        .into_iter()
        .unzip();
        let shape = [layer.experts.as_slice(), &shapes[0]].concat();
        Ok::<_, GgufError>(Tensor { name: format!("{}.weight.{end}", layer.name), shape, pieces })
    };
    Ok([
        matrix("lora_A", "lora_a", &Order::Rows, 1.0)?,
        matrix("lora_B", "lora_b", &layer.order, if (rest - 1.0).abs() < 1e-6 { 1.0 } else { rest })?,
    ])
}
