//! Page headers, encoded in Thrift's compact protocol.
//! Source: parquet-format 2.11, parquet.thrift; Apache Thrift, compact protocol.

use parquet::basic::Encoding;

const DEPTH_MAX: usize = 8;

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: PageKind,
    /// Size of the page after the header: in the file, and decompressed.
    pub compressed: usize,
    pub uncompressed: usize,
    /// Size of the header itself.
    pub bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    Data {
        values: u32,
        encoding: Encoding,
        definitions: Encoding,
        repetitions: Encoding,
    },
    DataV2 {
        values: u32,
        nulls: u32,
        rows: u32,
        encoding: Encoding,
        definition_bytes: u32,
        repetition_bytes: u32,
        is_compressed: bool,
    },
    Dictionary {
        values: u32,
        encoding: Encoding,
        is_sorted: bool,
    },
    /// An index, which is skipped.
    Other,
}

impl Header {
    /// Parses the header at the start of `bytes`; `None` if it is incomplete or invalid.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { bytes, at: 0 };
        let page = reader.structure(0)?;
        let number = |fields: &Fields, id| fields.number(id).and_then(|n| u32::try_from(n).ok());
        let encoding = |fields: &Fields, id| encoding_of(fields.number(id)?);
        let kind = match page.number(1)? {
            0 => {
                let data = page.structure(5)?;
                PageKind::Data {
                    values: number(data, 1)?,
                    encoding: encoding(data, 2)?,
                    definitions: encoding(data, 3)?,
                    repetitions: encoding(data, 4)?,
                }
            }
            2 => {
                let dictionary = page.structure(7)?;
                PageKind::Dictionary {
                    values: number(dictionary, 1)?,
                    encoding: encoding(dictionary, 2)?,
                    is_sorted: dictionary.number(3) == Some(1),
                }
            }
            3 => {
                let data = page.structure(8)?;
                PageKind::DataV2 {
                    values: number(data, 1)?,
                    nulls: number(data, 2)?,
                    rows: number(data, 3)?,
                    encoding: encoding(data, 4)?,
                    definition_bytes: number(data, 5)?,
                    repetition_bytes: number(data, 6)?,
                    is_compressed: data.number(7) != Some(0),
                }
            }
            _ => PageKind::Other,
        };
        let length = |id| usize::try_from(page.number(id)?).ok();
        Some(Self { kind, uncompressed: length(2)?, compressed: length(3)?, bytes: reader.at })
    }
}

fn encoding_of(code: i64) -> Option<Encoding> {
    #[expect(deprecated, reason = "old files have it")]
    Some(match code {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}

/// Fields of a structure by number. Keeps numbers, booleans and structures only.
struct Fields(Vec<(i64, Field)>);

enum Field {
    Number(i64),
    Structure(Fields),
}

impl Fields {
    fn number(&self, id: i64) -> Option<i64> {
        self.0.iter().find_map(|(at, field)| match field {
            Field::Number(number) if *at == id => Some(*number),
            _ => None,
        })
    }

    fn structure(&self, id: i64) -> Option<&Self> {
        self.0.iter().find_map(|(at, field)| match field {
            Field::Structure(fields) if *at == id => Some(fields),
            _ => None,
        })
    }
}

/// Reads the number at `at`, seven bits per byte, and advances `at`. `None` if the bytes end first.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        varint(self.bytes, &mut self.at)
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn structure(&mut self, depth: usize) -> Option<Fields> {
        let mut fields = Vec::new();
        let mut id = 0;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(Fields(fields));
            }
            id = match header >> 4 {
                0 => self.zigzag()?,
                delta => i64::from(delta) + id,
            };
            let field = self.value(header & 0xf, depth)?;
            fields.extend(field.map(|field| (id, field)));
        }
    }

    /// Reads a value by the code of its type; `Some(None)` for a skipped type.
    fn value(&mut self, code: u8, depth: usize) -> Option<Option<Field>> {
        Some(match code {
            1 | 2 => Some(Field::Number(i64::from(code == 1))),
            3 => Some(Field::Number(i64::from(self.byte()?))),
            4..=6 => Some(Field::Number(self.zigzag()?)),
            7 => self.skip(8)?,
            8 => {
                let length = self.varint()?;
                self.skip(length)?
            }
            12 if depth < DEPTH_MAX => Some(Field::Structure(self.structure(depth + 1)?)),
            // Lists, sets and maps: no page header has one.
            _ => return None,
        })
    }

    fn skip(&mut self, bytes: u64) -> Option<Option<Field>> {
        let bytes = usize::try_from(bytes).ok()?;
        self.at = self.at.checked_add(bytes).filter(|&at| at <= self.bytes.len())?;
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A data page of 3 values: type 0, 300 and 200 bytes; values 3, plain, RLE, RLE, with statistics of 2 bytes.
    const DATA: &[u8] = &[
        0x15, 0, 0x15, 0xd8, 4, 0x15, 0x90, 3, 0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c, 0x18, 2, 7, 7, 0, 0, 0,
    ];

    #[test]
    fn a_header_is_read_and_its_end_found() {
        let header = Header::parse(&[DATA, &[1, 2, 3]].concat()).unwrap();
        let kind = PageKind::Data {
            values: 3,
            encoding: Encoding::PLAIN,
            definitions: Encoding::RLE,
            repetitions: Encoding::RLE,
        };
        assert_eq!(header, Header { kind, compressed: 200, uncompressed: 300, bytes: DATA.len() });
        for cut in 0..DATA.len() {
            assert_eq!(Header::parse(&DATA[..cut]), None, "{cut}");
        }
        assert_eq!(Header::parse(&[0x1c; 1 << 16]), None, "structures within structures");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60), at in 0usize..25, byte: u8) {
            let _ = Header::parse(&bytes);
            let mut changed = DATA.to_vec();
            changed[at] = byte;
            let _ = Header::parse(&changed);
        }
    }
}
