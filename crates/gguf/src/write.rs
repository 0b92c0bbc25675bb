//! Writes a GGUF file: the header, then the tensors, which are made while they are written.
//!
//! ```text
//!   "GGUF" 3 (tensors) (keys)   u32, u64, u64
//!   key, value ...
//!   name, extents from the innermost, encoding, offset ...
//!   padding to 32   tensor, padding to 32 ...
//! ```
//!
//! Source: "GGUF" in ggml's docs/gguf.md, version 3.

use crate::error::WriteError;
use crate::rows::{Rows, Summary};
use crate::tensor::Tensor;
use crate::value::{Metadata, write_text};
use crate::{Encoding, GgufError};
use plimsoll_files::{UNFINISHED, create_unique, free_space, remove_leftovers, sync_folder};
use plimsoll_train::checkpoint::StoredWeights;
use plimsoll_units::Bytes;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::SystemTime;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;

/// A file that can be written.
pub struct Contents {
    pub(crate) metadata: Metadata,
    /// The tensors and their encodings.
    pub(crate) tensors: Vec<(Tensor, Encoding)>,
    pub(crate) weights: StoredWeights,
}

impl Contents {
    /// The size of the file.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.header().len() as u64 + self.offsets().1)
    }

    /// Writes the file, replacing an older one atomically: after a failure or a crash, the old file is there, or none.
    /// Errors: `NoRoom` before anything is written; `Io`, `Checkpoint`.
    pub fn write(&self, path: &Path) -> Result<Summary, GgufError> {
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        let needed = self.bytes();
        match free_space(path) {
            Ok(free) if free < needed => return Err(GgufError::NoRoom { path: path.to_owned(), needed, free }),
            // Where the system can't tell, writing reports a full disk.
            _ => {}
        }
        remove_leftovers(path, SystemTime::now());
        let (unfinished, file) = create_unique(path, UNFINISHED, 0o666).map_err(io)?;
        let written = self.write_to(file).and_then(|summary| {
            fs::rename(&unfinished, path).map_err(WriteError::Io)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            sync_folder(folder.unwrap_or(Path::new("."))).map_err(WriteError::Io)?;
            Ok(summary)
        });
        if written.is_err() {
            // Report the first error rather than a failure to remove the partial file.
            let _ = fs::remove_file(&unfinished);
        }
        written.map_err(|error| match error {
            WriteError::Io(source) => io(source),
            WriteError::Checkpoint(error) => error.into(),
        })
    }

    fn write_to(&self, file: File) -> Result<Summary, WriteError> {
        let mut file = BufWriter::new(file);
        file.write_all(&self.header())?;
        let mut rows = Rows::new(&self.weights);
        for (tensor, encoding) in &self.tensors {
            let written = rows.write(tensor, *encoding, &mut file)?;
            file.write_all(&[0; ALIGNMENT as usize][..padding(written) as usize])?;
        }
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        Ok(rows.summary())
    }

    /// Everything before the tensors.
    fn header(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.0.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata.0 {
            write_text(key, &mut bytes);
            value.write(&mut bytes);
        }
        for ((tensor, encoding), offset) in self.tensors.iter().zip(self.offsets().0) {
            write_text(&tensor.name, &mut bytes);
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|extent| bytes.extend((*extent as u64).to_le_bytes()));
            bytes.extend(encoding.code().to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len() + padding(bytes.len() as u64) as usize, 0);
        bytes
    }

    /// The offset of each tensor after the header, and the end.
    fn offsets(&self) -> (Vec<u64>, u64) {
        let mut end = 0;
        let offsets = self.tensors.iter().map(|(tensor, encoding)| {
            let offset = end;
            let bytes = encoding.bytes(tensor.elements());
            end += bytes + padding(bytes);
            offset
        });
        (offsets.collect(), end)
    }
}

fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT) - bytes
}
