//! Each byte is a token. Any file is valid input, decoding is lossless, and a zero byte separates documents.

use super::REPLACEMENT;

pub(super) const VOCAB_SIZE: usize = 256;
pub(super) const SEPARATOR: u32 = 0;

pub(super) fn encode(text: &[u8]) -> Vec<u32> {
    text.iter().map(|&byte| byte.into()).collect()
}

pub(super) fn decode(ids: &[u32]) -> Vec<u8> {
    let mut text = Vec::with_capacity(ids.len());
    for &id in ids {
        match u8::try_from(id) {
            Ok(byte) => text.push(byte),
            Err(_) => text.extend(REPLACEMENT.as_bytes()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unknown_ids_are_replaced() {
        assert_eq!(decode(&[b'a'.into(), 256, u32::MAX]), "a\u{fffd}\u{fffd}".as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)), bytes);
        }
    }
}
