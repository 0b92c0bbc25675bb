//! The pickle machine: a stack with marks, and a memo. See `mod.rs` for what it refuses.

use super::PickleError;
use super::document::{Document, Value};
use std::borrow::Cow;

/// Maximum size of a pickle.
pub const MAX_BYTES: usize = 1 << 28;

/// Maximum number of values. A snapshot has one per eight bytes or so; a hostile pickle has one per byte.
const MAX_VALUES: usize = 1 << 25;

/// Maximum number of texts, and of lists and dictionaries, which use more memory than other values: in the worst case,
/// all values together use about a gigabyte.
const MAX_STORED: usize = 1 << 23;

/// Maximum digits of a number written as text. Python's own limit is 4300; a snapshot's numbers have 19.
const MAX_DIGITS: usize = 4300;

/// Reads a pickle. Ignores bytes after its end, as Python does.
/// Errors: the bytes are not a complete pickle of plain data, see [`PickleError`]. Never panics.
pub fn read(bytes: &[u8]) -> Result<Document<'_>, PickleError> {
    if bytes.len() > MAX_BYTES {
        return Err(PickleError::TooLong { bytes: bytes.len() });
    }
    match bytes.first() {
        None => return Err(PickleError::Truncated { at: 0 }),
        // Since protocol 2, a pickle states its protocol; older ones start with the first value or its mark.
        Some(first) if !b"\x80(])}lINLFSVUTXGJKMcdt".contains(first) => {
            return Err(PickleError::NotAPickle { first: *first });
        }
        Some(_) => {}
    }
    let mut reader = Reader {
        bytes,
        next: 0,
        at: 0,
        stack: vec![],
        marks: vec![],
        memo: vec![],
        document: Document { texts: vec![], lists: vec![], dicts: vec![], root: Value::None, pushed: 0 },
    };
    while !reader.step()? {}
    reader.document.root = reader.pop()?;
    Ok(reader.document)
}

struct Reader<'a> {
    bytes: &'a [u8],
    next: usize,
    /// Offset of the current instruction.
    at: usize,
    stack: Vec<Value>,
    /// Stack heights of the marks.
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    document: Document<'a>,
}

impl<'a> Reader<'a> {
    /// Executes one instruction; true after the last.
    fn step(&mut self) -> Result<bool, PickleError> {
        self.at = self.next;
        let code = self.byte()?;
        match code {
            b'.' => return Ok(true),
            0x80 => self.protocol()?,
            0x95 => {
                // A frame only announces the size of a read-ahead.
                self.take(8)?;
            }
            b'(' => {
                if self.marks.len() >= MAX_VALUES {
                    return Err(PickleError::TooManyValues { limit: MAX_VALUES });
                }
                self.marks.push(self.stack.len());
            }
            b'0' => {
                // Python also pops a mark with this instruction if no value is above it.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => {
                let height = self.mark()?;
                self.stack.truncate(height);
            }
            b'2' => {
                let top = self.top()?;
                self.push(top)?;
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' => {
                let number = self.number(code)?;
                self.push(number)?;
            }
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d => self.text(code)?,
            b'B' => self.skip_bytes(4)?,
            b'C' => self.skip_bytes(1)?,
            0x8e | 0x96 => self.skip_bytes(8)?,
            b']' | b')' | b'}' | b'l' | b't' | b'd' | 0x85..=0x87 => self.container(code)?,
            b'a' | b'e' | b's' | b'u' => self.fill(code)?,
            b'g' | b'h' | b'j' => {
                let index = self.memo_index(code)?;
                let value = self.memo.get(index).copied().flatten();
                let value = value.ok_or(self.damaged("fetches a value that was never stored"))?;
                self.push(value)?;
            }
            b'p' | b'q' | b'r' => {
                let index = self.memo_index(code)?;
                self.memoize(index)?;
            }
            0x94 => self.memoize(self.memo.len())?,
            _ => return Err(self.refused(code)?),
        }
        Ok(false)
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.byte()? {
            0..=5 => Ok(()),
            protocol => Err(PickleError::UnknownProtocol { protocol }),
        }
    }

    fn number(&mut self, code: u8) -> Result<Value, PickleError> {
        Ok(match code {
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'K' => Value::Int(i64::from(self.byte()?)),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.array()?))),
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            0x8a => {
                let length = usize::from(self.byte()?);
                little_endian(self.take(length)?)
            }
            0x8b => {
                let length = self.length(4)?;
                little_endian(self.take(length)?)
            }
            b'F' => {
                let text = self.line()?;
                Value::Float(text.parse().map_err(|_| self.damaged("has an invalid number"))?)
            }
            // Protocol 1 has no instructions for booleans: they are numbers with a leading zero.
            _ => match self.line()? {
                "00" if code == b'I' => Value::Bool(false),
                "01" if code == b'I' => Value::Bool(true),
                text => self.decimal(text.strip_suffix('L').unwrap_or(text))?,
            },
        })
    }

    fn decimal(&self, text: &str) -> Result<Value, PickleError> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.damaged("has an invalid number"));
        }
        Ok(text.parse().map_or(Value::HugeInt, Value::Int))
    }

    fn text(&mut self, code: u8) -> Result<(), PickleError> {
        let text = match code {
            b'S' => {
                let line = self.line()?;
                let quoted = line.strip_prefix(['\'', '"']).and_then(|rest| rest.strip_suffix(['\'', '"']));
                Cow::Borrowed(quoted.ok_or(self.damaged("has a text without quotes"))?)
            }
            b'V' => Cow::Borrowed(self.line()?),
            _ => {
                let size = match code {
                    b'U' | 0x8c => 1,
                    b'T' | b'X' => 4,
                    _ => 8,
                };
                let length = self.length(size)?;
                // Lone surrogates, which Python uses for undecodable bytes of file names, become replacement
                // characters.
                String::from_utf8_lossy(self.take(length)?)
            }
        };
        let index = stored(self.document.texts.len())?;
        self.document.texts.push(text);
        self.push(Value::Text(index))
    }

    fn skip_bytes(&mut self, size: usize) -> Result<(), PickleError> {
        let length = self.length(size)?;
        self.take(length)?;
        self.push(Value::Bytes)
    }

    fn container(&mut self, code: u8) -> Result<(), PickleError> {
        let items = match code {
            b']' | b')' | b'}' => vec![],
            b'l' | b't' | b'd' => {
                let height = self.mark()?;
                self.stack.split_off(height)
            }
            _ => {
                let count = usize::from(code - 0x84);
                let floor = self.marks.last().copied().unwrap_or(0);
                let height = self.stack.len().checked_sub(count).filter(|height| *height >= floor);
                self.stack.split_off(height.ok_or(self.damaged("lacks its operands"))?)
            }
        };
        if matches!(code, b'}' | b'd') {
            let entries = self.pairs(&items)?;
            let index = stored(self.document.dicts.len())?;
            self.document.dicts.push(entries);
            return self.push(Value::Dict(index));
        }
        let index = stored(self.document.lists.len())?;
        self.document.lists.push(items);
        self.push(if matches!(code, b']' | b'l') { Value::List(index) } else { Value::Tuple(index) })
    }

    /// Adds the operands to the list or dictionary below them.
    fn fill(&mut self, code: u8) -> Result<(), PickleError> {
        let items = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => {
                let height = self.mark()?;
                self.stack.split_off(height)
            }
        };
        match (self.top()?, code) {
            (Value::List(index), b'a' | b'e') => self.document.lists[index as usize].extend(items),
            (Value::Dict(index), b's' | b'u') => {
                let entries = self.pairs(&items)?;
                self.document.dicts[index as usize].extend(entries);
            }
            _ => return Err(self.damaged("adds to a value that is not a container")),
        }
        Ok(())
    }

    fn pairs(&self, items: &[Value]) -> Result<Vec<(Value, Value)>, PickleError> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.damaged("sets a key without a value"));
        }
        Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
    }

    fn memo_index(&mut self, code: u8) -> Result<usize, PickleError> {
        match code {
            b'h' | b'q' => Ok(usize::from(self.byte()?)),
            b'j' | b'r' => self.length(4),
            _ => self.line()?.parse().map_err(|_| self.damaged("has an invalid number")),
        }
    }

    fn memoize(&mut self, index: usize) -> Result<(), PickleError> {
        let value = self.top()?;
        // Each instruction stores one memo entry, so valid indices have no gaps.
        if index > self.next {
            return Err(self.damaged("stores to an index that is out of range"));
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(value);
        Ok(())
    }

    /// The error for a refused instruction: the action that it requests, or that it is unknown.
    fn refused(&mut self, code: u8) -> Result<PickleError, PickleError> {
        let what = match code {
            b'c' | b'i' => {
                let module = printable(self.line()?);
                format!("import {module}.{}", printable(self.line()?))
            }
            0x93 => {
                let [module, name] = [2, 1].map(|below| {
                    let value = self.stack.len().checked_sub(below).map(|index| self.stack[index]);
                    value.and_then(|value| self.document.text(value)).map_or_else(|| "?".to_owned(), printable)
                });
                format!("import {module}.{name}")
            }
            b'R' | b'o' => "call a function".to_owned(),
            0x81 | 0x92 => "make an object".to_owned(),
            b'b' => "set an object's state".to_owned(),
            b'P' | b'Q' => "fetch an object from outside".to_owned(),
            0x82..=0x84 => "import an extension's object".to_owned(),
            0x8f..=0x91 => "make a set".to_owned(),
            0x97 | 0x98 => "fetch a buffer from outside".to_owned(),
            code => return Ok(PickleError::UnknownInstruction { at: self.at, code }),
        };
        Ok(PickleError::NotPlain { at: self.at, what })
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.document.pushed >= MAX_VALUES {
            return Err(PickleError::TooManyValues { limit: MAX_VALUES });
        }
        self.document.pushed += 1;
        self.stack.push(value);
        Ok(())
    }

    /// The top value above the last mark.
    fn top(&self) -> Result<Value, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(value) if self.stack.len() > floor => Ok(*value),
            _ => Err(self.damaged("lacks its operands")),
        }
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn mark(&mut self) -> Result<usize, PickleError> {
        self.marks.pop().ok_or(self.damaged("lacks its mark"))
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were taken"))
    }

    /// Reads a length of `size` bytes.
    fn length(&mut self, size: usize) -> Result<usize, PickleError> {
        let bytes = self.take(size)?;
        let length = bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let end = self.next.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(PickleError::Truncated { at: self.bytes.len() })?;
        let taken = &self.bytes[self.next..end];
        self.next = end;
        Ok(taken)
    }

    /// The text up to the end of the line; consumes the line end.
    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.bytes[self.next..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        let length = length.ok_or(PickleError::Truncated { at: self.bytes.len() })?;
        self.next += length + 1;
        std::str::from_utf8(&rest[..length]).map_err(|_| self.damaged("has invalid text"))
    }

    fn damaged(&self, what: &'static str) -> PickleError {
        PickleError::Damaged { at: self.at, what }
    }
}

/// A little-endian number in two's complement, of any length.
fn little_endian(bytes: &[u8]) -> Value {
    let fill = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
    // Bytes beyond the eighth may only extend the sign.
    let (low, high) = bytes.split_at(bytes.len().min(8));
    if high.iter().any(|byte| *byte != fill) || low.get(7).is_some_and(|byte| (*byte >= 0x80) != (fill == 0xff)) {
        return Value::HugeInt;
    }
    let mut whole = [fill; 8];
    whole[..low.len()].copy_from_slice(low);
    Value::Int(i64::from_le_bytes(whole))
}

/// A name from the file, shortened and on one line.
fn printable(name: &str) -> String {
    name.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The index of the next stored item.
fn stored(length: usize) -> Result<u32, PickleError> {
    match u32::try_from(length) {
        Ok(index) if length < MAX_STORED => Ok(index),
        _ => Err(PickleError::TooManyValues { limit: MAX_STORED }),
    }
}
