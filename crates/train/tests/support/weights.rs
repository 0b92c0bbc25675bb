//! Files of weights in the format of other programs.

use plimsoll_train::Engine;
use plimsoll_train::checkpoint::INDEX_FILE;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tensor of a safetensors file.
pub type Tensor = (Dtype, Vec<usize>, Vec<u8>);
/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A tensor of zeros.
pub fn zeros(dtype: Dtype, shape: &[usize]) -> Tensor {
    (dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8])
}

/// Valid names and shapes for the engine's weights; each value encodes its index.
pub fn right_tensors(engine: &Engine) -> Tensors {
    let mut tensors = Tensors::new();
    for parameter in engine.parameters() {
        let shape = engine.plan()[parameter.tensor].ty.shape.clone();
        let first = parameter.tensor.0 as f32;
        let values = (0..shape.iter().product()).flat_map(|i: usize| (first + i as f32 / 1e4).to_le_bytes());
        tensors.insert(engine.name(parameter.tensor).to_owned(), (Dtype::F32, shape.to_vec(), values.collect()));
    }
    tensors
}

/// A safetensors file of these tensors.
pub fn serialize(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("bytes of this shape"))
    });
    safetensors::serialize(views, None).expect("a file in memory")
}

/// The tensors of a file.
pub fn deserialize(file: &[u8]) -> Tensors {
    let archive = SafeTensors::deserialize(file).expect("a right file");
    let tensor = |view: TensorView| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    archive.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

/// A file with a modified header before the same bytes.
pub fn with_header(file: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let (length, _) = SafeTensors::read_metadata(file).expect("a right file");
    let mut header = serde_json::from_slice(&file[8..8 + length]).expect("a header is JSON");
    change(&mut header);
    with_raw_header(header.to_string().as_bytes(), &file[8 + length..])
}

/// A file with this header and data.
pub fn with_raw_header(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// Name of a shard, counted from 0.
pub fn shard_name(number: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", number + 1)
}

/// Writes shards with about the same number of tensors each, and the index, which is returned.
pub fn write_shards(folder: &Path, tensors: &Tensors, count: usize) -> Value {
    let mut shards = vec![Tensors::new(); count];
    let mut index = json!({"metadata": {"total_size": 0}, "weight_map": {}});
    for (place, (name, tensor)) in tensors.iter().enumerate() {
        let number = place * count / tensors.len();
        index["weight_map"][name] = json!(shard_name(number, count));
        shards[number].insert(name.clone(), tensor.clone());
    }
    for (number, shard) in shards.iter().enumerate() {
        fs::write(folder.join(shard_name(number, count)), serialize(shard)).expect("a folder to write to");
    }
    write_index(folder, &index);
    index
}

/// Writes the index of shards.
pub fn write_index(folder: &Path, index: &Value) {
    fs::write(folder.join(INDEX_FILE), index.to_string()).expect("a folder to write to");
}
