//! Reads the data as a stream of pieces in document order. Holds at most one piece of a text file, or one line of a
//! .jsonl file, at a time.
//! Not here: where pieces end (`pieces.rs`) and how they are tokenized (`shards.rs`).

use crate::decompress;
use crate::jsonl::text_of_line;
use crate::pieces::{LOOKAHEAD_BYTES, PIECE_BYTES_MAX, PIECE_OVERHEAD_BYTES, first_piece_len};
use crate::rows::{Rows, Wanted};
use crate::{DataError, Format, Source, Sources};
use plimsoll_units::Bytes;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a document that is tokenized on its own. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The index of its source.
    pub source: usize,
    /// Offset of its start in the source's decompressed bytes; for rows, the offset of the row.
    pub offset: u64,
    /// Its bytes.
    pub text: Vec<u8>,
    /// Whether this is the last piece of its document.
    pub ends_document: bool,
}

/// Reads pieces from all sources in order. Skips documents without text.
pub(crate) struct PieceReader<'a> {
    sources: &'a Sources,
    next_source: usize,
    open: Option<OpenSource>,
    raw_bytes: Arc<AtomicU64>,
}

enum OpenSource {
    Text(TextFile),
    Rows(RowsFile),
}

impl<'a> PieceReader<'a> {
    pub(crate) fn new(sources: &'a Sources) -> Self {
        Self { sources, next_source: 0, open: None, raw_bytes: Arc::default() }
    }

    /// Bytes read from disk so far.
    pub(crate) fn raw_bytes(&self) -> Bytes {
        Bytes(self.raw_bytes.load(Ordering::Relaxed))
    }

    /// Pieces of about `group_bytes` in total (exceeded by at most one piece). Empty at the end of the data.
    pub(crate) fn next_group(&mut self, group_bytes: usize) -> Result<Vec<Piece>, DataError> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while bytes < group_bytes {
            let Some(piece) = self.next_piece()? else { break };
            bytes += piece.text.len() + PIECE_OVERHEAD_BYTES;
            group.push(piece);
        }
        Ok(group)
    }

    fn next_piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if self.open.is_none() && !self.open_next()? {
                return Ok(None);
            }
            let index = self.next_source - 1;
            let source = &self.sources.files[index];
            let piece = match &mut self.open {
                Some(OpenSource::Text(file)) => file.next_piece(index).map_err(|e| source.read_error(e))?,
                Some(OpenSource::Rows(file)) => file.next_piece(index, source, &self.sources.text_field)?,
                None => None,
            };
            match piece {
                Some(piece) => return Ok(Some(piece)),
                None => self.open = None,
            }
        }
    }

    fn open_next(&mut self) -> Result<bool, DataError> {
        let Some(source) = self.sources.files.get(self.next_source) else { return Ok(false) };
        let raw_bytes = Arc::clone(&self.raw_bytes);
        self.open = Some(match source.format {
            Format::Text => {
                let reader =
                    decompress::open(source, raw_bytes).map_err(|error| DataError::unreadable(&source.path, error))?;
                OpenSource::Text(TextFile { reader, buffer: Vec::new(), offset: 0 })
            }
            Format::JsonLines | Format::Json | Format::Parquet => {
                let wanted = Wanted::All(&[&self.sources.text_field]);
                let rows = Rows::open(source, wanted, self.sources.line_bytes_max, raw_bytes)?;
                OpenSource::Rows(RowsFile { rows, text: Vec::new(), at: 0 })
            }
        });
        self.next_source += 1;
        Ok(true)
    }
}

/// A file that is one document.
struct TextFile {
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    offset: u64,
}

impl TextFile {
    fn next_piece(&mut self, source: usize) -> io::Result<Option<Piece>> {
        const WANTED_BYTES: usize = PIECE_BYTES_MAX + LOOKAHEAD_BYTES;
        let missing_bytes = WANTED_BYTES.saturating_sub(self.buffer.len()) as u64;
        (&mut self.reader).take(missing_bytes).read_to_end(&mut self.buffer)?;
        let rest = self.buffer.split_off(first_piece_len(&self.buffer));
        let text = std::mem::replace(&mut self.buffer, rest);
        let offset = self.offset;
        self.offset += text.len() as u64;
        Ok((!text.is_empty()).then_some(Piece { source, offset, text, ends_document: self.buffer.is_empty() }))
    }
}

/// A file in which each row is a document.
struct RowsFile {
    rows: Rows,
    /// The document of the last row read.
    text: Vec<u8>,
    /// How many of its bytes were returned.
    at: usize,
}

impl RowsFile {
    fn next_piece(&mut self, index: usize, source: &Source, field: &str) -> Result<Option<Piece>, DataError> {
        while self.at == self.text.len() {
            match self.next_text(source, field)? {
                Some(text) => (self.text, self.at) = (text.into_bytes(), 0),
                None => return Ok(None),
            }
        }
        let rest = &self.text[self.at..];
        let text = rest[..first_piece_len(rest)].to_owned();
        self.at += text.len();
        let ends_document = self.at == self.text.len();
        Ok(Some(Piece { source: index, offset: self.rows.offset(), text, ends_document }))
    }

    fn next_text(&mut self, source: &Source, field: &str) -> Result<Option<String>, DataError> {
        if !self.rows.next(source)? {
            return Ok(None);
        }
        let text = text_of_line(self.rows.text(source)?, field)
            .map_err(|error| error.in_file(source.path.clone(), self.rows.number(), field))?;
        Ok(Some(text.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompress::tests::{gzip, zstd};
    use crate::resolve;

    /// All documents of one file, read in groups of the given size.
    fn documents(name: &str, bytes: &[u8], group_bytes: usize) -> Result<Vec<Vec<u8>>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
        let mut reader = PieceReader::new(&sources);
        let mut documents = vec![Vec::new()];
        loop {
            let group = reader.next_group(group_bytes)?;
            if group.is_empty() {
                assert_eq!(reader.raw_bytes().0, bytes.len() as u64);
                assert_eq!(documents.pop(), Some(Vec::new()), "the last document must have ended");
                return Ok(documents);
            }
            for piece in group {
                documents.last_mut().unwrap().extend(&piece.text);
                if piece.ends_document {
                    documents.push(Vec::new());
                }
            }
        }
    }

    #[test]
    fn a_long_text_file_is_one_document_however_it_is_read() {
        let text = include_bytes!("documents.rs").repeat(100);
        for group_bytes in [1, 300_000, usize::MAX] {
            assert_eq!(documents("a.txt", &text, group_bytes).unwrap(), std::slice::from_ref(&text));
        }
        assert_eq!(documents("a.txt.gz", &gzip(&text), 1 << 20).unwrap(), std::slice::from_ref(&text));
        assert_eq!(documents("a.txt.zst", &zstd(&text), 1 << 20).unwrap(), [text]);
    }

    #[test]
    fn each_line_is_a_document_and_blank_lines_are_skipped() {
        let lines = "\u{feff}{\"text\":\"one\"}\n\n{\"text\":\"\"}\r\n{\"id\":1,\"text\":\"two\\nlines\"}";
        for (name, bytes) in [
            ("a.jsonl", lines.as_bytes().to_vec()),
            ("a.jsonl.gz", gzip(lines.as_bytes())),
            ("a.jsonl.zst", zstd(lines.as_bytes())),
        ] {
            let found = documents(name, &bytes, 1).unwrap();
            assert_eq!(found, [b"one".to_vec(), b"two\nlines".to_vec()], "{name}");
        }
        assert!(documents("empty.txt", b"", 1).unwrap().is_empty());
    }

    #[test]
    fn a_long_line_is_cut_into_pieces_of_one_document() {
        let text = "many words ".repeat(60_000);
        let line = serde_json::json!({ "text": text }).to_string();
        assert_eq!(documents("a.jsonl", line.as_bytes(), 1).unwrap(), [text.into_bytes()]);
    }

    #[test]
    fn bad_lines_are_named_by_number_and_byte() {
        let good = "{\"text\":\"x\"}\n";
        let message = |line: &[u8]| documents("a.jsonl", &[good.as_bytes(), line].concat(), 1).unwrap_err().to_string();
        assert!(message(b"{\"text\": 3}").contains("line 2: field `text` is a number"));
        assert!(message(b"{\"body\":\"x\"}").contains("line 2 has no field `text`; it has `body`"));
        assert!(message(b"oops").contains("line 2 is not a JSON object"));
        assert!(message(b"{\"text\":\"\xff\"}").contains("not UTF-8 at byte 22"));
        assert!(message(b"\0").contains("a.jsonl"));
        let cut = gzip(b"text");
        assert!(matches!(documents("a.gz", &cut[..cut.len() - 2], 1), Err(DataError::BadCompression { .. })));
    }
}
