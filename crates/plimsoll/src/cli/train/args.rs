//! The flags of `plimsoll train`, and the model, request and schedule that they describe.

use super::pressure::PressureArgs;
use super::watch::WatchArgs;
use crate::cli::Failure;
use crate::cli::adapters::Method;
use crate::cli::blas::BlasArgs;
use crate::cli::budget::BudgetArgs;
use crate::cli::cards::DeviceArgs;
use crate::cli::chats::ChatArgs;
use crate::cli::chats::has_template;
use crate::cli::cublas::TuneArgs;
#[cfg(unix)]
use crate::cli::detach::DetachArgs;
use crate::cli::failure::io_failure;
use crate::cli::model::{CONFIG_BYTES_MAX, Chosen};
use crate::cli::notify::TellArgs;
use crate::cli::options::{positive_count, positive_duration, positive_number, positive_size, seed};
use crate::cli::pairs::PairArgs;
use crate::cli::power::PowerArgs;
use crate::cli::recipe::{ADAPTER_RATE, FULL_PREFERENCE_RATE, PREFERENCE_RATE};
use crate::cli::request::{RequestArgs, RunArgs};
use crate::cli::schedule::ScheduleArgs;
use crate::cli::track::TrackArgs;
use ::plimsoll_plan::{Found, Precision};
use ::plimsoll_train::checkpoint::{CONFIG_FILE, INDEX_FILE, MODEL_FILE, ModelFolder};
use ::plimsoll_train::{Length, LossScale, RunFolder, Start, TrainerConfig};
use clap::Args;
use plimsoll_data::{Dataset, HeldOut, Tokenizer, TokenizerSpec};
use plimsoll_files::is_file;
use plimsoll_units::Seconds;
use serde_json::Map;
use std::path::{Path, PathBuf};

/// Default number of held-out tokens per evaluation.
const EVAL_TOKENS: u64 = 16_384;

/// Default number of steps between checkpoints.
const CHECKPOINT_EVERY: u64 = 200;

/// Largest part of the time that checkpoints take by default.
const CHECKPOINT_TIME_PART: f64 = 0.02;

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct TrainArgs {
    /// Text or chats: files, folders or globs; `.jsonl`, `.parquet`, `.gz` and `.zst` too [default: the Rust sources that cargo
    /// downloaded]
    #[arg(long, visible_alias = "data-dir", value_name = "PATH", num_args = 1..)]
    pub(super) data: Vec<String>,
    /// Field of a row that holds the text [default: text]
    #[arg(long, value_name = "NAME")]
    pub(super) text_field: Option<String>,
    #[command(flatten)]
    pub(super) chats: ChatArgs,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: the model's own]
    #[arg(long, value_name = "NAME|PATH")]
    pub(super) tokenizer: Option<String>,
    /// A model that `plimsoll models` lists, or the path of a config.json [default: that of `--init`, else nano]
    #[arg(long, visible_alias = "model-size", value_name = "NAME|PATH")]
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) pairs: PairArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) tune: TuneArgs,
    #[command(flatten)]
    pub(super) budget: BudgetArgs,
    #[command(flatten)]
    pub(super) pressure: PressureArgs,
    /// Train with safe settings: at most 70 % of the memory, in single precision unless `--precision` is set, without libraries of
    /// matrix products and without launches of whole steps; power limits and clock offsets that crashed runs left are restored
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) safe: bool,
    #[command(flatten)]
    pub(super) blas: BlasArgs,
    #[command(flatten)]
    pub(super) request: RequestArgs,
    /// Number of optimizer steps [default: 1000 from scratch; 3 epochs from weights]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) max_steps: Option<u64>,
    /// Epochs: passes over the training text
    #[arg(long, value_name = "X", value_parser = positive_number, conflicts_with = "max_steps")]
    pub(super) epochs: Option<f64>,
    /// Training time: `90s`, `5m`, `1h30m`
    #[arg(long, value_name = "TIME", value_parser = positive_duration, conflicts_with_all = ["max_steps", "epochs"])]
    pub(super) duration: Option<Seconds>,
    #[command(flatten)]
    pub(super) schedule: ScheduleArgs,
    /// Initial loss scale for fp16
    #[arg(long, value_name = "N", value_parser = power_of_two, default_value = "65536")]
    pub(super) loss_scale: f32,
    /// Random seed for weights, data order and dropout
    #[arg(long, value_name = "N", value_parser = seed, default_value = "1337")]
    pub(super) seed: u64,
    /// Fraction of the data to hold out and never train on, up to 0.5; 0 holds out nothing [default: 0.05; 0.01 for
    /// pairs]
    #[arg(long, value_name = "X", value_parser = held_out)]
    pub(super) held_out: Option<HeldOutPart>,
    /// Steps between evaluations of the held-out loss; 0 evaluates only at the end
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count, default_value = "100")]
    pub(super) eval_every: u64,
    /// Held-out samples per evaluation [default: as many as have 16,384 tokens]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) eval_samples: Option<u64>,
    /// Steps between checkpoints; 0 writes one only at the end [default: 200, or a multiple so that writing them takes at most 2 % of
    /// the time]
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count)]
    pub(super) checkpoint_every: Option<u64>,
    /// Number of checkpoints to keep
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "3")]
    pub(super) keep_checkpoints: usize,
    /// `auto`: continue from the newest complete checkpoint, or start if there is none; or the path of a run or a checkpoint
    #[arg(long, value_name = "auto|PATH")]
    pub(super) resume: Option<String>,
    /// Name of the run and of its folder [default: the model's name and a number]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Folder for runs
    #[arg(long, value_name = "PATH", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
    /// Folder for tokenized text [default: plimsoll in the user's cache folder]
    #[arg(long, value_name = "PATH")]
    pub(super) cache_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    #[command(flatten)]
    pub(super) power: PowerArgs,
    #[command(flatten)]
    pub(super) tell: TellArgs,
    #[command(flatten)]
    pub(super) track: TrackArgs,
    /// Time within which the run saves and ends after a signal such as SIGTERM or SIGUSR1: `60s`. A step that would not end in time
    /// is dropped, and made again after the resume [default: the run finishes its step, however long it takes]
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub(super) grace: Option<Seconds>,
    /// YAML file of settings; flags override it
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Steps between lines of progress, and between logs of `--log-to` [default: a line every 5 seconds, on a terminal
    /// only the bar; a log every step]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) log_every: Option<u64>,
    #[cfg(unix)]
    #[command(flatten)]
    pub(super) detach: DetachArgs,
    /// Print report.json to stdout at the end
    #[arg(long)]
    #[cfg_attr(unix, arg(conflicts_with = "detach"))]
    pub(super) json: bool,
}

/// `--held-out`: its value, and the number as written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldOutPart(pub(super) HeldOut, pub(super) f64);

/// A fraction as one sample of every N.
fn held_out(text: &str) -> Result<HeldOutPart, String> {
    let part: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    match part {
        0.0 => Ok(HeldOutPart(HeldOut::Nothing, part)),
        _ if part > 0.0 && part <= 0.5 => Ok(HeldOutPart(HeldOut::OneIn((1.0 / part).round() as u64), part)),
        _ => Err(format!("`{text}` is not a fraction from 0 to 0.5")),
    }
}

/// A power of two from 1 to 2^40.
fn power_of_two(text: &str) -> Result<f32, String> {
    match positive_count(text)? {
        n if n.is_power_of_two() && n <= 1 << 40 => Ok(n as f32),
        n => Err(format!("{n} is not a power of two up to 2^40")),
    }
}

/// Whether a folder has a file. Errors: I/O errors of that check.
fn has(folder: &Path, file: &str) -> Result<bool, Failure> {
    let path = folder.join(file);
    is_file(&path).map_err(io_failure(path.display()))
}

impl TrainArgs {
    /// Arguments to add so that each start of the same command resumes one run, called `name` unless it has a name.
    /// Errors: each start would resume from the same checkpoint.
    #[cfg(unix)]
    pub(in crate::cli) fn resuming(&self, name: &str) -> Result<Vec<String>, Failure> {
        let mut words = Vec::new();
        match self.resume.as_deref() {
            None => words.extend(["--resume", "auto"]),
            Some("auto") => {}
            Some(path) => {
                return Err(Failure::bad_flag(format!("each start would resume from {path} again"))
                    .hint("`--resume auto --name NAME` resumes the run NAME from its newest checkpoint"));
            }
        }
        words.extend(self.name.is_none().then_some(["--name", name]).into_iter().flatten());
        Ok(words.into_iter().map(str::to_owned).collect())
    }

    /// The weights to start from, or random ones. Errors: the folder has no weights.
    pub(super) fn fresh(&self) -> Result<Start, Failure> {
        let Some(folder) = &self.run.init else { return Ok(Start::Fresh) };
        self.refuse_weights_without_data()?;
        if !(has(folder, MODEL_FILE)? || has(folder, INDEX_FILE)?) {
            let message = format!("{} has no {MODEL_FILE}", folder.display());
            return Err(Failure::bad_input(message).hint(
                "`--init` takes a checkpoint, runs/NAME/checkpoints/step-N, or a folder saved by `transformers`",
            ));
        }
        Ok(Start::Weights(folder.clone()))
    }

    /// Errors: `--init` without data. The default data is only for a first try.
    pub(super) fn refuse_weights_without_data(&self) -> Result<(), Failure> {
        if self.run.init.is_some() && self.data.is_empty() {
            return Err(Failure::bad_flag("`--init` needs `--data`, the text to train the weights on")
                .hint("`--data PATH` takes text or chats: files, folders or globs, such as `--data chats.jsonl`"));
        }
        Ok(())
    }

    pub(super) fn trainer_config(
        &self,
        folder: &RunFolder,
        chosen: &Chosen,
        tokenizer: &Tokenizer,
        dataset: &Dataset,
        found: &Found,
    ) -> Result<TrainerConfig, Failure> {
        let recipe = self.run.recipe(chosen);
        let length = match (self.max_steps, self.epochs, self.duration) {
            (Some(steps), _, _) => Length::MaxSteps(steps),
            (_, Some(epochs), _) => Length::Epochs(epochs),
            (_, _, Some(time)) => Length::Duration(time),
            (None, None, None) => recipe.length(),
        };
        let steps_per_epoch = dataset.training() as f64 / found.plan.global_batch as f64;
        let name = folder.path().file_name().map_or("run".into(), |n| n.to_string_lossy());
        let of_adamw = self.request.optimizer.rule().rate_beside_adamw();
        let is_compared = matches!(dataset, Dataset::Preferences(_));
        let usual_rate = match self.request.adapters.method {
            Method::Full if is_compared => FULL_PREFERENCE_RATE,
            Method::Full => recipe.learning_rate(found.plan.parameters),
            Method::Lora | Method::Qlora if is_compared => PREFERENCE_RATE,
            Method::Lora | Method::Qlora => ADAPTER_RATE,
        };
        let usual_rate = usual_rate * of_adamw;
        let every = |n: u64| (n > 0).then_some(n);
        Ok(TrainerConfig {
            name: name.into_owned(),
            model_name: chosen.name.clone(),
            model: chosen.config.clone(),
            model_folder: self.model_folder(folder, chosen, tokenizer, dataset)?,
            length,
            schedule: self.schedule.schedule(usual_rate, length.last_step(steps_per_epoch)),
            seed: self.seed,
            eval_every: every(self.eval_every),
            eval_samples: self.eval_samples.unwrap_or((EVAL_TOKENS / found.plan.seq_len as u64).max(1)),
            checkpoint_every: every(self.checkpoint_every.unwrap_or(CHECKPOINT_EVERY)),
            checkpoint_time_part: self.checkpoint_every.is_none().then_some(CHECKPOINT_TIME_PART),
            keep_checkpoints: self.keep_checkpoints,
            tokenizer: tokenizer.spec().to_string(),
            precision: found.settings.levers.precision.name().to_owned(),
            loss_scale: (found.settings.levers.precision == Precision::Fp16)
                .then_some(LossScale { scale: self.loss_scale, good_steps: 0 }),
            base: None,
            safe_settings: None,
        })
    }

    /// What makes the run's checkpoints folders that other programs open. Errors: a file can't be read.
    fn model_folder(
        &self,
        folder: &RunFolder,
        chosen: &Chosen,
        tokenizer: &Tokenizer,
        dataset: &Dataset,
    ) -> Result<ModelFolder, Failure> {
        let weights = self.run.init.as_deref();
        // With another tokenizer, the IDs in the weights' config.json would mean other tokens.
        let own = weights.filter(|folder| TokenizerSpec::in_folder(folder).as_ref() == Some(tokenizer.spec()));
        let published = match own.map(|folder| folder.join(CONFIG_FILE)) {
            Some(path) if is_file(&path).map_err(io_failure(path.display()))? => {
                let text = plimsoll_files::read_text(&path, CONFIG_BYTES_MAX).map_err(io_failure(path.display()))?;
                serde_json::from_str(&text).unwrap_or_default()
            }
            _ => Map::new(),
        };
        let template = has_template(dataset).then(|| self.chats.template(tokenizer)).transpose()?;
        let files = plimsoll_data::model_files(tokenizer, template.as_ref(), weights, Some(&folder.newest()))?;
        let pooling = chosen.config.is_encoder().then(|| self.request.objective.pooling.pooling());
        Ok(ModelFolder::new(&chosen.config, tokenizer, &published, pooling, files))
    }
}
