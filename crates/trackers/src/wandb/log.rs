//! Logs of records in blocks, in LevelDB's format with W&B's header. A record that does not fit into the rest of its
//! block is split into pieces; each piece has a checksum, a length and a kind.
//! Sources: LevelDB's `doc/log_format.md`; W&B's reader of it, whose checksums are unmasked CRC-32.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

const BLOCK: usize = 32 << 10;

/// Header of a piece: checksum, length, kind.
const HEAD: usize = 7;

/// Header of a file: `:W&B`, W&B's magic number, version 0.
const HEADER: &[u8; HEAD] = b":W&B\xe1\xbe\x00";

/// Kinds of pieces.
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Larger records are not ours.
const RECORD_MAX: usize = 64 << 20;

/// Bytes to append to a log.
#[derive(Debug)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    /// Offset of these bytes in the log.
    start: u64,
}

impl Encoder {
    /// For a log of `start` bytes; a new one gets the header.
    pub(super) fn at(start: u64) -> Self {
        Self { bytes: if start == 0 { HEADER.to_vec() } else { Vec::new() }, start }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn push(&mut self, mut record: &[u8]) {
        let mut is_first = true;
        loop {
            let left = BLOCK - ((self.start + self.bytes.len() as u64) % BLOCK as u64) as usize;
            if left < HEAD {
                self.bytes.extend(std::iter::repeat_n(0, left));
                continue;
            }
            let (piece, rest) = record.split_at(record.len().min(left - HEAD));
            let kind = match (is_first, rest.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            self.bytes.extend(checksum(kind, piece).to_le_bytes());
            self.bytes.extend((piece.len() as u16).to_le_bytes());
            self.bytes.push(kind);
            self.bytes.extend(piece);
            if rest.is_empty() {
                return;
            }
            (record, is_first) = (rest, false);
        }
    }
}

fn checksum(kind: u8, piece: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(piece);
    hasher.finalize()
}

/// The part of a log that is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its length.
    pub(super) bytes: u64,
    /// Number of records in it.
    pub(super) records: u64,
    /// Number of rows of the history among them.
    pub(super) history: u64,
}

/// Whether to keep a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// Keep it: a row of the history.
    History,
    /// Keep it: another record.
    Other,
    /// Drop it and all later ones.
    Later,
}

/// Finds the valid records of a log to keep. A file that is not such a log has none.
pub(super) fn keep(file: &mut File, mut of: impl FnMut(&[u8]) -> RecordKind) -> io::Result<Kept> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = Reader { bytes: BufReader::new(file), at: 0 };
    let mut header = [0; HEAD];
    if !reader.fill(&mut header)? || header != *HEADER {
        return Ok(Kept::default());
    }
    let mut kept = Kept { bytes: HEAD as u64, ..Kept::default() };
    while let Some(record) = reader.record()? {
        match of(&record) {
            RecordKind::Later => break,
            RecordKind::History => kept.history += 1,
            RecordKind::Other => {}
        }
        kept.records += 1;
        kept.bytes = reader.at;
    }
    Ok(kept)
}

struct Reader<R> {
    bytes: R,
    at: u64,
}

impl<R: Read> Reader<R> {
    /// Fills the buffer; false at the end of the file.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match self.bytes.read_exact(buffer) {
            Ok(()) => {
                self.at += buffer.len() as u64;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next record; `None` at the end, or if it is torn or damaged.
    fn record(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut record = Vec::new();
        let mut is_first = true;
        loop {
            let left = BLOCK - (self.at % BLOCK as u64) as usize;
            if left < HEAD && !self.fill(&mut vec![0; left])? {
                return Ok(None);
            }
            let mut head = [0; HEAD];
            if !self.fill(&mut head)? {
                return Ok(None);
            }
            let [a, b, c, d, low, high, kind] = head;
            let mut piece = vec![0; u16::from_le_bytes([low, high]).into()];
            let is_in_order = if is_first { matches!(kind, FULL | FIRST) } else { matches!(kind, MIDDLE | LAST) };
            if !is_in_order || !self.fill(&mut piece)? || checksum(kind, &piece) != u32::from_le_bytes([a, b, c, d]) {
                return Ok(None);
            }
            record.extend(piece);
            match kind {
                FULL | LAST => return Ok(Some(record)),
                _ if record.len() > RECORD_MAX => return Ok(None),
                _ => is_first = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn kept(bytes: &[u8]) -> (Kept, Vec<Vec<u8>>) {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("written");
        let mut records = Vec::new();
        let kept = keep(&mut file, |record| {
            records.push(record.to_vec());
            RecordKind::Other
        });
        (kept.expect("readable"), records)
    }

    /// Records of every size near the limits at which they are split, in one log after another.
    #[test]
    fn records_read_back_across_block_ends() {
        let mut log = Vec::new();
        let mut written = Vec::new();
        for size in [0, 1, BLOCK - HEAD, 5, BLOCK - 40, 13, 1, 3 * BLOCK, 0, 2 * BLOCK - 2 * HEAD, 100_000] {
            let record = (0..size).map(|byte| byte as u8).collect::<Vec<_>>();
            let mut encoder = Encoder::at(log.len() as u64);
            encoder.push(&record);
            log.extend(encoder.as_bytes());
            written.push(record);
        }
        let (kept, records) = kept(&log);
        assert_eq!(records, written);
        assert_eq!((kept.bytes, kept.records), (log.len() as u64, 11));
    }

    #[test]
    fn a_truncated_log_keeps_its_complete_records() {
        let (mut log, mut ends) = (Encoder::at(0), vec![HEAD]);
        for size in [20, 0, BLOCK, 30] {
            log.push(&vec![7; size]);
            ends.push(log.as_bytes().len());
        }
        let log = log.as_bytes();
        for cut in (0..200).chain(BLOCK - 50..BLOCK + 50).chain(log.len() - 50..=log.len()) {
            let whole = ends.iter().filter(|end| **end <= cut).max().copied().unwrap_or(0);
            assert_eq!(kept(&log[..cut]).0.bytes, whole as u64, "cut at {cut}");
        }
        let mut damaged = log.to_vec();
        damaged[ends[1] + 1] ^= 1;
        assert_eq!(kept(&damaged).0.records, 1);
        assert_eq!(kept(b"something else that is longer").0, Kept::default());
    }
}
