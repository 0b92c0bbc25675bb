//! Where vectors go: a .npy file of NumPy, a .jsonl file, or JSON lines on stdout. Files are replaced atomically, once all
//! vectors are written.

use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::write_data;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of the header of a .npy, which is written last, when the number of vectors is known. NumPy aligns the data to
/// 64 bytes.
const HEADER_BYTES: usize = 128;

/// How a file holds vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputFormat {
    /// Rows of 32-bit floats, little-endian.
    Npy,
    /// A JSON object per line: `text` and `vector`.
    JsonLines,
}

impl OutputFormat {
    /// By the extension of a file. Errors: another one.
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("npy") => Ok(Self::Npy),
            Some("jsonl" | "ndjson") => Ok(Self::JsonLines),
            _ => Err(Failure::bad_flag(format!("`--out {}` is neither a .npy nor a .jsonl", path.display()))
                .hint("`--out vectors.npy` is for NumPy; `--out vectors.jsonl` also has the texts")),
        }
    }
}

/// The destination of vectors.
pub(super) enum Output<'f> {
    Stdout,
    Npy { file: BufWriter<&'f mut File>, vectors: u64 },
    JsonLines(BufWriter<&'f mut File>),
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'v> {
    text: &'v str,
    vector: &'v [f32],
}

/// Why a file was not written.
enum Stopped {
    Io(io::Error),
    Failure(Failure),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes a file by `work`. Errors: those of the system and of `work`; then the old contents stay.
pub(super) fn to_file(
    path: &Path,
    format: OutputFormat,
    channels: usize,
    work: &mut dyn FnMut(&mut Output<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let written = plimsoll_files::replace_with(path, |file| {
        let mut output = match format {
            OutputFormat::Npy => {
                file.write_all(&[0; HEADER_BYTES])?;
                Output::Npy { file: BufWriter::new(file), vectors: 0 }
            }
            OutputFormat::JsonLines => Output::JsonLines(BufWriter::new(file)),
        };
        work(&mut output).map_err(Stopped::Failure)?;
        Ok(output.finish(channels)?)
    });
    written.map_err(|stopped| match stopped {
        Stopped::Io(error) => io_failure(path.display())(error),
        Stopped::Failure(failure) => failure,
    })
}

impl Output<'_> {
    /// JSON lines on stdout.
    pub(super) fn stdout() -> Self {
        Self::Stdout
    }

    /// Writes the vector of a text.
    pub(super) fn write(&mut self, text: &str, vector: &[f32]) -> Result<(), Failure> {
        let line = || serde_json::to_string(&Line { text, vector }).expect("plain data");
        let written = match self {
            Self::Stdout => return write_data(line()),
            Self::JsonLines(file) => writeln!(file, "{}", line()),
            Self::Npy { file, vectors } => {
                *vectors += 1;
                vector.iter().try_for_each(|x| file.write_all(&x.to_le_bytes()))
            }
        };
        written.map_err(io_failure("the file of vectors"))
    }

    fn finish(self, channels: usize) -> io::Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::JsonLines(mut file) => file.flush(),
            Self::Npy { mut file, vectors } => {
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&header(vectors, channels))?;
                file.flush()
            }
        }
    }
}

/// The header of a .npy file with this many vectors.
/// Source: `numpy.lib.format`, version 1.0.
fn header(vectors: u64, channels: usize) -> [u8; HEADER_BYTES] {
    const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
    let mut header = [b' '; HEADER_BYTES];
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({vectors}, {channels}), }}");
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    let [low, high] = ((HEADER_BYTES - MAGIC.len() - 2) as u16).to_le_bytes();
    header[MAGIC.len()..][..2].copy_from_slice(&[low, high]);
    header[MAGIC.len() + 2..][..text.len()].copy_from_slice(text.as_bytes());
    header[HEADER_BYTES - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_header_has_room() {
        let header = header(u64::MAX, 1 << 24);
        assert!(header.ends_with(b" \n") && header.starts_with(b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4'"));
        assert!(String::from_utf8_lossy(&header).contains("(18446744073709551615, 16777216), }"));
    }
}
