//! How large a checkpoint will be, before one is written.

use super::contents::contents;
use super::write::{METADATA, dtype_of};
use super::{CONFIG_FILE, STATE_FILE};
use crate::Engine;
use plimsoll_graph::TensorId;
use plimsoll_units::Bytes;
use safetensors::tensor::{Metadata, TensorInfo};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Far more than the numbers of a state take, of whatever length.
const STATE_BYTES: u64 = 8 << 10;

/// What file systems give out at a time; a folder takes one, too.
const BLOCK_BYTES: u64 = 4 << 10;

/// The files of a checkpoint and their sizes in bytes: exact but for `state.json`, which is at most as long.
pub fn sizes(engine: &Engine, config_json: &str) -> Vec<(&'static str, u64)> {
    let tensors = contents(engine).into_iter().map(|(file, tensors)| (file, file_bytes(engine, &tensors)));
    tensors.chain([(CONFIG_FILE, config_json.len() as u64), (STATE_FILE, STATE_BYTES)]).collect()
}

/// What a checkpoint takes of a disk.
pub fn room(engine: &Engine, config_json: &str) -> Bytes {
    let files = sizes(engine, config_json).into_iter().map(|(_, bytes)| bytes.next_multiple_of(BLOCK_BYTES));
    Bytes(files.sum::<u64>() + BLOCK_BYTES)
}

/// The size of a safetensors file: the header's length, the header, padded to eights, and the tensors without gaps.
fn file_bytes(engine: &Engine, tensors: &[(String, TensorId)]) -> u64 {
    let plan = engine.plan();
    // The library's order, which the header's offsets depend on.
    let mut sorted = tensors.iter().map(|(name, id)| (dtype_of(plan[*id].dtype()), name, *id)).collect::<Vec<_>>();
    sorted.sort_by_key(|(dtype, name, _)| (Reverse(*dtype), *name));
    let mut end = 0;
    let infos = sorted.into_iter().map(|(dtype, name, id)| {
        let start = end;
        end += plan[id].region().bytes as usize;
        (name.clone(), TensorInfo { dtype, shape: plan[id].ty.shape.to_vec(), data_offsets: (start, end) })
    });
    let infos = infos.collect();
    let metadata = HashMap::from(METADATA.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let header = Metadata::new(Some(metadata), infos).expect("offsets follow each other");
    let header = serde_json::to_string(&header).expect("plain data").len();
    (size_of::<u64>() + header.next_multiple_of(size_of::<u64>()) + end) as u64
}
