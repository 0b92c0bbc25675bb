//! `plimsoll generate`: text from a checkpoint. The text goes to stdout as it is written, everything else to stderr.

use super::blas::BlasArgs;
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::failure::{exit_code, io_failure};
use super::hub;
use super::model::Chosen;
use super::options::{number_from_zero, part, positive_size};
use super::train::PREFILL;
use super::{Failure, in_pool, model};
use crate::report::memory;
use crate::streams::{talk, write_text};
use ::plimsoll_plan::plan_sampling;
use ::plimsoll_train::checkpoint::{
    AVERAGE_FILE, CONFIG_FILE, CheckpointError, load_averages, load_weights, newest_whole,
};
use ::plimsoll_train::{Engine, Sampling, Writer};
use clap::Args;
use plimsoll_data::{Tokenizer, TokenizerSpec};
use plimsoll_files::{is_file, is_folder};
use plimsoll_graph::SampleShape;
use plimsoll_units::Bytes;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Prompts, and what a run says about itself, are far shorter.
const PROMPT_BYTES_MAX: Bytes = Bytes::mib(16);

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct GenerateArgs {
    /// A run, a checkpoint of one, a folder saved by `transformers`, or what the Hugging Face cache has under this name
    #[arg(long, value_name = "PATH|NAME")]
    checkpoint: PathBuf,
    /// Fetch the weights that `--checkpoint` names from the Hugging Face hub if they are not in the cache
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    download: bool,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: what the run was trained with]
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Text to continue; for an encoder-decoder, the source [default: the beginning of a document]
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: String,
    /// File of prompts, one per line; writes one line for each, in the same order
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "logits"])]
    prompt_file: Option<PathBuf>,
    /// Prompts per batch; prompts to continue are batched only with prompts of the same length
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "8")]
    batch: usize,
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "200")]
    max_tokens: usize,
    /// Sampling temperature; 0 always picks the most likely token
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0.8")]
    temperature: f64,
    /// Sample only from the N most likely tokens
    #[arg(long, value_name = "N", value_parser = positive_size)]
    top_k: Option<usize>,
    /// Sample only from the most likely tokens whose probabilities add up to this
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    top_p: f32,
    /// Random seed
    #[arg(long, value_name = "N", value_parser = super::options::seed, default_value = "1337")]
    seed: u64,
    /// Write the logits after each prompt token to this file instead of text: {"tokens": [..], "logits": [[..]..]}
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Use the moving average of the weights, if the run kept one
    #[arg(long)]
    ema: bool,
    /// Print a line of JSON for each prompt: {"prompt": .., "text": .., "tokens": N}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    blas: BlasArgs,
}

pub(super) fn run(mut args: GenerateArgs) -> Result<u8, Failure> {
    args.checkpoint = hub::weights_of(args.checkpoint, args.download)?;
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    in_pool(threads, || args.generate())
}

impl GenerateArgs {
    fn generate(&self) -> Result<u8, Failure> {
        let folder = self.folder()?;
        let averages = folder.join(AVERAGE_FILE);
        if self.ema && !is_file(&averages).map_err(io_failure(averages.display()))? {
            let message = format!("{} has no averaged weights", folder.display());
            return Err(Failure::bad_input(message)
                .hint("train with `--ema 0.999` to keep them, or leave out `--ema` to use the weights themselves"));
        }
        let chosen = model::open(&folder.join(CONFIG_FILE).to_string_lossy())?;
        let spec = match &self.tokenizer {
            Some(spec) => spec.parse::<TokenizerSpec>()?,
            None => chosen.default_tokenizer(Some(&folder))?,
        };
        let tokenizer = Tokenizer::open(&spec)?;
        tokenizer.special_in_words().into_iter().for_each(|words| talk(format_args!("tokenizer: {words}")));
        let prompts = self.prompts()?;
        let ids = prompts.iter().map(|text| self.encode(text, &tokenizer, &chosen)).collect::<Result<Vec<_>, _>>()?;
        let mut engine = self.engine(&folder, &chosen, &ids)?;
        if let Some(path) = &self.logits {
            write_logits(&mut engine, &chosen, &ids[0], path)?;
            talk(memory(&engine.memory().footprint));
            return Ok(exit_code::DONE);
        }
        let result = match self.prompt_file.is_some() || self.json {
            true => self.answer_all(&mut engine, &tokenizer, &chosen, &prompts, &ids),
            false => self.answer(&mut engine, &tokenizer, &chosen, &prompts[0], &ids[0]),
        };
        talk(memory(&engine.memory().footprint));
        match result {
            Ok(()) => Ok(exit_code::DONE),
            // Whoever reads has seen enough.
            Err(Stopped::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit_code::DONE),
            Err(Stopped::Output(error)) => Err(io_failure("stdout")(error)),
            Err(Stopped::Failure(failure)) => Err(failure),
        }
    }

    /// What is to be continued. Errors: the file can't be read, or is empty.
    fn prompts(&self) -> Result<Vec<String>, Failure> {
        let Some(path) = &self.prompt_file else { return Ok(vec![self.prompt.clone()]) };
        let text = plimsoll_files::read_any_text(path, PROMPT_BYTES_MAX)
            .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", path.display())))
            .map_err(|failure| failure.hint("write one prompt per line, in UTF-8"))?;
        let prompts = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect::<Vec<_>>();
        if prompts.is_empty() {
            let message = format!("{} has no prompt", path.display());
            return Err(Failure::bad_input(message).hint("write one prompt per line"));
        }
        Ok(prompts)
    }

    /// The ids of a prompt. A source ends as those do that models with a decoder are trained on.
    fn encode(&self, text: &str, tokenizer: &Tokenizer, chosen: &Chosen) -> Result<Vec<u32>, Failure> {
        let mut ids = tokenizer
            .encode(text.as_bytes())
            .map_err(|e| Failure::bad_input(format!("the prompt can't be tokenized: {e}")))?;
        if chosen.has_decoder() {
            ids.extend(tokenizer.end_token());
        } else if !ids.starts_with(tokenizer.beginning()) {
            ids.splice(..0, tokenizer.beginning().iter().copied());
        }
        if ids.is_empty() {
            ids.push(tokenizer.separator().unwrap_or(0));
        }
        let positions = chosen.config.max_positions();
        if self.logits.is_some() && !chosen.has_decoder() && ids.len() > positions {
            let message = format!("the prompt has {} tokens, but {} has {positions} positions", ids.len(), chosen.name);
            return Err(Failure::bad_input(message).hint(format!("shorten the prompt to {positions} tokens or less")));
        }
        let rows = chosen.config.vocab_size();
        match ids.iter().find(|&&id| id as usize >= rows) {
            Some(id) => Err(Failure::bad_input(format!("token {id} of the prompt is outside the model's {rows} ids"))
                .hint("give `--tokenizer` the one that the model was trained with")),
            None => Ok(ids),
        }
    }

    /// An engine with the weights, with room for the longest prompt and what is written to it.
    fn engine(&self, folder: &Path, chosen: &Chosen, ids: &[Vec<u32>]) -> Result<Engine, Failure> {
        let longest = ids.iter().map(Vec::len).max().unwrap_or(1);
        let written = if chosen.has_decoder() { self.max_tokens } else { longest.saturating_add(self.max_tokens) };
        let capacity = written.min(chosen.config.max_positions());
        let rows = self.batch.min(ids.len());
        let shape = SampleShape { rows, prefill: PREFILL, capacity, source: longest };
        let opened = self.device.open(&self.budget, None)?;
        let (targets, budget) = (opened.device.targets, opened.device.budget.bytes);
        let (graph, plan) = plan_sampling(&chosen.config, &shape, &targets, budget)?;
        if plan.peak() > budget {
            let short = plan.peak() - budget;
            let message = format!("{} needs {}, the budget is {budget} (short {short})", chosen.name, plan.peak());
            let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
            let failure = match opened.uuid() {
                Some(uuid) => failure.naming_holders(&uuid),
                None => failure,
            };
            return Err(failure.hint(match self.budget.vram {
                Some(_) => "use a larger `--vram` or fewer `--max-tokens`",
                None => "use fewer `--max-tokens`, or end other programs that hold memory",
            }));
        }
        opened.check_free(&self.budget, &plan)?;
        let mut engine = Engine::new(opened.into_device(&self.budget), &graph, plan)?;
        if self.ema {
            load_averages(&mut engine, folder)?;
        } else {
            load_weights(&mut engine, folder)?;
        }
        Ok(engine)
    }

    fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temperature as f32, top_k: self.top_k, top_p: self.top_p, seed: self.seed }
    }

    /// Writes a prompt and what the model makes of it to stdout, token by token.
    fn answer(
        &self,
        engine: &mut Engine,
        tokenizer: &Tokenizer,
        chosen: &Chosen,
        text: &str,
        prompt: &[u32],
    ) -> Result<(), Stopped> {
        let vocab = tokenizer.vocab_size().min(chosen.config.vocab_size());
        let mut out = Stream::new(tokenizer, if chosen.has_decoder() { b"" } else { text.as_bytes() });
        let mut result = out.start();
        Writer::new(engine, chosen.config.decoder_start())
            .write(&[prompt], self.max_tokens, vocab, &tokenizer.ends(), &self.sampling(), &mut |_, token| {
                result = out.push(token);
                result.is_ok()
            })
            .map_err(|error| Stopped::Failure(error.into()))?;
        warn_of_length(chosen, [prompt.len(), out.tokens.len()]);
        result.and_then(|()| out.end()).map_err(Stopped::Output)
    }

    /// Writes what the model makes of each prompt to stdout, a line each, some prompts at a time.
    fn answer_all(
        &self,
        engine: &mut Engine,
        tokenizer: &Tokenizer,
        chosen: &Chosen,
        texts: &[String],
        ids: &[Vec<u32>],
    ) -> Result<(), Stopped> {
        let vocab = tokenizer.vocab_size().min(chosen.config.vocab_size());
        let rows = self.batch.min(ids.len());
        // Answers begin at the same position for all, but what is continued must be as long as its neighbours.
        let alike = |a: &usize, b: &usize| chosen.has_decoder() || ids[*a].len() == ids[*b].len();
        let mut order = (0..ids.len()).collect::<Vec<_>>();
        order.sort_by_key(|&i| ids[i].len());
        let mut written = vec![None; ids.len()];
        let (mut shown, mut longest) = (0, [0, 0]);
        for group in order.chunk_by(alike).flat_map(|group| group.chunks(rows)) {
            let prompts = group.iter().map(|&i| ids[i].as_slice()).collect::<Vec<_>>();
            let mut answers = vec![vec![]; group.len()];
            let mut on_token = |prompt: usize, token: u32| {
                answers[prompt].push(token);
                true
            };
            Writer::new(engine, chosen.config.decoder_start())
                .write(&prompts, self.max_tokens, vocab, &tokenizer.ends(), &self.sampling(), &mut on_token)
                .map_err(|error| Stopped::Failure(error.into()))?;
            let lengths = prompts.iter().zip(&answers).map(|(prompt, answer)| [prompt.len(), answer.len()]);
            longest = lengths.chain([longest]).max_by_key(|[prompt, answer]| prompt + answer).unwrap_or(longest);
            for (&i, answer) in group.iter().zip(answers) {
                written[i] = Some(answer);
            }
            // In the order of the file, as far as all is there.
            while let Some(Some(answer)) = written.get(shown) {
                self.show(tokenizer, &texts[shown], answer).map_err(Stopped::Output)?;
                shown += 1;
            }
        }
        warn_of_length(chosen, longest);
        Ok(())
    }

    /// Writes an answer as a line.
    fn show(&self, tokenizer: &Tokenizer, prompt: &str, answer: &[u32]) -> std::io::Result<()> {
        let text = String::from_utf8_lossy(&tokenizer.decode(answer)).into_owned();
        let line = match self.json {
            true => json!({ "prompt": prompt, "text": text, "tokens": answer.len() }).to_string(),
            false => text.replace(['\n', '\r'], " "),
        };
        write_text(format!("{line}\n").as_bytes())
    }

    /// The folder with the weights.
    fn folder(&self) -> Result<PathBuf, Failure> {
        let checkpoints = self.checkpoint.join("checkpoints");
        let is_run = is_folder(&checkpoints).map_err(io_failure(checkpoints.display()))?;
        let config = self.checkpoint.join(CONFIG_FILE);
        if !is_run && is_file(&config).map_err(io_failure(config.display()))? {
            return Ok(self.checkpoint.clone());
        } else if !is_run {
            let message = format!("{} is neither a run nor a folder with a {CONFIG_FILE}", self.checkpoint.display());
            return Err(Failure::bad_input(message)
                .hint("`--checkpoint` takes runs/NAME, a checkpoint in it, or a folder saved by `transformers`"));
        }
        let newest = newest_whole(&checkpoints)?;
        for skipped in newest.skipped {
            talk(format_args!("warning: checkpoint {} is skipped: {}", skipped.path.display(), skipped.reason));
        }
        Ok(newest.found.ok_or(CheckpointError::None { path: self.checkpoint.clone() })?.0)
    }
}

/// Warns of a text that is longer than the model's positions, given the tokens of its prompt and its answer.
fn warn_of_length(chosen: &Chosen, [prompt, answer]: [usize; 2]) {
    let positions = chosen.config.max_positions();
    if !chosen.has_decoder() && prompt + answer > positions {
        talk(format_args!(
            "warning: a prompt of {prompt} tokens and its answer of {answer} exceed the model's {positions} positions; the \
             tokens beyond them attend only to the last {} to {positions} tokens\nhint: use a shorter prompt or fewer \
             `--max-tokens`",
            positions / 2
        ));
    }
}

/// Why writing stopped early.
enum Stopped {
    /// Nobody takes the text.
    Output(std::io::Error),
    /// Something else.
    Failure(Failure),
}

/// What the model expects after each token of a prompt, or after the decoder's first where there is one, for comparing
/// with other implementations. Written token by token: all of them may be more than the plan.
fn write_logits(engine: &mut Engine, chosen: &Chosen, prompt: &[u32], path: &Path) -> Result<(), Failure> {
    let start = chosen.config.decoder_start();
    let mut writer = Writer::new(engine, start);
    writer.encode(&[prompt])?;
    let fed = start.map_or_else(|| prompt.to_vec(), |start| vec![start]);
    let mut file = BufWriter::new(File::create(path).map_err(io_failure(path.display()))?);
    let mut put = |text: String| file.write_all(text.as_bytes()).map_err(io_failure(path.display()));
    let source = start.map_or(String::new(), |_| format!(r#""source":{},"#, json!(prompt)));
    put(format!(r#"{{{source}"tokens":{},"logits":["#, json!(fed)))?;
    for (index, &token) in fed.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        put(format!("{comma}{}", json!(writer.feed(&[&[token]])?)))?;
    }
    put("]}\n".to_owned())?;
    file.flush().map_err(io_failure(path.display()))
}

/// Writes text to stdout token by token. Tokenizers may join or split characters between tokens, so all of the text
/// is decoded again and only what is certain is written: not an unfinished character at its end.
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
        write_text(self.prompt)
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
            write_text(&text[self.written..certain])?;
            self.written = certain;
        }
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        let text = self.tokenizer.decode(&self.tokens);
        write_text(text.get(self.written..).unwrap_or_default())?;
        write_text(b"\n")
    }
}
