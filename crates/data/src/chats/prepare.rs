//! Tokenizes chats on all cores and caches them, with a mask of trained tokens: `CACHE/KEY.chats`.
//! Not here: the text of a chat (`spans.rs`), and how a cache is put in place (`../cache.rs`).

use super::answers::is_answer;
use super::completion;
use super::detect::not_preferred;
use super::format::{ChatError, FIELDS, Fields};
use super::judged::Judged;
use super::preference_data::PreferenceData;
use super::preferences::{CompareError, Compared};
use super::render_error::RenderError;
use super::spans::render;
use super::{ChatFormat, ChatStore, ChatTemplate, TrainOn};
use crate::cache::{Cache, CacheWriter};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::header::CacheKind;
use crate::pieces::PIECE_OVERHEAD_BYTES;
use crate::rows::{Rows, Wanted};
use crate::shards::group_bytes;
use crate::store::Expected;
use crate::{DataError, EncodeError, Format, Progress, RowNumber, Sources, Tokenizer};
use plimsoll_units::Bytes;
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How rows become tokens.
#[derive(Debug, Clone, Copy)]
pub struct ChatSettings<'a> {
    /// The format of each row.
    pub format: ChatFormat,
    /// The template that renders it.
    pub template: &'a ChatTemplate,
    /// The tokens to train on.
    pub train_on: TrainOn,
}

/// The chats of the data: read from the cache if it is complete, otherwise tokenized on all cores of the current rayon
/// pool. They do not depend on the number of threads. Special tokens are those that the template writes.
/// Errors: read and tokenizer errors (`NotChats`, `NotAChat`, `ChatTemplateFailed`, `UnclearAnswer`, `ChatTooLong`…),
/// `Empty`, `NoAnswers` if nothing is to be trained on, `CacheUnwritable`, `CacheUnreadable`, `CacheDamaged`.
pub fn prepare_chats(
    sources: &Sources,
    settings: &ChatSettings<'_>,
    tokenizer: &Tokenizer,
    cache_folder: &Path,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<ChatStore, DataError> {
    if let Some(text) = sources.files.iter().find(|file| file.format == Format::Text) {
        return Err(DataError::NotChats { path: text.path.clone() });
    }
    let ChatSettings { format, template, train_on } = settings;
    let reading = format!("chats {format} {train_on:?} {}", template.identity());
    let print = fingerprint(sources, tokenizer, reading.as_bytes(), progress)?;
    let cache = Cache { folder: cache_folder, key: &print.key, extension: "chats", mode: print.mode };
    let encoder = Encoder { sources, tokenizer };
    let encode = |row: &ChatRow| Ok(encoder.chat(row, settings)?.into_iter().collect());
    Job { sources, encode: &encode, tokenizer, print: &print, cache: &cache, progress }.open_or_build(*format)
}

/// The examples of preference data, as [`prepare_chats`]: for each one the prompt with the chosen answer, then the prompt
/// with the rejected one, or the prompt with its judged answer. Their answers are trained on. The first token, which is not
/// a target, is marked like a trained one if a judged answer is disliked.
/// Errors: as [`prepare_chats`], and `NotPreferred`, `TextNotPreferences`.
pub fn prepare_preferences(
    sources: &Sources,
    data: PreferenceData,
    format: ChatFormat,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    cache_folder: &Path,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<ChatStore, DataError> {
    if let Some(text) = sources.files.iter().find(|file| file.format == Format::Text) {
        return Err(DataError::TextNotPreferences { path: text.path.clone() });
    }
    let reading = match data {
        PreferenceData::Paired => format!("preferences {format} {}", template.identity()),
        PreferenceData::Judged => format!("judged answers {format} {}", template.identity()),
    };
    let print = fingerprint(sources, tokenizer, reading.as_bytes(), progress)?;
    let cache = Cache { folder: cache_folder, key: &print.key, extension: "preferences", mode: print.mode };
    let encoder = Encoder { sources, tokenizer };
    let encode = |row: &ChatRow| encoder.preferences(row, data, format, template);
    Job { sources, encode: &encode, tokenizer, print: &print, cache: &cache, progress }.open_or_build(format)
}

/// The sequences of a row.
type Encode<'a> = &'a (dyn Fn(&ChatRow) -> Result<Vec<Encoded>, DataError> + Sync);

struct Job<'a> {
    sources: &'a Sources,
    encode: Encode<'a>,
    tokenizer: &'a Tokenizer,
    print: &'a Fingerprint,
    cache: &'a Cache<'a>,
    progress: &'a (dyn Fn(Progress<'_>) + Sync),
}

/// A row and its position.
struct ChatRow {
    file: usize,
    number: RowNumber,
    text: String,
}

/// A chat's tokens, and whether each is trained on.
struct Encoded {
    ids: Vec<u32>,
    trained: Vec<bool>,
    text_bytes: u64,
}

impl Job<'_> {
    fn open_or_build(&self, format: ChatFormat) -> Result<ChatStore, DataError> {
        let vocab_size = self.tokenizer.vocab_size();
        let open = |path: &Path, key: &blake3::Hash| {
            ChatStore::open(path, &Expected { key, kind: CacheKind::Chats, vocab_size }, format)
        };
        self.cache.open_or_build(open, |file| self.write(file), self.progress)
    }

    /// Returns the number of tokens written.
    fn write(&self, file: &File) -> Result<u64, DataError> {
        let unwritable = |error| self.cache.unwritable(error);
        let mut writer =
            CacheWriter::create(file, CacheKind::Chats, self.tokenizer.vocab_size()).map_err(unwritable)?;
        let mut reader = ChatReader::new(self.sources);
        let mut mask = Mask::new(BufWriter::new(self.cache.scratch()?));
        let mut ends = BufWriter::new(self.cache.scratch()?);
        loop {
            let group = reader.next_group(group_bytes())?;
            if group.is_empty() {
                break;
            }
            let encoded: Vec<_> = group.par_iter().map(self.encode).collect();
            for sequences in encoded {
                for sequence in sequences? {
                    writer.write_tokens(&sequence.ids).map_err(unwritable)?;
                    writer.text_bytes += sequence.text_bytes;
                    mask.push(&sequence.trained).map_err(unwritable)?;
                    ends.write_all(&writer.tokens().to_le_bytes()).map_err(unwritable)?;
                }
            }
            let (done, tokens) = (reader.raw_bytes(), writer.tokens());
            (self.progress)(Progress::Tokenizing { done, total: self.print.raw_bytes, tokens });
        }
        self.print.check_unchanged(self.sources)?;
        if writer.tokens() == 0 {
            return Err(self.sources.empty_error());
        } else if mask.trained == 0 {
            return Err(DataError::NoAnswers { first: self.sources.files[0].path.clone() });
        }
        writer.append(mask.finish().map_err(unwritable)?).map_err(unwritable)?;
        writer.append(ends).map_err(unwritable)?;
        let tokens = writer.tokens();
        writer.finish(&self.print.key).map_err(unwritable)?;
        Ok(tokens)
    }
}

/// Turns rows into tokens.
struct Encoder<'a> {
    sources: &'a Sources,
    tokenizer: &'a Tokenizer,
}

impl Encoder<'_> {
    /// `None` for a blank row, and for a chat without text.
    fn chat(&self, row: &ChatRow, settings: &ChatSettings<'_>) -> Result<Option<Encoded>, DataError> {
        let path = || self.sources.files[row.file].path.clone();
        let Some(fields) = Fields::of_row(&row.text).map_err(|error| error.in_file(path(), row.number))? else {
            return Ok(None);
        };
        let ChatSettings { format, template, train_on } = *settings;
        let in_file = |error: ChatError| error.in_file(path(), row.number);
        let is_completion = format == ChatFormat::Completion;
        let (rendered, is_answered) = if is_completion {
            (completion::rendered(&fields, train_on).map_err(in_file)?, true)
        } else {
            let chat = fields.conversation(format).map_err(in_file)?;
            let rendered = render(&chat, template, train_on).map_err(|error| self.not_rendered(row, error))?;
            (rendered, chat.messages.last().is_some_and(is_answer))
        };
        let tokens = self.tokens(row, &rendered.text)?;
        let (mut ids, mut trained): (Vec<u32>, Vec<bool>) =
            tokens.into_iter().map(|(id, range)| (id, rendered.is_trained(&range))).unzip();
        let beginning = self.tokenizer.beginning();
        if is_completion && !ids.starts_with(beginning) {
            ids.splice(..0, beginning.iter().copied());
            trained.splice(..0, beginning.iter().map(|_| train_on == TrainOn::All));
        }
        let is_ended = |separator: &u32| is_completion && ids.last() == Some(separator);
        let ends = is_completion || template.ends_with_separator();
        if let Some(separator) = self.tokenizer.separator().filter(|separator| ends && !is_ended(separator)) {
            ids.push(separator);
            trained.push(train_on == TrainOn::All || is_answered);
        }
        let text_bytes = rendered.text.len() as u64;
        Ok((!ids.is_empty()).then_some(Encoded { ids, trained, text_bytes }))
    }

    /// The sequences of an example, one for each answer; none for a blank row.
    fn preferences(
        &self,
        row: &ChatRow,
        data: PreferenceData,
        format: ChatFormat,
        template: &ChatTemplate,
    ) -> Result<Vec<Encoded>, DataError> {
        let in_file = |error| not_preferred(error, data, self.sources.files[row.file].path.clone(), row.number);
        let failed = |error| match error {
            CompareError::Row(error) => in_file(error),
            CompareError::Render(error) => self.not_rendered(row, error),
        };
        let Some(fields) = Fields::of_row(&row.text).map_err(in_file)? else { return Ok(Vec::new()) };
        let omitted = || in_file(ChatError::NotAChat("the chat template omits an answer".to_owned()));
        match data {
            PreferenceData::Paired => {
                let Compared { prompt, answered, is_text } = fields.compared(format, template).map_err(failed)?;
                let ends = is_text || template.ends_with_separator();
                self.answers(row, &prompt, &answered, [is_text, ends])?.ok_or_else(omitted)
            }
            PreferenceData::Judged => {
                let Judged { prompt, answered, is_liked, is_text } = fields.judged(format, template).map_err(failed)?;
                let ends = is_text || template.ends_with_separator();
                let mut sequences = self.answers(row, &prompt, &[answered], [is_text, ends])?.ok_or_else(omitted)?;
                sequences.iter_mut().for_each(|sequence| sequence.trained[0] = !is_liked);
                Ok(sequences)
            }
        }
    }

    /// A sequence for each of these texts, which are a prompt with an answer. The second flag: whether an end token is
    /// added to them. `None` if an answer is empty.
    fn answers(
        &self,
        row: &ChatRow,
        prompt: &str,
        answered: &[String],
        [is_text, ends]: [bool; 2],
    ) -> Result<Option<Vec<Encoded>>, DataError> {
        let ids = |text: &str, is_answered: bool| -> Result<Vec<u32>, DataError> {
            let mut ids = self.tokens(row, text)?.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
            let beginning = self.tokenizer.beginning();
            if is_text && !ids.starts_with(beginning) {
                ids.splice(..0, beginning.iter().copied());
            }
            let separator = self.tokenizer.separator().filter(|_| ends && is_answered);
            ids.extend(separator.filter(|separator| ids.last() != Some(separator)));
            Ok(ids)
        };
        let prompt = ids(prompt, false)?;
        let sequences = answered.iter().map(|text| ids(text, true)).collect::<Result<Vec<_>, _>>()?;
        let shared = |ids: &Vec<u32>| ids.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let before = sequences.iter().map(shared).min().unwrap_or(0);
        if sequences.iter().any(|ids| ids.len() <= before.max(1)) {
            return Ok(None);
        }
        let encoded = sequences.into_iter().zip(answered).map(|(ids, text)| {
            let trained = (0..ids.len()).map(|at| at >= before).collect();
            Encoded { ids, trained, text_bytes: text.len() as u64 }
        });
        Ok(Some(encoded.collect()))
    }

    fn tokens(&self, row: &ChatRow, text: &str) -> Result<Vec<(u32, Range<usize>)>, DataError> {
        self.tokenizer.encode_with_ranges(text).map_err(|error| match error {
            EncodeError::NotUtf8 { .. } => unreachable!("a template's text is UTF-8"),
            EncodeError::Failed { message } => {
                let path = self.sources.files[row.file].path.clone();
                DataError::TokenizerFailed { tokenizer: self.tokenizer.spec().to_string(), path, message }
            }
        })
    }

    fn not_rendered(&self, row: &ChatRow, error: RenderError) -> DataError {
        let (path, row) = (self.sources.files[row.file].path.clone(), row.number);
        match error {
            RenderError::Template(error) => DataError::ChatTemplateFailed { path, row, message: error.0 },
            RenderError::UnclearAnswer(message) => DataError::UnclearAnswer { path, row, message },
            RenderError::TooLong(limit) => DataError::ChatTooLong { path, row, limit },
        }
    }
}

/// Reads the rows of all files in order.
struct ChatReader<'a> {
    sources: &'a Sources,
    next_file: usize,
    open: Option<Rows>,
    raw_bytes: Arc<AtomicU64>,
}

impl<'a> ChatReader<'a> {
    fn new(sources: &'a Sources) -> Self {
        Self { sources, next_file: 0, open: None, raw_bytes: Arc::default() }
    }

    fn raw_bytes(&self) -> Bytes {
        Bytes(self.raw_bytes.load(Ordering::Relaxed))
    }

    /// Rows of about `group_bytes` in total (exceeded by at most one row). Empty at the end of the data.
    fn next_group(&mut self, group_bytes: usize) -> Result<Vec<ChatRow>, DataError> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while bytes < group_bytes {
            let Some(row) = self.next_row()? else { break };
            bytes += row.text.len() + PIECE_OVERHEAD_BYTES;
            group.push(row);
        }
        Ok(group)
    }

    fn next_row(&mut self) -> Result<Option<ChatRow>, DataError> {
        loop {
            if self.open.is_none() {
                let Some(source) = self.sources.files.get(self.next_file) else { return Ok(None) };
                let raw_bytes = Arc::clone(&self.raw_bytes);
                self.open = Some(Rows::open(source, Wanted::Any(FIELDS), self.sources.line_bytes_max, raw_bytes)?);
                self.next_file += 1;
            }
            let file = self.next_file - 1;
            let source = &self.sources.files[file];
            if let Some(rows) = &mut self.open
                && rows.next(source)?
            {
                let text = rows.text(source)?.to_owned();
                return Ok(Some(ChatRow { file, number: rows.number(), text }));
            }
            self.open = None;
        }
    }
}

/// Writes bits, lowest bit first, padded to a whole u64.
struct Mask<W> {
    file: W,
    word: u64,
    bits: u32,
    /// Number of bits set.
    trained: u64,
}

impl<W: Write> Mask<W> {
    fn new(file: W) -> Self {
        Self { file, word: 0, bits: 0, trained: 0 }
    }

    fn push(&mut self, bits: &[bool]) -> io::Result<()> {
        for &bit in bits {
            self.word |= u64::from(bit) << self.bits;
            self.trained += u64::from(bit);
            self.bits += 1;
            if self.bits == u64::BITS {
                self.file.write_all(&self.word.to_le_bytes())?;
                (self.word, self.bits) = (0, 0);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<W> {
        let missing = (u64::BITS - self.bits) % u64::BITS;
        self.push(&vec![false; missing as usize])?;
        Ok(self.file)
    }
}
