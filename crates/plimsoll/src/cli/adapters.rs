//! The flags of the training method: the whole model, or low-rank adapters of its linear layers.

use super::failure::io_failure;
use super::options::{positive_number, positive_size, rate};
use super::{Failure, hub};
use ::plimsoll_train::checkpoint::{ADAPTER_CONFIG_FILE, bitsandbytes_codes, read_adapters};
use clap::{Args, ValueEnum};
use plimsoll_files::is_file;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{AdapterError, AdapterSettings, AdapterTargets, Adapters, WeightCodes};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What is trained.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Method")]
pub(super) struct AdapterArgs {
    /// What to train: `full` trains the model's parameters, `lora` freezes them and trains low-rank adapters, `qlora` also
    /// stores the frozen weights in NF4, as `--base-weights` does
    #[arg(long, value_name = "METHOD", value_enum, default_value_t = Method::Full)]
    pub(super) method: Method,
    /// Rank of the adapters [default: 16]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    lora_rank: Option<usize>,
    /// Alpha of the adapters, whose results are multiplied by alpha over the rank [default: twice the rank]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    lora_alpha: Option<f64>,
    /// Dropout of the adapters' inputs [default: 0]
    #[arg(long, value_name = "X", value_parser = rate)]
    lora_dropout: Option<f32>,
    /// Layers that get adapters: `all-linear`, or names such as `q_proj,v_proj,lm_head`, in which `*` matches any characters
    /// [default: all-linear]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    lora_targets: Vec<String>,
    /// Other ranks for some layers: `down_proj=32`. Can be repeated
    #[arg(long, value_name = "NAME=N", value_parser = pair::<usize>)]
    lora_rank_pattern: Vec<(String, usize)>,
    /// Other alphas for some layers: `down_proj=64`. Can be repeated
    #[arg(long, value_name = "NAME=X", value_parser = pair::<f32>)]
    lora_alpha_pattern: Vec<(String, f32)>,
    /// Modules to train whole in addition to the adapters, such as `lm_head`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    lora_modules_to_save: Vec<String>,
    /// rsLoRA: multiply by alpha over the square root of the rank
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    rslora: bool,
    /// DoRA: also train the magnitude of each output of the adapted layers
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    dora: bool,
    /// LoRA+: the learning rate of the adapters' second matrices, relative to that of the first [default: 1]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    lora_plus_ratio: Option<f64>,
    /// The adapters to continue, and their folder.
    #[arg(skip)]
    continued: Option<(PathBuf, Adapters)>,
    /// The weights below the adapters, as the user named them: a name on the hub, or an absolute path.
    #[arg(skip)]
    base: Option<String>,
}

/// `--method`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Method {
    /// All parameters.
    #[default]
    Full,
    /// Low-rank adapters.
    Lora,
    /// Low-rank adapters of weights in codes.
    Qlora,
}

impl Method {
    /// Whether adapters are trained.
    pub(super) fn has_adapters(self) -> bool {
        self != Self::Full
    }
}

/// Flags that also apply to adapters that are continued.
const OF_ANY: [&str; 2] = ["lora_dropout", "lora_plus_ratio"];

/// `NAME=VALUE`.
fn pair<T: FromStr>(text: &str) -> Result<(String, T), String> {
    let parsed = text.split_once('=').and_then(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)));
    parsed.filter(|(name, _)| !name.is_empty()).ok_or_else(|| format!("`{text}` is not a name, `=` and a number"))
}

/// Pairs as a settings file writes them.
fn pairs<T: Display>(pairs: &[(String, T)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

impl AdapterArgs {
    /// The adapters of a model; `None` if the model is trained whole. Errors: flags of adapters without adapters, names
    /// that match nothing, a rank that does not fit.
    pub(super) fn adapters(&self, model: &ModelConfig) -> Result<Option<Adapters>, Failure> {
        let given = self.given();
        if let Some((folder, adapters)) = &self.continued {
            let mut adapters = adapters.clone();
            if let Some((flag, _)) = given.iter().find(|(flag, _)| !OF_ANY.contains(flag)) {
                let flag = flag.replace('_', "-");
                return Err(Failure::bad_flag(format!(
                    "`--{flag}` does not apply to the adapters in {}",
                    folder.display()
                ))
                .hint(format!("omit `--{flag}`, or start new adapters with `--init` of the model below them")));
            }
            adapters.dropout = self.lora_dropout.unwrap_or(adapters.dropout);
            return Ok(Some(adapters));
        }
        if self.method == Method::Full {
            return match given.keys().next() {
                None => Ok(None),
                Some(flag) => {
                    let flag = flag.replace('_', "-");
                    Err(Failure::bad_flag(format!("`--{flag}` needs `--method lora`"))
                        .hint("without a method, all of the model's parameters are trained"))
                }
            };
        }
        Ok(Some(Adapters::of(model, &self.settings())?))
    }

    fn settings(&self) -> AdapterSettings {
        let usual = AdapterSettings::default();
        let rank = self.lora_rank.unwrap_or(usual.rank);
        let targets = match self.lora_targets.as_slice() {
            [] => AdapterTargets::AllLinear,
            [one] if one == "all-linear" => AdapterTargets::AllLinear,
            names => AdapterTargets::Named(names.to_vec()),
        };
        AdapterSettings {
            rank,
            alpha: self.lora_alpha.map_or(2.0 * rank as f32, |alpha| alpha as f32),
            dropout: self.lora_dropout.unwrap_or(usual.dropout),
            targets,
            ranks: self.lora_rank_pattern.iter().cloned().collect(),
            alphas: self.lora_alpha_pattern.iter().cloned().collect(),
            is_rank_stabilized: self.rslora,
            saved: self.lora_modules_to_save.clone(),
            has_magnitudes: self.dora,
        }
    }

    /// The learning rate of second matrices, relative to that of the first.
    pub(super) fn lora_plus(&self) -> f32 {
        self.lora_plus_ratio.map_or(1.0, |ratio| ratio as f32)
    }

    /// The folder of the adapters to continue.
    pub(super) fn continued(&self) -> Option<PathBuf> {
        self.continued.as_ref().map(|(folder, _)| folder.clone())
    }

    /// Prepares `--init` for adapters: if it is a folder with adapters, they are continued, and the weights below them are
    /// used. `asked`: what `--init` names; `init`: its folder. Errors: the adapters can't be read, or do not name their weights; no weights are given.
    pub(super) fn resolve_init(
        &mut self,
        asked: Option<PathBuf>,
        init: Option<PathBuf>,
        downloads: bool,
    ) -> Result<Option<PathBuf>, Failure> {
        let asked = asked.or(init.clone()).unwrap_or_default();
        let named = |path: &Path| match path.exists() {
            true => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned(),
            false => path.to_string_lossy().into_owned(),
        };
        let Some(init) = init else {
            return match self.method {
                Method::Full => Ok(None),
                Method::Lora | Method::Qlora => {
                    Err(Failure::bad_flag("`--method lora` needs `--init`, the weights below the adapters")
                        .hint("`--init Qwen/Qwen3-0.6B --download` downloads them"))
                }
            };
        };
        let Some(Below { adapters, base, weights }) = below(&init, downloads)? else {
            if self.method.has_adapters() {
                self.base = Some(named(&asked));
            }
            return Ok(Some(init));
        };
        if !self.method.has_adapters() {
            self.method = Method::Lora;
        }
        self.base = Some(named(Path::new(&base)));
        self.continued = Some((PathBuf::from(named(&init)), adapters));
        Ok(Some(weights))
    }

    /// Errors: the weights in a folder, which are trained whole, are quantized, or are in codes that are not read.
    pub(super) fn check_codes(&self, weights: &Path) -> Result<(), Failure> {
        match bitsandbytes_codes(weights)? {
            Some(codes) if self.method == Method::Full => {
                let (folder, codes) = (weights.display(), codes.name());
                let message =
                    format!("the weights in {folder} are {codes} codes of bitsandbytes, which can't be trained whole");
                let failure = Failure::bad_input(message);
                Err(failure
                    .hint("`--method qlora` trains adapters over them, and `plimsoll merge` adds these to the weights"))
            }
            _ => Ok(()),
        }
    }

    /// The codes of the frozen weights, unless a flag chooses others.
    pub(super) fn codes(&self) -> Option<WeightCodes> {
        (self.method == Method::Qlora).then_some(WeightCodes::Nf4)
    }

    /// The name or path of the weights below the adapters.
    pub(super) fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The flags of adapters that are given, as settings.
    fn given(&self) -> BTreeMap<&'static str, Value> {
        let lists = [
            ("lora_targets", self.lora_targets.clone()),
            ("lora_modules_to_save", self.lora_modules_to_save.clone()),
            ("lora_rank_pattern", pairs(&self.lora_rank_pattern)),
            ("lora_alpha_pattern", pairs(&self.lora_alpha_pattern)),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(key, list)| (key, json!(list)));
        let numbers = [
            ("lora_rank", self.lora_rank.map(|rank| json!(rank))),
            ("lora_alpha", self.lora_alpha.map(|alpha| json!(alpha.to_string()))),
            ("lora_dropout", self.lora_dropout.map(|rate| json!(rate.to_string()))),
            ("lora_plus_ratio", self.lora_plus_ratio.map(|ratio| json!(ratio.to_string()))),
            ("rslora", self.rslora.then_some(json!(true))),
            ("dora", self.dora.then_some(json!(true))),
        ];
        lists.chain(numbers.into_iter().filter_map(|(key, value)| Some((key, value?)))).collect()
    }

    /// The flags as settings of a run.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let method = match self.method {
            Method::Full => None,
            Method::Lora => Some(("method", json!("lora"))),
            Method::Qlora => Some(("method", json!("qlora"))),
        };
        method.into_iter().chain(self.given()).map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Adapters in a folder, and the weights below them.
pub(super) struct Below {
    pub(super) adapters: Adapters,
    /// The weights' name or path, as in the adapters' configuration.
    pub(super) base: String,
    /// The folder of the weights.
    pub(super) weights: PathBuf,
}

/// The adapters in a folder and the weights below them; `None` if it has none. Errors: they can't be read, or the weights
/// are not there.
pub(super) fn below(folder: &Path, downloads: bool) -> Result<Option<Below>, Failure> {
    let config = folder.join(ADAPTER_CONFIG_FILE);
    if !is_file(&config).map_err(io_failure(config.display()))? {
        return Ok(None);
    }
    let (adapters, base) = read_adapters(folder)?;
    let base = base.ok_or_else(|| {
        Failure::bad_input(format!("{} does not name the weights below the adapters", config.display()))
            .hint("set `base_model_name_or_path` to their path, or to their name on the hub")
    })?;
    let weights = hub::weights_of(PathBuf::from(&base), downloads)?;
    Ok(Some(Below { adapters, base, weights }))
}

impl From<AdapterError> for Failure {
    fn from(error: AdapterError) -> Self {
        match error {
            AdapterError::Graph(error) => error.into(),
            AdapterError::NoMatch { .. } => Self::bad_flag(error.to_string())
                .hint("a name is the end of a layer's name, such as `q_proj` or `layers.0.mlp.down_proj`"),
            AdapterError::Rank { .. } => Self::bad_flag(error.to_string()),
        }
    }
}
