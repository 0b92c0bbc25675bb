//! What a trainer's settings come to: the run, with the trainer's own defaults where nothing is told, and what was told,
//! assumed, not known and not modelled.
//! Not here: the keys (`keys/`), and how they are looked up (`view.rs`).

use crate::command::Command;
use crate::document::Document;
use crate::flags;
use crate::keys;
use crate::kind::Kind;
use crate::run::{Run, Sharding};
use crate::unsure::Effect;
use crate::view::View;
use plimsoll_units::Bytes;

/// Gradients that PyTorch's `DistributedDataParallel` sums at once. Source: its documentation, `bucket_cap_mb`.
const DDP_BUCKET: Bytes = Bytes::mib(25);

/// What a trainer was told.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// Whose settings they are.
    pub kind: Kind,
    /// The run, with the trainer's defaults.
    pub run: Run,
    /// The model's name, as the trainer calls it.
    pub model: Option<String>,
    /// Keys that count, in the order in which they were asked for.
    pub told: Vec<Told>,
    /// What is taken to be so, since no key says it; whole sentences.
    pub assumed: Vec<String>,
    /// Keys that nobody knows.
    pub unknown: Vec<Unknown>,
    /// Keys that matter for memory and are not modelled, or not exactly.
    pub unmodelled: Vec<Unmodelled>,
    /// Files that the settings name and that are to be layered onto them, as they are written.
    pub layers: Vec<(Kind, String)>,
    /// Whether the trainer's own defaults say how long samples are.
    has_length: bool,
}

/// A key that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Whose key it is.
    pub kind: Kind,
    /// With underscores; keys within keys are joined by dots.
    pub key: String,
    /// As it is shown.
    pub value: String,
    /// From 1; none for an argument.
    pub line: Option<u64>,
}

/// A key that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// In whose file it is.
    pub kind: Kind,
    /// The key.
    pub key: String,
    /// From 1; none for an argument.
    pub line: Option<u64>,
    /// The key that is spelled almost like it, if there is one.
    pub near: Option<String>,
}

/// A key that matters and is not modelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmodelled {
    /// Whose key it is.
    pub kind: Kind,
    /// The key.
    pub key: String,
    /// From 1; none for an argument.
    pub line: Option<u64>,
    /// How the memory needed may differ from what is counted.
    pub effect: Effect,
    /// What it does, and how it is taken instead.
    pub why: String,
}

/// A value that its key does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    /// Whose key it is.
    pub kind: Kind,
    /// The key.
    pub key: String,
    /// From 1; none for an argument.
    pub line: Option<u64>,
    /// What is wrong with it.
    pub what: String,
}

/// Why settings can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is no YAML, no JSON, or has no keys.
    #[error("{what}")]
    Unreadable {
        /// What the parser says.
        what: String,
    },
    /// Values are wrong: all of them.
    #[error("{}", bad_words(.0))]
    Values(Vec<BadValue>),
}

fn bad_words(bad: &[BadValue]) -> String {
    let line = |line: Option<u64>| line.map_or(String::new(), |line| format!("line {line}: "));
    let all = bad.iter().map(|bad| format!("{}`{}`: {}", line(bad.line), bad.key, bad.what));
    all.collect::<Vec<_>>().join("; ")
}

/// Reads a file's text. Errors: those of [`ReadError`].
pub fn read(kind: Kind, text: &str) -> Result<Read, ReadError> {
    read_view(View::new(kind, &parse(text)?))
}

/// Reads a command line, and the text of the file that it names, if that could be read. Errors: those of [`ReadError`].
pub fn read_command(command: &Command, argv: &[String], file: Option<&str>) -> Result<Read, ReadError> {
    let below = file.map_or_else(|| Ok(Document::default()), parse)?;
    let document = flags::overlay(&below, &flags::read(argv, command.own, command.style));
    let mut view = View::new(command.kind, &document);
    view.of_trl = command.of_trl;
    let mut read = read_view(view)?;
    if let Some(cards) = command.cards {
        read.run.cards = cards.max(1);
        read.run.divide();
    }
    Ok(read)
}

/// Keys that say how long samples are.
const LENGTHS: &[&str] = &["sequence_len", "tokenizer.max_seq_len"];

impl Read {
    /// Whether samples have a length of which the settings or the trainer's own defaults know.
    pub fn tells_length(&self) -> bool {
        self.has_length
            || self.told.iter().any(|told| LENGTHS.contains(&told.key.as_str()) || keys::is_length(&told.key))
    }

    /// Lays a file of DeepSpeed's or accelerate's over the trainer's settings; values that are `auto` stay the trainer's.
    /// Errors: those of [`ReadError`], of the file.
    pub fn layer(&mut self, kind: Kind, text: &str) -> Result<(), ReadError> {
        let document = parse(text)?;
        let mut view = View::new(kind, &document);
        match kind {
            Kind::Accelerate => keys::layer_accelerate(&mut view, &mut self.run, &mut self.layers),
            _ => keys::layer_deepspeed(&mut view, &mut self.run),
        }
        self.run.divide();
        view.unmodelled.iter().for_each(|key| self.run.unsure.add(key.effect));
        self.told.append(&mut view.told);
        self.unknown.append(&mut view.unknown());
        self.unmodelled.append(&mut view.unmodelled);
        self.assumed.append(&mut view.assumed);
        if view.bad.is_empty() { Ok(()) } else { Err(ReadError::Values(view.bad)) }
    }
}

impl Run {
    /// Divides a run among its cards as PyTorch does where nothing else is told: each has all, and gradients are summed.
    pub fn divide(&mut self) {
        if self.cards > 1 && self.sharding == Sharding::None {
            self.sharding = Sharding::Ddp { bucket: DDP_BUCKET, views: false };
        }
    }
}

fn parse(text: &str) -> Result<Document, ReadError> {
    Document::parse(text).map_err(|what| ReadError::Unreadable { what })
}

fn read_view(mut view: View) -> Result<Read, ReadError> {
    let kind = view.kind();
    let (mut run, model, layers) = keys::read(kind, &mut view);
    run.unsure = view.unsure();
    if !view.bad.is_empty() {
        return Err(ReadError::Values(view.bad));
    }
    let unknown = view.unknown();
    let View { told, unmodelled, assumed, of_trl, .. } = view;
    let has_length = match kind {
        Kind::HuggingFace => of_trl,
        Kind::Axolotl | Kind::LlamaFactory | Kind::Unsloth => true,
        Kind::Torchtune | Kind::DeepSpeed | Kind::Accelerate => false,
    };
    Ok(Read { kind, run, model, told, assumed, unknown, unmodelled, layers, has_length })
}

#[cfg(test)]
mod tests;
