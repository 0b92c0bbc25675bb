//! `plimsoll tokenizer train`: trains a tokenizer on text and writes its tokenizer.json.

use super::failure::exit_code;
use super::options::positive_size;
use super::{Failure, in_pool};
use crate::streams::write_data;
use clap::{Args, Subcommand, ValueEnum};
use plimsoll_data::{DEFAULT_TEXT_FIELD, TokenizerKind};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct TokenizerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a tokenizer; the same text gives the same file
    Train(TrainArgs),
}

#[derive(Debug, Args)]
struct TrainArgs {
    /// Text to train on: files, folders or patterns; each line of a .jsonl is a document
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    data: Vec<String>,
    /// Field of the text in .jsonl files
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TEXT_FIELD)]
    text_field: String,
    /// Kind of tokenizer: `bpe` (byte-level, as in GPT-2) or `unigram` (as in T5)
    #[arg(long, value_name = "KIND")]
    kind: Kind,
    /// Maximum vocabulary size, including special tokens
    #[arg(long, value_name = "N", value_parser = positive_size)]
    vocab_size: usize,
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Number of threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Bpe,
    Unigram,
}

pub(super) fn run(args: TokenizerArgs) -> Result<u8, Failure> {
    let Command::Train(args) = args.command;
    let threads = super::budget::threads(args.threads)?;
    in_pool(threads, || args.train())
}

impl TrainArgs {
    fn train(&self) -> Result<u8, Failure> {
        let kind = match self.kind {
            Kind::Bpe => TokenizerKind::Bpe,
            Kind::Unigram => TokenizerKind::Unigram,
        };
        let sources = plimsoll_data::resolve(&self.data, &self.text_field)?;
        let tokenizer = plimsoll_data::train_tokenizer(&sources, kind, self.vocab_size, &self.output)?;
        let (bytes, tokens) = plimsoll_data::count_tokens(&sources, &tokenizer)?;
        let bytes_per_token = bytes.0 as f64 / tokens as f64;
        if self.json {
            let value = json!({
                "output": self.output,
                "vocab_size": tokenizer.vocab_size(),
                "bytes_per_token": bytes_per_token,
                "end_token": tokenizer.end_token(),
                "pad_token": tokenizer.pad_token(),
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            write_data(format_args!(
                "{} tokens, {bytes_per_token:.2} bytes of this text per token: {}",
                tokenizer.vocab_size(),
                self.output.display()
            ))?;
        }
        Ok(exit_code::DONE)
    }
}
