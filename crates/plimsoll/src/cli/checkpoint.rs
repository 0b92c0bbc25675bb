//! The model that `--checkpoint` names, and its engine for sampling. For commands that use a model without training it.

use super::adapters::{self, Below};
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::failure::{exit_code, io_failure};
use super::model::{self, Chosen};
use super::{Failure, hub};
use crate::streams::talk;
use ::plimsoll_plan::plan_sampling;
use ::plimsoll_train::Engine;
use ::plimsoll_train::checkpoint::{
    ADAPTER_CONFIG_FILE, AVERAGE_FILE, CONFIG_FILE, CheckpointError, load_adapters, load_averages, load_weights,
    newest_whole, read_state,
};
use plimsoll_files::{is_file, is_folder};
use plimsoll_graph::{Adapters, SampleShape, WeightCodes};
use std::path::{Path, PathBuf};

/// A model with its weights.
pub(super) struct Source {
    /// The folder of the weights, or of the adapters.
    pub(super) folder: PathBuf,
    /// The adapters, if the folder has them, and the weights below.
    pub(super) below: Option<Below>,
    /// The model.
    pub(super) chosen: Chosen,
    /// The codes in which the run that made the checkpoint stores its frozen weights.
    pub(super) codes: Option<WeightCodes>,
}

impl Source {
    /// Finds a run, a checkpoint, a folder saved by other programs, or a name on the hub. Errors: there is none, it can't
    /// be read, or the weights below its adapters are not there.
    pub(super) fn open(named: &Path, downloads: bool) -> Result<Self, Failure> {
        let folder = folder_of(&hub::weights_of(named.to_owned(), downloads)?)?;
        let below = adapters::below(&folder, downloads)?;
        let base = below.as_ref().map_or(&folder, |below| &below.weights);
        let of_model = if has(&folder.join(CONFIG_FILE))? { &folder } else { base };
        let chosen = model::open(&of_model.join(CONFIG_FILE).to_string_lossy())?;
        let codes = read_state(&folder)?.and_then(|state| state.base_codes);
        Ok(Self { folder, below, chosen, codes })
    }

    /// The folder with the model's configuration and tokenizer.
    pub(super) fn of_model(&self) -> &Path {
        self.chosen.folder.as_deref().unwrap_or(&self.folder)
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

/// What to plan for sampling.
pub(super) struct SamplingPlan<'a> {
    pub(super) source: &'a Source,
    /// The adapters to add to the model.
    pub(super) adapters: Option<&'a Adapters>,
    /// The codes of its weights.
    pub(super) codes: Option<WeightCodes>,
    pub(super) shape: &'a SampleShape,
}

impl SamplingPlan<'_> {
    /// An engine without weights. `smaller`: how to need less memory. Errors: the plan does not fit the
    /// budget, or the device refuses it.
    pub(super) fn engine(&self, device: &DeviceArgs, budget: &BudgetArgs, smaller: &str) -> Result<Engine, Failure> {
        let opened = device.open(budget, None)?;
        let (targets, bytes) = (opened.device.targets, opened.device.budget.bytes);
        let chosen = &self.source.chosen;
        let (graph, plan) =
            plan_sampling(&chosen.config, self.adapters, self.shape, self.codes, &targets, bytes)?;
        if plan.peak() > bytes {
            let short = plan.peak() - bytes;
            let message = format!("{} needs {}, the budget is {bytes} (short {short})", chosen.name, plan.peak());
            let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
            let failure = match opened.uuid() {
                Some(uuid) => failure.naming_holders(&uuid),
                None => failure,
            };
            return Err(failure.hint(match budget.vram {
                Some(_) => format!("use a larger `--vram`, or {smaller}"),
                None => format!("{smaller}, or end other programs that use memory"),
            }));
        }
        opened.check_free(budget, &plan)?;
        Ok(Engine::new(opened.into_device(budget), &graph, plan)?)
    }
}

/// The folder with the weights: of a run, the newest complete checkpoint. Errors: the run has none; neither a run nor a model
/// folder.
pub(super) fn folder_of(path: &Path) -> Result<PathBuf, Failure> {
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
