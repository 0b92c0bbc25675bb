//! Trains a tokenizer on the documents of the data and writes it as a tokenizer.json.
//! Not here: reading such a file (`file.rs`). The training algorithms come from the `tokenizers` crate.
//!
//! - `bpe`: byte-level byte-pair encoding like GPT-2's, with `<|endoftext|>` as id 0. It encodes every text losslessly.
//! - `unigram`: like T5's: `<pad>` 0, `</s>` 1, `<unk>` 2; white space and compatibility forms are normalized first.
//!
//! The same text yields the same file, byte for byte, on any number of threads. This needs care: the library visits
//! words in the order of a hash table that each process seeds differently, and sums of floats depend on the order.
//! Sources: Sennrich et al. 2016; Kudo 2018, section 3.2.

use super::{EncodeError, Tokenizer, TokenizerSpec};
use crate::documents::PieceReader;
use crate::quiet::caught;
use crate::{DataError, Sources};
use std::collections::BTreeMap;
use std::path::Path;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::normalizers::{NFKC, Nmt, Replace, Sequence, replace::ReplacePattern};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, Tokenizer as Inner,
};

/// Bytes per read.
const GROUP_BYTES: usize = 8 << 20;
/// Longer words add nothing to the result, and cost time quadratic in their length.
const WORD_BYTES_MAX: usize = 256;
/// The difference in score between one character that is no longer a piece and the next.
const RARE_STEP: f64 = 1e-4;

/// The kind of tokenizer to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerKind {
    /// Byte-level byte-pair encoding.
    Bpe,
    /// The unigram language model of SentencePiece.
    Unigram,
}

/// Trains a tokenizer of at most `vocab_size` tokens, special ones included, and writes it to `output`.
/// Errors: read errors, `NotUtf8`, `Empty`, `TrainingFailed`, `NoThread`, `TokenizerUnwritable`.
pub fn train_tokenizer(
    sources: &Sources,
    kind: TokenizerKind,
    vocab_size: usize,
    output: &Path,
) -> Result<Tokenizer, DataError> {
    let failed = |message: String| DataError::TrainingFailed { vocab_size, message };
    let mut inner = untrained(kind).map_err(|error| failed(error.to_string()))?;
    let words = count_words(sources, &inner, &failed)?;
    if words.is_empty() {
        return Err(sources.empty_error());
    }
    // The library panics on unexpected input.
    let trained = caught(|| match kind {
        TokenizerKind::Bpe => train_bpe(&mut inner, &words, vocab_size),
        TokenizerKind::Unigram => train_unigram(&mut inner, words, vocab_size),
    });
    let text = trained
        .unwrap_or_else(|panic| Err(format!("the `tokenizers` library panicked: {panic}").into()))
        .and_then(|()| inner.to_string(true))
        .map_err(|error| match error.is::<rayon::ThreadPoolBuildError>() {
            true => DataError::NoThread { what: "training a tokenizer", reason: error.to_string() },
            false => failed(error.to_string()),
        })?;
    let unwritable = |source| DataError::TokenizerUnwritable { path: output.to_owned(), source };
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), std::fs::create_dir_all).map_err(unwritable)?;
    plimsoll_files::write_whole(output, text.as_bytes()).map_err(unwritable)?;
    Tokenizer::open(&TokenizerSpec::File(output.to_owned()))
}

fn untrained(kind: TokenizerKind) -> tokenizers::Result<Inner> {
    match kind {
        TokenizerKind::Bpe => {
            let mut inner = Inner::new(BPE::default());
            let bytes = ByteLevel::new(false, true, true);
            inner.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes)).with_post_processor(Some(bytes));
            Ok(inner)
        }
        TokenizerKind::Unigram => {
            let mut inner = Inner::new(Unigram::default());
            let spaces = Replace::new(ReplacePattern::Regex(" {2,}".to_owned()), " ")?;
            let steps: Vec<NormalizerWrapper> = vec![Nmt.into(), NFKC.into(), spaces.into()];
            let words = Metaspace::new('\u{2581}', PrependScheme::Always, true);
            inner.with_normalizer(Some(Sequence::new(steps)));
            inner.with_pre_tokenizer(Some(words.clone())).with_decoder(Some(words));
            let ends = TemplateProcessing::builder()
                .try_single("$A </s>")?
                .try_pair("$A </s> $B </s>")?
                .special_tokens(vec![("</s>", 1)])
                .build()?;
            inner.with_post_processor(Some(ends));
            Ok(inner)
        }
    }
}

fn special(names: &[&str]) -> Vec<AddedToken> {
    names.iter().map(|name| AddedToken::from(*name, true)).collect()
}

/// Number of occurrences of each word, by the tokenizer's rules, in alphabetical order.
fn count_words(
    sources: &Sources,
    inner: &Inner,
    failed: &dyn Fn(String) -> DataError,
) -> Result<BTreeMap<String, u32>, DataError> {
    let mut words = BTreeMap::new();
    let mut reader = PieceReader::new(sources);
    loop {
        let group = reader.next_group(GROUP_BYTES)?;
        if group.is_empty() {
            return Ok(words);
        }
        for piece in group {
            let text = super::utf8(&piece.text).map_err(|error| {
                let within = if let EncodeError::NotUtf8 { offset } = error { offset } else { 0 };
                DataError::NotUtf8 { path: sources.files[piece.source].path.clone(), offset: piece.offset + within }
            })?;
            for line in text.split_inclusive('\n') {
                count_in(line, inner, &mut words).map_err(|error| failed(error.to_string()))?;
            }
        }
    }
}

fn count_in(line: &str, inner: &Inner, words: &mut BTreeMap<String, u32>) -> tokenizers::Result<()> {
    let mut normalized = NormalizedString::from(line);
    if let Some(normalizer) = inner.get_normalizer() {
        normalizer.normalize(&mut normalized)?;
    }
    let mut split = PreTokenizedString::from(normalized);
    if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut split)?;
    }
    for (word, _, _) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        if word.len() > WORD_BYTES_MAX {
            continue;
        }
        match words.get_mut(word) {
            Some(count) => *count = count.saturating_add(1),
            None => drop(words.insert(word.to_owned(), 1)),
        }
    }
    Ok(())
}

fn train_bpe(inner: &mut Inner, words: &BTreeMap<String, u32>, vocab_size: usize) -> tokenizers::Result<()> {
    let alphabet = ByteLevel::alphabet();
    if vocab_size <= alphabet.len() {
        return Err(format!("all bytes and `<|endoftext|>` already make {} tokens", alphabet.len() + 1).into());
    }
    // Each merge joins two neighbors within a word, so this is an upper bound; the library allocates memory for all
    // requested merges.
    let merges = words.keys().map(|word| word.chars().count()).sum::<usize>();
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size.min(alphabet.len() + 1 + merges))
        .special_tokens(special(&["<|endoftext|>"]))
        .initial_alphabet(alphabet.into_iter().collect());
    let counts = words.iter().map(|(word, &count)| (word.as_str().into(), u64::from(count))).collect();
    let mut model = BPE::default();
    let tokens = trainer.build().do_train(&counts, &mut model)?;
    inner.with_model(model);
    inner.add_special_tokens(&tokens);
    Ok(())
}

fn train_unigram(inner: &mut Inner, words: BTreeMap<String, u32>, vocab_size: usize) -> tokenizers::Result<()> {
    let tokens = special(&["<pad>", "</s>", "<unk>"]);
    let vocab = u32::try_from(vocab_size).ok().filter(|&size| size as usize > tokens.len());
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab.ok_or("no room is left after the special tokens")?)
        .special_tokens(tokens.clone())
        .unk_token(Some("<unk>".to_owned()))
        .build()?;
    let mut model = Unigram::default();
    // On one thread the library sums in a fixed order.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    pool.install(|| trainer.do_train(words.into_iter().collect(), &mut model))?;
    inner.with_model(ModelWrapper::Unigram(Unigram::from(in_fixed_order(&model, tokens.len()), Some(2), false)?));
    inner.add_special_tokens(&tokens);
    Ok(())
}

/// The pieces of a model after the special ones, in a fixed order. The library gives the lowest scores, in the order of
/// a hash table, to characters that are not pieces of their own; here they get the same scores in alphabetical order.
fn in_fixed_order(model: &Unigram, special: usize) -> Vec<(String, f64)> {
    let mut pieces: Vec<(String, f64)> = model.iter().cloned().collect();
    let rest = &mut pieces[special..];
    let characters = rest.iter().filter(|(piece, _)| piece.chars().count() == 1).count();
    let lowest = rest.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let rare_below = lowest + RARE_STEP * characters as f64;
    let is_rare = |(piece, score): &(String, f64)| piece.chars().count() == 1 && *score <= rare_below;
    let (mut names, mut scores): (Vec<String>, Vec<f64>) = rest.iter().filter(|piece| is_rare(piece)).cloned().unzip();
    names.sort_unstable();
    scores.sort_by(|a, b| b.total_cmp(a));
    let rare: BTreeMap<String, f64> = names.into_iter().zip(scores).collect();
    for (piece, score) in &mut *rest {
        *score = rare.get(piece).copied().unwrap_or(*score);
    }
    rest.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve;
    use std::fs;

    fn trained(kind: TokenizerKind, vocab_size: usize, text: &str) -> Result<(Vec<u8>, Tokenizer), DataError> {
        let folder = tempfile::tempdir().unwrap();
        let (data, output) = (folder.path().join("a.txt"), folder.path().join("new/tokenizer.json"));
        fs::write(&data, text).unwrap();
        let tokenizer = train_tokenizer(&resolve(&[data.to_str().unwrap()], "text")?, kind, vocab_size, &output)?;
        Ok((fs::read(&output).unwrap(), tokenizer))
    }

    fn text() -> String {
        [include_str!("../sources.rs"), include_str!("../error.rs"), "Größe, naïve, 漢字, ½ and ﬁ."].concat()
    }

    #[test]
    fn a_byte_level_tokenizer_keeps_every_text() {
        let (_, tokenizer) = trained(TokenizerKind::Bpe, 600, &text()).unwrap();
        assert_eq!((tokenizer.vocab_size(), tokenizer.separator(), tokenizer.end_token()), (600, Some(0), Some(0)));
        let other = "Words it has  never\tseen: 🙂 żółw\n";
        let ids = tokenizer.encode(other.as_bytes()).unwrap();
        assert_eq!(tokenizer.decode(&ids), other.as_bytes());
        assert!(tokenizer.encode(text().as_bytes()).unwrap().len() * 2 < text().len());
    }

    #[test]
    fn a_unigram_tokenizer_is_like_that_of_t5() {
        let (_, tokenizer) = trained(TokenizerKind::Unigram, 500, &text()).unwrap();
        assert_eq!((tokenizer.pad_token(), tokenizer.end_token(), tokenizer.separator()), (Some(0), Some(1), Some(1)));
        assert!(tokenizer.vocab_size() <= 500, "{}", tokenizer.vocab_size());
        let ids = tokenizer.encode("the  path\nof the ﬁle".as_bytes()).unwrap();
        assert_eq!(tokenizer.decode(&ids), b"the path of the file");
        assert!(tokenizer.encode("🙂".as_bytes()).unwrap().contains(&2));
    }

    #[test]
    fn the_same_text_gives_the_same_file() {
        for kind in [TokenizerKind::Bpe, TokenizerKind::Unigram] {
            let first = trained(kind, 500, &text()).unwrap().0;
            assert!(first == trained(kind, 500, &text()).unwrap().0, "{kind:?}");
        }
    }

    #[test]
    fn a_vocabulary_ends_where_the_text_has_no_more() {
        let (_, tokenizer) = trained(TokenizerKind::Bpe, usize::MAX, "some words, some more").unwrap();
        assert!((258..300).contains(&tokenizer.vocab_size()), "{}", tokenizer.vocab_size());
    }

    #[test]
    fn vocabularies_that_are_too_small_are_refused() {
        let refused = |kind, size| matches!(trained(kind, size, &text()), Err(DataError::TrainingFailed { .. }));
        assert!(refused(TokenizerKind::Bpe, 256) && refused(TokenizerKind::Bpe, 0));
        assert!(refused(TokenizerKind::Unigram, 3) && refused(TokenizerKind::Unigram, 20));
        assert!(matches!(trained(TokenizerKind::Unigram, 500, ""), Err(DataError::Empty { .. })));
    }
}
