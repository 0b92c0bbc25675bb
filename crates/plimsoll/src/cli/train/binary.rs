//! Warns if a file named as text looks binary: training on the bytes of a picture is a mistake.

use crate::streams::talk;
use plimsoll_data::{Compression, Format, Source, Sources};
use plimsoll_files::open_regular;
use std::io::Read;

/// Bytes of a file to check.
const CHECKED_BYTES: u64 = 8 << 10;

/// Limit on the files to check, so that a folder of millions is not opened twice.
const FILES_MAX: usize = 4096;

/// Prints a warning if files look binary.
pub(super) fn warn_of_binary(sources: &Sources) {
    let is_plain = |source: &&Source| source.format == Format::Text && source.compression == Compression::None;
    let looked_at = sources.files.iter().take(FILES_MAX).filter(is_plain);
    let binary = looked_at.filter(|source| beginning(source).is_some_and(|bytes| is_binary(&bytes)));
    let binary = binary.map(|source| source.path.display()).collect::<Vec<_>>();
    let Some(first) = binary.first() else { return };
    let (others, look) = match binary.len() - 1 {
        0 => (String::new(), "looks"),
        1 => (" and another file".to_owned(), "look"),
        more => (format!(" and {more} more files"), "look"),
    };
    talk(format_args!("warning: {first}{others} {look} binary, not like text; all of it is trained on"));
}

fn beginning(source: &Source) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(&source.path).ok()?.take(CHECKED_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether the bytes contain a zero, as no text but UTF-16 does, or a tenth of them are control characters.
fn is_binary(bytes: &[u8]) -> bool {
    let is_control = |byte: &&u8| byte.is_ascii_control() && !b"\n\r\t\x0c\x1b\x08".contains(byte);
    bytes.contains(&0) || bytes.iter().filter(is_control).count() * 10 > bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_any_script_is_not_binary() {
        for text in ["", "fn main() {}\r\n\tlet x;\n", "Straße, 東京, \u{1f600}\n", "\x1b[1mbold\x1b[0m\n"] {
            assert!(!is_binary(text.as_bytes()), "{text:?}");
        }
        assert!(!is_binary(b"Die Stra\xdfe\n"), "in Latin-1");
        for bytes in [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], b"\x01\x02\x03abc", b"a\0b\0"] {
            assert!(is_binary(bytes), "{bytes:?}");
        }
    }
}
