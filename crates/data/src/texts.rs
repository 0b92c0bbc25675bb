//! Reads texts one after the other: the lines of text files or of a stream, or a field of the rows of other files.
//! Not here: the rows (`rows.rs`), and documents that are cut into pieces (`documents.rs`).

use crate::jsonl::text_of_line;
use crate::lines::Lines;
use crate::rows::{Rows, Wanted};
use crate::{Compression, DataError, Format, Source, Sources};
use std::io::Read;
use std::sync::Arc;

/// The texts of some files, or of a stream, in order. Reads one row at a time.
pub struct Texts {
    sources: Sources,
    next: usize,
    open: Option<Rows>,
}

impl Texts {
    /// The texts of these files. Each line of a text file is a text, also an empty one; rows of other files have texts
    /// in the field of the sources, and blank lines between rows are skipped.
    pub fn of_sources(sources: Sources) -> Self {
        Self { sources, next: 0, open: None }
    }

    /// The lines of a stream. `name`: for messages.
    pub fn of_stream(stream: Box<dyn Read>, name: &str) -> Self {
        Self::of_lines(stream, name, Format::Text)
    }

    /// A stream of JSON lines, each with its text in the field `text`. `name`: for messages.
    pub fn of_rows(stream: Box<dyn Read>, name: &str) -> Self {
        Self::of_lines(stream, name, Format::JsonLines)
    }

    fn of_lines(stream: Box<dyn Read>, name: &str, format: Format) -> Self {
        let source = Source::new(name.into(), format, Compression::None);
        let sources = Sources::new(vec![source], crate::DEFAULT_TEXT_FIELD);
        let open = Some(Rows::Lines(Lines::new(stream, sources.line_bytes_max)));
        Self { sources, next: 1, open }
    }

    /// The next texts: at most `most`, and none after `bytes` bytes. Empty at the end.
    /// Errors: read errors, `LineTooLong`, `NotUtf8`; `BadJsonLine`, `NoTextField`, `FieldIsNotText`, `NoSuchColumn`.
    pub fn next_group(&mut self, most: usize, bytes: usize) -> Result<Vec<String>, DataError> {
        let (mut texts, mut read) = (Vec::new(), 0);
        while texts.len() < most && read < bytes {
            let Some(text) = self.next_text()? else { break };
            read += text.len();
            texts.push(text);
        }
        Ok(texts)
    }

    fn next_text(&mut self) -> Result<Option<String>, DataError> {
        loop {
            if self.open.is_none() && !self.open_next()? {
                return Ok(None);
            }
            let (source, field) = (&self.sources.files[self.next - 1], &self.sources.text_field);
            let rows = self.open.as_mut().expect("it was just opened");
            if !rows.next(source)? {
                self.open = None;
                continue;
            }
            let row = rows.text(source)?;
            if source.format == Format::Text {
                let line = row.strip_suffix('\n').unwrap_or(row);
                return Ok(Some(line.strip_suffix('\r').unwrap_or(line).to_owned()));
            }
            let text =
                text_of_line(row, field).map_err(|error| error.in_file(source.path.clone(), rows.number(), field))?;
            if text.is_some() {
                return Ok(text);
            }
        }
    }

    fn open_next(&mut self) -> Result<bool, DataError> {
        let Some(source) = self.sources.files.get(self.next) else { return Ok(false) };
        let wanted = Wanted::All(&[&self.sources.text_field]);
        self.open = Some(Rows::open(source, wanted, self.sources.line_bytes_max, Arc::default())?);
        self.next += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve;

    fn all(mut texts: Texts) -> Result<Vec<String>, DataError> {
        let mut found = Vec::new();
        loop {
            let group = texts.next_group(2, 1 << 20)?;
            if group.is_empty() {
                return Ok(found);
            }
            found.extend(group);
        }
    }

    fn of_file(name: &str, contents: &[u8]) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        all(Texts::of_sources(resolve(&[path.to_str().unwrap()], "text").unwrap()))
    }

    #[test]
    fn lines_and_rows_are_texts_in_order() {
        let lines = "\u{feff}one\r\n\n three \nfour";
        let expected = ["one", "", " three ", "four"];
        assert_eq!(of_file("a.txt", lines.as_bytes()).unwrap(), expected);
        assert_eq!(all(Texts::of_stream(Box::new(lines.as_bytes()), "stdin")).unwrap(), expected);
        let rows = b"{\"text\":\"one\\ntwo\"}\n\n{\"text\":\"\",\"id\":1}\n";
        assert_eq!(of_file("a.jsonl", rows).unwrap(), ["one\ntwo", ""]);
        assert_eq!(
            of_file("a.json", b"[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"}]").unwrap(),
            ["a", "b", "c"]
        );
    }

    #[test]
    fn a_group_ends_after_its_bytes() {
        let mut texts = Texts::of_stream(Box::new(&b"1234\n5678\n9\n"[..]), "stdin");
        assert_eq!(texts.next_group(9, 5).unwrap(), ["1234", "5678"]);
        assert_eq!(texts.next_group(9, 5).unwrap(), ["9"]);
        assert!(texts.next_group(9, 5).unwrap().is_empty());
    }

    #[test]
    fn bad_rows_are_named() {
        let message = |name: &str, contents: &[u8]| of_file(name, contents).unwrap_err().to_string();
        assert!(message("a.jsonl", b"{\"text\":\"x\"}\n{\"body\":\"x\"}").contains("line 2 has no field `text`"));
        assert!(message("a.txt", b"x\n\xff\n").contains("not UTF-8 at byte 2"));
        let error = all(Texts::of_stream(Box::new(&b"\xff"[..]), "stdin")).unwrap_err();
        assert!(error.to_string().contains("stdin"), "{error}");
    }
}
