//! Reads the objects of a JSON array one by one, so that memory holds a single object. The array is the whole file, or
//! the value of one key of the file's object.
//! Not here: validating the JSON between an object's braces; the parser does that.

use crate::{DataError, RowNumber, Source, Within};
use plimsoll_units::Bytes;
use std::io::{self, BufRead, BufReader, Read};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file `[{…}, {…}]`, `{…}` or `{"key": [{…}, "…"]}`.
pub(crate) struct Array {
    reader: BufReader<Box<dyn Read>>,
    bytes_max: usize,
    within: Option<Within>,
    state: State,
    object: Vec<u8>,
    /// Objects read so far.
    number: u64,
    /// Offset of the next byte in the file.
    at: u64,
    /// Offset of the last object.
    offset: u64,
}

/// What `read_on` reads to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Object,
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    Within,
    Behind,
}

impl Array {
    /// Refuses objects longer than `bytes_max`.
    pub(crate) fn new(reader: Box<dyn Read>, bytes_max: usize, within: Option<Within>) -> Self {
        let reader = BufReader::new(reader);
        Self { reader, bytes_max, within, state: State::Before, object: Vec::new(), number: 0, at: 0, offset: 0 }
    }

    /// The number of the last object read, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The offset of the last object.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes of the last object.
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }

    /// Reads the next object; false at the end of the array.
    /// Errors: `LineTooLong`; `BadRow` if the file holds no such array; read errors.
    pub(crate) fn next(&mut self, source: &Source) -> Result<bool, DataError> {
        let row = RowNumber::Row(self.number + 1);
        match self.read_next() {
            Ok(Ok(found)) => {
                self.number += u64::from(found);
                Ok(found)
            }
            Ok(Err(message)) => Err(DataError::BadRow { path: source.path.clone(), row, message: message.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                Err(DataError::LineTooLong { path: source.path.clone(), row, limit: Bytes(self.bytes_max as u64) })
            }
            Err(error) => Err(source.read_error(error)),
        }
    }

    /// The inner error describes what is wrong with the array.
    fn read_next(&mut self) -> io::Result<Result<bool, &'static str>> {
        let mut first = match self.state {
            State::Behind => return Ok(Ok(false)),
            State::Within => self.solid_byte()?,
            State::Before => {
                self.skip_mark()?;
                match self.within.clone() {
                    Some(Within::Itself) => return self.read_itself(),
                    Some(Within::Key(key)) if !self.find_array(&key)? => return Ok(Err("the file has no such array")),
                    None if self.solid_byte()? != Some(b'[') => return Ok(Err("the file does not begin with [")),
                    Some(Within::Key(_)) | None => {}
                }
                self.solid_byte()?
            }
        };
        if first == Some(b']') {
            self.state = State::Behind;
            return Ok(match self.within.is_none() && self.solid_byte()?.is_some() {
                true => Err("unexpected text after the array"),
                false => Ok(false),
            });
        }
        if self.state == State::Within {
            if first != Some(b',') {
                return Ok(Err("expected `,` or `]` after an element"));
            }
            first = self.solid_byte()?;
        }
        self.state = State::Within;
        self.offset = self.at - 1;
        self.object.clear();
        let is_whole = match (first, &self.within) {
            (Some(b'{'), _) => {
                self.object.push(b'{');
                self.read_on(Part::Object)?
            }
            // A column of texts: each text is a row with this field.
            (Some(b'"'), Some(Within::Key(key))) => {
                self.object.extend(format!("{{{}:\"", serde_json::Value::from(key.as_str())).bytes());
                let is_whole = self.read_on(Part::Text)?;
                self.object.push(b'}');
                is_whole
            }
            _ => return Ok(Err("expected an object")),
        };
        Ok(if is_whole { Ok(true) } else { Err("the file ends within it") })
    }

    /// Reads the object that makes up the whole file.
    fn read_itself(&mut self) -> io::Result<Result<bool, &'static str>> {
        if self.solid_byte()? != Some(b'{') {
            return Ok(Err("the file does not begin with {"));
        }
        self.state = State::Behind;
        self.object.push(b'{');
        Ok(if self.read_on(Part::Object)? { Ok(true) } else { Err("the file ends within it") })
    }

    /// Reads up to the first element of this key's array; false if the file's object has no such array.
    fn find_array(&mut self, key: &str) -> io::Result<bool> {
        let mut next = self.solid_byte()?;
        while matches!(next, Some(b'{' | b',')) {
            if self.solid_byte()? != Some(b'"') {
                return Ok(false);
            }
            self.object.clear();
            self.object.push(b'"');
            if !self.read_on(Part::Text)? || self.solid_byte()? != Some(b':') {
                return Ok(false);
            }
            let is_wanted = serde_json::from_slice::<String>(&self.object).is_ok_and(|found| found == key);
            next = match self.solid_byte()? {
                Some(b'[') if is_wanted => return Ok(true),
                Some(b'[' | b'{') => self.skip(1)?,
                Some(b'"') => self.skip_text()?,
                // A number or a word.
                _ => self.skip(0)?,
            };
        }
        Ok(false)
    }

    /// Skips the rest of a value that is `depth` brackets deep, and returns the byte after it.
    fn skip(&mut self, mut depth: usize) -> io::Result<Option<u8>> {
        loop {
            let byte = self.solid_byte()?;
            match byte {
                None => return Ok(None),
                Some(b',' | b'}' | b']') if depth == 0 => return Ok(byte),
                Some(b'{' | b'[') => depth += 1,
                Some(b'}' | b']') => depth -= 1,
                Some(b'"') => self.skip_to_quote()?,
                Some(_) => {}
            }
        }
    }

    /// Skips a text and returns the byte after it.
    fn skip_text(&mut self) -> io::Result<Option<u8>> {
        self.skip_to_quote()?;
        self.skip(0)
    }

    fn skip_to_quote(&mut self) -> io::Result<()> {
        let mut is_escaped = false;
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let end = buffer.iter().position(|&byte| {
                let ends = byte == b'"' && !is_escaped;
                is_escaped = byte == b'\\' && !is_escaped;
                ends
            });
            let taken = end.map_or(buffer.len(), |end| end + 1);
            self.reader.consume(taken);
            self.at += taken as u64;
            if end.is_some() {
                return Ok(());
            }
        }
    }

    /// Reads to the brace or quote that closes the current part; false if the file ends first.
    fn read_on(&mut self, part: Part) -> io::Result<bool> {
        let is_text = part == Part::Text;
        let (mut depth, mut in_text, mut is_escaped) = (usize::from(!is_text), is_text, false);
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|&byte| {
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' if in_text => is_escaped = true,
                    b'"' => in_text = !in_text,
                    b'{' if !in_text => depth += 1,
                    b'}' if !in_text => depth -= 1,
                    _ => {}
                }
                depth == 0 && !in_text
            });
            let taken = end.map_or(buffer.len(), |end| end + 1);
            self.object.extend(&buffer[..taken]);
            self.reader.consume(taken);
            self.at += taken as u64;
            if self.object.len() > self.bytes_max {
                return Err(io::ErrorKind::FileTooLarge.into());
            } else if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Reads the next byte that is not white space; `None` at the end of the file.
    fn solid_byte(&mut self) -> io::Result<Option<u8>> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let white = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let found = buffer.get(white).copied();
            let taken = white + usize::from(found.is_some());
            self.reader.consume(taken);
            self.at += taken as u64;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    fn skip_mark(&mut self) -> io::Result<()> {
        if self.reader.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
            self.reader.consume(BYTE_ORDER_MARK.len());
            self.at += BYTE_ORDER_MARK.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compression, Format};
    use proptest::prelude::*;

    fn objects(text: &str, bytes_max: usize) -> Result<Vec<(u64, String)>, DataError> {
        objects_within(None, text, bytes_max)
    }

    fn objects_within(within: Option<Within>, text: &str, bytes_max: usize) -> Result<Vec<(u64, String)>, DataError> {
        let source = Source::new("a.json".into(), Format::Json, Compression::None);
        let mut array = Array::new(Box::new(io::Cursor::new(text.as_bytes().to_vec())), bytes_max, within);
        let mut found = Vec::new();
        while array.next(&source)? {
            assert_eq!(array.number(), found.len() as u64 + 1);
            found.push((array.offset(), String::from_utf8(array.object().to_vec()).unwrap()));
        }
        assert!(!array.next(&source)?);
        Ok(found)
    }

    fn problem(text: &str) -> String {
        objects(text, 99).unwrap_err().to_string()
    }

    #[test]
    fn objects_are_read_one_by_one() {
        let texts = [(2, r#"{"a":"}\"{["}"#), (19, r#"{"b":{"c":[]}}"#)];
        let expected: Vec<_> = texts.iter().map(|(at, text)| (*at, (*text).to_owned())).collect();
        let text = format!(" [{} ,\n\t{}\n]\n", texts[0].1, texts[1].1);
        assert_eq!(objects(&text, 99).unwrap(), expected);
        assert_eq!(objects("\u{feff}[{}]", 99).unwrap(), [(4, "{}".to_owned())]);
        assert!(objects("[ ]", 9).unwrap().is_empty());
        let long = format!("[{{\"a\":\"{}\"}},{{}}]", "x".repeat(100_000));
        assert_eq!(objects(&long, 100_010).unwrap().len(), 2);
        assert!(matches!(objects(&long, 99_999), Err(DataError::LineTooLong { row: RowNumber::Row(1), .. })));
    }

    #[test]
    fn anything_but_an_array_of_objects_is_refused() {
        for (text, words) in [
            ("", "row 1 can't be read: the file does not begin with ["),
            ("{}", "row 1 can't be read: the file does not begin with ["),
            ("[1]", "row 1 can't be read: expected an object"),
            ("[{}, [{}]]", "row 2 can't be read: expected an object"),
            ("[{},]", "row 2 can't be read: expected an object"),
            ("[{} {}]", "row 2 can't be read: expected `,` or `]` after an element"),
            ("[{}", "row 2 can't be read: expected `,` or `]` after an element"),
            ("[{\"a\":\"}", "row 1 can't be read: the file ends within it"),
            ("[{}]x", "row 2 can't be read: unexpected text after the array"),
        ] {
            assert!(problem(text).contains(words), "{text}: {}", problem(text));
        }
    }

    #[test]
    fn rows_within_an_object_are_found_by_their_key() {
        let found = |key: &str, text: &str| {
            objects_within(Some(Within::Key(key.to_owned())), text, 99)
                .map(|rows| rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>())
        };
        let text = "\u{feff}{ \"a\" : \"]\\\"[\", \"b\":[{\"rows\":[{}]}], \"n\": -1.5e3 ,\"t\":true, \"o\":{\"rows\":[1]},\
                    \"rows\": [ {\"x\":\"}]\"} , {} ] , \"z\": [[]]}";
        assert_eq!(found("rows", text).unwrap(), [r#"{"x":"}]"}"#, "{}"]);
        assert_eq!(found("b", text).unwrap(), [r#"{"rows":[{}]}"#]);
        assert_eq!(
            found("te\"xt", r#"{"te\"xt":["a]\\","b\"c"]}"#).unwrap(),
            [r#"{"te\"xt":"a]\\"}"#, r#"{"te\"xt":"b\"c"}"#]
        );
        assert!(found("none", text).unwrap_err().to_string().contains("the file has no such array"));
        let alone = objects_within(Some(Within::Itself), " {\"a\": {}}\n", 99).unwrap();
        assert_eq!(alone, [(0, "{\"a\": {}}".to_owned())]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}:,\"\\\\a1 ]{0,40}") {
            for within in [None, Some(Within::Itself), Some(Within::Key("a".to_owned()))] {
                let _ = objects_within(within, &text, 20);
            }
        }
    }
}
