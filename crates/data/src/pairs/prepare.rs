//! Tokenizes pairs on all cores and caches them: `CACHE/KEY.pairs`.
//! Not here: reading rows (`rows.rs`), and how a cache is put in place (`../cache.rs`).

use super::rows::{Row, RowReader, tables_identity};
use super::{PairColumns, PairStore};
use crate::cache::{Cache, CacheWriter};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::header::CacheKind;
use crate::shards::group_bytes;
use crate::{DataError, EncodeError, Progress, Sources, Tokenizer};
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

/// The pairs of the data: read from the cache if it is complete, otherwise tokenized on all cores of the current rayon
/// pool. They do not depend on the number of threads. The stored sources and targets have no end tokens.
/// Errors: read and tokenizer errors (`NotPairs`, `NoSuchColumn`, `RowTooShort`, `EmptySide`, `BadRow`…), `Empty`,
/// `CacheUnwritable`, `CacheUnreadable`, `CacheDamaged`.
pub fn prepare_pairs(
    sources: &Sources,
    columns: &PairColumns,
    tokenizer: &Tokenizer,
    cache_folder: &Path,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<PairStore, DataError> {
    let job = Job::new(sources, columns, tokenizer, progress)?;
    let cache = Cache { folder: cache_folder, key: &job.print.key, extension: "pairs", mode: job.print.mode };
    let open = |path: &Path, key: &blake3::Hash| PairStore::open(path, key, tokenizer.vocab_size(), columns.sides());
    let build = |file: &File| Ok(job.write(file, cache.scratch()?, &|error| cache.unwritable(error))?.1);
    cache.open_or_build(open, build, progress)
}

/// The pairs of the data, tokenized without a cache and held in memory.
/// Errors: as [`prepare_pairs`], except those of the cache.
pub fn tokenize_pairs(
    sources: &Sources,
    columns: &PairColumns,
    tokenizer: &Tokenizer,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<PairStore, DataError> {
    let job = Job::new(sources, columns, tokenizer, progress)?;
    let unwritable = |source| DataError::CacheUnwritable { folder: "memory".into(), source };
    let (file, _) = job.write(Cursor::new(Vec::new()), Cursor::new(Vec::new()), &unwritable)?;
    Ok(PairStore::of_bytes(file.into_inner(), columns.sides()).expect("this process just wrote the file"))
}

struct Job<'a> {
    sources: &'a Sources,
    columns: &'a PairColumns,
    tokenizer: &'a Tokenizer,
    print: Fingerprint,
    progress: &'a (dyn Fn(Progress<'_>) + Sync),
}

impl<'a> Job<'a> {
    fn new(
        sources: &'a Sources,
        columns: &'a PairColumns,
        tokenizer: &'a Tokenizer,
        progress: &'a (dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Self, DataError> {
        let reading = columns.identity() + &tables_identity(sources)?;
        let print = fingerprint(sources, tokenizer, reading.as_bytes(), progress)?;
        Ok(Self { sources, columns, tokenizer, print, progress })
    }

    /// Writes all pairs to `file`; returns it with the number of tokens. `ends` buffers the ends of pairs until all
    /// tokens are written, since a few bytes of text may hold many pairs.
    fn write<W: Write + Seek>(
        &self,
        file: W,
        ends: impl Read + Write + Seek,
        unwritable: &dyn Fn(io::Error) -> DataError,
    ) -> Result<(W, u64), DataError> {
        let mut writer =
            CacheWriter::create(file, CacheKind::Pairs, self.tokenizer.vocab_size()).map_err(unwritable)?;
        let mut reader = RowReader::new(self.sources, self.columns);
        let mut ends = BufWriter::new(ends);
        let mut pairs = 0;
        loop {
            let group = reader.next_group(group_bytes())?;
            if group.is_empty() {
                break;
            }
            let encoded: Vec<_> = group.par_iter().map(|row| self.encode(row)).collect();
            for (row, sides) in group.iter().zip(encoded) {
                for ids in sides? {
                    writer.write_tokens(&ids).map_err(unwritable)?;
                    ends.write_all(&writer.tokens().to_le_bytes()).map_err(unwritable)?;
                }
                pairs += 1;
                writer.text_bytes += row.bytes() as u64;
            }
            let (done, tokens) = (reader.raw_bytes(), writer.tokens());
            (self.progress)(Progress::Tokenizing { done, total: self.print.raw_bytes, tokens });
        }
        self.print.check_unchanged(self.sources)?;
        if pairs == 0 {
            return Err(self.sources.empty_error());
        }
        writer.append(ends).map_err(unwritable)?;
        let tokens = writer.tokens();
        Ok((writer.finish(&self.print.key).map_err(unwritable)?, tokens))
    }

    fn encode(&self, row: &Row) -> Result<Vec<Vec<u32>>, DataError> {
        let encode = |text: &Vec<u8>| {
            self.tokenizer.encode(text).map_err(|error| {
                let path = self.sources.files[row.file].path.clone();
                match error {
                    EncodeError::NotUtf8 { .. } => {
                        DataError::BadRow { path, row: row.number, message: "it is not UTF-8".to_owned() }
                    }
                    EncodeError::Failed { message } => {
                        DataError::TokenizerFailed { tokenizer: self.tokenizer.spec().to_string(), path, message }
                    }
                }
            })
        };
        row.texts.iter().map(encode).collect()
    }
}
