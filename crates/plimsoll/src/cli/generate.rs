//! `plimsoll generate`: text from a checkpoint. The text goes to stdout as it is written, everything else to stderr.

use super::budget::BudgetArgs;
use super::failure::{exit_code, io_failure};
use super::options::{number_from_zero, part, positive_size};
use super::train::PREFILL;
use super::{Failure, in_pool, model};
use crate::streams::talk;
use ::plan::plan_sampling;
use ::train::checkpoint::{
    AVERAGE_FILE, CONFIG_FILE, CheckpointError, STATE_FILE, State, load_averages, load_weights, newest_whole,
};
use ::train::{Engine, Sampling, Writer};
use clap::Args;
use data::{Tokenizer, TokenizerSpec};
use exec::CpuDevice;
use graph::{DeviceKind, SampleShape, Target};
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct GenerateArgs {
    /// A run, a checkpoint of one, or a folder saved by `transformers`
    #[arg(long, value_name = "PATH")]
    checkpoint: PathBuf,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: what the run was trained with]
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Text to go on from [default: the beginning of a document]
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: String,
    /// Most tokens to write
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "200")]
    max_tokens: usize,
    /// Divides the logits; 0 takes the likeliest token each time
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0.8")]
    temperature: f64,
    /// Draw from so many of the likeliest tokens only
    #[arg(long, value_name = "N", value_parser = positive_size)]
    top_k: Option<usize>,
    /// Draw from the likeliest tokens that together have this probability only
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    top_p: f32,
    /// Seed
    #[arg(long, value_name = "N", value_parser = super::options::seed, default_value = "1337")]
    seed: u64,
    /// Write no text; write the logits after each token of the prompt to this file: {"tokens": [..], "logits": [[..]..]}
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Use the moving average of the weights, of a run that kept one
    #[arg(long)]
    ema: bool,
    #[command(flatten)]
    budget: BudgetArgs,
}

pub(super) fn run(args: GenerateArgs) -> Result<u8, Failure> {
    let threads = args.budget.threads()?;
    in_pool(threads, || args.generate(threads))
}

impl GenerateArgs {
    fn generate(&self, threads: usize) -> Result<u8, Failure> {
        let folder = self.folder()?;
        if self.ema && !folder.join(AVERAGE_FILE).is_file() {
            let message = format!("{} holds no averaged weights", folder.display());
            return Err(Failure::bad_input(message)
                .hint("`plimsoll train --ema 0.999` keeps them; without `--ema` the weights themselves are used"));
        }
        let chosen = model::open(&folder.join(CONFIG_FILE).to_string_lossy())?;
        let spec = match &self.tokenizer {
            Some(spec) => spec.clone(),
            None => tokenizer_of(&folder).unwrap_or_else(|| chosen.default_tokenizer().to_owned()),
        };
        let tokenizer = Tokenizer::open(&spec.parse::<TokenizerSpec>()?)?;
        let target = Target { device: DeviceKind::Cpu, threads };
        let budget = self.budget.budget()?.bytes;
        let capacity = chosen.config.max_positions();
        let shape = SampleShape { prefill: PREFILL, capacity, source: capacity };
        let (graph, plan) = plan_sampling(&chosen.config, &shape, &target, budget)?;
        if plan.peak() > budget {
            let short = plan.peak() - budget;
            let message = format!("{} needs {}, the budget is {budget} (short {short})", chosen.name, plan.peak());
            return Err(Failure::new(exit_code::DOES_NOT_FIT, message).hint("a larger `--vram`"));
        }
        let mut engine = Engine::new(Box::new(CpuDevice::new()), &graph, plan)?;
        if self.ema {
            load_averages(&mut engine, &folder)?;
        } else {
            load_weights(&mut engine, &folder)?;
        }
        let vocab = tokenizer.vocab_size().min(chosen.config.vocab_size());
        let mut prompt = tokenizer
            .encode(self.prompt.as_bytes())
            .map_err(|e| Failure::bad_input(format!("the prompt can't be tokenized: {e}")))?;
        if prompt.is_empty() {
            prompt.push(tokenizer.separator().unwrap_or(0));
        }
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= chosen.config.vocab_size()) {
            let message =
                format!("token {id} of the prompt lies outside the model's {} ids", chosen.config.vocab_size());
            return Err(
                Failure::bad_input(message).hint("`--tokenizer` must be the one that the model was trained with")
            );
        }
        if let Some(path) = &self.logits {
            return write_logits(&mut engine, &prompt, path);
        }
        let sampling =
            Sampling { temperature: self.temperature as f32, top_k: self.top_k, top_p: self.top_p, seed: self.seed };
        let mut out = Stream::new(&tokenizer, self.prompt.as_bytes());
        let mut result = out.start();
        Writer::new(&mut engine).write(
            &prompt,
            self.max_tokens,
            vocab,
            tokenizer.separator(),
            &sampling,
            &mut |token| {
                result = out.push(token);
                result.is_ok()
            },
        )?;
        match result.and_then(|()| out.end()) {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit_code::DONE),
            other => other.map_err(io_failure("stdout")).map(|()| exit_code::DONE),
        }
    }

    /// The folder with the weights.
    fn folder(&self) -> Result<PathBuf, Failure> {
        let checkpoints = self.checkpoint.join("checkpoints");
        if !checkpoints.is_dir() && self.checkpoint.join(CONFIG_FILE).is_file() {
            return Ok(self.checkpoint.clone());
        } else if !checkpoints.is_dir() {
            let message = format!("{} is neither a run nor a folder with a {CONFIG_FILE}", self.checkpoint.display());
            return Err(Failure::bad_input(message)
                .hint("`--checkpoint` takes runs/NAME, a checkpoint in it, or a folder saved by `transformers`"));
        }
        let (newest, skipped) = newest_whole(&checkpoints);
        for skipped in skipped {
            talk(format_args!("warning: checkpoint {} is passed over: {}", skipped.path.display(), skipped.reason));
        }
        Ok(newest.ok_or(CheckpointError::None { path: self.checkpoint.clone() })?.0)
    }
}

/// What the model expects after each token of a prompt, for comparing with other implementations.
fn write_logits(engine: &mut Engine, prompt: &[u32], path: &Path) -> Result<u8, Failure> {
    let mut writer = Writer::new(engine);
    let logits = prompt.iter().map(|&token| Ok(writer.feed(&[token])?.to_vec()));
    let logits = logits.collect::<Result<Vec<_>, ::train::TrainError>>()?;
    let text = serde_json::json!({ "tokens": prompt, "logits": logits }).to_string();
    std::fs::write(path, text).map_err(io_failure(path.display()))?;
    Ok(exit_code::DONE)
}

/// The tokenizer that a run of ours was trained with.
fn tokenizer_of(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(STATE_FILE)).ok()?;
    Some(State::from_json(&text).ok()?.tokenizer)
}

/// Writes text to stdout token by token. Tokenizers may join or split characters between tokens, so all of the text
/// is decoded anew and only what is certain is written: not an unfinished character at its end.
struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    prompt: &'t [u8],
    tokens: Vec<u32>,
    written: usize,
}

impl<'t> Stream<'t> {
    fn new(tokenizer: &'t Tokenizer, prompt: &'t [u8]) -> Self {
        Self { tokenizer, prompt, tokens: Vec::new(), written: 0 }
    }

    fn start(&self) -> std::io::Result<()> {
        put(self.prompt)
    }

    fn push(&mut self, token: u32) -> std::io::Result<()> {
        self.tokens.push(token);
        let text = self.tokenizer.decode(&self.tokens);
        let certain = match std::str::from_utf8(&text) {
            Ok(whole) => whole.trim_end_matches('\u{FFFD}').len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => text.len(),
        };
        if certain > self.written {
            put(&text[self.written..certain])?;
            self.written = certain;
        }
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        let text = self.tokenizer.decode(&self.tokens);
        put(text.get(self.written..).unwrap_or_default())?;
        put(b"\n")
    }
}

fn put(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
