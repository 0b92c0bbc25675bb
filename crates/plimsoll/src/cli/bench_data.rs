//! `plimsoll bench --data-only`: times the loading of pairs, from cached tokens and from raw text.
//!
//! Both times end when the loader has returned the padded batches of one epoch. Cached tokens are mapped and checked before
//! the clock starts; the time of raw text includes reading, parsing and tokenizing on all threads.

use super::Failure;
use super::cache::with_cache;
use super::failure::exit_code;
use super::pairs::PairArgs;
use crate::progress::DataProgress;
use crate::streams::{talk, write_data};
use clap::Args;
use plimsoll_data::{Dataset, Loader, PairStore, Pairs, Sources, Tokenizer, TokenizerSpec};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Number of steps that the loader may prefetch.
const AHEAD: usize = 4;

#[derive(Debug, Args)]
pub(super) struct DataBenchArgs {
    /// Time data loading instead of training steps: text pairs to batches
    #[arg(long, requires_all = ["data", "tokenizer"])]
    data_only: bool,
    /// With --data-only: the .tsv, .csv or .jsonl files of pairs
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<String>,
    /// With --data-only: the tokenizer
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// With --data-only: folder for token caches [default: one in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Pairs, with --data-only")]
    pairs: PairArgs,
}

/// The counts and the time of one epoch.
struct Epoch {
    samples: u64,
    tokens: u64,
    padding: u64,
    seconds: f64,
}

impl DataBenchArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.data_only
    }

    /// `--target-len`.
    pub(super) fn target_len(&self) -> Option<usize> {
        self.pairs.target_len
    }

    /// Prints that `--data` has no effect without `--data-only`.
    pub(super) fn say_if_unused(&self) {
        if !self.data.is_empty() {
            talk("note: `--data` has no effect: steps use random tokens; `--data-only` times data loading");
        }
    }

    pub(super) fn run(&self, global_batch: usize, threads: usize, seed: u64, json: bool) -> Result<u8, Failure> {
        let spec = self.tokenizer.as_deref().unwrap_or("gpt2");
        let tokenizer = Tokenizer::open(&spec.parse::<TokenizerSpec>()?)?;
        let sources = plimsoll_data::resolve(&self.data, plimsoll_data::DEFAULT_TEXT_FIELD)?;
        let cached = self.cached(&sources, &tokenizer, global_batch, seed)?;
        let raw = self.raw(&sources, &tokenizer, global_batch, seed)?;
        if json {
            let value = json!({
                "cached": cached.json(),
                "raw": raw.json(),
                "global_batch": global_batch,
                "vocab_size": tokenizer.vocab_size(),
                "threads": threads,
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            write_data(format_args!("cached tokens: {}\nraw text:      {}", cached.line(), raw.line()))?;
        }
        Ok(exit_code::DONE)
    }

    fn cached(
        &self,
        sources: &Sources,
        tokenizer: &Tokenizer,
        global_batch: usize,
        seed: u64,
    ) -> Result<Epoch, Failure> {
        let bar = DataProgress::new();
        let columns = self.pairs.columns(false);
        let store = with_cache(self.cache_dir.as_deref(), |cache| {
            plimsoll_data::prepare_pairs(sources, &columns, tokenizer, cache, &|progress| bar.show(&progress))
        })?;
        drop(bar);
        let start = Instant::now();
        self.epoch(store, tokenizer, global_batch, seed, start)
    }

    fn raw(&self, sources: &Sources, tokenizer: &Tokenizer, global_batch: usize, seed: u64) -> Result<Epoch, Failure> {
        let start = Instant::now();
        let store = plimsoll_data::tokenize_pairs(sources, &self.pairs.columns(false), tokenizer, &|_| {})?;
        self.epoch(store, tokenizer, global_batch, seed, start)
    }

    /// Loads the batches of one epoch, at least one step.
    fn epoch(
        &self,
        store: PairStore,
        tokenizer: &Tokenizer,
        global_batch: usize,
        seed: u64,
        start: Instant,
    ) -> Result<Epoch, Failure> {
        let dataset = Arc::new(Dataset::Pairs(Pairs::new(store, self.pairs.settings(tokenizer, seed.into()))?));
        let steps = (dataset.training() / global_batch as u64).max(1);
        let mut loader = Loader::start(dataset, 0, global_batch, global_batch, AHEAD);
        let mut epoch = Epoch { samples: steps * global_batch as u64, tokens: 0, padding: 0, seconds: 0.0 };
        for _ in 0..steps {
            let batches = loader.next_step()?;
            epoch.tokens += batches.tokens;
            epoch.padding += batches.padding;
            loader.give_back(batches);
        }
        epoch.seconds = start.elapsed().as_secs_f64();
        Ok(epoch)
    }
}

impl Epoch {
    fn json(&self) -> Value {
        json!({
            "samples": self.samples,
            "tokens": self.tokens,
            "padding": self.padding,
            "seconds": self.seconds,
            "samples_per_s": self.samples as f64 / self.seconds,
            "tokens_per_s": self.tokens as f64 / self.seconds,
        })
    }

    fn line(&self) -> String {
        let (samples, tokens) = (self.samples as f64 / self.seconds, self.tokens as f64 / self.seconds);
        let padding = self.padding as f64 / (self.tokens + self.padding) as f64;
        format!("{samples:.0} samples/s, {tokens:.0} tokens/s, {:.0} % padding", 100.0 * padding)
    }
}
