//! The trained weights of commands that only read them: where they are, their model and tokenizer, and an engine for
//! them.

use super::adapters::{self, Below};
use super::budget::BudgetArgs;
use super::cards::Opened;
use super::failure::{exit_code, io_failure};
use super::model::{self, Chosen};
use super::{Failure, hub};
use crate::streams::talk;
use ::plimsoll_plan::Plan;
use ::plimsoll_train::Engine;
use ::plimsoll_train::checkpoint::{
    ADAPTER_CONFIG_FILE, AVERAGE_FILE, CONFIG_FILE, CheckpointError, load_adapters, load_averages, load_weights,
    newest_whole, read_state,
};
use clap::Args;
use plimsoll_data::{Tokenizer, TokenizerSpec};
use plimsoll_files::{is_file, is_folder};
use plimsoll_graph::{Adapters, Graph, WeightCodes};
use std::path::{Path, PathBuf};

/// The flags of trained weights.
#[derive(Debug, Args)]
pub(super) struct WeightsArgs {
    /// A run, a checkpoint, a folder saved by `transformers`, or a name in the Hugging Face cache
    #[arg(long, value_name = "PATH|NAME")]
    checkpoint: PathBuf,
    /// Fetch the weights that `--checkpoint` names from the Hugging Face hub if they are not in the cache
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    download: bool,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: the tokenizer of the run]
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Use the moving average of the weights, if the run kept one
    #[arg(long)]
    ema: bool,
}

/// Weights on disk, and their model.
pub(super) struct Trained {
    /// The folder of the weights, or of the adapters.
    pub(super) folder: PathBuf,
    /// The folder of the config.json.
    pub(super) of_model: PathBuf,
    /// The model.
    pub(super) chosen: Chosen,
    /// The adapters, if the folder has them, and the weights below.
    pub(super) below: Option<Below>,
    /// The codes in which the run that made the checkpoint stores its frozen weights.
    pub(super) codes: Option<WeightCodes>,
}

impl Trained {
    /// Finds a run, a checkpoint, a folder saved by other programs, or a name on the hub. Errors: there is none, it can't
    /// be read, or the weights below its adapters are not there.
    pub(super) fn open(named: &Path, downloads: bool) -> Result<Self, Failure> {
        let folder = folder_of(&hub::weights_of(named.to_owned(), downloads)?)?;
        let below = adapters::below(&folder, downloads)?;
        let of_model = match &below {
            Some(below) if !has(&folder.join(CONFIG_FILE))? => below.weights.clone(),
            _ => folder.clone(),
        };
        let chosen = model::open(&of_model.join(CONFIG_FILE).to_string_lossy())?;
        let codes = read_state(&folder)?.and_then(|state| state.base_codes);
        Ok(Self { folder, of_model, chosen, below, codes })
    }

    /// The adapters.
    pub(super) fn adapters(&self) -> Option<&Adapters> {
        self.below.as_ref().map(|below| &below.adapters)
    }

    /// Errors: averages are asked for and there are none.
    pub(super) fn check_averages(&self, averaged: bool) -> Result<(), Failure> {
        if !averaged || has(&self.folder.join(AVERAGE_FILE))? {
            return Ok(());
        }
        let message = format!("{} has no averaged weights", self.folder.display());
        Err(Failure::bad_input(message)
            .hint("train with `--ema 0.999` to keep them, or omit `--ema` to use the weights themselves"))
    }

    /// Loads the weights into an engine of a plan with the adapters. Errors: they can't be read.
    pub(super) fn load(&self, engine: &mut Engine, averaged: bool) -> Result<(), Failure> {
        if let Some(below) = &self.below {
            load_weights(engine, &below.weights)?;
        }
        if averaged {
            load_averages(engine, &self.folder)?;
        } else if self.below.is_some() {
            load_adapters(engine, &self.folder)?;
        } else {
            load_weights(engine, &self.folder)?;
        }
        Ok(())
    }
}

impl WeightsArgs {
    /// The weights and their model. Errors: those of [`Trained::open`]; there are no averages although `--ema` is given.
    pub(super) fn open(&self) -> Result<Trained, Failure> {
        let trained = Trained::open(&self.checkpoint, self.download)?;
        trained.check_averages(self.ema)?;
        Ok(trained)
    }

    /// The tokenizer, whose special tokens it prints. Errors: there is none, or it can't be read.
    pub(super) fn tokenizer(&self, trained: &Trained) -> Result<Tokenizer, Failure> {
        let spec = match &self.tokenizer {
            Some(spec) => spec.parse::<TokenizerSpec>()?,
            None => trained.chosen.default_tokenizer(Some(&trained.of_model))?,
        };
        let tokenizer = Tokenizer::open(&spec)?;
        tokenizer.special_in_words().into_iter().for_each(|words| talk(format_args!("tokenizer: {words}")));
        Ok(tokenizer)
    }

    /// An engine that holds the weights. Errors: those of [`engine`]; the weights can't be read.
    pub(super) fn load(
        &self,
        trained: &Trained,
        planned: (Graph, Plan),
        opened: Opened,
        budget: &BudgetArgs,
        fewer: &str,
    ) -> Result<Engine, Failure> {
        let mut engine = engine(&trained.chosen, planned, opened, budget, fewer)?;
        trained.load(&mut engine, self.ema)?;
        Ok(engine)
    }
}

/// An engine without weights. `fewer`: what to ask for less of if the plan does not fit. Errors: "does not fit"; the device
/// fails.
pub(super) fn engine(
    chosen: &Chosen,
    (graph, plan): (Graph, Plan),
    opened: Opened,
    budget: &BudgetArgs,
    fewer: &str,
) -> Result<Engine, Failure> {
    let limit = opened.device.budget.bytes;
    if plan.peak() > limit {
        let (name, short) = (&chosen.name, plan.peak() - limit);
        let message = format!("{name} needs {}, the budget is {limit} (short {short})", plan.peak());
        let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
        let failure = match opened.uuid() {
            Some(uuid) => failure.naming_holders(&uuid),
            None => failure,
        };
        return Err(failure.hint(match budget.vram {
            Some(_) => format!("use a larger `--vram` or {fewer}"),
            None => format!("use {fewer}, or end other programs that use memory"),
        }));
    }
    opened.check_free(budget, &plan)?;
    Ok(Engine::new(opened.into_device(budget), &graph, plan)?)
}

/// The folder with the weights: of a run, the newest complete checkpoint. Errors: the run has none; neither a run nor a model
/// folder.
fn folder_of(path: &Path) -> Result<PathBuf, Failure> {
    let checkpoints = path.join("checkpoints");
    let is_run = is_folder(&checkpoints).map_err(io_failure(checkpoints.display()))?;
    if !is_run && (has(&path.join(CONFIG_FILE))? || has(&path.join(ADAPTER_CONFIG_FILE))?) {
        return Ok(path.to_owned());
    } else if !is_run {
        let message = format!("{} is neither a run nor a folder with a {CONFIG_FILE}", path.display());
        return Err(Failure::bad_input(message)
            .hint("`--checkpoint` takes runs/NAME, a checkpoint in it, or a folder saved by `transformers`"));
    }
    let newest = newest_whole(&checkpoints)?;
    for skipped in newest.skipped {
        talk(format_args!("warning: skipping checkpoint {}: {}", skipped.path.display(), skipped.reason));
    }
    Ok(newest.found.ok_or(CheckpointError::None { path: path.to_owned() })?.0)
}

fn has(file: &Path) -> Result<bool, Failure> {
    is_file(file).map_err(io_failure(file.display()))
}
