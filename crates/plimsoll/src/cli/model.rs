//! The model: a preset, a config.json, or a folder of weights.

use super::failure::io_failure;
use super::{Failure, hub};
use crate::streams::talk;
use ::plimsoll_train::checkpoint::{CONFIG_FILE, has_own_head, read_state};
use plimsoll_data::{Tokenizer, TokenizerSpec};
use plimsoll_files::is_file;
use plimsoll_graph::models::ModelConfig;
use plimsoll_hub::is_hub_name;
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};

/// A model and its name for messages.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    /// Preset or path.
    pub(super) name: String,
    /// The configuration.
    pub(super) config: ModelConfig,
    /// Whether a tokenizer or a sequence length may still set sizes.
    pub(super) is_preset: bool,
    /// The folder of its config.json; `None` for a preset, or a configuration under another name than config.json.
    pub(super) folder: Option<PathBuf>,
}

/// Files of settings and of sizes are a few kilobytes.
pub(super) const CONFIG_BYTES_MAX: Bytes = Bytes::mib(1);

/// The model by its name or by its weights' folder; `nano` if neither is given. `downloads`: download the config.json of
/// a name on the hub. Errors: those of [`open`]; the model is not of the weights' family.
pub(super) fn choose(name: Option<&str>, weights: Option<&Path>, downloads: bool) -> Result<Chosen, Failure> {
    match (name, weights) {
        (Some(name), None) => open_or_download(name, downloads),
        (None, None) => open("nano"),
        (Some(name), Some(folder)) => match open(name)? {
            chosen if chosen.is_preset && has_sizes(folder)? => sized_by(folder, &chosen),
            chosen => Ok(chosen),
        },
        (None, Some(folder)) => open_next_to(folder),
    }
}

/// Whether a config.json is next to the weights. Errors: I/O errors of that check.
fn has_sizes(weights: &Path) -> Result<bool, Failure> {
    let path = weights.join(CONFIG_FILE);
    is_file(&path).map_err(io_failure(path.display()))
}

/// The model of the config.json next to the weights.
fn open_next_to(weights: &Path) -> Result<Chosen, Failure> {
    open(&weights.join(CONFIG_FILE).to_string_lossy())
}

/// The model of the weights in a folder, whose own config.json has the right sizes; prints a note.
/// Errors: it is not of the requested family.
fn sized_by(folder: &Path, asked: &Chosen) -> Result<Chosen, Failure> {
    let found = open_next_to(folder)?;
    if !found.config.is_like(&asked.config) {
        let message = format!("the weights in {} are of another family than {}", folder.display(), asked.name);
        return Err(Failure::bad_input(message).hint("omit `--model` to use the weights' own model"));
    }
    talk(format_args!("`--model {}` gives the family; using the sizes of {}", asked.name, found.name));
    Ok(found)
}

/// Opens a preset, by its name or by that of its weights on the Hugging Face hub, a config.json or a folder with one.
/// The cache's config.json of a name on the hub comes before a preset.
pub(super) fn open(name: &str) -> Result<Chosen, Failure> {
    open_or_download(name, false)
}

/// The same; `downloads`: download the config.json and the tokenizer of a name on the hub.
pub(super) fn open_or_download(name: &str, downloads: bool) -> Result<Chosen, Failure> {
    let path = Path::new(name);
    if name.ends_with(".json") || path.is_dir() {
        let file = if path.is_dir() { path.join(CONFIG_FILE) } else { path.to_owned() };
        return open_file(name, &file);
    }
    if let Some(folder) = hub::config_of(name, downloads)? {
        talk(format_args!("model: {}", folder.display()));
        return open_file(name, &folder.join(CONFIG_FILE));
    }
    if let Some(preset) = ModelConfig::preset_name(name) {
        if !ModelConfig::is_published_name(name) && !preset.eq_ignore_ascii_case(name) {
            talk(format_args!("note: {name} has the shape of {preset}, by its name"));
        }
        let config = ModelConfig::preset(&preset)?;
        return Ok(Chosen { config, name: preset, is_preset: true, folder: None });
    }
    if !name.contains(std::path::is_separator) || is_hub_name(name) {
        let failure = Failure::from(ModelConfig::preset(name).expect_err("not a preset"));
        return Err(match is_hub_name(name) {
            true => failure.hint("`--download` fetches its config.json and tokenizer from the Hugging Face hub"),
            false => failure,
        });
    }
    open_file(name, path)
}

/// Opens a config.json. `name`: for messages.
fn open_file(name: &str, file: &Path) -> Result<Chosen, Failure> {
    let text = plimsoll_files::read_text(file, CONFIG_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", file.display())))
        .map_err(|failure| {
            failure.hint("`--model` takes a name that `plimsoll models` lists, a config.json, or a folder with one")
        })?;
    let mut config = ModelConfig::from_json(&text)
        .map_err(|e| Failure::from(e).hint(format!("the configuration is {}", file.display())))?;
    if let Some(whole) = ModelConfig::multimodal_type(&text) {
        talk(format_args!("note: {} describes a `{whole}`; only its text model is used", file.display()));
    }
    if let Some(method) = ModelConfig::quantization(&text) {
        let use_of_them = match ModelConfig::has_codes_of_bitsandbytes(&text) {
            true => "`--base-weights` with the same format uses their codes, all else decodes them",
            false => "they are converted, and trained in the run's precision",
        };
        talk(format_args!("note: {} announces {method} weights; {use_of_them}", file.display()));
    }
    let assumed = config.assumed_sizes();
    if !assumed.is_empty() {
        let sizes = assumed.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ");
        talk(format_args!("note: {} lacks sizes; the defaults of transformers apply: {sizes}", file.display()));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    if config.leaves_head_to_weights() && has_own_head(folder) {
        config.untie_head();
    }
    let is_named_config = file.file_name().is_some_and(|file| file == CONFIG_FILE);
    let folder = is_named_config.then(|| folder.to_owned());
    Ok(Chosen { name: name.to_owned(), config, is_preset: false, folder })
}

impl Chosen {
    /// Fits a preset to a vocabulary. `nano` has no published sizes, so it gets as many positions as the run uses.
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

    /// Whether it is a published preset.
    pub(super) fn has_published_sizes(&self) -> bool {
        self.is_preset && !ModelConfig::hub_names(&self.name).is_empty()
    }

    /// The longest sequence of the model; unlimited for `nano`.
    pub(super) fn most_positions(&self) -> usize {
        if self.is_preset && self.name == "nano" { usize::MAX } else { self.config.max_positions() }
    }

    /// Takes the padding and end IDs of a tokenizer, for a model that starts from scratch.
    pub(super) fn fit_special_tokens(&mut self, tokenizer: &Tokenizer) {
        if let Some(end) = tokenizer.end_token() {
            self.config.set_special_tokens(tokenizer.pad_token().unwrap_or(0), end);
        }
    }

    /// Errors: an id is outside the vocabulary. `of`: what has these ids.
    pub(super) fn check_ids(&self, ids: &[u32], of: &str) -> Result<(), Failure> {
        let rows = self.config.vocab_size();
        match ids.iter().find(|&&id| id as usize >= rows) {
            Some(id) => Err(Failure::bad_input(format!("token {id} of {of} is outside the model's {rows} ids"))
                .hint("pass the tokenizer of the model's training to `--tokenizer`")),
            None => Ok(()),
        }
    }

    /// Whether a source is answered with a target.
    pub(super) fn has_decoder(&self) -> bool {
        self.config.decoder_start().is_some()
    }

    /// Whether it is trained on pairs: of sources and targets, or of texts that belong together.
    pub(super) fn takes_pairs(&self) -> bool {
        self.config.takes_pairs()
    }

    /// The sequence length to train with if none was asked for.
    pub(super) fn default_seq_len(&self) -> usize {
        self.config.max_positions().min(if self.takes_pairs() { USUAL_PAIR } else { 1024 })
    }

    /// The tokenizer of a model: in the folder of its weights or of its config.json, or else named by the checkpoint
    /// there, or else the built-in one of a preset. Weights without a tokenizer get a built-in one only if their
    /// vocabulary has exactly its size; a note reports that.
    /// Errors: no tokenizer is known; the checkpoint's state can't be read.
    pub(super) fn default_tokenizer(&self, weights: Option<&Path>) -> Result<TokenizerSpec, Failure> {
        for folder in weights.map(Path::to_owned).into_iter().chain(self.folder.clone()) {
            if let Some(spec) = TokenizerSpec::in_folder(&folder) {
                return Ok(spec);
            }
            if let Some(state) = read_state(&folder)? {
                return Ok(state.tokenizer.parse()?);
            }
        }
        let built_in = match (&self.config, self.config.vocab_size()) {
            (_, 256) => Some(TokenizerSpec::Bytes),
            (ModelConfig::T5(_), BYT5_IDS) => Some(TokenizerSpec::ByT5),
            (ModelConfig::Gpt2(_), GPT2_IDS) => Some(TokenizerSpec::Gpt2),
            (ModelConfig::Gpt2(_), _) if self.is_preset => Some(TokenizerSpec::Gpt2),
            _ => None,
        };
        let Some(spec) = built_in else {
            return Err(Failure::bad_flag(format!("{} needs its own tokenizer", self.name)).hint(
                "`--tokenizer PATH` takes its tokenizer.json; `plimsoll tokenizer train` makes one for a new model",
            ));
        };
        if let Some(folder) = weights.map(Path::to_owned).or_else(|| self.folder.clone()) {
            talk(format_args!("note: {} has no tokenizer, so the built-in `{spec}` is used", folder.display()));
        }
        Ok(spec)
    }
}

/// IDs of ByT5's tokenizer, and those of the published ByT5 models.
const BYT5_IDS: usize = 384;

/// IDs of GPT-2's tokenizer.
const GPT2_IDS: usize = 50_257;

/// The default limit on the tokens of a source and of a target.
pub(super) const USUAL_PAIR: usize = 512;
