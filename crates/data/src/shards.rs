//! Tokenizes the documents of the data once and caches the tokens in `CACHE/KEY.tokens`, where the key identifies data
//! and tokenizer (`fingerprint.rs`).
//! Not here: how a cache is put in place (`cache.rs`), its layout (`header.rs`), reading it (`store.rs`), and where
//! documents are cut (`pieces.rs`).
//!
//! Text is processed in groups, so memory does not grow with the data.

use crate::cache::{Cache, CacheWriter};
use crate::documents::{Piece, PieceReader};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::header::CacheKind;
use crate::pieces::PIECE_BYTES_MAX;
use crate::store::TokenStore;
use crate::{DataError, EncodeError, Progress, Sources, Tokenizer};
use plimsoll_units::Bytes;
use rayon::prelude::*;
use std::fs::File;
use std::io;
use std::path::Path;

/// The tokens of the data: read from the cache if it is complete, otherwise tokenized on all cores of the current rayon
/// pool. They do not depend on the number of threads. Each document is preceded by the tokenizer's beginning tokens and
/// followed by its separator, if it has them. Skips documents without text.
/// Errors: read and tokenizer errors, `Empty`, `CacheUnwritable`, `CacheUnreadable`, `CacheDamaged`.
pub fn prepare(
    sources: &Sources,
    tokenizer: &Tokenizer,
    cache_folder: &Path,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<TokenStore, DataError> {
    let print = fingerprint(sources, tokenizer, &[], progress)?;
    let cache = Cache { folder: cache_folder, key: &print.key, extension: "tokens", mode: print.mode };
    let job = Build { sources, tokenizer, print: &print, cache: &cache };
    let open = |path: &Path, key: &blake3::Hash| TokenStore::open(path, key, tokenizer.vocab_size());
    cache.open_or_build(open, |file| job.run(file, progress), progress)
}

/// The bytes of text in the documents, and the number of their tokens without separators.
/// Errors: read and tokenizer errors.
pub fn count_tokens(sources: &Sources, tokenizer: &Tokenizer) -> Result<(Bytes, u64), DataError> {
    let (mut bytes, mut tokens) = (0, 0);
    let mut reader = PieceReader::new(sources);
    loop {
        let group = reader.next_group(group_bytes())?;
        if group.is_empty() {
            return Ok((Bytes(bytes), tokens));
        }
        let count = |piece: &Piece| match tokenizer.encode_piece(&piece.text) {
            Ok(ids) => Ok(ids.len() as u64),
            Err(error) => Err(encode_error(sources, tokenizer, piece, error)),
        };
        tokens += group.par_iter().map(count).sum::<Result<u64, _>>()?;
        bytes += group.iter().map(|piece| piece.text.len() as u64).sum::<u64>();
    }
}

struct Build<'a> {
    sources: &'a Sources,
    tokenizer: &'a Tokenizer,
    print: &'a Fingerprint,
    cache: &'a Cache<'a>,
}

impl Build<'_> {
    /// Writes all tokens to `file` and returns how many there are.
    fn run(&self, file: &File, progress: &(dyn Fn(Progress<'_>) + Sync)) -> Result<u64, DataError> {
        let unwritable = |error| self.cache.unwritable(error);
        let vocab_size = self.tokenizer.vocab_size();
        let mut writer = CacheWriter::create(file, CacheKind::Tokens, vocab_size).map_err(unwritable)?;
        let mut reader = PieceReader::new(self.sources);
        let mut begins_document = true;
        loop {
            let group = reader.next_group(group_bytes())?;
            if group.is_empty() {
                break;
            }
            let encoded: Vec<_> = group.par_iter().map(|piece| self.tokenizer.encode_piece(&piece.text)).collect();
            for (piece, ids) in group.iter().zip(encoded) {
                let ids = ids.map_err(|error| encode_error(self.sources, self.tokenizer, piece, error))?;
                if begins_document && !ids.starts_with(self.tokenizer.beginning()) {
                    writer.write_tokens(self.tokenizer.beginning()).map_err(unwritable)?;
                }
                self.write(&mut writer, piece, &ids).map_err(unwritable)?;
                begins_document = piece.ends_document;
            }
            let (done, tokens) = (reader.raw_bytes(), writer.tokens());
            progress(Progress::Tokenizing { done, total: self.print.raw_bytes, tokens });
        }
        self.print.check_unchanged(self.sources)?;
        if writer.text_bytes == 0 {
            return Err(self.sources.empty_error());
        }
        let tokens = writer.tokens();
        writer.finish(&self.print.key).map_err(unwritable)?;
        Ok(tokens)
    }

    fn write(&self, writer: &mut CacheWriter<&File>, piece: &Piece, ids: &[u32]) -> io::Result<()> {
        writer.text_bytes += piece.text.len() as u64;
        writer.write_tokens(ids)?;
        if piece.ends_document { writer.write_tokens(self.tokenizer.separator().as_slice()) } else { Ok(()) }
    }
}

fn encode_error(sources: &Sources, tokenizer: &Tokenizer, piece: &Piece, error: EncodeError) -> DataError {
    let path = sources.files[piece.source].path.clone();
    match error {
        EncodeError::NotUtf8 { offset } => DataError::NotUtf8 { path, offset: piece.offset + offset },
        EncodeError::Failed { message } => {
            DataError::TokenizerFailed { tokenizer: tokenizer.spec().to_string(), path, message }
        }
    }
}

/// How much text is tokenized at a time: four pieces per thread, so that all threads have work. The tokens do not
/// depend on it. Text and tokens together use up to five times this much memory.
pub(crate) fn group_bytes() -> usize {
    4 * PIECE_BYTES_MAX * rayon::current_num_threads()
}
