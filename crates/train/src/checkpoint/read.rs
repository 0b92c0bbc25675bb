//! Reads checkpoints, our own and other programs': everything is checked before use.
//! Not here: listing checkpoints (`find.rs`).

use super::archive::{Archive, describe, wrong};
use super::bitsandbytes::{self, Quantized};
use super::contents::{adapter_name, coded_tensors, contents, pieces, transposed_bytes};
use super::find::{read_state, verify_file};
use super::mxfp4::{self, Packed};
use super::names::{HEAD, candidates, is_ignored, originals, packed};
use super::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, AVERAGE_FILE, CONFIG_FILE, CheckpointError, FileSum, MODEL_FILE};
use crate::Engine;
use crate::TrainError;
use plimsoll_graph::{
    ADAPTER_PREFIX, AdapterFile, Adapters, BASE_COPY, DType, Parameter, StoredPiece, TensorId, WeightCodes,
};
use plimsoll_units::Bytes;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// Elements of a tensor that are read before its pages are dropped, so that no large tensor is resident whole.
const PART: usize = 1 << 18;

/// Longer than any configuration.
const LONGEST_CONFIG: Bytes = Bytes::mib(1);

/// Verifies the weights and the configuration against `state.json`, if it exists: they may have been copied without
/// their moments.
pub(super) fn verify_weights(folder: &Path, name: &str) -> Result<(), CheckpointError> {
    let Some(state) = read_state(folder)? else { return Ok(()) };
    let of_weights = |file: &&FileSum| [name, CONFIG_FILE, ADAPTER_CONFIG_FILE].contains(&file.name.as_str());
    state.files.iter().filter(of_weights).try_for_each(|file| verify_file(folder, file))
}

/// Fills weights, moments and averages from a checkpoint that `verify` accepted. If it has only adapters, the base must
/// be there already.
pub fn restore(engine: &mut Engine, path: &Path) -> Result<(), TrainError> {
    for (file, tensors) in contents(engine) {
        let path = path.join(file);
        let archive = Archive::file(&path)?;
        match file {
            MODEL_FILE => fill_weights(engine, &archive, parts(engine, &archive), false)?,
            ADAPTER_FILE => fill_weights(engine, &archive, adapter_parts(engine, &archive), false)?,
            _ => {
                let names = tensors.iter().map(|content| content.name.clone()).collect::<Vec<_>>();
                hand_out(&archive, &names, false, |index, _, view| {
                    let content = &tensors[index];
                    let (dtype, shape) = (content.dtype(engine), &content.shape);
                    if dtype_of(view) != Some(dtype) || view.shape() != shape {
                        return Err(wrong(&path, &content.name, format!("{dtype:?} {shape:?}"), view).into());
                    }
                    let mut rest = view.data();
                    for part in &content.parts {
                        let range = part.bytes(engine);
                        let (own, others) = rest.split_at(range.len());
                        let turned =
                            part.transposed.map(|columns| transposed_bytes(own, part.elements[1] / columns, dtype));
                        engine.write_part(part.tensor, range.start as u64, turned.as_deref().unwrap_or(own))?;
                        rest = others;
                    }
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

/// Fills the weights from a folder: ours, or one saved by `transformers`. They are in `model.safetensors`, or in shards
/// listed in `model.safetensors.index.json`, under the family's names with or without its prefix; ours must match their
/// checksum. Streams tensor by tensor from the mapped files; weights in another precision are converted one tensor at a
/// time, those in MXFP4 in parts.
/// Errors: all of [`CheckpointError`] but `OtherRun` and `None`. Names are matched before the first tensor is copied.
pub fn load_weights(engine: &mut Engine, folder: &Path) -> Result<(), TrainError> {
    verify_weights(folder, MODEL_FILE)?;
    let archive = Archive::file_or_shards(folder, MODEL_FILE)?;
    fill_weights(engine, &archive, base_parts(engine, &archive), true)?;
    engine.fill_norms()
}

/// Fills the adapters, and the parameters of the model that were trained with them, from a folder: ours, or one that PEFT
/// saved. Errors: as for [`load_weights`].
pub fn load_adapters(engine: &mut Engine, folder: &Path) -> Result<(), TrainError> {
    verify_weights(folder, ADAPTER_FILE)?;
    let archive = Archive::file(&folder.join(ADAPTER_FILE))?;
    fill_weights(engine, &archive, adapter_parts(engine, &archive), false)
}

/// The adapters in a folder, and the name or path of the weights that they belong to. Errors: `Io`, `Damaged`,
/// `BadAdapters`.
pub fn read_adapters(folder: &Path) -> Result<(Adapters, Option<String>), CheckpointError> {
    let path = folder.join(ADAPTER_CONFIG_FILE);
    let text = plimsoll_files::read_text(&path, LONGEST_CONFIG);
    let text = text.map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
    let archive = Archive::file(&folder.join(ADAPTER_FILE))?;
    let shapes = archive.names().map(|name| Ok((name, archive.view(name)?.shape().to_vec())));
    let shapes = shapes.collect::<Result<Vec<_>, CheckpointError>>()?;
    let bad = |error: plimsoll_graph::AdapterFileError| CheckpointError::BadAdapters {
        path: path.clone(),
        problem: error.to_string(),
    };
    let file = AdapterFile::from_json(&text).map_err(bad)?;
    let adapters = file.adapters(shapes.iter().map(|(name, shape)| (*name, shape.as_slice()))).map_err(bad)?;
    Ok((adapters, file.base().map(str::to_owned)))
}

/// A checksum of the weights in a folder: of their headers and of parts of the tensors. Errors: they can't be opened.
pub(crate) fn fingerprint(folder: &Path) -> Result<String, CheckpointError> {
    Archive::file_or_shards(folder, MODEL_FILE)?.fingerprint()
}

/// Whether the output head of the weights in a folder differs from their embedding. False if they can't be read;
/// loading them reports the error.
pub fn has_own_head(folder: &Path) -> bool {
    let Ok(archive) = Archive::file_or_shards(folder, MODEL_FILE) else { return false };
    let embedding = originals(HEAD).find(|name| archive.has(name));
    match (embedding.map(|name| archive.view(name)), archive.view(HEAD)) {
        (Some(Ok(embedding)), Ok(head)) => embedding != head,
        _ => false,
    }
}

/// Like [`load_weights`], from a run's averaged weights; frozen ones have no average.
pub fn load_averages(engine: &mut Engine, folder: &Path) -> Result<(), TrainError> {
    let archive = averages(folder, if engine.is_adapted() { ADAPTER_FILE } else { MODEL_FILE })?;
    match engine.is_adapted() {
        true => fill_weights(engine, &archive, adapter_parts(engine, &archive), false),
        false => fill_weights(engine, &archive, parts(engine, &archive), true),
    }
}

/// The averages of a checkpoint, and of what has none, the tensors of `file`. Errors: those of reading them, and `Damaged`.
pub(super) fn averages(folder: &Path, file: &str) -> Result<Archive, CheckpointError> {
    verify_weights(folder, AVERAGE_FILE)?;
    verify_weights(folder, file)?;
    Archive::averages(folder, file)
}

/// All parameters.
fn parts(engine: &Engine, archive: &Archive) -> Vec<Read> {
    engine.parameters().iter().flat_map(|parameter| Read::all_of(engine, archive, parameter)).collect()
}

/// The model's own parameters.
fn base_parts(engine: &Engine, archive: &Archive) -> Vec<Read> {
    parts(engine, archive).into_iter().filter(|read| !read.name(engine).starts_with(ADAPTER_PREFIX)).collect()
}

/// The pieces that a file of adapters has, by their names there: those of adapters, and of other parameters that are
/// trained or in the file.
fn adapter_parts(engine: &Engine, archive: &Archive) -> Vec<Read> {
    let named = engine.parameters().iter().flat_map(|parameter| {
        let named = pieces(engine, parameter).into_iter().filter_map(|piece| {
            let name = adapter_name(&piece.tensor);
            let is_there = *name == *piece.tensor || parameter.training.is_some() || archive.has(&name);
            is_there.then(|| Read::Weights(Box::new(parameter.clone()), StoredPiece { tensor: name.into(), ..piece }))
        });
        named.collect::<Vec<_>>()
    });
    named.collect()
}

/// What is read from a tensor of a file.
enum Read {
    /// Part of a parameter's weights.
    Weights(Box<Parameter>, StoredPiece),
    /// Codes or scales, as they are.
    Coded(TensorId),
}

impl Read {
    /// The tensors of a file that have a parameter's weights: codes and scales if the file has these, else pieces of the
    /// weights, which are encoded if the engine has codes.
    fn all_of(engine: &Engine, archive: &Archive, parameter: &Parameter) -> Vec<Self> {
        let coded = coded_tensors(parameter).collect::<Vec<_>>();
        if coded.len() > 1 && coded.iter().all(|&tensor| archive.has(engine.name(tensor))) {
            return coded.into_iter().map(Self::Coded).collect();
        }
        pieces(engine, parameter).into_iter().map(|piece| Self::Weights(Box::new(parameter.clone()), piece)).collect()
    }

    fn name(&self, engine: &Engine) -> String {
        match self {
            Self::Weights(_, piece) => piece.tensor.to_string(),
            Self::Coded(tensor) => engine.name(*tensor).to_owned(),
        }
    }
}

/// Fills parameters, their master copies or remainders, and their averages, which start from the same weights.
fn fill_weights(engine: &mut Engine, archive: &Archive, all: Vec<Read>, foreign: bool) -> Result<(), TrainError> {
    check_codes(engine, archive)?;
    let names = all.iter().map(|read| read.name(engine)).collect::<Vec<_>>();
    hand_out(archive, &names, foreign, |index, stored, view| {
        let path = archive.file_of(stored);
        let (parameter, StoredPiece { shape, from, at, elements, transposed, .. }) = match &all[index] {
            Read::Weights(parameter, piece) => (parameter, piece),
            Read::Coded(tensor) => {
                let ty = engine.plan()[*tensor].ty.clone();
                if dtype_of(view) != Some(ty.dtype) || view.shape() != &ty.shape[..] {
                    return Err(wrong(path, stored, format!("{:?} {:?}", ty.dtype, ty.shape), view).into());
                }
                return engine.write(*tensor, view.data());
            }
        };
        if let Some(weight) = Quantized::find(archive, stored, shape)? {
            return fill_quantized(engine, parameter, *from..from + elements, *at, &weight);
        }
        if let Some(weight) = Packed::find(archive, stored, shape)? {
            return engine.fill_with(parameter, 0..*elements, |first, values| weight.read(first, values));
        }
        let Some(dtype) = dtype_of(view).filter(|dtype| is_float(*dtype)) else {
            let (path, tensor) = (path.to_owned(), stored.to_owned());
            return Err(CheckpointError::UnsupportedDtype { path, tensor, found: describe(view) }.into());
        };
        if view.shape() != shape {
            return Err(wrong(path, stored, format!("F32 {shape:?}"), view).into());
        }
        let size = dtype.size_bytes() as usize;
        if let Some(columns) = transposed {
            let own = &view.data()[from * size..(from + elements) * size];
            let turned = transposed_bytes(own, elements / columns, dtype);
            return engine.fill_parameter(parameter, *at, dtype, &turned);
        }
        // Codes have scales of whole matrices.
        let part = if parameter.coded.is_some() { engine.matrix_elements(parameter) } else { PART };
        for first in (0..*elements).step_by(part.max(1)) {
            let last = (first + part).min(*elements);
            let bytes = (from + first) * size..(from + last) * size;
            engine.fill_parameter(parameter, at + first, dtype, &view.data()[bytes.clone()])?;
            archive.release_part(stored, bytes);
        }
        Ok(())
    })
}

/// Fills a parameter from its element `at` on with these elements of a quantized weight: with its codes if the engine stores
/// the same, else with its decoded values.
fn fill_quantized(
    engine: &mut Engine,
    parameter: &Parameter,
    elements: Range<usize>,
    at: usize,
    weight: &Quantized,
) -> Result<(), TrainError> {
    weight.check()?;
    if let Some(coded) = &parameter.coded
        && let Some(tensors) = weight.coded(coded.format, &elements)
    {
        engine.write_part(parameter.tensor, (at / coded.format.per_byte()) as u64, &tensors[0])?;
        return engine.write_scales(coded, at / elements.len(), &tensors[1..]);
    }
    engine.fill_with(parameter, at..at + elements.len(), |first, values| {
        weight.decode(elements.start + first - at, values)
    })
}

/// Errors: `InCodes` if the file has weights in other codes than the engine.
fn check_codes(engine: &Engine, archive: &Archive) -> Result<(), CheckpointError> {
    for parameter in engine.parameters() {
        let tensor = engine.name(parameter.tensor);
        let is_stored = |format: &WeightCodes| {
            format.scales(&[1, 1]).iter().all(|(suffix, _)| archive.has(&format!("{tensor}.{suffix}")))
        };
        match WeightCodes::ALL.into_iter().find(is_stored) {
            Some(format) if parameter.coded.as_ref().is_none_or(|coded| coded.format != format) => {
                let (path, tensor) = (archive.path().to_owned(), tensor.to_owned());
                return Err(CheckpointError::InCodes { path, tensor, format });
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

pub(super) fn dtype_of(view: &TensorView) -> Option<DType> {
    match view.dtype() {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::I16 => Some(DType::I16),
        Dtype::U8 => Some(DType::U8),
        _ => None,
    }
}

/// Passes on the tensors with these names, each as (its index among them, its name in the file, its view in the mapped
/// file). `foreign`: as for [`matched`].
fn hand_out(
    archive: &Archive,
    names: &[String],
    foreign: bool,
    mut take: impl FnMut(usize, &str, &TensorView) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let stored_as = matched(archive, names, foreign)?;
    for (index, name) in names.iter().enumerate() {
        let stored = stored_as[name.as_str()];
        take(index, stored, &archive.view(stored)?)?;
        archive.release(stored);
    }
    Ok(())
}

/// The names in the files of the tensors with these names. If `foreign`, accepts the names that other programs use, and
/// skips tensors that are not parameters. Errors: `OtherFamily`, `MissingTensor`, `UnsupportedDtype`, `ForeignTensor`.
pub(super) fn matched<'a>(
    archive: &'a Archive,
    names: &'a [String],
    foreign: bool,
) -> Result<HashMap<&'a str, &'a str>, CheckpointError> {
    let of_model = names.iter().map(String::as_str).collect::<HashSet<_>>();
    let stored = |name| match foreign {
        true => candidates(name, &of_model)
            .find_map(|candidate| archive.name(&candidate).or_else(|| archive.name(&mxfp4::blocks(&candidate)))),
        false => archive.name(name),
    };
    let stored_as = of_model.iter().filter_map(|&name| Some((name, stored(name)?))).collect::<HashMap<_, _>>();
    if foreign && is_other_family(names, &stored_as) {
        return Err(other_family(archive, names));
    }
    if let Some(missing) = names.iter().find(|name| !stored_as.contains_key(name.as_str())) {
        return Err(missing_tensor(archive, missing));
    }
    let used = stored_as.values().copied().collect::<HashSet<_>>();
    let is_scales = |name: &str| {
        let of = mxfp4::blocks_of(name).or_else(|| bitsandbytes::weight_of(name));
        of.is_some_and(|weight| used.contains(&*weight))
    };
    let is_copy = |name: &str| name.starts_with(ADAPTER_PREFIX) && name.ends_with(BASE_COPY);
    let is_expected = |name: &str| {
        is_copy(name) || foreign && (is_ignored(name) || is_scales(name) || is_duplicate(archive, &stored_as, name))
    };
    let mut unknown = archive.names().filter(|name| !used.contains(name)).filter(|name| !is_expected(name));
    if let Some(tensor) = unknown.next() {
        let (path, tensor) = (archive.file_of(tensor).to_owned(), tensor.to_owned());
        return Err(CheckpointError::ForeignTensor { path, tensor, others: unknown.count() });
    }
    Ok(stored_as)
}

/// Whether so few of the model's tensors are present that this is another model: families share at most the name of the
/// head.
fn is_other_family(names: &[String], stored_as: &HashMap<&str, &str>) -> bool {
    stored_as.len() <= 1 && names.len() > 2
}

fn other_family(archive: &Archive, names: &[String]) -> CheckpointError {
    let found = archive.names().next().map(str::to_owned);
    CheckpointError::OtherFamily { path: archive.path().to_owned(), found, expected: names[0].clone() }
}

/// The error for a missing tensor: it may be present in an unsupported form.
pub(super) fn missing_tensor(archive: &Archive, name: &str) -> CheckpointError {
    if let Some(tensor) = packed(name).find(|packed| archive.has(packed)) {
        let found = archive.view(&tensor).map_or("integers".to_owned(), |view| describe(&view));
        let path = archive.file_of(&tensor).to_owned();
        return CheckpointError::UnsupportedDtype { path, tensor, found: format!("{found} of packed integers") };
    }
    CheckpointError::MissingTensor { path: archive.path().to_owned(), tensor: name.to_owned() }
}

/// Whether a tensor is bit for bit the same as one of the model's. One that differs would be lost silently.
fn is_duplicate(archive: &Archive, stored_as: &HashMap<&str, &str>, name: &str) -> bool {
    let Ok(view) = archive.view(name) else { return false };
    let stored = originals(name).filter_map(|original| stored_as.get(original));
    stored.filter_map(|stored| archive.view(stored).ok()).any(|original| original == view)
}
