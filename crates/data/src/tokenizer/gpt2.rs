//! GPT-2's byte-pair encoding, embedded in the `tiktoken-rs` crate.
//! Source: Radford et al. 2019, section 2.2.

use super::REPLACEMENT;
use tiktoken_rs::r50k_base_singleton;

pub(super) const VOCAB_SIZE: usize = 50257;
/// `<|endoftext|>`.
pub(super) const SEPARATOR: u32 = 50256;

/// Special tokens in the text are plain text.
pub(super) fn encode(text: &str) -> Vec<u32> {
    r50k_base_singleton().encode_ordinary(text)
}

pub(super) fn decode(ids: &[u32]) -> Vec<u8> {
    let bytes_of = |id: &u32| r50k_base_singleton().decode_bytes(&[*id]).unwrap_or_else(|_| REPLACEMENT.into());
    ids.iter().flat_map(bytes_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerSpec};
    use proptest::prelude::*;

    #[test]
    fn ids_are_those_of_gpt2() {
        // Computed with the `gpt2` tokenizer of the transformers library.
        assert_eq!(encode("Hello world"), [15496, 995]);
        assert_eq!(encode("  two\n\nlines"), [220, 734, 198, 198, 6615]);
        assert_eq!(encode("<|endoftext|>").len(), 7);
        assert_eq!(decode(&[15496, 50256, 50257, u32::MAX]), "Hello<|endoftext|>\u{fffd}\u{fffd}".as_bytes());
    }

    #[test]
    fn pieces_give_the_tokens_of_the_whole() {
        let sources = [
            include_str!("../sources.rs"),
            include_str!("../documents.rs"),
            include_str!("../../Cargo.toml"),
            "Ein Satz mit Umlauten: ä, ö, ü.\r\nВот ещё одна строка 12345,\tи таблица.\n\n",
        ];
        let text = sources.concat().repeat(50);
        assert!(text.len() > 3 * crate::pieces::PIECE_BYTES_MAX);
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        assert_eq!(tokenizer.encode(text.as_bytes()).unwrap(), encode(&text));
    }

    #[test]
    fn endless_runs_stay_below_the_limits_of_the_regex() {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        for run in [" ", "\n", "a", "漢"] {
            let text = run.repeat(1_100_000) + "end";
            let ids = tokenizer.encode(text.as_bytes()).unwrap();
            assert_eq!(decode(&ids), text.as_bytes(), "{run:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_survives(text in "(\\PC|[ \n\t\r]){0,60}") {
            prop_assert_eq!(decode(&encode(&text)), text.as_bytes());
        }

        #[test]
        fn any_ids_decode(ids in proptest::collection::vec(any::<u32>(), 0..20)) {
            decode(&ids);
        }
    }
}
