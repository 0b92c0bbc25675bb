//! ByT5's tokenizer: a byte is its value plus 3. Ids 0 to 2 are padding, the end of a text and "unknown"; the last 125 are
//! `<extra_id_0>` to `<extra_id_124>`. It needs no files: a folder has only a tokenizer_config.json that names its class.
//! Source: Xue et al. 2022 (arXiv:2105.13626), section 3.1; the ids are those of `ByT5Tokenizer` of transformers.

use super::REPLACEMENT;
use super::special::TOKENIZER_CONFIG;
use plimsoll_units::Bytes;
use serde_json::{Value, json};
use std::path::Path;

pub(super) const PAD: u32 = 0;
pub(super) const END: u32 = 1;
const UNKNOWN: u32 = 2;

/// Names of the first ids.
const NAMES: [(&str, u32); 3] = [("<pad>", PAD), ("</s>", END), ("<unk>", UNKNOWN)];

/// The id of byte 0, and the first id after the bytes.
const FIRST_BYTE: u32 = 3;
const FIRST_EXTRA: u32 = FIRST_BYTE + 256;

/// Number of the ids after the bytes.
const EXTRA_IDS: u32 = 125;

pub(super) const VOCAB_SIZE: usize = (FIRST_EXTRA + EXTRA_IDS) as usize;

/// The class in a tokenizer_config.json.
const CLASS: &str = "ByT5Tokenizer";

const CONFIG_BYTES_MAX: Bytes = Bytes::mib(16);

/// Whether a folder has this tokenizer, and no tokenizer.json, which would come first.
pub(super) fn is_in(folder: &Path) -> bool {
    if folder.join(super::file::FILE_NAME).exists() {
        return false;
    }
    let text = plimsoll_files::read_text(&folder.join(TOKENIZER_CONFIG), CONFIG_BYTES_MAX);
    let config = text.ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    config.is_some_and(|config| {
        config["tokenizer_class"] == CLASS && config.get("extra_ids").is_none_or(|number| number == EXTRA_IDS)
    })
}

/// The text of its tokenizer_config.json.
pub(super) fn config_json() -> String {
    let config = json!({
        "tokenizer_class": CLASS, "extra_ids": EXTRA_IDS,
        "pad_token": NAMES[0].0, "eos_token": NAMES[1].0, "unk_token": NAMES[2].0,
    });
    serde_json::to_string_pretty(&config).expect("plain data")
}

pub(super) fn is_special(id: u32) -> bool {
    !(FIRST_BYTE..FIRST_EXTRA).contains(&id)
}

/// The ids of a text. Names of special tokens become their ids; those of the first three replace the white space around
/// them, too, as in transformers.
pub(super) fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((start, length, id)) = first_special(rest) {
        let strips = id < FIRST_BYTE;
        let (before, after) = (&rest[..start], &rest[start + length..]);
        extend(&mut ids, if strips { before.trim_end() } else { before });
        ids.push(id);
        rest = if strips { after.trim_start() } else { after };
    }
    extend(&mut ids, rest);
    ids
}

fn extend(ids: &mut Vec<u32>, text: &str) {
    ids.extend(text.bytes().map(|byte| FIRST_BYTE + u32::from(byte)));
}

/// The first name of a special token in a text: its start, its length, and the id.
fn first_special(text: &str) -> Option<(usize, usize, u32)> {
    text.match_indices('<').find_map(|(start, _)| {
        let here = &text[start..];
        let named = NAMES.iter().find(|(name, _)| here.starts_with(name)).map(|&(name, id)| (start, name.len(), id));
        named.or_else(|| {
            let number = here.strip_prefix("<extra_id_")?.split_once('>')?.0;
            let extra = number.parse::<u32>().ok().filter(|extra| *extra < EXTRA_IDS && extra.to_string() == number)?;
            Some((start, "<extra_id_>".len() + number.len(), FIRST_EXTRA + extra))
        })
    })
}

pub(super) fn decode(ids: &[u32]) -> Vec<u8> {
    let mut text = Vec::with_capacity(ids.len());
    for &id in ids {
        match id {
            FIRST_BYTE..FIRST_EXTRA => text.push((id - FIRST_BYTE) as u8),
            PAD..FIRST_BYTE => text.extend(NAMES[id as usize].0.as_bytes()),
            _ if (id as usize) < VOCAB_SIZE => text.extend(format!("<extra_id_{}>", id - FIRST_EXTRA).as_bytes()),
            _ => text.extend(REPLACEMENT.as_bytes()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerSpec, model_files};
    use proptest::prelude::*;

    /// The ids of `ByT5Tokenizer` of transformers 5.24, without the end token that it appends.
    #[test]
    fn ids_are_those_of_transformers() {
        let cases: [(&str, &[u32]); 9] = [
            ("Hi", &[75, 108]),
            ("é漢\n", &[198, 172, 233, 191, 165, 13]),
            ("a</s>b", &[100, 1, 101]),
            ("x <extra_id_0> y", &[123, 35, 259, 35, 124]),
            ("<extra_id_124>!", &[383, 36]),
            ("<pad>", &[0]),
            ("  two  ", &[35, 35, 119, 122, 114, 35, 35]),
            ("a <unk> <extra_id_125>", &[100, 2, 63, 104, 123, 119, 117, 100, 98, 108, 103, 98, 52, 53, 56, 65]),
            ("<extra_id_1><extra_id_12>", &[260, 271]),
        ];
        for (text, ids) in cases {
            assert_eq!(encode(text), ids, "{text}");
        }
        assert_eq!(VOCAB_SIZE, 384);
        assert_eq!(decode(&[0, 75, 108, 1, 259, 383, 384]), "<pad>Hi</s><extra_id_0><extra_id_124>\u{fffd}".as_bytes());
    }

    #[test]
    fn a_folder_with_its_configuration_opens_as_it() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::open(&TokenizerSpec::ByT5).unwrap();
        for file in model_files(&tokenizer, None, None, None).unwrap() {
            file.write(std::fs::File::create(folder.path().join(file.name)).unwrap()).unwrap();
        }
        assert_eq!(TokenizerSpec::in_folder(folder.path()), Some(TokenizerSpec::ByT5));
        let opened = Tokenizer::open(&TokenizerSpec::File(folder.path().to_owned())).unwrap();
        assert_eq!((opened.spec(), opened.identity()), (&TokenizerSpec::ByT5, "byt5".to_owned()));
        assert_eq!((opened.end_token(), opened.pad_token(), opened.begin_token()), (Some(1), Some(0), None));
        std::fs::write(folder.path().join(TOKENIZER_CONFIG), r#"{"tokenizer_class": "T5Tokenizer"}"#).unwrap();
        assert_eq!(TokenizerSpec::in_folder(folder.path()), None);
    }

    proptest! {
        #[test]
        fn texts_without_names_survive(text in "[^<]{0,40}") {
            prop_assert_eq!(decode(&encode(&text)), text.as_bytes());
        }
    }
}
