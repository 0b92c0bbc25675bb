//! Bounds how much a tokenizer lengthens a text before tokenizing it, and the text of tokens after decoding. A
//! tokenizer.json can specify any replacement, and several in sequence: nine that turn one letter into ten turn it into
//! a gigabyte.
//! Not here: reading the file (`file.rs`).
//!
//! There are two bounds. The first is the maximum factor of the file's steps, computed from the file alone; a file
//! above [`WORST`] is refused. Below it, the actual growth of a text is measured on parts short enough that the maximum
//! factor is harmless.

use super::EncodeError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::normalizers::Replace;
use tokenizers::{DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper};

/// A tokenizer whose normalizer could lengthen a text by more than this factor is refused. Known families stay below
/// 5,000, which is ALBERT's: compatibility forms, lower case, and a table of SentencePiece's.
const WORST: usize = 1 << 14;
/// The limit for a decoder. Its output is not measured, and no decoder of a known family lengthens a text.
const DECODER_WORST: usize = 64;
/// Maximum actual growth of a text. Normal text hardly grows at all.
const MOST: usize = 8;
/// A result of this size is always accepted.
const HARMLESS_BYTES: usize = 2 << 20;

/// The parts of a tokenizer.json that affect the length of texts, parsed like the library does.
#[derive(Deserialize)]
struct Steps {
    normalizer: Option<NormalizerWrapper>,
    decoder: Option<DecoderWrapper>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    normalized: bool,
}

/// The maximum factor by which the normalizer of a tokenizer.json lengthens a text. Call this before the library opens
/// the file, since opening normalizes the file's own added tokens.
/// Errors: the file is invalid, or exceeds the limit.
pub(super) fn worst_growth(json: &[u8]) -> Result<usize, String> {
    check_tables(&serde_json::from_slice::<Tables>(json).map_err(|error| error.to_string())?.normalizer)?;
    let steps: Steps = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let normalizer = steps.normalizer.as_ref().map_or(1, of_normalizer);
    let decoder = steps.decoder.as_ref().map_or(1, of_decoder);
    for (what, growth, most) in [("normalizer", normalizer, WORST), ("decoder", decoder, DECODER_WORST)] {
        if growth > most {
            return Err(format!("its {what} could make text {growth} times as long; the limit is {most}"));
        }
    }
    for token in steps.added_tokens.iter().filter(|token| token.normalized) {
        let checked = steps.normalizer.as_ref().map_or(Ok(()), |n| check(n, normalizer, &token.content));
        checked.map_err(|error| error.to_string())?;
    }
    Ok(normalizer)
}

/// Errors: `Failed` if the normalizer, whose maximum factor is `worst`, makes this text too long.
pub(super) fn check(normalizer: &NormalizerWrapper, worst: usize, text: &str) -> Result<(), EncodeError> {
    if text.len().saturating_mul(worst) <= HARMLESS_BYTES {
        return Ok(());
    }
    let mut bytes = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let harmless = (HARMLESS_BYTES / worst).clamp(1, rest.len());
        let end = (harmless..=rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
        let (part, left) = rest.split_at(end);
        let mut normalized = NormalizedString::from(part);
        normalizer.normalize(&mut normalized).map_err(|error| EncodeError::Failed { message: error.to_string() })?;
        bytes += normalized.get().len();
        if bytes > MOST.saturating_mul(text.len()) {
            let message = format!("its normalizer makes the text more than {MOST} times as long");
            return Err(EncodeError::Failed { message });
        }
        rest = left;
    }
    Ok(())
}

/// Bounds from the longest expansions in Unicode, in UTF-8. Source: UAX 15, table 8 ("Maximum Expansion Factors").
fn of_normalizer(normalizer: &NormalizerWrapper) -> usize {
    match normalizer {
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().map(of_normalizer).fold(1, usize::saturating_mul),
        NormalizerWrapper::Replace(replace) => of_replace(replace),
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len().saturating_add(1),
        NormalizerWrapper::Precompiled(table) => {
            let table = serde_json::to_value(table).ok().and_then(|table| bytes_of_table(&table));
            table.map_or(usize::MAX, |bytes| longest_entry(&bytes))
        }
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => 11,
        NormalizerWrapper::NFC(_)
        | NormalizerWrapper::NFD(_)
        | NormalizerWrapper::Lowercase(_)
        | NormalizerWrapper::BertNormalizer(_)
        | NormalizerWrapper::ByteLevel(_) => 3,
        NormalizerWrapper::StripNormalizer(_) | NormalizerWrapper::StripAccents(_) | NormalizerWrapper::Nmt(_) => 1,
    }
}

fn of_decoder(decoder: &DecoderWrapper) -> usize {
    match decoder {
        DecoderWrapper::Sequence(steps) => steps.get_decoders().iter().map(of_decoder).fold(1, usize::saturating_mul),
        DecoderWrapper::Replace(replace) => of_replace(replace),
        // Each of these removes marks, or replaces them by a space.
        _ => 1,
    }
}

/// The content per shortest text that the pattern matches. A pattern that may match nothing, or that uses syntax beyond
/// the `regex` crate's, is assumed to match before every byte.
fn of_replace(replace: &Replace) -> usize {
    let pattern = serde_json::to_value(replace).map(|mut replace| replace["pattern"].take()).unwrap_or_default();
    let shortest = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text.len(),
        (None, Some(regex)) => {
            regex_syntax::parse(regex).ok().and_then(|regex| regex.properties().minimum_len()).unwrap_or(0)
        }
        (None, None) => 0,
    };
    match shortest {
        0 => replace.content.len().saturating_add(1),
        shortest => replace.content.len().div_ceil(shortest).max(1),
    }
}

/// The normalizer as stored in the file, before the library reads its tables of characters, which it trusts.
#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    normalizer: Value,
}

/// Errors: a table of SentencePiece's that claims to be longer than it is: the library allocates the claimed length.
fn check_tables(normalizer: &Value) -> Result<(), String> {
    let broken = || "its table of characters is broken".to_owned();
    match normalizer {
        Value::Array(steps) => steps.iter().try_for_each(check_tables),
        Value::Object(fields) => {
            if fields.contains_key(TABLE) {
                let bytes = bytes_of_table(normalizer).ok_or_else(broken)?;
                entries(&bytes).ok_or_else(broken)?;
            }
            fields.values().try_for_each(check_tables)
        }
        _ => Ok(()),
    }
}

const TABLE: &str = "precompiled_charsmap";

fn bytes_of_table(normalizer: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(normalizer[TABLE].as_str()?).ok()
}

/// The replacements in a table, each terminated by a zero. They follow the length of the index in bytes, a u32, and the
/// index. Source: `sentencepiece/src/normalizer.cc`, `Normalizer::DecodePrecompiledCharsMap`.
fn entries(table: &[u8]) -> Option<&[u8]> {
    let (index_bytes, rest) = table.split_first_chunk::<4>()?;
    rest.get(u32::from_le_bytes(*index_bytes) as usize..)
}

fn longest_entry(table: &[u8]) -> usize {
    let entries = entries(table).unwrap_or_default();
    entries.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn worst(normalizer: Value) -> Result<usize, String> {
        worst_growth(json!({ "normalizer": normalizer }).to_string().as_bytes())
    }

    #[test]
    fn the_maximum_growth_is_computed_from_the_file() {
        assert_eq!(worst(Value::Null), Ok(1));
        assert_eq!(worst(replace(json!({"String": " "}), "\u{2581}")), Ok(3));
        assert_eq!(worst(replace(json!({"String": "``"}), "\"")), Ok(1));
        assert_eq!(worst(replace(json!({"Regex": " {2,}"}), "\u{2581}")), Ok(2));
        assert_eq!(worst(replace(json!({"Regex": "x*"}), "abc")), Ok(4), "it matches nothing, everywhere");
        assert_eq!(worst(replace(json!({"Regex": "(?=x)"}), "abc")), Ok(4), "its matches are unknown");
        let ten = replace(json!({"String": "a"}), &"a".repeat(10));
        let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
        assert_eq!(worst(sequence(vec![ten.clone(), ten.clone(), json!({"type": "NFKC"})])), Ok(1100));
        assert!(worst(sequence(vec![ten.clone(); 9])).unwrap_err().contains("1000000000 times as long"));
        let decoder = json!({"decoder": {"type": "Sequence", "decoders": vec![ten; 2]}});
        assert!(worst_growth(decoder.to_string().as_bytes()).unwrap_err().contains("its decoder"));
    }

    #[test]
    fn tables_must_be_as_long_as_they_claim() {
        let table = |index_bytes: u32, rest: &[u8]| {
            let bytes = [&index_bytes.to_le_bytes(), rest].concat();
            json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)})
        };
        assert_eq!(worst(table(4, &[0, 0, 0, 0, b'a', b'b', 0, b'c', 0])), Ok(2));
        let nested = json!({"type": "Sequence", "normalizers": [table(u32::MAX, b"ab")]});
        assert!(worst(nested).unwrap_err().contains("table of characters is broken"));
    }

    #[test]
    fn growth_is_measured() {
        let json = replace(json!({"String": "a"}), &"a".repeat(100));
        let normalizer: NormalizerWrapper = serde_json::from_value(json).unwrap();
        let mut text = "b".repeat(1 << 20);
        assert_eq!(check(&normalizer, 100, &text), Ok(()));
        let json = replace(json!({"String": "b"}), &"b".repeat(MOST));
        assert_eq!(check(&serde_json::from_value(json).unwrap(), MOST, &text), Ok(()), "not more than it may");
        text.replace_range(..1 << 18, &"a".repeat(1 << 18));
        let error = check(&normalizer, 100, &text).unwrap_err();
        assert!(error.to_string().contains("more than 8 times as long"), "{error}");
    }
}
