//! Which model: a preset, a config.json, or a folder of weights.

use super::Failure;
use plimsoll_data::Tokenizer;
use plimsoll_graph::models::ModelConfig;
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};

/// A model and what people call it.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// Preset or path.
    pub(super) name: String,
    /// The configuration.
    pub(super) config: ModelConfig,
    /// Whether sizes that a tokenizer or a sequence length suggest may still be set.
    pub(super) is_preset: bool,
}

/// Files of settings and of sizes are a few kilobytes.
pub(super) const CONFIG_BYTES_MAX: Bytes = Bytes::mib(1);

/// Opens a preset, a config.json or a folder with one.
pub(super) fn open(name: &str) -> Result<Chosen, Failure> {
    let path = Path::new(name);
    let looks_like_a_path = name.contains(std::path::is_separator) || name.ends_with(".json") || path.is_dir();
    if !looks_like_a_path {
        let config = ModelConfig::preset(name)?;
        return Ok(Chosen { name: name.to_ascii_lowercase().replace('_', "-"), config, is_preset: true });
    }
    let file: PathBuf = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let text = plimsoll_files::read_text(&file, CONFIG_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", file.display())))
        .map_err(|failure| failure.hint(format!("`--model` takes {}, or a config.json", preset_names())))?;
    let config = ModelConfig::from_json(&text)
        .map_err(|e| Failure::from(e).hint(format!("the configuration is {}", file.display())))?;
    Ok(Chosen { name: name.to_owned(), config, is_preset: false })
}

fn preset_names() -> String {
    ModelConfig::preset_names().join(", ")
}

impl Chosen {
    /// Fits a preset to a vocabulary. `nano` has no published sizes, so it takes as many positions as it is used with.
    pub(super) fn fit(&mut self, vocab_size: Option<usize>, seq_len: usize) {
        if self.is_preset {
            if let Some(vocab_size) = vocab_size {
                self.config.set_vocab_size(vocab_size);
            }
            if self.name == "nano" {
                self.config.set_max_positions(seq_len);
            }
        }
    }

    /// Takes over the ids that a tokenizer pads and ends with, for a model that starts from scratch.
    pub(super) fn fit_special_tokens(&mut self, tokenizer: &Tokenizer) {
        if let Some(end) = tokenizer.end_token() {
            self.config.set_special_tokens(tokenizer.pad_token().unwrap_or(0), end);
        }
    }

    /// Whether a source is answered with a target.
    pub(super) fn has_decoder(&self) -> bool {
        self.config.decoder_start().is_some()
    }

    /// The sequence length to train with if none was asked for.
    pub(super) fn default_seq_len(&self) -> usize {
        self.config.max_positions().min(if self.has_decoder() { USUAL_PAIR } else { 1024 })
    }

    /// Samples of a step if none were asked for.
    pub(super) fn usual_global_batch(&self) -> usize {
        if self.name == "nano" { 32 } else { 4 }
    }

    /// The tokenizer that a model goes with, where its file is not needed.
    pub(super) fn default_tokenizer(&self) -> Result<&'static str, Failure> {
        match (&self.config, self.config.vocab_size()) {
            (_, 256) => Ok("bytes"),
            (ModelConfig::Gpt2(_), _) => Ok("gpt2"),
            _ => Err(Failure::bad_flag(format!("{} needs the tokenizer that it was made with", self.name)).hint(
                "`--tokenizer PATH` takes its tokenizer.json; `plimsoll tokenizer train` makes one for a new model",
            )),
        }
    }
}

/// Tokens of a source and of a target at most, unless asked for otherwise.
pub(super) const USUAL_PAIR: usize = 512;
