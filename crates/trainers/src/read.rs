//! Reads a trainer's settings: the run, including the trainer's own defaults, and the keys that were used, unknown, not
//! modeled or assumed.
//! Not here: the keys (`keys/`), and their lookup (`view.rs`).

use crate::command::Command;
use crate::document::Document;
use crate::flags;
use crate::keys;
use crate::kind::TrainerKind;
use crate::report::{BadValue, UnknownKey, UnmodeledKey, UsedKey};
use crate::run::{Run, Sharding};
use crate::view::View;
use plimsoll_units::Bytes;

/// Bucket size of PyTorch's `DistributedDataParallel`. Source: its documentation, `bucket_cap_mb`.
const DDP_BUCKET: Bytes = Bytes::mib(25);

/// A trainer's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// The trainer.
    pub kind: TrainerKind,
    /// The run, including the trainer's defaults.
    pub run: Run,
    /// The model's name, as in the settings.
    pub model: Option<String>,
    /// Keys that were used, in order of use.
    pub used: Vec<UsedKey>,
    /// Assumptions about settings without a key.
    pub assumed: Vec<String>,
    /// Unknown keys.
    pub unknown: Vec<UnknownKey>,
    /// Keys that affect memory and are not modeled, or not exactly.
    pub unmodeled: Vec<UnmodeledKey>,
    /// Paths of layers that the settings name, as written.
    pub layers: Vec<(TrainerKind, String)>,
    /// Whether the trainer has a default sample length.
    has_length: bool,
}

/// Why settings can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is not valid YAML or JSON, or has no keys.
    #[error("{what}")]
    Unreadable {
        /// The parser's message.
        what: String,
    },
    /// All invalid values.
    #[error("{}", bad_words(.0))]
    Values(Vec<BadValue>),
}

fn bad_words(bad: &[BadValue]) -> String {
    let line = |line: Option<u64>| line.map_or(String::new(), |line| format!("line {line}: "));
    let all = bad.iter().map(|bad| format!("{}`{}`: {}", line(bad.line), bad.key, bad.what));
    all.collect::<Vec<_>>().join("; ")
}

/// Reads a file's text. Errors: those of [`ReadError`].
pub fn read(kind: TrainerKind, text: &str) -> Result<Read, ReadError> {
    read_view(View::new(kind, &parse(text)?))
}

/// Reads a command line and the text of its settings file, if any. Errors: those of [`ReadError`].
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

/// Keys for the sample length.
const LENGTHS: &[&str] = &["sequence_len", "tokenizer.max_seq_len"];

impl Read {
    /// Whether the settings or the trainer's defaults contain the sample length.
    pub fn has_length(&self) -> bool {
        self.has_length
            || self.used.iter().any(|used| LENGTHS.contains(&used.key.as_str()) || keys::is_length(&used.key))
    }

    /// Applies a layer, a file of DeepSpeed or accelerate. Values of `auto` keep the trainer's setting.
    /// Errors: those of [`ReadError`] for the layer.
    pub fn layer(&mut self, kind: TrainerKind, text: &str) -> Result<(), ReadError> {
        let document = parse(text)?;
        let mut view = View::new(kind, &document);
        match kind {
            TrainerKind::Accelerate => keys::layer_accelerate(&mut view, &mut self.run, &mut self.layers),
            _ => keys::layer_deepspeed(&mut view, &mut self.run),
        }
        self.run.divide();
        view.unmodeled.iter().for_each(|key| self.run.unsure.add(key.effect));
        self.used.append(&mut view.used);
        self.unknown.append(&mut view.unknown());
        self.unmodeled.append(&mut view.unmodeled);
        self.assumed.append(&mut view.assumed);
        if view.bad.is_empty() { Ok(()) } else { Err(ReadError::Values(view.bad)) }
    }
}

impl Run {
    /// Uses DDP for a run on several cards without another kind of sharding, as PyTorch does.
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
    let View { used, unmodeled, assumed, of_trl, .. } = view;
    let has_length = match kind {
        TrainerKind::HuggingFace => of_trl,
        TrainerKind::Axolotl | TrainerKind::LlamaFactory | TrainerKind::Unsloth => true,
        TrainerKind::Torchtune | TrainerKind::DeepSpeed | TrainerKind::Accelerate => false,
    };
    Ok(Read { kind, run, model, used, assumed, unknown, unmodeled, layers, has_length })
}

#[cfg(test)]
mod tests;
