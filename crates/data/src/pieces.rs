//! Cuts a document into pieces that are tokenized independently, so that a large file keeps all cores busy, memory
//! stays bounded, and no regular expression in a tokenizer hits its limits (fancy-regex gives up after a million
//! steps). The cuts depend only on the document's bytes, never on threads or buffers.
//!
//! A piece ends as late as possible in the second half of its maximum length,
//!
//! 1. before a single space between two characters that are not white space:  `…quick| brown…`
//! 2. otherwise after a single line feed between two such characters (the second not a slash):  `…1,2,3\n|4,5,6…`
//! 3. otherwise before any character.
//!
//! Cuts of the first two kinds do not change tokens, since pre-tokenizers split there anyway: the patterns of GPT-2,
//! cl100k, o200k, Llama 3 and Qwen (tested below), white-space splitters, and for the first kind also Metaspace and
//! byte-level with a prefix space. A tokenizer that never splits, or that puts a mark before every text (the Llama 2
//! normalizer), may differ by one token per cut: one in 256 KiB of a long document.

/// The maximum length of a piece.
pub(crate) const PIECE_BYTES_MAX: usize = 256 * 1024;
/// Memory that a piece and its tokens use beyond their bytes, so that a group of very short pieces stays small.
pub(crate) const PIECE_OVERHEAD_BYTES: usize = 256;
/// How far past the maximum length the search for the end may look.
pub(crate) const LOOKAHEAD_BYTES: usize = 8;

/// The length of the first piece of a text. `rest` is the whole remaining document, or at least `PIECE_BYTES_MAX +
/// LOOKAHEAD_BYTES` of it. Returns 0 only if `rest` is empty.
pub(crate) fn first_piece_len(rest: &[u8]) -> usize {
    first_piece_len_of(rest, PIECE_BYTES_MAX)
}

/// All pieces of a document.
pub(crate) fn pieces(document: &[u8]) -> impl Iterator<Item = &[u8]> {
    pieces_of(document, PIECE_BYTES_MAX)
}

fn pieces_of(document: &[u8], piece_bytes_max: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = document;
    std::iter::from_fn(move || {
        let (piece, left) = rest.split_at(first_piece_len_of(rest, piece_bytes_max));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

fn first_piece_len_of(rest: &[u8], piece_bytes_max: usize) -> usize {
    if rest.len() <= piece_bytes_max {
        return rest.len();
    }
    let ends = || (piece_bytes_max / 2..=piece_bytes_max).rev();
    ends()
        .find(|&at| is_before_lone_space(rest, at))
        .or_else(|| ends().find(|&at| is_after_lone_line_feed(rest, at)))
        .or_else(|| ends().find(|&at| is_character_start(rest[at])))
        .unwrap_or(piece_bytes_max)
}

fn is_before_lone_space(text: &[u8], at: usize) -> bool {
    text[at] == b' ' && is_solid(char_ending_at(text, at)) && is_solid(char_starting_at(text, at + 1))
}

fn is_after_lone_line_feed(text: &[u8], at: usize) -> bool {
    at > 0
        && text[at - 1] == b'\n'
        && text[at] != b'/'
        && is_solid(char_ending_at(text, at - 1))
        && is_solid(char_starting_at(text, at))
}

fn is_solid(character: Option<char>) -> bool {
    character.is_some_and(|c| !c.is_whitespace())
}

fn is_character_start(byte: u8) -> bool {
    byte & 0b1100_0000 != 0b1000_0000
}

fn char_starting_at(text: &[u8], at: usize) -> Option<char> {
    let bytes = text.get(at..)?;
    let longest = &bytes[..bytes.len().min(4)];
    longest.utf8_chunks().next()?.valid().chars().next()
}

fn char_ending_at(text: &[u8], at: usize) -> Option<char> {
    let start = (at.saturating_sub(4)..at).rev().find(|&start| is_character_start(text[start]))?;
    str::from_utf8(&text[start..at]).ok()?.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text that may confuse a pre-tokenizer: letters of several scripts, marks, digits, spaces and line ends of all
    /// kinds.
    const TEXTS: &str = "[a-cA-C0-9 \n\r\t.,;:!'\"/(){}_=éßяñ漢字。、\u{a0}\u{3000}\u{2028}\u{301}\u{93f}🙂]{0,80}";

    #[test]
    fn pieces_end_at_the_best_place() {
        for (text, first) in [
            ("short", "short"),
            ("aaaaaa bb ccccccc", "aaaaaa bb"),
            ("aaaaaaa\nbbbbbbbbb", "aaaaaaa\n"),
            ("aaaaaaa\n/bbbbbbbbb", "aaaaaaa\n/b"),
            ("aaaaaaa  bbbbbbbbb", "aaaaaaa  b"),
            ("ääääääääää", "äääää"),
            ("яяяя ббббббб", "яяяя"),
            ("aaaaaaaaa🙂🙂", "aaaaaaaaa"),
        ] {
            assert_eq!(pieces_of(text.as_bytes(), 10).next(), Some(first.as_bytes()), "{text}");
        }
        assert_eq!(pieces_of(b"", 10).next(), None);
        assert_eq!(pieces_of(&[0x80; 25], 10).map(<[u8]>::len).collect::<Vec<_>>(), [10, 10, 5]);
    }

    proptest! {
        #[test]
        fn pieces_are_the_document_and_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..300), max in 8usize..40) {
            let all: Vec<&[u8]> = pieces_of(&bytes, max).collect();
            prop_assert!(all.iter().all(|piece| !piece.is_empty() && piece.len() <= max));
            prop_assert_eq!(all.concat(), bytes);
        }

        #[test]
        fn pieces_of_text_are_text(text in TEXTS, max in 8usize..20) {
            prop_assert!(pieces_of(text.as_bytes(), max).all(|piece| str::from_utf8(piece).is_ok()));
        }

        #[test]
        fn the_end_depends_on_nothing_beyond_the_lookahead(text in TEXTS, max in 8usize..20) {
            let bytes = text.as_bytes();
            let seen = &bytes[..bytes.len().min(max + LOOKAHEAD_BYTES)];
            prop_assert_eq!(first_piece_len_of(seen, max), first_piece_len_of(bytes, max));
        }

        #[test]
        fn cuts_of_the_first_two_kinds_change_no_token(text in TEXTS) {
            let bytes = text.as_bytes();
            let tokenizers =
                [tiktoken_rs::r50k_base_singleton(), tiktoken_rs::cl100k_base_singleton(), tiktoken_rs::o200k_base_singleton()];
            let is_cut = |at: &usize| is_before_lone_space(bytes, *at) || is_after_lone_line_feed(bytes, *at);
            for at in (0..bytes.len()).filter(is_cut) {
                for tokenizer in tokenizers {
                    let (left, right) = text.split_at(at);
                    let apart = [tokenizer.encode_ordinary(left), tokenizer.encode_ordinary(right)].concat();
                    prop_assert_eq!(apart, tokenizer.encode_ordinary(&text), "cut at {}", at);
                }
            }
        }
    }
}
