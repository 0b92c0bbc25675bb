//! `plimsoll merge`: a model folder with adapters added to the weights below them. Its logits are compared with those of
//! the weights and adapters that it is made of before the folder gets its name.

use super::blas::BlasArgs;
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::failure::io_failure;
use super::levers::BaseChoice;
use super::model::{self, Chosen};
use super::request::PREFILL;
use super::weights::{self, Trained};
use super::{Failure, exit_code, in_pool};
use crate::streams::talk;
use ::plimsoll_plan::{plan_sampling, sampling_graph};
use ::plimsoll_train::checkpoint::{CONFIG_FILE, CheckpointError, Merge, load_weights};
use ::plimsoll_train::{Engine, Writer};
use clap::Args;
use plimsoll_data::MODEL_FILES;
use plimsoll_exec::philox;
use plimsoll_files::{Disk, FolderLock, LOCK, LockError, free_space, is_file, is_there};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Adapters, GraphError, SampleShape, WeightCodes};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Tokens whose logits are compared.
const TOKENS: usize = 32;

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// A run of adapters, a checkpoint of it, a folder saved by PEFT, or a name in the Hugging Face cache
    #[arg(long, value_name = "PATH|NAME")]
    checkpoint: PathBuf,
    /// Folder to create, with the merged weights, the tokenizer and the configuration
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Fetch the weights that the adapters name from the Hugging Face hub if they are not in the cache
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    download: bool,
    /// Merge into weights that were stored in this format and decoded, as a QLoRA run has them
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = BaseChoice::Off)]
    base_weights: BaseChoice,
    /// Use the moving average of the adapters, if the run kept one
    #[arg(long)]
    ema: bool,
    /// Do not compare logits, which needs memory for the whole model in single precision
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    blas: BlasArgs,
}

pub(super) fn run(args: MergeArgs) -> Result<u8, Failure> {
    args.budget.refuse_range("merge")?;
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    in_pool(threads, || args.merge())
}

impl MergeArgs {
    fn merge(&self) -> Result<u8, Failure> {
        if is_there(&self.out).map_err(io_failure(self.out.display()))? {
            return Err(Failure::bad_flag(format!("{} already exists", self.out.display()))
                .hint("`--out` names a new folder; remove this one, or choose another name"));
        }
        let trained = Trained::open(&self.checkpoint, self.download)?;
        trained.check_averages(self.ema)?;
        let Some(below) = &trained.below else {
            return Err(Failure::bad_input(format!("{} has no adapters to merge", trained.folder.display()))
                .hint("its weights can be used as they are"));
        };
        let shape = shape(&trained);
        let codes = self.base_weights.codes();
        let graph = sampling_graph(&trained.chosen.config, trained.adapters(), &shape, codes)?;
        let folders = [trained.folder.as_path(), below.weights.as_path()];
        let merge = Merge::open(&trained.chosen.config, &below.adapters, &graph, folders, self.ema)?;
        let disk = Disk::default();
        let unfinished = Unfinished::create(&disk, &self.out, &merge)?;
        merge.write(&disk, &unfinished.path).map_err(not_written)?;
        copy_others(&disk, folders, &unfinished.path)?;
        if merge.decoded().is_some() {
            rewrite_config(&disk, &unfinished.path, |text| ModelConfig::without_quantization(text).map(Some))?;
        }
        if merge.is_untied() {
            rewrite_config(&disk, &unfinished.path, ModelConfig::with_own_head)?;
        }
        talk(self.statement(&trained, &merge));
        if merge.is_untied() {
            talk("note: the embedding and the output head shared a weight, and have one each now");
        }
        if !self.no_check {
            self.compare(&trained, codes, &shape, &unfinished.path)?;
        }
        unfinished.finish(&self.out)?;
        talk(format_args!("wrote {}", self.out.display()));
        Ok(exit_code::DONE)
    }

    /// What is merged into what.
    fn statement(&self, trained: &Trained, merge: &Merge) -> String {
        let below = trained.below.as_ref().expect("there are adapters");
        let over = match trained.codes {
            Some(codes) => format!(", trained over weights in {},", codes.name()),
            None => String::new(),
        };
        let dtypes = merge.dtypes().join(" and ");
        let adapters = match below.adapters.layers.len() {
            1 => "1 adapter".to_owned(),
            several => format!("{several} adapters"),
        };
        let into = match (self.base_weights.codes(), merge.decoded()) {
            (Some(codes), _) => format!("weights decoded from {}, in {dtypes}, of", codes.name()),
            (None, Some(format)) => format!("decoded weights of {format}, in {dtypes}, of"),
            (None, None) => format!("{dtypes} weights of"),
        };
        format!("merging {adapters}{over} into the {into} {}", below.base)
    }

    /// An engine without weights.
    fn engine(
        &self,
        chosen: &Chosen,
        adapters: Option<&Adapters>,
        codes: Option<WeightCodes>,
        shape: &SampleShape,
    ) -> Result<Engine, Failure> {
        let opened = self.device.open(&self.budget, None)?;
        let (targets, bytes) = (opened.device.targets, opened.device.budget.bytes);
        let planned = plan_sampling(&chosen.config, adapters, shape, codes, &targets, bytes)?;
        weights::engine(chosen, planned, opened, &self.budget, "`--no-check`")
    }

    /// Prints how far the merged logits are from those of the weights and the adapters: as they were merged, and if the
    /// run has its weights in other codes, also as they were trained. Errors: a logit is not a number, or a model does
    /// not fit.
    fn compare(
        &self,
        trained: &Trained,
        codes: Option<WeightCodes>,
        shape: &SampleShape,
        folder: &Path,
    ) -> Result<(), Failure> {
        if trained.chosen.config.is_encoder() {
            talk("note: the vectors of an encoder are not compared");
            return Ok(());
        }
        let of_parts = |codes| {
            let mut engine = self.engine(&trained.chosen, trained.adapters(), codes, shape)?;
            trained.load(&mut engine, self.ema)?;
            logits(&mut engine, trained, shape)
        };
        let apart = of_parts(codes)?;
        let as_trained = if trained.codes == codes { None } else { Some(of_parts(trained.codes)?) };
        let chosen = model::open(&folder.join(CONFIG_FILE).to_string_lossy())?;
        let mut engine = self.engine(&chosen, None, None, shape)?;
        load_weights(&mut engine, folder)?;
        let merged = logits(&mut engine, trained, shape)?;
        let largest = merged.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let say = |of: &str, others: &[f32]| {
            let apart = merged.iter().zip(others).map(|(a, b)| (a - b).abs());
            let most = apart.fold(0.0_f32, f32::max);
            talk(format_args!("logits differ by at most {most:.1e} from those {of}; the largest is {largest:.1}"));
        };
        say("of the weights with the adapters", &apart);
        if let Some(as_trained) = as_trained {
            let form = trained.codes.map_or("the weights of the run", |_| "the weights in the run's codes");
            say(&format!("of {form} with the adapters"), &as_trained);
        }
        match merged.iter().chain(&apart).all(|logit| logit.is_finite()) {
            true => Ok(()),
            false => Err(Failure::bad_input("the merged model computes logits that are not finite")
                .hint("check the adapters: `plimsoll generate --checkpoint` of them shows text")),
        }
    }
}

/// The failure for merged weights that can't be written.
fn not_written(error: CheckpointError) -> Failure {
    match error {
        CheckpointError::Io { path, source } if is_full(&source) => {
            Failure::device(format!("{}: {source}", path.display())).hint("free space, or choose another `--out`")
        }
        error => error.into(),
    }
}

/// Whether a file can't grow: the disk is full, or a limit is reached.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Room for the tokens to compare.
fn shape(trained: &Trained) -> SampleShape {
    let tokens = TOKENS.min(trained.chosen.config.max_positions());
    SampleShape { rows: 1, prefill: PREFILL, capacity: tokens, source: tokens }
}

/// The logits after each of some arbitrary tokens.
fn logits(engine: &mut Engine, trained: &Trained, shape: &SampleShape) -> Result<Vec<f32>, Failure> {
    let vocabulary = trained.chosen.config.vocab_size() as u32;
    let token = |index: usize| philox([index as u32, 0, 0, 0], [0, 0])[0] % vocabulary;
    let tokens = (0..shape.capacity).map(token).collect::<Vec<_>>();
    let mut writer = Writer::new(engine, trained.chosen.config.decoder_start());
    writer.encode(&[&tokens])?;
    let mut all = Vec::new();
    for token in tokens {
        all.extend_from_slice(writer.feed(&[&[token]])?);
    }
    Ok(all)
}

/// Copies the configuration of the weights, and the tokenizer's files of the adapters or else of the weights.
fn copy_others(disk: &Disk, [adapters, weights]: [&Path; 2], into: &Path) -> Result<(), Failure> {
    let first = |name: &str, folders: [&Path; 2]| -> io::Result<()> {
        for from in folders.map(|folder| folder.join(name)) {
            if is_file(&from)? {
                return disk.write_new(&into.join(name), &fs::read(from)?);
            }
        }
        Ok(())
    };
    let configured = first(CONFIG_FILE, [weights, adapters]);
    let copied = MODEL_FILES.iter().try_fold((), |(), name| first(name, [adapters, weights]));
    configured.and(copied).and_then(|()| disk.sync_folder(into)).map_err(io_failure(into.display()))
}

/// Replaces the config.json in a folder by what `changed` returns, unless that is `None`.
fn rewrite_config(
    disk: &Disk,
    folder: &Path,
    changed: impl Fn(&str) -> Result<Option<String>, GraphError>,
) -> Result<(), Failure> {
    let config = folder.join(CONFIG_FILE);
    let text = fs::read_to_string(&config).map_err(io_failure(config.display()))?;
    let Some(text) = changed(&text)? else { return Ok(()) };
    let written = disk.remove_if_there(&config).and_then(|()| disk.write_new(&config, text.as_bytes()));
    written.map_err(io_failure(config.display()))
}

/// A folder that is deleted unless it is finished.
struct Unfinished<'d> {
    disk: &'d Disk,
    path: PathBuf,
    is_finished: bool,
    _lock: FolderLock,
}

impl<'d> Unfinished<'d> {
    /// Creates it next to the folder that it becomes, or empties the one of a merge that was killed. Errors: the system's; the
    /// disk has too little space; another process writes there.
    fn create(disk: &'d Disk, out: &Path, merge: &Merge) -> Result<Self, Failure> {
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = out.file_name().ok_or_else(|| Failure::bad_flag(format!("{} names no folder", out.display())))?;
        disk.create_folders(parent).map_err(io_failure(parent.display()))?;
        let (needed, free) = (merge.bytes(), free_space(parent).map_err(io_failure(parent.display()))?);
        if needed > free {
            let message = format!("the merged weights need {needed}, and {} has {free}", parent.display());
            return Err(Failure::new(exit_code::DEVICE_FAILED, message).hint("free space, or choose another `--out`"));
        }
        let path = parent.join(format!(".merging-{}", name.to_string_lossy()));
        disk.create_folder(&path).map_err(io_failure(path.display()))?;
        let lock = match FolderLock::take(&path) {
            Ok(lock) => lock,
            Err(LockError::Io { path, source }) => return Err(io_failure(path.display())(source)),
            Err(LockError::InUse { .. }) => {
                let message = format!("another process is merging into {}", out.display());
                return Err(Failure::bad_flag(message).hint("wait for it, or choose another `--out`"));
            }
        };
        let unfinished = Self { disk, path, is_finished: false, _lock: lock };
        unfinished.clear().map_err(io_failure(unfinished.path.display()))?;
        Ok(unfinished)
    }

    /// Deletes all files but the lock.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if !path.ends_with(LOCK) {
                self.disk.remove_if_there(&path)?;
            }
        }
        Ok(())
    }

    /// Gives the folder its name.
    fn finish(mut self, out: &Path) -> Result<(), Failure> {
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let unlocked = self.disk.remove_if_there(&self.path.join(LOCK));
        let renamed = unlocked.and_then(|()| self.disk.rename(&self.path, out));
        renamed.map_err(io_failure(out.display()))?;
        // The next process may be writing under this name by now.
        self.is_finished = true;
        self.disk.sync_folder(parent).map_err(io_failure(out.display()))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // What can't be deleted now is deleted by the next merge into the same folder.
            let _ = self.disk.remove_if_there(&self.path);
        }
    }
}
