//! The size of a checkpoint, computed before it is written.

use super::contents::contents;
use super::tensors::file_bytes;
use super::{ADAPTER_CONFIG_FILE, CONFIG_FILE, ModelFolder, STATE_FILE};
use crate::Engine;
use plimsoll_units::Bytes;

/// More than the numbers of any state need.
const STATE_BYTES: u64 = 8 << 10;

/// Allocation unit of file systems; a folder takes one, too.
const BLOCK_BYTES: u64 = 4 << 10;

/// The files of a checkpoint and their sizes in bytes: exact except for `state.json`, which is at most this long.
pub fn sizes(engine: &Engine, model: &ModelFolder) -> Vec<(&'static str, u64)> {
    let tensors = contents(engine).into_iter().map(|(file, tensors)| (file, file_bytes(engine, &tensors)));
    let files = model.files.iter().map(|file| (file.name, file.bytes));
    let of_adapters = model.adapter_json.iter().map(|text| (ADAPTER_CONFIG_FILE, text.len() as u64));
    let others = [(CONFIG_FILE, model.config_json.len() as u64), (STATE_FILE, STATE_BYTES)];
    tensors.chain(files).chain(of_adapters).chain(others).collect()
}

/// The disk space for a checkpoint.
pub fn room(engine: &Engine, model: &ModelFolder) -> Bytes {
    let files = sizes(engine, model).into_iter().map(|(_, bytes)| bytes.next_multiple_of(BLOCK_BYTES));
    Bytes(files.sum::<u64>() + BLOCK_BYTES)
}
