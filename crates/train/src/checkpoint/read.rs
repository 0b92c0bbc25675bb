//! Reading checkpoints, our own and others': nothing is believed before it is checked.

use super::contents::contents;
use super::{AVERAGE_FILE, CONFIG_FILE, CheckpointError, FileSum, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, State};
use crate::Engine;
use crate::TrainError;
use exec::converted;
use graph::DType;
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A damaged checkpoint that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The checkpoint.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The checkpoints in a folder as (step, path), the newest first. Unfinished ones are not among them.
pub fn list(checkpoints: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(checkpoints).into_iter().flatten().flatten();
    let mut found = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let step = name.to_str()?.strip_prefix("step-")?.parse().ok()?;
            Some((step, entry.path()))
        })
        .collect::<Vec<_>>();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// The newest whole checkpoint in a folder, and the damaged ones that are newer.
pub fn newest_whole(checkpoints: &Path) -> (Option<(PathBuf, State)>, Vec<Skipped>) {
    let mut skipped = Vec::new();
    for (_, path) in list(checkpoints) {
        match verify(&path) {
            Ok(state) => return (Some((path, state)), skipped),
            Err(error) => skipped.push(Skipped { path, reason: error.to_string() }),
        }
    }
    (None, skipped)
}

/// Checks all of a checkpoint's checksums and returns its state. Errors: `Io`, `Damaged`.
pub fn verify(path: &Path) -> Result<State, CheckpointError> {
    let state_path = path.join(STATE_FILE);
    let text = fs::read(&state_path).map_err(|source| CheckpointError::Io { path: state_path.clone(), source })?;
    let text = String::from_utf8(text).map_err(|_| damaged(&state_path, "it is not text".to_owned()))?;
    let state = State::from_json(&text).map_err(|problem| damaged(&state_path, problem))?;
    for required in [MODEL_FILE, OPTIMIZER_FILE, CONFIG_FILE] {
        if !state.files.iter().any(|f| f.name == required) {
            return Err(damaged(&state_path, format!("it does not list {required}")));
        }
    }
    for file in &state.files {
        verify_file(path, file)?;
    }
    Ok(state)
}

fn verify_file(folder: &Path, file: &FileSum) -> Result<(), CheckpointError> {
    let path = folder.join(&file.name);
    let io = |source| CheckpointError::Io { path: path.clone(), source };
    let bytes = path.metadata().map_err(io)?.len();
    if bytes != file.bytes {
        return Err(damaged(&path, format!("it has {bytes} bytes, {} were written", file.bytes)));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(&path).map_err(io)?;
    if hasher.finalize().to_hex().as_str() != file.blake3 {
        return Err(damaged(&path, "its contents changed since it was written".to_owned()));
    }
    Ok(())
}

/// Checks the weights beside a `state.json`, if there is one: the file may have been copied without its moments.
fn verify_weights(folder: &Path, name: &str) -> Result<(), CheckpointError> {
    let state_path = folder.join(STATE_FILE);
    let Ok(text) = fs::read(&state_path) else { return Ok(()) };
    let state = State::from_json(&String::from_utf8_lossy(&text)).map_err(|problem| damaged(&state_path, problem))?;
    state.files.iter().filter(|file| file.name == name).try_for_each(|file| verify_file(folder, file))
}

fn damaged(path: &Path, problem: String) -> CheckpointError {
    CheckpointError::Damaged { path: path.to_owned(), problem }
}

/// Fills weights, moments and averages from a checkpoint that `verify` has passed.
pub fn restore(engine: &mut Engine, path: &Path) -> Result<(), TrainError> {
    for (file, tensors) in contents(engine) {
        let path = path.join(file);
        match file {
            MODEL_FILE => fill_weights(engine, &path, false)?,
            _ => {
                let names = tensors.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
                read_tensors(&path, &names, false, |index, view| {
                    let (name, tensor) = &tensors[index];
                    let (dtype, shape) = (engine.plan()[*tensor].dtype(), engine.plan()[*tensor].ty.shape.clone());
                    if dtype_of(view) != Some(dtype) || view.shape() != shape {
                        return Err(wrong(&path, name, format!("{dtype:?} {shape:?}"), view).into());
                    }
                    engine.write(*tensor, view.data())
                })?;
            }
        }
    }
    Ok(())
}

/// Fills the weights from a folder that holds `model.safetensors`, ours or one saved by `transformers`, with or without
/// the family's prefix in the names; ours must match their checksum. Streams tensor by tensor out of the mapped file;
/// weights in another precision are converted on the way, one tensor at a time.
pub fn load_weights(engine: &mut Engine, folder: &Path) -> Result<(), TrainError> {
    load_weights_from(engine, folder, MODEL_FILE)
}

/// Like [`load_weights`], from a run's averaged weights.
pub fn load_averages(engine: &mut Engine, folder: &Path) -> Result<(), TrainError> {
    load_weights_from(engine, folder, AVERAGE_FILE)
}

fn load_weights_from(engine: &mut Engine, folder: &Path, file: &str) -> Result<(), TrainError> {
    verify_weights(folder, file)?;
    fill_weights(engine, &folder.join(file), true)
}

/// Fills parameters and their masters; averages start from the same weights.
fn fill_weights(engine: &mut Engine, path: &Path, foreign: bool) -> Result<(), TrainError> {
    let parameters = engine.parameters().to_vec();
    let names = parameters.iter().map(|p| engine.name(p.tensor).to_owned()).collect::<Vec<_>>();
    read_tensors(path, &names, foreign, |index, view| {
        let shape = engine.plan()[parameters[index].tensor].ty.shape.clone();
        let Some(dtype) = dtype_of(view).filter(|dtype| is_float(*dtype) && view.shape() == shape) else {
            return Err(wrong(path, &names[index], format!("F32 {shape:?}"), view).into());
        };
        engine.fill_parameter(&parameters[index], dtype, view.data())?;
        match parameters[index].training.as_ref().and_then(|t| t.average) {
            Some(average) => engine.write(average, &converted(view.data(), dtype, DType::F32)),
            None => Ok(()),
        }
    })
}

fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

fn dtype_of(view: &TensorView) -> Option<DType> {
    match view.dtype() {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::U8 => Some(DType::U8),
        _ => None,
    }
}

fn wrong(path: &Path, tensor: &str, expected: String, view: &TensorView) -> CheckpointError {
    let found = format!("{:?} {:?}", view.dtype(), view.shape());
    CheckpointError::WrongTensor { path: path.to_owned(), tensor: tensor.to_owned(), expected, found }
}

/// Hands out the tensors of a file by name, each as a view of the mapped file. If `foreign`, names may lack the prefix
/// `transformer.`, and tensors that hold no parameters (masks, the tied head) are passed over.
fn read_tensors(
    path: &Path,
    names: &[String],
    foreign: bool,
    mut take: impl FnMut(usize, &TensorView) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let io = |source| CheckpointError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the mapping is only read. Another process that shortens the file meanwhile could end this one, as with
    // every mapped file; it could not make wrong bytes look right, since lengths were checked against the header.
    let bytes = unsafe { Mmap::map(&file) }.map_err(io)?;
    let archive = SafeTensors::deserialize(&bytes).map_err(|e| damaged(path, e.to_string()))?;
    let mut used = HashSet::new();
    for (index, name) in names.iter().enumerate() {
        let bare = name.strip_prefix("transformer.").filter(|_| foreign);
        let found = archive.tensor(name).map(|view| (name.clone(), view)).or_else(|error| match bare {
            Some(bare) => archive.tensor(bare).map(|view| (bare.to_owned(), view)),
            None => Err(error),
        });
        let missing = || CheckpointError::MissingTensor { path: path.to_owned(), tensor: name.clone() };
        let (stored_name, view) = found.map_err(|_| missing())?;
        take(index, &view)?;
        used.insert(stored_name);
    }
    let holds_no_parameters =
        |name: &str| name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || is_tied(&archive, name);
    let unused = archive.names().into_iter().filter(|name| !used.contains(*name));
    match unused.filter(|name| !(foreign && holds_no_parameters(name))).min() {
        Some(tensor) => {
            let tensor = tensor.to_owned();
            Err(CheckpointError::ForeignTensor { path: path.to_owned(), tensor }.into())
        }
        None => Ok(()),
    }
}

/// Whether this is a head of its own that holds the token embedding once more.
fn is_tied(archive: &SafeTensors, name: &str) -> bool {
    let table = archive.tensor("transformer.wte.weight").or_else(|_| archive.tensor("wte.weight"));
    let head = archive.tensor(name).ok().filter(|_| name == "lm_head.weight");
    matches!((head, table), (Some(head), Ok(table)) if head.data() == table.data())
}
