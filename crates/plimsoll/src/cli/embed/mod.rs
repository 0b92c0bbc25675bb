//! `plimsoll embed`: the vectors of texts, computed by an encoder. Texts are read in groups, so that their number has no
//! limit; vectors are written in the order of the texts.
//! Not here: the files of vectors (`output.rs`).

mod output;

use self::output::{Output, OutputFormat};
use super::blas::BlasArgs;
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::failure::exit_code;
use super::objective::PoolingName;
use super::options::positive_size;
use super::weights::{Trained, WeightsArgs};
use super::{Failure, in_pool};
use crate::streams::talk;
use ::plimsoll_plan::plan_embedding;
use ::plimsoll_train::checkpoint::{pooling_name, read_pooling};
use ::plimsoll_train::{Embedder, normalize};
use clap::Args;
use plimsoll_data::{DEFAULT_TEXT_FIELD, Texts, Tokenizer, is_table};
use plimsoll_graph::EmbedShape;
use plimsoll_graph::ops::Pooling;
use plimsoll_render::memory;
use rayon::prelude::*;
use std::io::{self, Cursor};
use std::path::PathBuf;

/// The default limit on the tokens of a text, if the model has more positions.
const USUAL_TOKENS: usize = 512;

/// The shortest program; each further one has twice the length, so that at most half of a batch is padding.
const SHORTEST: usize = 16;

/// Texts that are read, sorted by length, and embedded together; they end after [`GROUP_BYTES`] of text.
const GROUP_TEXTS: usize = 512;
const GROUP_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct EmbedArgs {
    /// Texts to embed [default: the lines of `--data`, or of stdin]
    #[arg(value_name = "TEXT", conflicts_with = "data")]
    texts: Vec<String>,
    #[command(flatten)]
    weights: WeightsArgs,
    /// Texts: each line of a text file, or `--text-field` of the rows of .jsonl, .json and .parquet files
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<String>,
    /// Field of the text in rows
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TEXT_FIELD)]
    text_field: String,
    /// Text to put before each text, such as `query: `
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// File to write: `.npy`, one row of 32-bit floats per text, or `.jsonl` [default: JSON lines on stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The tokens that a vector is made of [default: as trained, or as the model's folder says; else mean]
    #[arg(long, value_name = "NAME", value_enum)]
    pooling: Option<PoolingName>,
    /// Keep the vectors' lengths; by default each vector is divided by its length
    #[arg(long)]
    no_normalize: bool,
    /// Texts per batch
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "32")]
    batch: usize,
    /// Maximum tokens per text; longer texts are truncated [default: the model's positions, at most 512]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    max_tokens: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    blas: BlasArgs,
}

pub(super) fn run(args: EmbedArgs) -> Result<u8, Failure> {
    args.budget.refuse_range("embed")?;
    let format = args.out.as_deref().map(OutputFormat::of).transpose()?;
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    in_pool(threads, || args.embed(format))
}

impl EmbedArgs {
    fn embed(&self, format: Option<OutputFormat>) -> Result<u8, Failure> {
        let trained = self.weights.open()?;
        if !trained.chosen.config.is_encoder() {
            let failure = Failure::bad_input(format!(
                "{} is a `{}`, which continues or answers texts: only encoders compute vectors of texts",
                trained.chosen.name,
                trained.chosen.config.model_type()
            ));
            return Err(failure.hint(format!(
                "use a BERT or ModernBERT; `plimsoll generate --checkpoint {}` writes text",
                trained.folder.display()
            )));
        }
        let tokenizer = self.weights.tokenizer(&trained)?;
        let mut texts = self.texts()?;
        let shape = self.shape(&trained)?;
        let opened = self.device.open(&self.budget, None)?;
        let (targets, budget) = (opened.device.targets, opened.device.budget.bytes);
        let planned = plan_embedding(&trained.chosen.config, trained.adapters(), &shape, None, &targets, budget)?;
        let fewer = "a smaller `--batch` or `--max-tokens`";
        let mut engine = self.weights.load(&trained, planned, opened, &self.budget, fewer)?;
        let mut job = Job { args: self, trained: &trained, tokenizer: &tokenizer, done: 0, truncated: 0 };
        let mut embedder = Embedder::new(&mut engine);
        let channels = embedder.channels();
        let mut work = |output: &mut Output| job.write_all(&mut texts, &mut embedder, output);
        match (&self.out, format) {
            (Some(path), Some(format)) => output::to_file(path, format, channels, &mut work)?,
            _ => work(&mut Output::stdout())?,
        }
        let (done, truncated) = (job.done, job.truncated);
        if truncated > 0 {
            talk(format_args!("note: {truncated} of {done} texts were truncated to {} tokens", shape.longest));
        }
        let whereto = self.out.as_ref().map_or("stdout".into(), |path| path.display().to_string());
        talk(format_args!(
            "{done} vectors of {channels} numbers ({} pooling) in {whereto}",
            pooling_name(shape.pooling)
        ));
        talk(memory(&engine.memory().footprint, engine.plan().targets.device.kind()));
        Ok(exit_code::DONE)
    }

    /// The texts to embed. Errors: no file has any, or one is a table.
    fn texts(&self) -> Result<Texts, Failure> {
        if !self.texts.is_empty() {
            let rows = self.texts.iter().map(|text| serde_json::json!({ DEFAULT_TEXT_FIELD: text }).to_string() + "\n");
            return Ok(Texts::of_rows(Box::new(Cursor::new(rows.collect::<String>())), "the arguments"));
        }
        if self.data.is_empty() {
            return Ok(Texts::of_stream(Box::new(io::stdin()), "stdin"));
        }
        let sources = plimsoll_data::resolve(&self.data, &self.text_field)?;
        if let Some(table) = sources.files.iter().find(|source| is_table(source)) {
            return Err(Failure::bad_input(format!("{} is a table", table.path.display()))
                .hint("write one text per line to a .txt, or rows such as {\"text\": \"…\"} to a .jsonl"));
        }
        Ok(Texts::of_sources(sources))
    }

    /// The sizes of the plan. Errors: more tokens than positions, or a pooling of the folder that is not supported.
    fn shape(&self, trained: &Trained) -> Result<EmbedShape, Failure> {
        let positions = trained.chosen.config.max_positions();
        let longest = self.max_tokens.unwrap_or(positions.min(USUAL_TOKENS));
        if longest > positions {
            let message = format!("`--max-tokens {longest}` exceeds the {positions} positions of the model");
            return Err(Failure::bad_flag(message).hint(format!("use `--max-tokens {positions}` or less")));
        }
        let pooling = match self.pooling {
            Some(pooling) => pooling.pooling(),
            None => self.pooling_of(trained)?,
        };
        let buckets = std::iter::successors(Some(SHORTEST), |tokens| Some(tokens * 2));
        let buckets = buckets.take_while(|&tokens| tokens < longest).collect();
        let rows = if self.texts.is_empty() { self.batch } else { self.batch.min(self.texts.len()) };
        Ok(EmbedShape { rows, longest, buckets, pooling })
    }

    /// The pooling that the folders of the weights name, else the mean.
    fn pooling_of(&self, trained: &Trained) -> Result<Pooling, Failure> {
        let unknown = |error| {
            Failure::bad_input(super::failure::line(&error)).hint("`--pooling mean` or `--pooling cls` overrides it")
        };
        let found = read_pooling(&trained.folder).map_err(unknown)?;
        let found = found.map_or_else(|| read_pooling(&trained.of_model), |found| Ok(Some(found))).map_err(unknown)?;
        Ok(found.unwrap_or_else(|| {
            talk("note: the weights do not name their pooling; using the mean of all tokens (`--pooling cls`: the first)");
            Pooling::Mean
        }))
    }
}

/// The embedding of all texts.
struct Job<'a> {
    args: &'a EmbedArgs,
    trained: &'a Trained,
    tokenizer: &'a Tokenizer,
    /// Number of texts so far, and those of them that were truncated.
    done: u64,
    truncated: u64,
}

impl Job<'_> {
    /// Embeds all texts, group by group.
    fn write_all(
        &mut self,
        texts: &mut Texts,
        embedder: &mut Embedder<'_>,
        output: &mut Output<'_>,
    ) -> Result<(), Failure> {
        loop {
            let group = texts.next_group(GROUP_TEXTS, GROUP_BYTES)?;
            if group.is_empty() {
                break;
            }
            let vectors = self.embed(&group, embedder)?;
            for (text, vector) in group.iter().zip(vectors.chunks_exact(embedder.channels())) {
                output.write(text, vector)?;
            }
            self.done += group.len() as u64;
        }
        if self.done == 0 {
            return Err(Failure::bad_input("there are no texts").hint("write one text per line"));
        }
        Ok(())
    }

    /// The vectors (N, C) of a group of N texts. Short texts are embedded first, so that a batch has texts of similar
    /// length.
    fn embed(&mut self, group: &[String], embedder: &mut Embedder<'_>) -> Result<Vec<f32>, Failure> {
        let (longest, channels) = (embedder.longest(), embedder.channels());
        let tokenized = group.par_iter().enumerate().map(|(index, text)| self.tokens(index, text, longest));
        let tokenized = tokenized.collect::<Result<Vec<_>, _>>()?;
        self.truncated += tokenized.iter().filter(|(_, is_truncated)| *is_truncated).count() as u64;
        let mut order = (0..group.len()).collect::<Vec<_>>();
        order.sort_by_key(|&index| tokenized[index].0.len());
        let mut vectors = vec![0.0; group.len() * channels];
        for batch in order.chunks(embedder.rows()) {
            let ids = batch.iter().map(|&index| &*tokenized[index].0).collect::<Vec<_>>();
            let found = embedder.embed(&ids)?;
            for (&index, vector) in batch.iter().zip(found.chunks_exact(channels)) {
                vectors[index * channels..][..channels].copy_from_slice(vector);
            }
        }
        if !self.args.no_normalize {
            normalize(&mut vectors, channels);
        }
        Ok(vectors)
    }

    /// The tokens of a text as in training, with those that begin and end it, and whether it was truncated.
    fn tokens(&self, index: usize, text: &str, longest: usize) -> Result<(Vec<u32>, bool), Failure> {
        let number = self.done + index as u64 + 1;
        let mut ids = self.tokenizer.beginning().to_vec();
        let end = self.tokenizer.end_token();
        let room = longest.saturating_sub(ids.len() + usize::from(end.is_some()));
        let text = [&self.args.prefix, text].concat();
        let found = self.tokenizer.encode_first(text.as_bytes(), room + 1);
        let found = found.map_err(|error| Failure::bad_input(format!("text {number} can't be tokenized: {error}")))?;
        let is_truncated = found.len() > room;
        ids.extend(found.into_iter().take(room).chain(end));
        ids.truncate(longest);
        if ids.is_empty() {
            return Err(Failure::bad_input(format!("text {number} has no tokens")).hint("remove empty texts"));
        }
        self.trained.chosen.check_ids(&ids, &format!("text {number}"))?;
        Ok((ids, is_truncated))
    }
}
