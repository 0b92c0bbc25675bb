//! How `plimsoll run` reacts to failures: flags for the recovery ladder and the Python hook. Not here: the steps
//! (`plimsoll-supervise`).

use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::cli::state::state_folder;
use clap::{Args, ValueEnum};
use plimsoll_files::{Disk, read_text};
use plimsoll_supervise::failures::Failures;
use plimsoll_supervise::hook::{Hook, starts_python};
use plimsoll_supervise::ladder::{Ladder, UserLadder};
use plimsoll_supervise::{Mender, OnNoMemory, Repair, Unchanged};
use plimsoll_telemetry::gpus;
use plimsoll_units::Bytes;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Far longer than any ladder.
const LONGEST_LADDER: Bytes = Bytes::mib(1);

/// `--on-no-memory`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum WhenNoStepIsLeft {
    Wait,
    Minimal,
    Stop,
}

impl From<WhenNoStepIsLeft> for OnNoMemory {
    fn from(when: WhenNoStepIsLeft) -> Self {
        match when {
            WhenNoStepIsLeft::Wait => Self::Wait,
            WhenNoStepIsLeft::Minimal => Self::Minimal,
            WhenNoStepIsLeft::Stop => Self::Stop,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    /// YAML or JSON file of custom out-of-memory recovery steps, in place of the default ones
    #[arg(long, value_name = "FILE", conflicts_with = "no_repair")]
    ladder: Option<PathBuf>,

    /// Allow shortening samples if nothing else helps against running out of memory: results differ
    #[arg(long, conflicts_with = "no_repair")]
    allow_shorter: bool,

    /// What to do when memory runs out and no recovery step is left: `wait` until other processes release memory, run with
    /// the `minimal` settings until then, or `stop`
    #[arg(long, value_name = "WHAT", default_value = "wait", conflicts_with = "no_repair")]
    on_no_memory: WhenNoStepIsLeft,

    /// Restart a failed command without changes, even after it ran out of memory
    #[arg(long)]
    no_repair: bool,

    /// Install the Python hook, which saves a memory snapshot when a GPU runs out of memory, even if the command does
    /// not seem to start Python
    #[arg(long, conflicts_with = "no_python_hook")]
    python_hook: bool,

    /// Do not install the Python hook
    #[arg(long)]
    no_python_hook: bool,
}

impl RepairArgs {
    /// The repair that decides what a worker runs next. `folder`: the run's. Errors: the ladder can't be read, or
    /// changes nothing.
    pub(super) fn repair(
        &self,
        argv: Vec<OsString>,
        folder: &Path,
        worker: usize,
        alloc_conf: Option<&str>,
    ) -> Result<Box<dyn Repair>, Failure> {
        if self.no_repair {
            return Ok(Box::new(Unchanged::new(argv)));
        }
        let set = || ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].iter().find_map(|name| env::var(name).ok());
        let alloc_conf = alloc_conf.map(str::to_owned).or_else(set).unwrap_or_default();
        let ladder = self.ladder(Ladder::new(self.allow_shorter, &alloc_conf), &argv)?;
        let mender = Mender::new(&argv, ladder, folder.join(format!("repair-{worker}")));
        let mender = mender.when_no_step_is_left(self.on_no_memory.into());
        Ok(match state_file() {
            Some(file) => Box::new(mender.remembering(Failures::at(file), &card())),
            None => Box::new(mender),
        })
    }

    fn ladder(&self, ladder: Ladder, argv: &[OsString]) -> Result<Ladder, Failure> {
        let Some(path) = &self.ladder else { return Ok(ladder) };
        let text = read_text(path, LONGEST_LADDER).map_err(io_failure(path.display()))?;
        let made = UserLadder::parse(&text).and_then(|user| ladder.with_user_steps(user, argv));
        made.map_err(|error| {
            Failure::bad_input(format!("{}: {error}", path.display()))
                .hint("a step has `flags`, `env` or `files`, such as `steps: [{flags: {--batch-size: 4}}]`")
        })
    }

    /// Variables that make Python load the hook, which is written to the run's folder. Errors: I/O errors of that
    /// write.
    pub(super) fn hook(&self, command: &[OsString], folder: &Path) -> Result<Vec<(String, String)>, Failure> {
        if self.no_python_hook || !(self.python_hook || starts_python(command)) {
            return Ok(vec![]);
        }
        let before = env::var_os("PYTHONPATH");
        let variables = Hook::default().install(&Disk::default(), folder, before.as_deref());
        let variables = variables.map_err(io_failure(folder.display()))?;
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        // A path that is not UTF-8 does not fit in a variable here; the run continues without the hook.
        Ok(variables.into_iter().map(text).collect::<Option<_>>().unwrap_or_default())
    }
}

/// The file that remembers failures.
fn state_file() -> Option<PathBuf> {
    state_folder().map(|state| state.join("failures.json"))
}

/// The first card that commands see, by its name and memory.
fn card() -> String {
    let cards = gpus().map(|gpus| gpus.cards).unwrap_or_default();
    let first = cards.iter().filter(|card| card.cuda_index.is_some()).min_by_key(|card| card.cuda_index);
    first.map_or("no card".to_owned(), |card| format!("{}, {}", card.name, card.total))
}
