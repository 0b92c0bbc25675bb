//! `plimsoll generate`: text from a checkpoint. The text goes to stdout as it is written, everything else to stderr.
//! Not here: the prompts (`prompts.rs`), messages from stdin (`conversation.rs`), and the visible text of tokens
//! (`answer.rs`).

mod answer;
mod conversation;
mod prompts;

use self::answer::Answer;
use self::prompts::{Addressing, Prompt, PromptArgs};
use super::blas::BlasArgs;
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::failure::{exit_code, io_failure};
use super::levers::BaseChoice;
use super::model::Chosen;
use super::options::{number_from_zero, part, positive_size};
use super::request::PREFILL;
use super::weights::{Trained, WeightsArgs};
use super::{Failure, in_pool};
use crate::streams::{talk, write_text};
use ::plimsoll_plan::plan_sampling;
use ::plimsoll_train::{Engine, Sampling, Writer};
use clap::Args;
use plimsoll_data::{AnswerEnds, Tokenizer};
use plimsoll_graph::SampleShape;
use plimsoll_render::memory;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    weights: WeightsArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Format of the weights of linear layers in memory [default: that of the run]
    #[arg(long, value_name = "FORMAT", value_enum)]
    base_weights: Option<BaseChoice>,
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

pub(super) fn run(args: GenerateArgs) -> Result<u8, Failure> {
    args.budget.refuse_range("generate")?;
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    in_pool(threads, || args.generate())
}

impl GenerateArgs {
    fn generate(&self) -> Result<u8, Failure> {
        let trained = self.weights.open()?;
        if trained.chosen.config.is_encoder() {
            return Err(Failure::bad_input(format!(
                "{} is an encoder: it computes vectors of texts and writes none",
                trained.chosen.name
            ))
            .hint(format!("`plimsoll embed --checkpoint {}` computes vectors", trained.folder.display())));
        }
        let tokenizer = self.weights.tokenizer(&trained)?;
        let chosen = trained.chosen.clone();
        let addressing = self.prompts.addressing(&trained.folder, &tokenizer, &chosen)?;
        let is_conversation = self.prompts.is_conversation() && self.logits.is_none();
        let prompts = match is_conversation {
            true => vec![],
            false => self.prompts.prompts(&addressing, &tokenizer, &chosen)?,
        };
        let Sizes { rows, longest, positions } = self.sizes(&chosen, &prompts)?;
        let shape = SampleShape { rows, prefill: PREFILL, capacity: positions, source: longest };
        let engine = self.engine(&trained, &shape)?;
        let Addressing { template, ends } = addressing;
        let mut session = Session { args: self, engine, tokenizer, chosen, ends, positions };
        let result = match (&self.logits, template) {
            (Some(path), _) => session.write_logits(&prompts[0].ids, path).map_err(Stopped::Failure),
            (None, Some(template)) if is_conversation => session.converse(&template),
            _ if self.prompts.prompt_file.is_some() || self.json => session.answer_all(&prompts).map(drop),
            _ => session.answer(&prompts[0]).map(drop),
        };
        talk(memory(&session.engine.memory().footprint, session.engine.plan().targets.device.kind()));
        match result {
            Ok(()) => Ok(exit_code::DONE),
            // The reader closed the pipe, and wants no more.
            Err(Stopped::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit_code::DONE),
            Err(Stopped::Output(error)) => Err(io_failure("stdout")(error)),
            Err(Stopped::Failure(failure)) => Err(failure),
        }
    }

    /// The sizes for these prompts, or for a conversation if there are none. Errors: `--logits` with more tokens than
    /// the model has positions.
    fn sizes(&self, chosen: &Chosen, prompts: &[Prompt]) -> Result<Sizes, Failure> {
        let most = chosen.config.max_positions();
        let longest = prompts.iter().map(|prompt| prompt.ids.len()).max();
        if let Some(longest) = longest.filter(|&longest| self.logits.is_some() && longest > most)
            && !chosen.has_decoder()
        {
            let message = format!("the prompt has {longest} tokens, but {} has {most} positions", chosen.name);
            return Err(Failure::bad_input(message).hint(format!("shorten the prompt to {most} tokens or less")));
        }
        let written = match longest {
            _ if chosen.has_decoder() => self.max_tokens,
            Some(longest) => longest.saturating_add(self.max_tokens),
            None => conversation::POSITIONS.max(self.max_tokens.saturating_mul(2)),
        };
        let rows = self.batch.min(prompts.len()).max(1);
        Ok(Sizes { rows, longest: longest.unwrap_or(1), positions: written.min(most) })
    }

    /// An engine with the weights.
    fn engine(&self, trained: &Trained, shape: &SampleShape) -> Result<Engine, Failure> {
        let opened = self.device.open(&self.budget, None)?;
        let (targets, budget) = (opened.device.targets, opened.device.budget.bytes);
        let codes = self.base_weights.map_or(trained.codes, BaseChoice::codes);
        let planned = plan_sampling(&trained.chosen.config, trained.adapters(), shape, codes, &targets, budget)?;
        self.weights.load(trained, planned, opened, &self.budget, "fewer `--max-tokens`")
    }

    fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temperature as f32, top_k: self.top_k, top_p: self.top_p, seed: self.seed }
    }
}

/// Rows, the tokens of the longest prompt, and the positions of the key/value caches.
struct Sizes {
    rows: usize,
    longest: usize,
    positions: usize,
}

/// A model that is ready to answer.
struct Session<'a> {
    args: &'a GenerateArgs,
    engine: Engine,
    tokenizer: Tokenizer,
    chosen: Chosen,
    ends: AnswerEnds,
    positions: usize,
}

/// A model's answer.
#[derive(Clone)]
struct Written {
    text: Vec<u8>,
    tokens: usize,
}

/// Why writing stopped early.
enum Stopped {
    /// The reader of the text is gone.
    Output(std::io::Error),
    /// Something else.
    Failure(Failure),
}

impl Session<'_> {
    /// Writes the model's answer to a prompt to stdout, token by token, after the prompt if it is continued. Returns
    /// the model's text.
    fn answer(&mut self, prompt: &Prompt) -> Result<String, Stopped> {
        let is_continued = !self.chosen.has_decoder() && !self.args.prompts.is_chat();
        let mut shown = 0;
        let mut result = write_text(if is_continued { prompt.text.as_bytes() } else { b"" });
        let mut show = |answer: &Answer<'_>| {
            let certain = answer.certain();
            if certain.len() > shown {
                result = write_text(&certain[shown..]);
                shown = certain.len();
            }
            result.is_ok()
        };
        let written = self.write(&[prompt], &mut show)?.remove(0);
        self.warn_of_length([prompt.ids.len(), written.tokens]);
        let left = written.text.get(shown..).unwrap_or_default();
        result.and_then(|()| write_text(left)).and_then(|()| write_text(b"\n")).map_err(Stopped::Output)?;
        Ok(String::from_utf8_lossy(&written.text).into_owned())
    }

    /// Writes the model's answer to each prompt to stdout, one line each, several prompts at a time. Returns the
    /// model's texts.
    fn answer_all(&mut self, prompts: &[Prompt]) -> Result<Vec<String>, Stopped> {
        let rows = self.args.batch.min(prompts.len());
        // All answers start at the same position; prompts to continue must therefore have the same length.
        let has_decoder = self.chosen.has_decoder();
        let alike = |a: &usize, b: &usize| has_decoder || prompts[*a].ids.len() == prompts[*b].ids.len();
        let mut order = (0..prompts.len()).collect::<Vec<_>>();
        order.sort_by_key(|&i| prompts[i].ids.len());
        let mut written = vec![None; prompts.len()];
        let (mut texts, mut longest) = (Vec::new(), [0, 0]);
        for group in order.chunk_by(alike).flat_map(|group| group.chunks(rows)) {
            let group_prompts = group.iter().map(|&i| &prompts[i]).collect::<Vec<_>>();
            let answers = self.write(&group_prompts, &mut |_| true)?;
            let lengths = group_prompts.iter().zip(&answers).map(|(prompt, answer)| [prompt.ids.len(), answer.tokens]);
            longest = lengths.chain([longest]).max_by_key(|[prompt, answer]| prompt + answer).unwrap_or(longest);
            for (&i, answer) in group.iter().zip(answers) {
                written[i] = Some(answer);
            }
            // In the order of the file, up to the first missing answer.
            while let Some(Some(answer)) = written.get(texts.len()) {
                let text = String::from_utf8_lossy(&answer.text).into_owned();
                self.show(&prompts[texts.len()].text, &text, answer.tokens).map_err(Stopped::Output)?;
                texts.push(text);
            }
        }
        self.warn_of_length(longest);
        Ok(texts)
    }

    /// The model's answers to some prompts, at most as many as the plan's rows. `show` receives an answer after each of
    /// its tokens, and returns whether to continue it.
    fn write(
        &mut self,
        prompts: &[&Prompt],
        show: &mut dyn FnMut(&Answer<'_>) -> bool,
    ) -> Result<Vec<Written>, Stopped> {
        let Self { args, engine, tokenizer, chosen, ends, .. } = self;
        let vocab = tokenizer.vocab_size().min(chosen.config.vocab_size());
        let ids = prompts.iter().map(|prompt| &*prompt.ids).collect::<Vec<_>>();
        let mut answers = prompts.iter().map(|_| Answer::new(tokenizer, ends)).collect::<Vec<_>>();
        let mut on_token = |prompt: usize, token| {
            let continues = answers[prompt].push(token);
            show(&answers[prompt]) && continues
        };
        Writer::new(engine, chosen.config.decoder_start())
            .write(&ids, args.max_tokens, vocab, &ends.ids, &args.sampling(), &mut on_token)
            .map_err(|error| Stopped::Failure(error.into()))?;
        Ok(answers.iter().map(|answer| Written { text: answer.text().to_vec(), tokens: answer.tokens() }).collect())
    }

    /// Writes an answer as a line.
    fn show(&self, prompt: &str, text: &str, tokens: usize) -> std::io::Result<()> {
        let line = match self.args.json {
            true => json!({ "prompt": prompt, "text": text, "tokens": tokens }).to_string(),
            false => text.replace(['\n', '\r'], " "),
        };
        write_text(format!("{line}\n").as_bytes())
    }

    /// Warns of a text that is longer than the model's positions, given the tokens of its prompt and its answer.
    fn warn_of_length(&self, [prompt, answer]: [usize; 2]) {
        let positions = self.chosen.config.max_positions();
        if !self.chosen.has_decoder() && prompt + answer > positions {
            talk(format_args!(
                "warning: a prompt of {prompt} tokens and its answer of {answer} exceed the model's {positions} positions; \
                 the tokens beyond them attend only to the last {} to {positions} tokens\nhint: use a shorter prompt or fewer \
                 `--max-tokens`",
                positions / 2
            ));
        }
    }

    /// Writes the logits after each token of a prompt, or after the decoder's first token if there is a decoder, for
    /// comparison with other implementations. One token at a time: all logits together may need more memory than the
    /// plan.
    fn write_logits(&mut self, prompt: &[u32], path: &Path) -> Result<(), Failure> {
        let start = self.chosen.config.decoder_start();
        let mut writer = Writer::new(&mut self.engine, start);
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
}
