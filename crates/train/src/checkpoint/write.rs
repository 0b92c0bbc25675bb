//! Writing a checkpoint: into a temporary folder, each file synced and hashed, then renamed, then the parent synced.
//! Until the rename the older checkpoints are all there is, and they are only deleted after it.

use super::contents::contents;
use super::hash::hash_file;
use super::{CONFIG_FILE, CheckpointError, FileSum, STATE_FILE, State, list};
use crate::Engine;
use graph::{DType, TensorId};
use safetensors::tensor::{Dtype, SafeTensorError, View, serialize_to_file};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that is whole on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Where.
    pub path: PathBuf,
    /// Size of all its files.
    pub bytes: u64,
}

/// A tensor of the device as safetensors wants it. `transformers` asks for the format in the metadata.
struct DeviceTensor<'e> {
    engine: &'e Engine,
    tensor: TensorId,
    bytes: usize,
}

impl View for DeviceTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.engine.plan()[self.tensor].dtype() {
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::Bf16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
            DType::U8 => Dtype::U8,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.engine.plan()[self.tensor].ty.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.engine.view(self.tensor).expect("a loaded plan's tensors can be read")
    }
    fn data_len(&self) -> usize {
        self.bytes
    }
}

/// Saves the engine's weights and moments and `state`, whose files and checksum are filled in, into the folder
/// `checkpoints`; then deletes all but the newest `keep` up to this one.
/// Errors: `Io`; older checkpoints are then untouched.
pub fn save(
    engine: &Engine,
    checkpoints: &Path,
    config_json: &str,
    state: State,
    keep: usize,
) -> Result<Saved, CheckpointError> {
    let name = format!("step-{:06}", state.step);
    let temporary = checkpoints.join(format!(".writing-{name}"));
    let path = checkpoints.join(&name);
    let step = state.step;
    let saved = write_files(engine, &temporary, config_json, state).and_then(|bytes| {
        replace(&temporary, &path)?;
        sync_folder(checkpoints)?;
        Ok(Saved { path: path.clone(), bytes })
    });
    match saved {
        Ok(saved) => {
            delete_old(checkpoints, step, keep);
            Ok(saved)
        }
        Err(source) => {
            // What was written is useless; if even this fails, the next checkpoint tries again.
            let _ = fs::remove_dir_all(&temporary);
            Err(CheckpointError::Io { path, source })
        }
    }
}

fn write_files(engine: &Engine, folder: &Path, config_json: &str, mut state: State) -> io::Result<u64> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let config = folder.join(CONFIG_FILE);
    fs::write(&config, config_json)?;
    // The library makes its files readable by their owner alone; a checkpoint is as open as any other file.
    let permissions = config.metadata()?.permissions();
    let contents = contents(engine);
    for (name, tensors) in &contents {
        let path = folder.join(name);
        write_tensors(engine, tensors, &path)?;
        fs::set_permissions(&path, permissions.clone())?;
    }
    let names = contents.iter().map(|(name, _)| *name).chain([CONFIG_FILE]);
    state.files = names.map(|name| sync_and_sum(folder, name)).collect::<io::Result<_>>()?;
    fs::write(folder.join(STATE_FILE), state.to_json())?;
    let own = sync_and_sum(folder, STATE_FILE)?;
    sync_folder(folder)?;
    Ok(state.files.iter().map(|f| f.bytes).sum::<u64>() + own.bytes)
}

fn write_tensors(engine: &Engine, tensors: &[(String, TensorId)], path: &Path) -> io::Result<()> {
    let views = tensors.iter().map(|(name, tensor)| {
        let tensor = *tensor;
        let bytes = engine.plan()[tensor].region().bytes as usize;
        (name, DeviceTensor { engine, tensor, bytes })
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), path).map_err(|error| match error {
        SafeTensorError::IoError(source) => source,
        other => io::Error::other(other),
    })
}

fn sync_and_sum(folder: &Path, name: &str) -> io::Result<FileSum> {
    let path = folder.join(name);
    File::open(&path)?.sync_all()?;
    Ok(FileSum { name: name.to_owned(), bytes: path.metadata()?.len(), blake3: hash_file(&path)? })
}

/// Puts the new folder where an old one of the same step may lie. A kill between the two renames leaves this step
/// without a checkpoint, and the older ones as they were.
fn replace(temporary: &Path, path: &Path) -> io::Result<()> {
    if !path.exists() {
        return fs::rename(temporary, path);
    }
    let old = temporary.with_extension("old");
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    fs::rename(path, &old)?;
    fs::rename(temporary, path)?;
    fs::remove_dir_all(&old)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Deletes all but the newest `keep` checkpoints (at least one) up to that of `saved_step`. Those of later steps, which
/// a run that was resumed from an older one finds damaged or comes to again, neither count nor go. A folder that can't
/// be deleted is tried again after the next checkpoint.
fn delete_old(checkpoints: &Path, saved_step: u64, keep: usize) {
    let up_to_it = list(checkpoints).into_iter().filter(|(step, _)| *step <= saved_step);
    for (_, path) in up_to_it.skip(keep.max(1)) {
        let _ = fs::remove_dir_all(path);
    }
}
