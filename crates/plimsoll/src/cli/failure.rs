//! Converts errors of libraries into failures of commands, with hints, and prints failures.

use crate::failure::Message;
pub use crate::failure::{Failure, exit_code};

use super::processor::available;
use crate::streams::talk;
use ::plimsoll_plan::{FailureKind, PlanError, UnknownCard};
use ::plimsoll_train::{CalibrationError, FolderError, TrainError, checkpoint::CheckpointError};
use plimsoll_exec::DeviceError;
use plimsoll_files::LockError;
use plimsoll_graph::GraphError;
use plimsoll_render::{held_by, printable_line};
use plimsoll_session::SessionError;
use plimsoll_telemetry::{Available, GpuError, JournalError, gpu_holders};
use plimsoll_units::Bytes;
use plimsoll_watch::WatchError;
use std::fmt::Display;
use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

impl Failure {
    /// Adds hints with the other processes that use memory of the GPU with this UUID, if the driver reports them.
    pub(super) fn naming_holders(self, card: &str) -> Self {
        let holders = gpu_holders().into_iter().filter(|holder| holder.card == card);
        holders.fold(self, |failure, holder| failure.hint(format!("of the GPU's memory, {}", held_by(&holder))))
    }

    /// Prints the message and the hints, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        match &self.message {
            Message::Clap(error) => {
                if !error.use_stderr() {
                    // Help and version go to stdout and are not failures.
                    return match error.print().and_then(|()| stdout().flush()) {
                        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                            Self::device(format!("stdout: {error}")).report()
                        }
                        _ => ExitCode::from(exit_code::DONE),
                    };
                }
                // Omit clap's colors, since the text that it quotes may contain color codes too. A hint replaces the
                // usage, in which clap would name another flag as its suggestion.
                let text = error.render().to_string();
                let shown = if self.hints().is_empty() { Some(&*text) } else { text.split("\n\n").next() };
                talk(shown.unwrap_or_default().trim_end());
            }
            Message::Text(text) => talk(format_args!("error: {text}")),
        }
        for hint in self.hints() {
            talk(format_args!("hint: {hint}"));
        }
        ExitCode::from(self.code())
    }
}

/// "Does not fit", for a plan that needs more memory than is free. `left`: the free memory, if it is known.
pub(super) fn no_room(message: String, left: Option<Bytes>) -> Failure {
    let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
    match left.map(|left| left.0 / Bytes::mib(1).0) {
        Some(0) | None => failure.hint("close other programs, or raise the memory limit"),
        Some(mib) => failure.hint(format!("`--vram {mib}MiB` plans for the free memory")),
    }
}

/// The message of a library's error as one printable line, since paths in it may have control characters.
pub(super) fn line(error: &impl Display) -> String {
    printable_line(&error.to_string()).into_owned()
}

/// Adds the failed attempt to an I/O error.
pub(super) fn io_failure(what: impl Display) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| Failure::device(format!("{what}: {error}"))
}

/// Names what needed a thread that the system refused.
pub(super) fn no_thread(what: impl Display) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| no_threads(1, format!("{what}: {error}"))
}

/// The failure for threads that the system refused: "does not fit" if too little memory for their stacks is left.
pub(super) fn no_threads(count: usize, message: String) -> Failure {
    /// A stack of the standard library's default size, and the C library's data about the thread.
    const THREAD: Bytes = Bytes::mib(3);
    match available() {
        Some(Available { bytes, bound }) if bytes.0 / THREAD.0 < count as u64 => {
            no_room(format!("{message}: only {bytes} is available ({bound})"), None)
        }
        _ => Failure::device(message).hint(THREAD_LIMITS),
    }
}

/// The hint for threads that can't be started.
pub(super) const THREAD_LIMITS: &str = "the number of threads is limited by `ulimit -u`, by a container's `pids.max`, and by memory; `--threads N` uses fewer";

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Train(error) => error.into(),
            SessionError::NoSampler(_) => no_threads(1, line(&error)),
        }
    }
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        let message = line(&error);
        match error {
            GraphError::UnknownModel { .. } => {
                Self::bad_flag(message).hint("`plimsoll models` lists the names; or give the path of a config.json")
            }
            GraphError::TooLong { positions, .. } => {
                Self::bad_flag(message).hint(format!("use `--seq-len {positions}` or less"))
            }
            GraphError::DropsRows { .. } => Self::bad_flag(message).hint("`--lora-dropout 0` turns it off"),
            GraphError::NoMagnitudes { .. } => Self::bad_flag(message).hint("name other layers, or omit `--dora`"),
            GraphError::NothingTrained { .. } => {
                Self::bad_input(message).hint("narrow `--freeze` to leave at least one parameter to train")
            }
            _ => Self::bad_input(message),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let message = line(&error);
        match error {
            PlanError::Graph(error) => error.into(),
            PlanError::NotADivisor { divisors, global_batch, .. } => {
                let divisors = divisors.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                Self::bad_flag(message).hint(format!("use micro-batches that divide {global_batch}: {divisors}"))
            }
            PlanError::Excluded(_) => {
                Self::bad_flag(message).hint("`--update-in-backward auto` uses it only where possible")
            }
            PlanError::NothingQuantized { frozen, .. } => Self::bad_flag(message).hint(match frozen {
                0 => "freeze weights with `--freeze`, such as `--freeze '*_proj.weight'`, or omit `--base-weights`",
                _ => "omit `--base-weights`, or freeze weights of linear layers, such as `--freeze '*_proj.weight'`",
            }),
            PlanError::TooLarge { .. } => Self::bad_flag(message).hint("check for an extra digit"),
            PlanError::Target { .. } => Self::bad_flag(message).hint("`--target-len N` is for T5 and encoders only"),
            PlanError::NoTargets { .. } => Self::bad_flag(message).hint(
                "omit `--label-smoothing` and `--r-drop`; `--similarity-scale` is a setting of the loss of encoders",
            ),
            PlanError::NotADecoder => Self::bad_flag(message)
                .hint("use a model that continues text, or `--objective sft` with data for this model"),
            PlanError::NoReference { .. } => Self::bad_flag(message)
                .hint("use `--method lora` or `--method qlora`, without `--lora-modules-to-save`; `--objective orpo` needs no reference"),
            PlanError::Negatives => {
                Self::bad_flag(message).hint("omit `--negative-column`, or use an encoder such as `--model bert-base`")
            }
            PlanError::PartOfNegatives { global_batch, .. } => Self::bad_flag(message)
                .hint(format!("use `--micro-batch {global_batch}`, or a smaller `--global-batch`")),
            PlanError::TooManyBlocks { blocks, .. } => Self::bad_flag(message)
                .hint(format!("use `--recompute {blocks}` or less, or `--recompute blocks` for all")),
            PlanError::Zero { .. } => Self::bad_flag(message),
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let message = line(&error);
        match error {
            TrainError::Data(error) => error.into(),
            TrainError::Unsound(_) => Self::device(message).hint("this is a bug in plimsoll; please report it"),
            TrainError::Device(DeviceError::NoRoom { needed, available, card, .. }) => {
                let failure = no_room(message, available);
                // The system refused although enough was free.
                let is_refused = available.is_none_or(|available| available >= needed);
                let failure = if is_refused { failure.of_kind(FailureKind::Refused) } else { failure };
                match card {
                    Some(card) => failure.naming_holders(&card),
                    None => failure,
                }
            }
            TrainError::Device(DeviceError::Cuda(error)) => error.into(),
            TrainError::Device(DeviceError::NoThreads { threads, .. }) => no_threads(threads, message),
            TrainError::Device(_) => Self::device(message),
            TrainError::Checkpoint(error) => error.into(),
            TrainError::Folder(error) => error.into(),
            TrainError::Journal(error) => error.into(),
            TrainError::Vocabulary { .. } => {
                Self::bad_input(message).hint("use the tokenizer that the model was made for, or a larger `vocab_size`")
            }
            TrainError::NothingToTrainOn { .. } => {
                Self::bad_input(message).hint("add text, or use a shorter `--seq-len`")
            }
        }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let message = line(&error);
        match error.source.kind() {
            std::io::ErrorKind::InvalidInput => Self::bad_input(message)
                .hint("a run's journal must be a regular file in its folder; move or delete the existing one"),
            _ => Self::device(message).hint("is the disk full, or the folder read-only?"),
        }
    }
}

impl From<WatchError> for Failure {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::NotARun { .. } => {
                Self::bad_input(line(&error)).hint("`plimsoll train` writes each run to a folder in `runs`")
            }
            WatchError::Journal(error) => error.into(),
        }
    }
}

impl From<UnknownCard> for Failure {
    fn from(error: UnknownCard) -> Self {
        Self::bad_flag(error.to_string()).hint("`--vram 12` plans for any GPU with 12 GiB")
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        let message = line(&error);
        match error {
            GpuError::NoDriver { .. } => {
                Self::bad_flag(message).hint("name a GPU with `--gpu NAME`, or give its memory with `--vram`")
            }
            _ => Self::device(message),
        }
    }
}

impl From<CalibrationError> for Failure {
    fn from(error: CalibrationError) -> Self {
        match error {
            CalibrationError::Plan(error) => error.into(),
            CalibrationError::Train(error @ TrainError::Device(DeviceError::NoRoom { .. })) => {
                no_room(error.to_string(), None)
            }
            CalibrationError::Train(error) => error.into(),
            CalibrationError::Device(error) => CalibrationError::Train(error.into()).into(),
        }
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        let failure = Self::bad_input(line(&error));
        let is_damage = error.is_damage();
        match error {
            CheckpointError::Damaged { .. } => {
                failure.hint("copy it again, or use an older checkpoint; `--resume auto` finds the newest complete one")
            }
            CheckpointError::OtherRun { .. } | CheckpointError::OtherData { .. } => failure
                .hint("use the flags of the run's start, or start a new run with `--init` and `--name`"),
            CheckpointError::BadAdapters { .. } => {
                failure.hint("`--init` continues plain LoRA adapters that PEFT or Plimsoll saved")
            }
            CheckpointError::TiedAdapter { .. } => failure.hint(
                "`generate` and PEFT add such adapters while they run; train without embedding and head to merge them",
            ),
            CheckpointError::OtherBase { .. } => failure.hint(
                "restore the weights that the run began with, or start a new run from the adapters: `--init CHECKPOINT --name NAME`",
            ),
            CheckpointError::OtherFamily { .. } => failure.hint(
                "name a model of the weights' family, or omit `--model` to use the config.json next to the weights",
            ),
            CheckpointError::InCodes { format, .. } => {
                failure.hint(format!("add `--base-weights {}`", format.name()))
            }
            CheckpointError::UnsupportedCodes { .. } => {
                failure.hint("use the model that these weights were made from: `--method qlora` quantizes it to nf4")
            }
            CheckpointError::BadCodes { .. } => {
                failure.hint("download the weights again, or use the model that they were made from")
            }
            CheckpointError::UnsupportedDtype { .. } => {
                failure.hint("quantized weights can't be trained; use the model's release in float32 or bfloat16")
            }
            CheckpointError::BadIndex { .. } => {
                failure.hint("download the index again; it lists each tensor's file under `weight_map`")
            }
            CheckpointError::ShardOutside { .. } => {
                failure.hint("put all shards next to the index and name them in it without a path")
            }
            CheckpointError::MissingShard { .. } => {
                failure.hint("download it from the source of the other shards, and put it next to them")
            }
            CheckpointError::MissingTensor { .. }
            | CheckpointError::ForeignTensor { .. }
            | CheckpointError::WrongTensor { .. } => {
                failure.hint("the weights belong to another model; give `--model` the config.json next to them")
            }
            CheckpointError::Io { source, .. }
                if source.get_ref().is_some_and(|inner| inner.is::<plimsoll_files::LfsPointer>()) =>
            {
                failure.hint("`git lfs pull` or `--init NAME --download` downloads the weights")
            }
            CheckpointError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => failure.hint(
                "a checkpoint is a folder with `model.safetensors`, or with shards and `model.safetensors.index.json`",
            ),
            CheckpointError::Io { path, source } if !is_damage => Self::device(format!("{}: {source}", path.display()))
                .hint("check that the disk is mounted and readable; nothing was changed"),
            CheckpointError::Io { .. } => failure,
            CheckpointError::OtherModel { .. } => failure.hint(
                "omit `--model` to continue with the checkpoint's model, undo edits of the run's config.json, or start a new \
                 run with `--init` and `--name`",
            ),
            CheckpointError::NoHistory { .. } => {
                failure.hint("restore the run's journal.jsonl, or start a new run with `--init` and `--name`")
            }
            CheckpointError::NotFinite { tensor } => {
                Self::new(exit_code::DIVERGED, format!("`{tensor}` has values that are not finite"))
                    .hint("use a lower `--learning-rate` or a longer `--warmup-steps`")
            }
            CheckpointError::None { .. } => failure.hint("another `--name` starts a new run"),
        }
    }
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        let message = line(&error);
        match error {
            FolderError::Locked(LockError::InUse { .. }) => {
                Self::bad_flag(message).hint("wait for it, stop it, or choose another `--name`")
            }
            FolderError::Exists { .. } => {
                Self::bad_flag(message).hint("`--resume auto` continues it; another `--name` starts a new run")
            }
            FolderError::Checkpoints(error) => error.into(),
            FolderError::Link { .. } => {
                Self::bad_input(message).hint("use `--runs-dir` to store runs in another folder or on another disk")
            }
            FolderError::Locked(LockError::Io { .. }) | FolderError::Io { .. } => {
                Self::device(message).hint("is the disk full, or the folder read-only?")
            }
        }
    }
}
