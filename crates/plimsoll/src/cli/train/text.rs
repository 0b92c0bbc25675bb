//! The data of a run: from `--data` to batches.

use super::args::TrainArgs;
use super::binary::warn_of_binary;
use crate::cli::cache::with_cache;
use crate::cli::model::Chosen;
use crate::cli::processor::threads_within_memory;
use crate::cli::{Failure, in_pool};
use crate::streams::talk;
use plimsoll_data::{
    Batches, ChatFormat, ChatSettings, ChatStore, DataError, DataFormat, Dataset, FirstRow, HeldOut, Packed, Packing,
    PairColumns, PairSettings, Pairs, PreferenceData, PreferencePairs, PreferenceRows, PreferenceSettings, Progress,
    Source, Sources, Split, TemplateHabits, Tokenizer, TrainOn, Within,
};
use plimsoll_graph::Preferences;
use plimsoll_graph::ops::PreferenceKind;

impl TrainArgs {
    /// Errors: flags for another kind of data than the model is trained on.
    pub(super) fn check_kind_of_data(&self, chosen: &Chosen) -> Result<(), Failure> {
        let of_pairs = self.pairs.source_column.is_some() || self.pairs.target_column.is_some();
        if chosen.config.is_encoder() && self.data.is_empty() {
            return Err(Failure::bad_flag(format!("{} is trained on pairs of texts that belong together", chosen.name))
                .hint("use `--data` with a .jsonl of {\"anchor\": …, \"positive\": …}; `--source-column` and `--target-column` name other columns"));
        }
        if self.request.objective.preferences()?.is_some() {
            self.check_preferences()?;
        }
        if chosen.takes_pairs() && self.run.packing {
            return Err(Failure::bad_flag("`--packing` is not for models that are trained on pairs")
                .hint("omit `--packing`; pairs are padded to multiples of `--bucket`"));
        }
        if chosen.takes_pairs() && self.data.is_empty() {
            return Err(Failure::bad_flag(format!("{} is trained on pairs of sources and targets", chosen.name))
                .hint("use `--data` with a .tsv, .csv or .jsonl file; `--source-column` and `--target-column` name its columns"));
        }
        if chosen.takes_pairs() {
            self.chats.refuse_for("pairs")?;
        }
        if !chosen.takes_pairs() && of_pairs {
            return Err(Failure::bad_flag(format!(
                "{} is not an encoder-decoder, so it can't be trained on pairs",
                chosen.name
            ))
            .hint("use `--model t5-nano` or another T5; for plain text in a .jsonl, use `--text-field`"));
        }
        Ok(())
    }

    /// Opens the data, tokenized on as many threads as fit in memory. `tokens`: the length of a sample; unpacked chats
    /// get shorter rows if the longest chat fits and `--seq-len` is not given.
    pub(super) fn open_data(&self, tokenizer: &Tokenizer, chosen: &Chosen, tokens: usize) -> Result<Dataset, Failure> {
        let threads = self.budget.threads()?;
        match threads_within_memory(threads, tokenizer.memory_per_thread()) {
            fewer if fewer < threads => in_pool(fewer, || self.open_data_here(tokenizer, chosen, tokens)),
            _ => self.open_data_here(tokenizer, chosen, tokens),
        }
    }

    /// Errors: flags that are not for preferences, or no data.
    fn check_preferences(&self) -> Result<(), Failure> {
        if self.data.is_empty() {
            let name = self.request.objective.objective.name();
            return Err(Failure::bad_flag(format!(
                "`--objective {name}` trains on preferences, and there are none without `--data`",
            ))
            .hint(match name {
                "kto" => "use `--data` with a .jsonl of {\"prompt\": …, \"completion\": …, \"label\": true}",
                _ => "use `--data` with a .jsonl of {\"prompt\": …, \"chosen\": …, \"rejected\": …}",
            }));
        }
        if self.run.packing {
            return Err(Failure::bad_flag("`--packing` is not for preferences, of which each answer is a row")
                .hint("omit `--packing`; rows are padded to multiples of `--bucket`"));
        }
        Ok(())
    }

    /// The examples of preferences, in rows of at most `tokens` tokens.
    fn open_preferences(
        &self,
        sources: &Sources,
        tokenizer: &Tokenizer,
        tokens: usize,
        split: Split,
        kind: PreferenceKind,
    ) -> Result<Dataset, Failure> {
        if tokens < 2 {
            return Err(Failure::bad_flag("a row of preferences needs at least 2 tokens").hint("use `--seq-len 1024`"));
        }
        if kind.has_reference() && self.request.adapters.continued().is_some() {
            talk(
                "note: the reference is the model below the adapters that are continued; to compare with these, merge them first",
            );
        }
        let rows = match kind {
            PreferenceKind::Single { has_reference_point, .. } => {
                PreferenceRows::Judged { mismatches: has_reference_point }
            }
            _ if kind.trains_prompts() => PreferenceRows::AnswersAndPrompt,
            _ => PreferenceRows::Answers,
        };
        let data = if kind.is_paired() { PreferenceData::Paired } else { PreferenceData::Judged };
        let format = self.chats.format_of_preferences(sources, data, self.text_field.as_deref())?;
        let template = self.chats.template(tokenizer)?;
        let bar = crate::progress::DataProgress::new();
        let store = with_cache(self.cache_dir.as_deref(), |cache| {
            let show = |progress: Progress<'_>| bar.show(&progress);
            plimsoll_data::prepare_preferences(sources, data, format, &template, tokenizer, cache, &show)
        })?;
        let Split { seed, held_out } = split;
        let settings = PreferenceSettings { len_max: tokens, bucket: self.pairs.bucket, seed, held_out, rows };
        Ok(Dataset::Preferences(PreferencePairs::new(store, settings)?))
    }

    /// The same on the threads of the current pool.
    fn open_data_here(&self, tokenizer: &Tokenizer, chosen: &Chosen, tokens: usize) -> Result<Dataset, Failure> {
        let sources = if self.data.is_empty() {
            plimsoll_data::cargo_registry_sources()?
        } else {
            let field = self.text_field.as_deref().unwrap_or(plimsoll_data::DEFAULT_TEXT_FIELD);
            plimsoll_data::resolve(&self.data, field)?
        };
        if !self.data.is_empty() {
            warn_of_binary(&sources);
        }
        for file in &sources.files {
            if let Some(Within::Key(key)) = &file.within {
                talk(format_args!("note: the rows of {} are those under its key `{key}`", file.path.display()));
            }
        }
        if sources.other_splits > 0 {
            talk(format_args!("note: {} files of validation and test splits are not trained on", sources.other_splits));
        }
        let asked = self.cache_dir.as_deref();
        let split = Split { seed: self.seed, held_out: self.held_out.map_or(HeldOut::Usual, |part| part.0) };
        let bar = crate::progress::DataProgress::new();
        let dataset = if chosen.takes_pairs() {
            let is_encoder = chosen.config.is_encoder();
            let mut columns = self.pairs.columns(is_encoder);
            if is_encoder {
                columns.negatives = self.request.objective.negative_column.clone();
                columns = columns.with_negatives_of(&sources)?;
            }
            if columns.source.is_none() && columns.target.is_none() {
                refuse_preferences(&sources)?;
            }
            sources.files.iter().for_each(|file| tell_first_row(file, &columns));
            let store = with_cache(asked, |cache| {
                plimsoll_data::prepare_pairs(&sources, &columns, tokenizer, cache, &|progress| bar.show(&progress))
            })?;
            let settings = PairSettings { source_len_max: tokens, ..self.pairs.settings(tokenizer, split) };
            Dataset::Pairs(match chosen.config.decoder_start() {
                Some(decoder_start) => Pairs::new(store, PairSettings { decoder_start, ..settings })?,
                None => Pairs::for_encoder(store, settings, tokenizer.beginning())?,
            })
        } else if let Some(Preferences { kind, .. }) = self.request.objective.preferences()? {
            self.open_preferences(&sources, tokenizer, tokens, split, kind)?
        } else {
            match self.chats.format(&sources, self.text_field.as_deref())? {
                DataFormat::Chats(format) => {
                    let template = self.chats.template(tokenizer)?;
                    let settings = ChatSettings { format, template: &template, train_on: self.chats.train_on() };
                    if format != ChatFormat::Completion {
                        tell_habits(&template.habits(), settings.train_on);
                    }
                    let show = |progress: Progress<'_>| bar.show(&progress);
                    let store = with_cache(asked, |cache| {
                        plimsoll_data::prepare_chats(&sources, &settings, tokenizer, cache, &show)
                    })?;
                    let packing = if self.run.packing { Packing::Packed } else { Packing::OneEach };
                    let tokens = match (packing, self.request.seq_len()) {
                        (Packing::OneEach, None) => row_of_longest(store.longest()?, tokens),
                        _ => tokens,
                    };
                    Dataset::Packed(Packed::of_chats(store, packing, tokens, split)?)
                }
                DataFormat::Text => {
                    if self.chats.is_detected() {
                        sources.files.iter().try_for_each(refuse_pairs)?;
                    }
                    let store = with_cache(asked, |cache| {
                        plimsoll_data::prepare(&sources, tokenizer, cache, &|progress| bar.show(&progress))
                    })?;
                    match self.run.packing {
                        true => Dataset::Packed(Packed::new(store, tokenizer, tokens, split)?),
                        false => Dataset::Windows(Batches::new(store, tokens, split)?),
                    }
                }
            }
        };
        drop(bar);
        talk(data_line(&dataset, sources.files.len()));
        Ok(dataset)
    }
}

/// The row length for the longest chat, a multiple of what kernels prefer, at most `most`.
fn row_of_longest(longest: u64, most: usize) -> usize {
    const STEP: u64 = 64;
    most.min(usize::try_from(longest.next_multiple_of(STEP)).unwrap_or(usize::MAX)).max(1)
}

/// Errors: the data is preferences, or its first row can't be read as a pair.
fn refuse_preferences(sources: &Sources) -> Result<(), Failure> {
    match plimsoll_data::detect_format(sources) {
        Err(error @ DataError::Preferences { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Errors: a table whose first row names the columns of pairs, for a model that continues text. For other tables, warns
/// how they are read.
fn refuse_pairs(file: &Source) -> Result<(), Failure> {
    let path = file.path.display();
    let names = match plimsoll_data::first_row(file, &PairColumns::default()) {
        Some(FirstRow::Header) => "source and target".to_owned(),
        Some(FirstRow::LikelyNames([source, target])) => format!("{source} and {target}"),
        None if plimsoll_data::is_table(file) => {
            talk(format_args!(
                "warning: training on {path} as text, with its separators\nhint: write its rows as {{\"text\": …}} or \
                 {{\"prompt\": …, \"completion\": …}} to a .jsonl"
            ));
            return Ok(());
        }
        None => return Ok(()),
    };
    let message = format!("{path} contains pairs, in the columns {names}, but the model continues text");
    Err(Failure::bad_input(message)
        .hint("write its rows as {\"prompt\": …, \"completion\": …} to a .jsonl, to train on the completions")
        .hint("`--model t5-small` trains on pairs; `--data-format text` trains on the file as text"))
}

/// Reports whether the first row of a table names its columns, or may do so.
fn tell_first_row(file: &Source, columns: &PairColumns) {
    match plimsoll_data::first_row(file, columns) {
        Some(FirstRow::Header) => {
            talk(format_args!("note: the first row of {} names its columns and is not a pair", file.path.display()));
        }
        Some(FirstRow::LikelyNames([source, target])) => talk(format_args!(
            "warning: training on the first row of {} as a pair, `{source}` and `{target}`\nhint: if it names the columns, \
             use `--source-column '{source}' --target-column '{target}'`",
            file.path.display()
        )),
        None => {}
    }
}

/// Reports unexpected treatment of answers by the chat template.
fn tell_habits(habits: &TemplateHabits, train_on: TrainOn) {
    if let Some(words) = habits.invites_with.as_ref().filter(|_| train_on == TrainOn::Answers) {
        talk(format_args!(
            "note: the chat template prompts for an answer with {words:?}, but omits it before answers: training leaves it \
             out"
        ));
    }
    if habits.drops_reasoning {
        talk("note: the chat template removes `<think>…</think>` from all answers but the last");
    }
}

/// The line about the training data.
fn data_line(dataset: &Dataset, files: usize) -> String {
    let samples = format!("{} training samples, {} held out", dataset.training(), dataset.held_out());
    match dataset {
        Dataset::Windows(batches) => {
            let (text, tokens) = (batches.store.bytes_of_text(), batches.store.len());
            format!("data: {text} of text in {files} files, {tokens} tokens; {samples}")
        }
        Dataset::Packed(packed) => {
            let of = match packed.chats() {
                Some(chats) => chats_line(chats),
                None => format!("{} tokens in {files} files", dataset.tokens()),
            };
            let packed = match packed.packing() {
                Packing::Packed => ", packed into rows".to_owned(),
                Packing::OneEach => {
                    let (tokens, padding) = (packed.seq_len(), 100.0 * packed.padding());
                    format!(
                        ", one in each row of {tokens} tokens, {padding:.0} % of them padding (`--packing` fills it)"
                    )
                }
            };
            format!("data: {of}{packed}; {samples}")
        }
        Dataset::Preferences(pairs) => {
            let (tokens, cut, left_out) = (dataset.tokens(), pairs.truncated(), pairs.left_out());
            let cut = if cut > 0 { format!("; {cut} examples are truncated") } else { String::new() };
            let left_out = match left_out {
                0 => String::new(),
                _ => format!("; {left_out} examples are left out, whose prompts are too long"),
            };
            format!("data: preferences of {tokens} tokens in {files} files; {samples}{cut}{left_out}")
        }
        Dataset::Pairs(pairs) => {
            let (tokens, cut) = (dataset.tokens(), pairs.truncated());
            let cut = if cut > 0 { format!("; {cut} pairs are truncated") } else { String::new() };
            let negatives = match pairs.negatives() {
                0 => String::new(),
                negatives => format!(", each with {negatives} hard negatives,"),
            };
            format!("data: pairs{negatives} of {tokens} tokens in {files} files; {samples}{cut}")
        }
    }
}

fn chats_line(chats: &ChatStore) -> String {
    let (tokens, trained) = (chats.tokens().len(), chats.trained());
    let percent = 100.0 * trained as f64 / tokens as f64;
    let what = if chats.format() == ChatFormat::Completion { "prompts with completions" } else { "chats" };
    format!("{} {what} of {tokens} tokens, {trained} of them ({percent:.0} %) trained on", chats.len())
}
