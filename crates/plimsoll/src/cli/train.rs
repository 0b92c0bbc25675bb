//! `plimsoll train`: train or fine-tune a model. The main job.

use super::budget::{Budget, BudgetArgs};
use super::failure::{exit_code, io_failure};
use super::model::{self, Chosen};
use super::options::{RecomputeLevel, number_from_zero, positive_count, positive_number, positive_size, rate};
use super::{Failure, in_pool};
use crate::report::{Live, misfit_failure, plan_table, sample_text, summary};
use ::plan::{Found, Request, search};
use ::train::checkpoint::{self, newest_whole};
use ::train::{Ending, Engine, Length, RunFolder, Sampling, Schedule, Start, Trainer, TrainerConfig, Writer};
use clap::{ArgMatches, Args};
use data::{Batches, Tokenizer, TokenizerSpec};
use exec::CpuDevice;
use graph::{DeviceKind, Optimizer, Target};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telemetry::{Event, Sink};
use units::Seconds;

/// Tokens that a prompt is read at a time.
pub(super) const PREFILL: usize = 32;
/// Tokens of held-out text that an evaluation takes by default.
const EVAL_TOKENS: u64 = 16_384;

#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Text: files, folders or globs; `.jsonl`, `.gz` and `.zst` too [default: the Rust sources that cargo downloaded]
    #[arg(long, visible_alias = "data-dir", value_name = "PATH", num_args = 1..)]
    data: Vec<String>,
    /// Field of a `.jsonl` line that holds the text
    #[arg(long, value_name = "NAME", default_value = data::DEFAULT_TEXT_FIELD)]
    text_field: String,
    /// `bytes`, `gpt2`, or the path of a tokenizer.json [default: what the model was made for]
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or the path of a config.json [default: nano]
    #[arg(long, visible_alias = "model-size", value_name = "NAME|PATH")]
    model: Option<String>,
    /// Start from the weights in this folder: one of our checkpoints, or one saved by `transformers`
    #[arg(long, value_name = "PATH")]
    init: Option<PathBuf>,
    #[command(flatten)]
    budget: BudgetArgs,
    /// Tokens of a sample [default: the model's positions, at most 1024]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    seq_len: Option<usize>,
    /// Samples of an optimizer step [default: 32 for nano, else 4]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    global_batch: Option<usize>,
    /// Samples at a time: a divisor of the global batch, or `auto` for the largest that fits [default: auto]
    #[arg(long, value_name = "auto|N", value_parser = auto_or_size)]
    micro_batch: Option<AutoOr>,
    /// Micro-batches of a step, instead of the global batch
    #[arg(long, value_name = "N", value_parser = positive_size, conflicts_with = "global_batch")]
    gradient_accumulation_steps: Option<usize>,
    /// Optimizer steps
    #[arg(long, value_name = "N", value_parser = positive_count)]
    max_steps: Option<u64>,
    /// Passes over the training text
    #[arg(long, value_name = "X", value_parser = positive_number, conflicts_with = "max_steps")]
    epochs: Option<f64>,
    /// Time spent training: `90s`, `5m`, `1h30m`
    #[arg(long, value_name = "TIME", conflicts_with_all = ["max_steps", "epochs"])]
    duration: Option<Seconds>,
    /// Peak learning rate [default: 4e-3 for nano, else 3e-4]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    learning_rate: Option<f64>,
    /// Steps of linear warm-up; a cosine to a tenth of the peak follows [default: a tenth of the run, at most 100]
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    warmup_steps: Option<u64>,
    /// Part of the peak rate that is left at the end
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0.1")]
    final_lr_part: f64,
    /// Decoupled weight decay, off norms and biases
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0.1")]
    weight_decay: f64,
    /// Decay of AdamW's first moment
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0.9")]
    beta1: f32,
    /// Decay of AdamW's second moment
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0.95")]
    beta2: f32,
    /// AdamW's epsilon
    #[arg(long, value_name = "X", value_parser = positive_number, default_value = "1e-8")]
    adam_eps: f64,
    /// Largest norm of the gradient; 0 turns clipping off
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "1")]
    grad_clip: f64,
    /// Dropout rate everywhere [default: the model's]
    #[arg(long, value_name = "X", value_parser = rate)]
    dropout: Option<f32>,
    /// What the backward pass computes anew instead of keeping: nothing, or what costs next to no time
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = RecomputeLevel::Cheap)]
    recompute: RecomputeLevel,
    /// Seed of weights, data order and dropout
    #[arg(long, value_name = "N", default_value = "1337")]
    seed: u64,
    /// Steps between held-out losses; 0: only at the end
    #[arg(long, value_name = "N", value_parser = units::parse_count, default_value = "100")]
    eval_every: u64,
    /// Held-out samples that a held-out loss is taken over [default: 16,384 tokens of them]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    eval_samples: Option<u64>,
    /// Steps between checkpoints; 0: only at the end
    #[arg(long, value_name = "N", value_parser = units::parse_count, default_value = "200")]
    checkpoint_every: u64,
    /// Checkpoints that are kept
    #[arg(long, value_name = "N", value_parser = positive_size, default_value = "3")]
    keep_checkpoints: usize,
    /// Tokens of the sample that is written at the end; 0: none
    #[arg(long, value_name = "N", value_parser = units::parse_count, default_value = "256")]
    sample_tokens: u64,
    /// `auto`: go on from the newest whole checkpoint, or begin if there is none; or the path of a run or a checkpoint
    #[arg(long, value_name = "auto|PATH")]
    resume: Option<String>,
    /// Name of the run and of its folder [default: the model's name and a number]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "PATH", default_value = "runs")]
    runs_dir: PathBuf,
    /// Where tokenized text is kept [default: plimsoll in the user's cache folder]
    #[arg(long, value_name = "PATH")]
    cache_dir: Option<PathBuf>,
    /// YAML file of settings; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print report.json to stdout at the end
    #[arg(long)]
    json: bool,
}

/// `auto` or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AutoOr {
    Auto,
    Size(usize),
}

fn auto_or_size(text: &str) -> Result<AutoOr, String> {
    if text.eq_ignore_ascii_case("auto") { Ok(AutoOr::Auto) } else { positive_size(text).map(AutoOr::Size) }
}

/// The settings of the run that is resumed, if one is; they are laid under all others.
pub(super) fn resumed_config(given: &ArgMatches) -> Result<Option<PathBuf>, Failure> {
    let Some(resume) = given.get_one::<String>("resume") else { return Ok(None) };
    let runs = given.get_one::<PathBuf>("runs_dir").expect("the flag has a default");
    let run = match resume.as_str() {
        "auto" => match given.get_one::<String>("name") {
            Some(name) => Some(runs.join(name)),
            None => newest_run(runs),
        },
        path => Some(run_of(Path::new(path))?),
    };
    Ok(run.map(|run| run.join("config.yaml")).filter(|config| config.exists()))
}

/// The run whose checkpoint, or which itself, lies at `path`.
fn run_of(path: &Path) -> Result<PathBuf, Failure> {
    let candidates = [Some(path), path.parent().and_then(Path::parent)];
    let is_run = |run: &&Path| run.join("checkpoints").is_dir();
    candidates.into_iter().flatten().find(is_run).map(Path::to_owned).ok_or_else(|| {
        Failure::bad_input(format!("{} is neither a run nor a checkpoint of one", path.display()))
            .hint("`--init PATH` starts a new run from weights that lie elsewhere")
    })
}

/// The run that was written to last.
fn newest_run(runs: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    let written = |run: &PathBuf| run.join("journal.jsonl").metadata().and_then(|m| m.modified()).ok();
    entries.filter_map(|run| Some((written(&run)?, run))).max().map(|(_, run)| run)
}

pub(super) fn run(args: TrainArgs) -> Result<u8, Failure> {
    let threads = args.budget.threads()?;
    in_pool(threads, || Session::prepare(args, threads)?.train())
}

/// Everything that was resolved before the first step.
struct Session {
    args: TrainArgs,
    budget: Budget,
    chosen: Chosen,
    tokenizer: Tokenizer,
    batches: Batches,
    found: Found,
    folder: RunFolder,
    start: Start,
    trainer: TrainerConfig,
}

impl Session {
    fn prepare(args: TrainArgs, threads: usize) -> Result<Self, Failure> {
        let budget = args.budget.budget()?;
        let mut chosen = args.choose_model()?;
        let spec = args.tokenizer.clone().unwrap_or_else(|| chosen.default_tokenizer().to_owned());
        let tokenizer = Tokenizer::open(&spec.parse::<TokenizerSpec>()?)?;
        let seq_len = args.seq_len.unwrap_or_else(|| chosen.default_seq_len());
        chosen.fit(args.init.is_none().then_some(tokenizer.vocab_size()), seq_len);
        if let Some(rate) = args.dropout {
            chosen.config.set_dropout(rate);
        }
        let request = args.request(&chosen, seq_len, &budget, threads)?;
        let found = match search(&request)? {
            Ok(found) => found,
            Err(misfit) => return Err(misfit_failure(&chosen.name, &misfit)),
        };
        let (folder, start) = args.open_folder(&chosen.name)?;
        let batches = args.open_data(&tokenizer, seq_len)?;
        let trainer = args.trainer_config(&folder, &chosen, &tokenizer, &batches, &found);
        Ok(Self { args, budget, chosen, tokenizer, batches, found, folder, start, trainer })
    }

    fn train(self) -> Result<u8, Failure> {
        let plan_json = serde_json::to_vec(&self.found.plan).expect("a plan is plain data");
        let config = serde_saphyr::to_string(&self.resolved())
            .map_err(|e| Failure::device(format!("settings can't be written: {e}")))?;
        for (path, contents) in [(self.folder.plan(), plan_json), (self.folder.config(), config.into_bytes())] {
            self.folder.write(&path, &contents).map_err(::train::TrainError::from)?;
        }
        eprintln!("{}", plan_table(&self.chosen.name, &self.found, &self.budget.describe()));
        let mut engine = Engine::new(Box::new(CpuDevice::new()), &self.found.graph, self.found.plan.clone())?;
        let stop = stop_on_signals()?;
        let mut live = Live::new(self.found.plan.peak_bytes);
        let run = Trainer {
            engine: &mut engine,
            batches: &self.batches,
            folder: &self.folder,
            config: &self.trainer,
            view: &mut live,
            stop: &stop,
        };
        let (ending, mut report, newest) = run.run(&self.start)?;
        live.finish();
        if ending == Ending::Finished && self.args.sample_tokens > 0 {
            let text = self.write_sample(&mut engine)?;
            eprintln!("{}", sample_text(&text));
            report.measured.peak_bytes = engine.memory().high_water_bytes;
        }
        eprintln!("{}", summary(&report, newest.as_deref(), self.folder.path()));
        if self.args.json {
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain data"));
        }
        let resume = format!("plimsoll train --resume {}", self.folder.path().display());
        match ending {
            Ending::Finished => Ok(exit_code::DONE),
            Ending::Interrupted => {
                eprintln!("interrupted; this resumes the run:\n  {resume}");
                Ok(exit_code::INTERRUPTED)
            }
            Ending::Diverged => Err(Failure::new(
                exit_code::DIVERGED,
                "loss or gradient stopped being numbers; the weights were not touched by that step",
            )
            .hint(format!("a lower `--learning-rate` or a longer warm-up; from the last checkpoint: {resume}"))),
        }
    }

    /// The settings of this run as a file of settings: what resuming needs to be the same run.
    fn resolved(&self) -> Map<String, Value> {
        let (args, trainer, plan) = (&self.args, &self.trainer, &self.found.plan);
        let (key, length) = match trainer.length {
            Length::MaxSteps(steps) => ("max_steps", json!(steps)),
            Length::Epochs(epochs) => ("epochs", json!(epochs)),
            Length::Duration(time) => ("duration", json!(format!("{}s", time.0))),
        };
        let mut settings = json!({
            "name": trainer.name,
            "tokenizer": trainer.tokenizer,
            "model": self.chosen.name,
            "seq_len": plan.seq_len,
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch,
            key: length,
            "text_field": args.text_field,
            "learning_rate": trainer.schedule.learning_rate,
            "warmup_steps": trainer.schedule.warmup_steps,
            "final_lr_part": trainer.schedule.final_part,
            "weight_decay": args.weight_decay,
            "beta1": args.beta1.to_string(),
            "beta2": args.beta2.to_string(),
            "adam_eps": args.adam_eps,
            "grad_clip": args.grad_clip,
            "seed": trainer.seed,
            "recompute": args.recompute.to_string(),
            "eval_every": args.eval_every,
            "eval_samples": trainer.eval_samples,
            "checkpoint_every": args.checkpoint_every,
            "keep_checkpoints": args.keep_checkpoints,
            "sample_tokens": args.sample_tokens,
        });
        let map = settings.as_object_mut().expect("an object literal");
        if !args.data.is_empty() {
            map.insert("data".into(), json!(args.data));
        }
        if let Some(init) = &args.init {
            map.insert("init".into(), json!(init));
        }
        if let Some(rate) = args.dropout {
            map.insert("dropout".into(), json!(rate.to_string()));
        }
        if let Some(vram) = args.budget.vram {
            map.insert("vram".into(), json!(format!("{}b", vram.0)));
            map.insert("vram_margin".into(), json!(format!("{}b", args.budget.vram_margin.0)));
        }
        if let Some(threads) = args.budget.threads {
            map.insert("threads".into(), json!(threads));
        }
        map.clone()
    }

    /// Continues the beginning of held-out text.
    fn write_sample(&self, engine: &mut Engine) -> Result<[String; 2], Failure> {
        let length = (self.found.plan.seq_len / 2).clamp(1, 32);
        let store = &self.batches.store;
        let windows = &self.batches.windows;
        let start = if windows.held_out() > 0 { windows.held_out_start(0) } else { 0 };
        let mut prompt = vec![0; length.min(store.len() as usize)];
        store.read(start, &mut prompt);
        let prompt = prompt.into_iter().map(|id| id as u32).collect::<Vec<_>>();
        let sampling = Sampling { temperature: 0.8, top_k: None, top_p: 0.95, seed: self.trainer.seed };
        let mut written = Vec::new();
        let (most, vocab) = (self.args.sample_tokens as usize, self.tokenizer.vocab_size());
        Writer::new(engine).write(&prompt, most, vocab, self.tokenizer.separator(), &sampling, &mut |token| {
            written.push(token);
            true
        })?;
        let text = |ids: &[u32]| String::from_utf8_lossy(&self.tokenizer.decode(ids)).into_owned();
        Ok([text(&prompt), text(&written)])
    }
}

impl TrainArgs {
    fn choose_model(&self) -> Result<Chosen, Failure> {
        match (&self.model, &self.init) {
            (Some(name), None) => model::open(name),
            (None, None) => model::open("nano"),
            (Some(name), Some(_)) if Path::new(name).exists() => model::open(name),
            (_, Some(folder)) => model::open(&folder.join("config.json").to_string_lossy()),
        }
    }

    fn request(&self, chosen: &Chosen, seq_len: usize, budget: &Budget, threads: usize) -> Result<Request, Failure> {
        let micro_batch = match self.micro_batch {
            Some(AutoOr::Size(size)) => Some(size),
            Some(AutoOr::Auto) | None => None,
        };
        let global_batch = match (self.global_batch, self.gradient_accumulation_steps, micro_batch) {
            (Some(global), _, _) => global,
            (None, Some(steps), micro) => steps.saturating_mul(micro.unwrap_or(1)),
            (None, None, Some(micro)) => micro.max(self.default_global_batch(chosen)).next_multiple_of(micro),
            (None, None, None) => self.default_global_batch(chosen),
        };
        Ok(Request {
            model: chosen.config.clone(),
            optimizer: Optimizer {
                beta1: self.beta1,
                beta2: self.beta2,
                eps: self.adam_eps as f32,
                weight_decay: self.weight_decay as f32,
                grad_clip: (self.grad_clip > 0.0).then_some(self.grad_clip as f32),
            },
            global_batch,
            micro_batch,
            seq_len,
            budget: budget.bytes,
            target: Target { device: DeviceKind::Cpu, threads },
            recompute: self.recompute.into(),
            evaluates: true,
            sample_prefill: (self.sample_tokens > 0).then_some(PREFILL),
        })
    }

    fn default_global_batch(&self, chosen: &Chosen) -> usize {
        if chosen.name == "nano" { 32 } else { 4 }
    }

    /// The run's folder, and where its weights come from.
    fn open_folder(&self, model_name: &str) -> Result<(RunFolder, Start), Failure> {
        let fresh = || self.init.clone().map_or(Start::Fresh, Start::Weights);
        let open = |path: &Path, resume| RunFolder::open(path, resume).map_err(Failure::from);
        let Some(resume) = &self.resume else {
            return Ok((open(&self.run_path(model_name)?, false)?, fresh()));
        };
        if resume != "auto" {
            let path = Path::new(resume);
            let run = run_of(path)?;
            let folder = open(&run, true)?;
            if path == run {
                let newest = self.newest_checkpoint(&folder)?.ok_or(checkpoint::CheckpointError::None { path: run })?;
                return Ok((folder, Start::Resume(newest)));
            }
            return Ok((folder, Start::Resume(path.to_owned())));
        }
        let run = match &self.name {
            Some(_) => Some(self.run_path(model_name)?),
            None => newest_run(&self.runs_dir),
        };
        let path = match run {
            Some(path) => path,
            None => self.run_path(model_name)?,
        };
        let folder = open(&path, true)?;
        let start = match self.newest_checkpoint(&folder)? {
            Some(newest) => Start::Resume(newest),
            None => {
                eprintln!("no checkpoint in {} yet; the run begins", folder.path().display());
                // What an earlier session left without reaching a checkpoint is no part of this run.
                let _ = std::fs::remove_file(folder.journal());
                fresh()
            }
        };
        Ok((folder, start))
    }

    /// The newest whole checkpoint; damaged ones are stepped over and named.
    fn newest_checkpoint(&self, folder: &RunFolder) -> Result<Option<PathBuf>, Failure> {
        let (newest, skipped) = newest_whole(&folder.checkpoints());
        let mut journal = telemetry::Journal::open(&folder.journal()).map_err(::train::TrainError::from)?;
        for skipped in skipped {
            eprintln!("warning: checkpoint {} is passed over: {}", skipped.path.display(), skipped.reason);
            journal.take(&Event::CheckpointSkipped { checkpoint: skipped.path, reason: skipped.reason });
        }
        Ok(newest.map(|(path, _)| path))
    }

    /// `runs/NAME`; without a name, the model's and the first number that is free.
    fn run_path(&self, model_name: &str) -> Result<PathBuf, Failure> {
        if let Some(name) = &self.name {
            let plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
            if !plain {
                return Err(Failure::bad_flag(format!("`--name {name}` is not the name of a folder"))
                    .hint("`--runs-dir` says where runs are kept"));
            }
            return Ok(self.runs_dir.join(name));
        }
        let base = Path::new(model_name).file_stem().map_or("run".into(), |s| s.to_string_lossy());
        let numbered = (1..).map(|n| self.runs_dir.join(format!("{base}-{n}")));
        Ok(numbered.into_iter().find(|path| !path.exists()).expect("there is no end of numbers"))
    }

    fn open_data(&self, tokenizer: &Tokenizer, seq_len: usize) -> Result<Batches, Failure> {
        let sources = if self.data.is_empty() {
            data::cargo_registry_sources()?
        } else {
            data::resolve(&self.data, &self.text_field)?
        };
        let cache = match &self.cache_dir {
            Some(path) => path.clone(),
            None => default_cache_dir()?,
        };
        let bar = crate::report::DataProgress::new();
        let store = data::prepare(&sources, tokenizer, &cache, &|progress| bar.show(&progress))?;
        bar.finish();
        let batches = Batches::new(store, seq_len, self.seed)?;
        let (store, windows) = (&batches.store, &batches.windows);
        eprintln!(
            "data: {} of text in {} files, {} tokens; {} samples to train on, {} held out",
            store.bytes_of_text(),
            sources.files.len(),
            store.len(),
            windows.training(),
            windows.held_out()
        );
        Ok(batches)
    }

    fn trainer_config(
        &self,
        folder: &RunFolder,
        chosen: &Chosen,
        tokenizer: &Tokenizer,
        batches: &Batches,
        found: &Found,
    ) -> TrainerConfig {
        let is_nano = chosen.name == "nano";
        let length = match (self.max_steps, self.epochs, self.duration) {
            (Some(steps), _, _) => Length::MaxSteps(steps),
            (_, Some(epochs), _) => Length::Epochs(epochs),
            (_, _, Some(time)) => Length::Duration(time),
            (None, None, None) => Length::MaxSteps(if is_nano { NANO_STEPS } else { 1000 }),
        };
        let steps_per_epoch = batches.windows.training() as f64 / found.plan.global_batch as f64;
        let tenth = length.last_step(steps_per_epoch).map_or(100, |last| last / 10);
        let name = folder.path().file_name().map_or("run".into(), |n| n.to_string_lossy());
        let every = |n: u64| (n > 0).then_some(n);
        TrainerConfig {
            name: name.into_owned(),
            model_name: chosen.name.clone(),
            model: chosen.config.clone(),
            length,
            schedule: Schedule {
                learning_rate: self.learning_rate.unwrap_or(if is_nano { 4e-3 } else { 3e-4 }),
                warmup_steps: self.warmup_steps.unwrap_or(tenth.min(100)),
                final_part: self.final_lr_part,
            },
            seed: self.seed,
            eval_every: every(self.eval_every),
            eval_samples: self.eval_samples.unwrap_or((EVAL_TOKENS / found.plan.seq_len as u64).max(1)),
            checkpoint_every: every(self.checkpoint_every),
            keep_checkpoints: self.keep_checkpoints,
            tokenizer: tokenizer.spec().to_string(),
        }
    }
}

/// Steps of the run that `train` makes with no further argument: one to two minutes on two cores.
const NANO_STEPS: u64 = 1000;

fn default_cache_dir() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let none = || Failure::bad_flag("neither HOME nor XDG_CACHE_HOME is set").hint("say where: `--cache-dir PATH`");
    Ok(base.ok_or_else(none)?.join("plimsoll"))
}

/// The first interrupt asks the run to stop after its step, the second leaves at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let handler = move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(exit_code::INTERRUPTED));
        }
        eprintln!("\nstopping after this step, then a checkpoint; once more leaves at once");
    };
    ctrlc::set_handler(handler).map_err(std::io::Error::other).map_err(io_failure("signals can't be handled"))?;
    Ok(stop)
}
