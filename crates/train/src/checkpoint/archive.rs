//! The memory-mapped safetensors files of a folder: one file, or shards and the index that maps tensors to shards. Only
//! headers are read here; a tensor's bytes are read from the mapped file on access.
//!
//! Not here: the tensors that a model needs, and their names (`read.rs`, `names.rs`).

use super::{AVERAGE_FILE, CheckpointError, INDEX_FILE};
use memmap2::Mmap;
use plimsoll_files::{is_there, open_regular, read_at_most};
use plimsoll_units::Bytes;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, TensorInfo, TensorView};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::{Bound, Range};
use std::path::{Component, Path, PathBuf};

/// Room for a million tensors.
const LONGEST_INDEX: Bytes = Bytes(1 << 28);

/// Parts of each file in a fingerprint, and their size.
const FINGERPRINT_PARTS: u64 = 256;
const FINGERPRINT_BYTES: u64 = 4096;

/// Tensors by name, in one or more files.
pub(super) struct Archive {
    path: PathBuf,
    shards: Vec<Shard>,
    /// Tensor -> index of its shard.
    places: BTreeMap<String, usize>,
}

/// A mapped file.
struct Shard {
    path: PathBuf,
    bytes: Mmap,
    metadata: Metadata,
    /// Offset of the tensors, after the header.
    start: usize,
}

/// A file of an archive.
pub(super) struct ArchiveFile<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    /// The tensors and the places of their bytes, in order.
    pub(super) tensors: Vec<(String, Range<usize>)>,
}

#[derive(Deserialize)]
struct Index {
    /// Tensor -> file.
    weight_map: BTreeMap<String, String>,
}

impl Archive {
    /// Opens `file` in a folder; if it does not exist, the shards in the folder's index.
    /// Errors: those of [`Archive::file`] and [`Archive::sharded`].
    pub(super) fn file_or_shards(folder: &Path, file: &str) -> Result<Self, CheckpointError> {
        let (file, index) = (folder.join(file), folder.join(INDEX_FILE));
        let is_there =
            |path: &Path| is_there(path).map_err(|source| CheckpointError::Io { path: path.to_owned(), source });
        if !is_there(&file)? && is_there(&index)? { Self::sharded(&index) } else { Self::file(&file) }
    }

    /// Opens one file. Errors: `Io`, `Damaged`, `UnsupportedDtype`.
    pub(super) fn file(path: &Path) -> Result<Self, CheckpointError> {
        let shard = Shard::open(path)?;
        let places = shard.metadata.tensors().into_keys().map(|name| (name, 0)).collect();
        Ok(Self { path: path.to_owned(), shards: vec![shard], places })
    }

    /// Opens the averages of a checkpoint. Tensors without one, which are frozen, are those of `file`. Errors: those of
    /// [`Archive::file`].
    pub(super) fn averages(folder: &Path, file: &str) -> Result<Self, CheckpointError> {
        let mut averages = Self::file(&folder.join(AVERAGE_FILE))?;
        let Self { shards, places, .. } = Self::file(&folder.join(file))?;
        let others = averages.shards.len();
        averages.shards.extend(shards);
        for (name, place) in places {
            averages.places.entry(name).or_insert(others + place);
        }
        Ok(averages)
    }

    /// Opens the shards listed in an index.
    /// Errors: `BadIndex`, `ShardOutside`, `MissingShard`, and for each shard those of [`Archive::file`].
    fn sharded(path: &Path) -> Result<Self, CheckpointError> {
        let text = read_at_most(path, LONGEST_INDEX)
            .map_err(|source| CheckpointError::Io { path: path.to_owned(), source })?;
        let index = serde_json::from_slice::<Index>(&text)
            .map_err(|error| CheckpointError::BadIndex { path: path.to_owned(), problem: error.to_string() })?;
        let files = index.weight_map.values().map(String::as_str).collect::<BTreeSet<_>>();
        let files = files.into_iter().collect::<Vec<_>>();
        let shards = files.iter().map(|file| open_named(path, file, &index)).collect::<Result<_, _>>()?;
        let place = |file: &str| files.binary_search(&file).expect("every file is among the files");
        let places = index.weight_map.iter().map(|(name, file)| (name.clone(), place(file))).collect();
        Ok(Self { path: path.to_owned(), shards, places })
    }

    /// A checksum of the files' headers, and of parts of their tensors: two sets of weights of a model differ in it, and it
    /// takes no time to read. Reads the files, since a part of a mapping can keep megabytes around it resident. Errors: `Io`.
    pub(super) fn fingerprint(&self) -> Result<String, CheckpointError> {
        let mut hasher = blake3::Hasher::new();
        for shard in &self.shards {
            let mut add = || -> io::Result<()> {
                let mut file = open_regular(&shard.path)?;
                let mut part = Vec::new();
                file.by_ref().take(shard.start as u64).read_to_end(&mut part)?;
                hasher.update(&part);
                let bytes = (shard.bytes.len() - shard.start) as u64;
                for number in 0..FINGERPRINT_PARTS {
                    file.seek(SeekFrom::Start(shard.start as u64 + bytes * number / FINGERPRINT_PARTS))?;
                    part.clear();
                    file.by_ref().take(FINGERPRINT_BYTES).read_to_end(&mut part)?;
                    hasher.update(&part);
                }
                Ok(())
            };
            add().map_err(|source| CheckpointError::Io { path: shard.path.clone(), source })?;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// The path of the file, or of the index.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The files, each with its tensors in the order of their bytes.
    pub(super) fn files(&self) -> impl Iterator<Item = ArchiveFile<'_>> {
        self.shards.iter().map(|shard| {
            let place = |(name, info): (String, &TensorInfo)| {
                (name, shard.start + info.data_offsets.0..shard.start + info.data_offsets.1)
            };
            let mut tensors = shard.metadata.tensors().into_iter().map(place).collect::<Vec<_>>();
            tensors.sort_by_key(|(_, range)| range.start);
            ArchiveFile { path: &shard.path, bytes: &shard.bytes, tensors }
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A name, if there is a tensor of this name.
    pub(super) fn name(&self, name: &str) -> Option<&str> {
        self.places.get_key_value(name).map(|(name, _)| name.as_str())
    }

    /// The first name with this beginning.
    pub(super) fn first_with(&self, beginning: &str) -> Option<&str> {
        let (name, _) = self.places.range::<str, _>((Bound::Included(beginning), Bound::Unbounded)).next()?;
        name.starts_with(beginning).then_some(name)
    }

    /// All names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The file that contains a tensor, or the index if no file does.
    pub(super) fn file_of(&self, name: &str) -> &Path {
        self.places.get(name).map_or(&self.path, |&place| &self.shards[place].path)
    }

    /// A tensor in its mapped file. Errors: `MissingTensor`, also if its shard lacks a tensor listed in the index.
    pub(super) fn view(&self, name: &str) -> Result<TensorView<'_>, CheckpointError> {
        let found = self.places.get(name).and_then(|&place| self.shards[place].view(name));
        let missing =
            || CheckpointError::MissingTensor { path: self.file_of(name).to_owned(), tensor: name.to_owned() };
        found.ok_or_else(missing)
    }

    /// Drops the pages of a tensor that was read from the process's memory.
    pub(super) fn release(&self, name: &str) {
        self.release_part(name, 0..usize::MAX);
    }

    /// Drops the pages of these bytes of a tensor.
    pub(super) fn release_part(&self, name: &str, bytes: Range<usize>) {
        if let Some(&place) = self.places.get(name) {
            self.shards[place].release(name, bytes);
        }
    }
}

/// The error for a tensor of another dtype or shape than `expected`.
pub(super) fn wrong(path: &Path, tensor: &str, expected: String, view: &TensorView) -> CheckpointError {
    let (path, tensor) = (path.to_owned(), tensor.to_owned());
    CheckpointError::WrongTensor { path, tensor, expected, found: describe(view) }
}

/// A tensor's dtype and shape.
pub(super) fn describe(view: &TensorView) -> String {
    format!("{:?} {:?}", view.dtype(), view.shape())
}

fn open_named(index_path: &Path, file: &str, index: &Index) -> Result<Shard, CheckpointError> {
    let tensors = || index.weight_map.iter().filter(|(_, f)| *f == file).map(|(name, _)| name.clone());
    let inside = !file.is_empty() && Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if !inside {
        let tensor = tensors().next().expect("the index lists a tensor per file");
        return Err(CheckpointError::ShardOutside { path: index_path.to_owned(), file: file.to_owned(), tensor });
    }
    let path = index_path.parent().expect("an index has a parent folder").join(file);
    Shard::open(&path).map_err(|error| match error {
        CheckpointError::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            CheckpointError::MissingShard { path, tensors: tensors().collect() }
        }
        other => other,
    })
}

impl Shard {
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |source| CheckpointError::Io { path: path.to_owned(), source };
        let file = open_regular(path).map_err(io)?;
        // SAFETY: the mapping is only read. If another process truncates the file meanwhile, this process may be
        // killed, as with every mapped file; wrong bytes can't pass as valid, since lengths were checked against the
        // header.
        let bytes = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (length, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| refusal(path, &bytes, &error))?;
        Ok(Self { path: path.to_owned(), bytes, metadata, start: size_of::<u64>() + length })
    }

    /// Drops the pages of bytes of a tensor that were read. On systems without such advice, they stay in memory.
    fn release(&self, name: &str, bytes: Range<usize>) {
        #[cfg(unix)]
        self.advise_release(name, bytes);
        #[cfg(not(unix))]
        let _ = (name, bytes);
    }

    #[cfg(unix)]
    fn advise_release(&self, name: &str, bytes: Range<usize>) {
        use memmap2::UncheckedAdvice;
        let Some(info) = self.metadata.info(name) else { return };
        let (start, end) = info.data_offsets;
        let (from, to) = (start.saturating_add(bytes.start), end.min(start.saturating_add(bytes.end)));
        if from < to {
            // SAFETY: the mapping is backed by a file and only read: dropped pages are read from the file again on the
            // next access. If the system ignores the advice, they stay in memory.
            let _ =
                unsafe { self.bytes.unchecked_advise_range(UncheckedAdvice::DontNeed, self.start + from, to - from) };
        }
    }

    fn view(&self, name: &str) -> Option<TensorView<'_>> {
        let info = self.metadata.info(name)?;
        let (from, to) = info.data_offsets;
        let data = &self.bytes[self.start..][from..to];
        Some(TensorView::new(info.dtype, info.shape.clone(), data).expect("the header was checked against the file"))
    }
}

/// Why a header can't be read. An unknown dtype is not damage.
fn refusal(path: &Path, bytes: &[u8], error: &SafeTensorError) -> CheckpointError {
    let path = path.to_owned();
    match unknown_dtype(bytes).filter(|_| matches!(error, SafeTensorError::InvalidHeaderDeserialization(_))) {
        Some((tensor, found)) => CheckpointError::UnsupportedDtype { path, tensor, found },
        None => CheckpointError::Damaged { path, problem: error.to_string() },
    }
}

/// The first tensor whose dtype the format does not define, with that dtype and its shape.
fn unknown_dtype(bytes: &[u8]) -> Option<(String, String)> {
    let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let header = serde_json::from_slice::<Map<String, Value>>(bytes.get(size_of::<u64>()..)?.get(..length)?).ok()?;
    header.into_iter().filter(|(name, _)| name != "__metadata__").find_map(|(name, info)| {
        let dtype = info.get("dtype")?;
        let is_known = serde_json::from_value::<Dtype>(dtype.clone()).is_ok();
        let found = format!("{} {}", dtype.as_str()?, info.get("shape")?);
        (!is_known).then_some((name, found))
    })
}
