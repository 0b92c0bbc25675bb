//! The encoding of a user's text: UTF-8, with or without a byte order mark. Rejects UTF-16 with its name.

use std::io;

/// The byte order mark of UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Bytes to examine for UTF-16.
const EXAMINED_BYTES: usize = 64;

/// The text is UTF-16, which PowerShell 5 writes with `>`. Inner error of an [`io::Error`] of kind `InvalidData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {encoding}, not UTF-8; convert it: `iconv -f {encoding} -t UTF-8 FILE > NEW`")]
pub struct Utf16 {
    /// The encoding's name in `iconv`.
    pub encoding: &'static str,
}

/// Rejects UTF-16 by the first bytes of a text: by its byte order mark, or by ASCII characters that alternate with
/// zeros.
/// Errors: `Utf16`.
pub fn refuse_utf16(start: &[u8]) -> io::Result<()> {
    let encoding = match start {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
        _ => {
            let (units, _) = start[..start.len().min(EXAMINED_BYTES)].as_chunks::<2>();
            let is_text = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
            match units {
                [_, _, ..] if units.iter().all(|&[low, high]| is_text(low) && high == 0) => "UTF-16LE",
                [_, _, ..] if units.iter().all(|&[high, low]| is_text(low) && high == 0) => "UTF-16BE",
                _ => return Ok(()),
            }
        }
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, Utf16 { encoding }))
}

/// The text without its byte order mark. Errors: `Utf16`; `InvalidData` for anything else that is not UTF-8.
pub(crate) fn text(mut bytes: Vec<u8>) -> io::Result<String> {
    refuse_utf16(&bytes)?;
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn utf16_is_rejected_with_its_name() {
        let encoding = |bytes: &[u8]| {
            let error = refuse_utf16(bytes).err()?;
            error.get_ref().and_then(|inner| inner.downcast_ref::<Utf16>()).map(|utf16| utf16.encoding)
        };
        let long = format!("{{\"a\": 1}}{}", "Grüße ".repeat(20));
        for text in ["{}", "model: gpt2\r\n", &long[..9]] {
            assert_eq!(encoding(&encoded(text, u16::to_le_bytes)), Some("UTF-16LE"), "{text}");
            assert_eq!(encoding(&encoded(text, u16::to_be_bytes)), Some("UTF-16BE"), "{text}");
            let marked = format!("\u{feff}{text}");
            assert_eq!(encoding(&encoded(&marked, u16::to_le_bytes)), Some("UTF-16"), "{text}");
            assert_eq!(encoding(&encoded(&marked, u16::to_be_bytes)), Some("UTF-16"), "{text}");
            assert_eq!(encoding(text.as_bytes()), None, "{text}");
        }
        // Binary data is not text in another encoding.
        for bytes in [&[0, 0, 0, 0][..], &[7, 0, 9, 0], b"a\0", b"\0a", b"", &[1, 0, 2, 0, 3, 0], b"a\0b\0\0\0"] {
            assert_eq!(encoding(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_text() {
        assert_eq!(text("\u{feff}a\u{feff}".into()).unwrap(), "a\u{feff}");
        assert_eq!(text(b"\xff".to_vec()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
