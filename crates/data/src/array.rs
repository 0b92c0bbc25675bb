//! The objects of a file that is one JSON array, one by one, so that memory holds one alone.
//! Not here: whether what is between an object's braces is JSON, which reading it will say.

use crate::{DataError, RowNumber, Source};
use plimsoll_units::Bytes;
use std::io::{self, BufRead, BufReader, Read};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file `[{…}, {…}]`.
pub(crate) struct Array {
    reader: BufReader<Box<dyn Read>>,
    bytes_max: usize,
    state: State,
    object: Vec<u8>,
    /// Objects read, the last one included.
    number: u64,
    /// Where the next byte is in the file.
    at: u64,
    /// Where the last object begins.
    offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    Within,
    Behind,
}

impl Array {
    /// Longer objects than `bytes_max` are refused.
    pub(crate) fn new(reader: Box<dyn Read>, bytes_max: usize) -> Self {
        let reader = BufReader::new(reader);
        Self { reader, bytes_max, state: State::Before, object: Vec::new(), number: 0, at: 0, offset: 0 }
    }

    /// The number of the object that was read last, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where it begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes.
    pub(crate) fn object(&self) -> &[u8] {
        &self.object
    }

    /// Reads the next object; false at the end of the array.
    /// Errors: `LineTooLong`; `BadRow` where the file is no such array; what reading can meet.
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

    /// The inner error says what is wrong with the array.
    fn read_next(&mut self) -> io::Result<Result<bool, &'static str>> {
        let mut first = match self.state {
            State::Behind => return Ok(Ok(false)),
            State::Within => self.solid_byte()?,
            State::Before => {
                self.skip_mark()?;
                if self.solid_byte()? != Some(b'[') {
                    return Ok(Err("the file does not begin with ["));
                }
                self.solid_byte()?
            }
        };
        if first == Some(b']') {
            self.state = State::Behind;
            return Ok(if self.solid_byte()?.is_some() {
                Err("the array is followed by something")
            } else {
                Ok(false)
            });
        }
        if self.state == State::Within {
            if first != Some(b',') {
                return Ok(Err("the array does not go on with a comma or end with ]"));
            }
            first = self.solid_byte()?;
        }
        self.state = State::Within;
        if first != Some(b'{') {
            return Ok(Err("it is not an object"));
        }
        self.offset = self.at - 1;
        self.object.clear();
        self.object.push(b'{');
        Ok(if self.read_object()? { Ok(true) } else { Err("the file ends within it") })
    }

    /// Reads on to the brace that closes the first one; false if there is none.
    fn read_object(&mut self) -> io::Result<bool> {
        let (mut depth, mut in_text, mut is_escaped) = (1, false, false);
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
                depth == 0
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

    /// The next byte that is not white space, which is read; none at the end of the file.
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
        let source =
            Source { path: "a.json".into(), format: Format::Json, compression: Compression::None, limit: None };
        let mut array = Array::new(Box::new(io::Cursor::new(text.as_bytes().to_vec())), bytes_max);
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
    fn what_is_no_array_of_objects_is_said() {
        for (text, words) in [
            ("", "row 1 can't be read: the file does not begin with ["),
            ("{}", "row 1 can't be read: the file does not begin with ["),
            ("[1]", "row 1 can't be read: it is not an object"),
            ("[{}, [{}]]", "row 2 can't be read: it is not an object"),
            ("[{},]", "row 2 can't be read: it is not an object"),
            ("[{} {}]", "row 2 can't be read: the array does not go on with a comma or end with ]"),
            ("[{}", "row 2 can't be read: the array does not go on with a comma or end with ]"),
            ("[{\"a\":\"}", "row 1 can't be read: the file ends within it"),
            ("[{}]x", "row 2 can't be read: the array is followed by something"),
        ] {
            assert!(problem(text).contains(words), "{text}: {}", problem(text));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{},\"\\\\a1 ]{0,40}") {
            let _ = objects(&text, 20);
        }
    }
}
