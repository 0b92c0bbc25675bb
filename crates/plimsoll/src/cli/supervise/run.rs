//! `plimsoll run`: runs a command of another training program, and restarts it when it fails.

use super::gpu_share::{GpuLimits, percent};
use super::heat::HeatArgs;
use super::repair::RepairArgs;
use super::reporter::EventReporter;
use super::visible::{uuids, visible_cards};
use super::watch::watch;
use super::workers::Workers;
use super::{RunsArgs, background, open, say, untrusted};
use crate::cli::Failure;
use crate::cli::detach::{DetachArgs, leave_terminal, own_program};
use crate::cli::failure::{exit_code, io_failure};
use crate::cli::notify::TellArgs;
use crate::cli::options::{alloc_conf, part, part_from_zero, positive_duration, positive_size};
use crate::streams::{handle_signals, talk};
use clap::{Args, Parser};
use plimsoll_files::Disk;
use plimsoll_registry::{Entry, RunState, program_name};
use plimsoll_supervise::{
    CardPeaks, Folder, Input, Job, Limits, Refusal, Repair, Share, SuperviseSettings, Supervised, adopt, keep, shares,
    supervise, usable_cpus,
};
use plimsoll_telemetry::Gpu;
use plimsoll_units::{Bytes, Seconds};
use std::ffi::OsString;
use std::io::{self, sink, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The exit code for a run whose end is unknown.
const UNKNOWN_END: u8 = 1;

#[derive(Debug, Args)]
pub(in crate::cli) struct RunArgs {
    /// The command and its arguments, after `--`. With several workers, `{worker}` in them is the worker's number
    #[arg(value_name = "COMMAND", last = true, required_unless_present_any = ["adopt", "keep"])]
    command: Vec<OsString>,

    /// Name of the run, and of its folder [default: the command's name and a number]
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    runs: RunsArgs,

    #[command(flatten)]
    detach: DetachArgs,

    /// Take over a run whose supervisor was killed, instead of starting a command
    #[arg(long, value_name = "RUN", conflicts_with_all = ["command", "name"])]
    adopt: Option<String>,

    /// Most restarts of each worker
    #[arg(long, value_name = "N", default_value_t = 10)]
    max_restarts: u32,

    /// Give up after this many identical failures in a row without progress
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 3)]
    same_error: u32,

    /// Delay before a restart. It doubles up to a minute while there is no progress
    #[arg(long, value_name = "TIME", default_value = "1s")]
    backoff: Seconds,

    /// Time without output or computation, on processors or a GPU, after which the command counts as hung; `0` turns
    /// this off. A hung command is ended, with a stack dump by py-spy or Python's fault handler, and restarted
    #[arg(long, value_name = "TIME", default_value = "30m")]
    hang_timeout: Seconds,

    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "30s")]
    grace: Seconds,

    /// End the run after this long: SIGINT, then SIGTERM, then SIGKILL
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    duration: Option<Seconds>,

    /// Commands that run in parallel on each GPU; `7@3.33GiB`: seven, each with that much of its GPU's memory
    #[arg(long, value_name = "N[@SIZE]", default_value = "1")]
    workers: Workers,

    /// Share of its GPU's memory that each worker may use, above 0 and up to 1 [default: 0.9 divided by the workers of
    /// a GPU if there are several, else all]
    #[arg(long, value_name = "X", value_parser = part)]
    memory_fraction: Option<f32>,

    /// Share of its GPU's multiprocessors that each worker may use: `50%`, or 0.5. Needs CUDA's Multi-Process Service (MPS)
    #[arg(long, value_name = "X", value_parser = percent)]
    gpu_share: Option<f64>,

    /// Progress of a worker, 0 to 1, at which the next one starts
    #[arg(long, value_name = "X", value_parser = part_from_zero, default_value = "0.2")]
    stagger: f64,

    /// Time after which the next worker starts anyway
    #[arg(long, value_name = "TIME", default_value = "5m")]
    stagger_time: Seconds,

    /// Threads of numeric libraries in each command [default: its share of the processors if there are several workers]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    threads: Option<usize>,

    /// The value of PYTORCH_CUDA_ALLOC_CONF, such as `expandable_segments:True`; `plimsoll replay` recommends one
    #[arg(long, value_name = "SETTINGS", value_parser = alloc_conf)]
    alloc_conf: Option<String>,

    /// Do not let `torch.compile` capture CUDA graphs when the environment asks for them (TORCHINDUCTOR_CUDAGRAPHS=0).
    /// A script that asks for them itself (`mode="reduce-overhead"`, `torch.cuda.CUDAGraph`) still gets them
    #[arg(long)]
    disable_cudagraphs: bool,

    #[command(flatten)]
    repair: RepairArgs,

    #[command(flatten)]
    heat: HeatArgs,

    #[command(flatten)]
    tell: TellArgs,

    /// Size limit for each worker's log; the oldest output is removed first
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    log_limit: Bytes,

    /// Supervise the run in this folder, in the background
    #[arg(long, value_name = "DIR", hide = true)]
    inside: Option<PathBuf>,

    /// Run as the keeper of a program; stdout is the socket to the supervisor
    #[arg(long, hide = true)]
    keep: bool,
}

/// The arguments of a run, as another supervisor reads them back.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Given {
    #[command(flatten)]
    run: RunArgs,
}

pub(in crate::cli) fn run(args: RunArgs) -> Result<u8, Failure> {
    if args.keep {
        return keep(stdout()).map(|()| exit_code::DONE).map_err(io_failure("the supervisor sent no program to run"));
    }
    handle_signals();
    match (&args.inside, &args.adopt) {
        (Some(folder), adopted) => {
            leave_terminal();
            let folder = open(folder)?;
            match adopted {
                Some(_) => adopt_in(folder, true),
                None => {
                    let reporter = EventReporter::start(&args.tell)?;
                    args.start_in(folder, reporter)
                }
            }
        }
        (None, Some(name)) => {
            let entry = orphan(args.runs.find(name)?)?;
            if args.detach.detach {
                return background::adopt(&entry).map(|()| 0);
            }
            adopt_in(open(&entry.folder)?, false)
        }
        (None, None) => {
            // Report missing notifier settings before creating anything. A supervisor in the background reports its
            // own.
            args.heat.settings()?;
            let visible = visible_cards();
            args.workers.check(args.memory_fraction, &visible)?;
            args.limits().check(&args.shares(&visible), &visible, &args.runs.registry())?;
            let reporter = EventReporter::start(&args.tell)?;
            let folder = args.new_folder()?;
            if args.detach.detach {
                return background::start(&folder);
            }
            args.start_in(open(&folder)?, reporter)
        }
    }
}

/// A run whose supervisor is gone. Errors: the run has one, or is not running.
pub(super) fn orphan(entry: Entry) -> Result<Entry, Failure> {
    match entry.state() {
        RunState::Orphaned => Ok(entry),
        RunState::Running => Err(Failure::bad_flag(format!("{} still has its supervisor", entry.name()))
            .hint(format!("`plimsoll attach {}` follows it", entry.name()))),
        RunState::Ended | RunState::Gone => Err(Failure::bad_flag(format!("{} is not running", entry.name()))),
        RunState::Elsewhere => Err(elsewhere(&entry)),
    }
}

/// The error for a run whose processes are on another machine.
pub(super) fn elsewhere(entry: &Entry) -> Failure {
    let message = format!("{} belongs to the machine {}, or to a container on it", entry.name(), entry.machine.host);
    Failure::bad_input(message).hint("run this command there")
}

impl RunArgs {
    /// How long a command may take to end after SIGTERM. Errors: the same arguments can't start a run a second time.
    pub(in crate::cli) fn repeatable(&self) -> Result<Duration, Failure> {
        if self.name.is_some() || self.adopt.is_some() {
            return Err(Failure::bad_flag("each start is a new run, and `--name` and `--adopt` name one run")
                .hint("omit them: each run is named after its command"));
        }
        Ok(Duration::from_secs_f64(self.grace.0))
    }

    fn new_folder(&self) -> Result<PathBuf, Failure> {
        if let Some(name) = &self.name {
            let is_plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
            if !is_plain {
                return Err(Failure::bad_flag(format!("`--name {name}` is not a folder name"))
                    .hint("use `--runs-dir` to choose where runs are kept"));
            }
        }
        Ok(Folder::create(&self.runs.runs_dir, self.name.as_deref(), &base_name(&self.command))?)
    }

    fn start_in(self, folder: Folder, mut reporter: EventReporter) -> Result<u8, Failure> {
        let path = folder.path().to_owned();
        let mut job = self.job(folder)?;
        let watched = watch(&mut job, &self.heat, reporter.notifier())?;
        let supervised = supervise(job, &mut |event| reporter.take(event));
        drop(watched);
        let refusal = supervised.as_ref().ok().and_then(|supervised| supervised.refusal.as_ref());
        refusal.iter().for_each(|refusal| reporter.refuse(&refusal.program, &refusal.reason));
        reporter.finish();
        let supervised = supervised?;
        if supervised.refusal.is_some() {
            // A sample written meanwhile may have kept the folder of a run that never started.
            let _ = Disk::default().remove_if_there(&path);
        }
        conclude(supervised)
    }

    /// The repair that decides what a worker runs next.
    fn repair(&self, folder: &Path, share: &Share, count: usize) -> Result<Box<dyn Repair>, Failure> {
        let worker = share.worker.to_string();
        let own = |word: &OsString| match word.to_str() {
            Some(word) if count > 1 => OsString::from(word.replace("{worker}", &worker)),
            _ => word.clone(),
        };
        self.repair.repair(self.command.iter().map(own).collect(), folder, share.worker, self.alloc_conf.as_deref())
    }

    /// The limits of each worker on its GPU that the flags set.
    fn limits(&self) -> GpuLimits {
        let has_memory = self.workers.each.is_some() || self.memory_fraction.is_some();
        GpuLimits { per_card: self.workers.per_card, has_memory, compute: self.gpu_share }
    }

    /// The share of each worker. `visible`: the cards that commands see.
    fn shares(&self, visible: &[Gpu]) -> Vec<Share> {
        let per_card = self.workers.per_card;
        let cards = if per_card > 1 { uuids(visible) } else { vec![] };
        let fraction = self.memory_fraction.map(f64::from);
        let mut shares = shares(per_card, &cards, &usable_cpus(), self.threads, fraction);
        self.workers.divide(&mut shares, visible);
        self.limits().apply(&mut shares, visible);
        shares
    }

    fn job(&self, folder: Folder) -> Result<Job, Failure> {
        let shares = self.shares(&visible_cards());
        let count = shares.len();
        let workers = shares.into_iter().map(|share| Ok((share.clone(), self.repair(folder.path(), &share, count)?)));
        let workers = workers.collect::<Result<Vec<_>, Failure>>()?;
        let seconds = |seconds: Seconds| Duration::from_secs_f64(seconds.0);
        let is_background = self.inside.is_some();
        let mut settings = SuperviseSettings {
            limits: Limits { restarts: self.max_restarts, same: self.same_error, pause: seconds(self.backoff) },
            grace: seconds(self.grace),
            hang_timeout: Some(seconds(self.hang_timeout)).filter(|timeout| !timeout.is_zero()),
            duration: self.duration.map(seconds),
            stagger_fraction: self.stagger,
            stagger_time: seconds(self.stagger_time),
            log_bytes: self.log_limit,
            variables: self.variables(),
        };
        settings.variables.extend(self.repair.hook(&self.command, folder.path())?);
        let input = if is_background || workers.len() > 1 { Input::Nothing } else { Input::Own };
        let streams = match is_background {
            true => [Box::new(sink()) as _, Box::new(sink()) as _],
            false => [Box::new(stdout()) as _, Box::new(stderr()) as _],
        };
        Ok(Job {
            folder,
            registry: self.runs.registry(),
            settings,
            command: words(&self.command),
            workers,
            keeper: vec![own_program().into(), "run".into(), "--keep".into()],
            arguments: std::env::args_os().skip(2).collect(),
            input,
            streams,
            pacer: None,
            peaks: CardPeaks::default(),
        })
    }

    /// Environment variables for every command. Variables that the user has set stay, except for the allocator's
    /// settings, which a flag may give.
    fn variables(&self) -> Vec<(String, String)> {
        let defaults = [
            // Kernels load at their first call: hundreds of MiB less on a card.
            ("CUDA_MODULE_LOADING", "LAZY"),
            // Lines arrive when they are printed, not in pieces of 8 KiB.
            ("PYTHONUNBUFFERED", "1"),
            // Print a traceback if a signal ends the program.
            ("PYTHONFAULTHANDLER", "1"),
        ];
        let unset = defaults.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        // PyTorch 2.9 and later read the second name, older versions the first.
        let names = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
        let allocator = self.alloc_conf.iter().flat_map(|settings| names.map(|name| (name, settings.as_str())));
        let graphs = self.disable_cudagraphs.then_some(("TORCHINDUCTOR_CUDAGRAPHS", "0"));
        unset.chain(allocator).chain(graphs).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// Supervises a run that lost its supervisor, with that supervisor's arguments. Errors: there is no such run, or it has
/// a supervisor.
fn adopt_in(folder: Folder, is_background: bool) -> Result<u8, Failure> {
    let entry = Entry::read(folder.path());
    let entry =
        entry.map_err(|error| Failure::bad_input(format!("{} is not a run: {error}", folder.path().display())))?;
    let entry = entry.trusted().map_err(|error| untrusted(&entry.name(), &error))?;
    let entry = orphan(entry)?;
    let mut args = Given::try_parse_from(&entry.arguments).map_err(Failure::usage)?.run;
    args.inside = is_background.then(|| entry.folder.clone());
    let mut job = args.job(folder)?;
    job.arguments.clone_from(&entry.arguments);
    job.input = Input::Nothing;
    let tell = args.tell.clone().without_unknown(&entry.folder);
    let mut reporter = EventReporter::start(&tell)?.of_run(entry.name(), entry.workers.len());
    let watched = watch(&mut job, &args.heat, reporter.notifier())?;
    let supervised = adopt(job, &entry, &mut |event| reporter.take(event));
    drop(watched);
    reporter.finish();
    conclude(supervised?)
}

fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The base of the names of a command's runs.
fn base_name(command: &[OsString]) -> String {
    let name = program_name(&words(command));
    let stem = Path::new(&name).file_stem().unwrap_or_default().to_string_lossy();
    let plain = stem.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' });
    let plain = plain.take(60).collect::<String>();
    let plain = plain.trim_start_matches(['.', '-']);
    if plain.is_empty() { "run".to_owned() } else { plain.to_owned() }
}

/// The exit code of a run that is over. Errors: no command could be started.
fn conclude(supervised: Supervised) -> Result<u8, Failure> {
    let Supervised { report, refusal } = supervised;
    let Some(Refusal { program, reason, code }) = refusal else {
        talk(say::summary(&report));
        return Ok(report.code.map_or(UNKNOWN_END, |code| code.to_le_bytes()[0]));
    };
    let failure = Failure::new(code.to_le_bytes()[0], format!("{program} can't be started: {reason}"));
    Err(failure.hint(start_hint(&reason, code)))
}

/// The hint for a command that can't be started.
fn start_hint(reason: &io::Error, code: i32) -> &'static str {
    match reason.raw_os_error() {
        Some(libc::EMFILE) => "the process has too many open files: raise `ulimit -n`, or use fewer `--workers`",
        Some(libc::ENFILE) => "the machine has too many open files: end other programs, or raise `fs.file-max`",
        Some(libc::EAGAIN) => {
            "the process limit is reached: end other programs, or raise `ulimit -u` or the control group's `pids.max`"
        }
        Some(libc::ENOMEM) => "not enough free memory to start it: end other programs, or raise the memory limit",
        Some(libc::E2BIG) => "its arguments and environment are too long for the system: put arguments into a file",
        Some(libc::ETXTBSY) => "another process has the file open for writing; retry when that process has closed it",
        Some(libc::ELOOP) => "the symbolic links in its path form a loop; `namei -l NAME` shows them",
        Some(libc::ENAMETOOLONG) => "its name is longer than the system allows",
        Some(libc::ENOEXEC) => {
            "it is not a program for this system, or it is a script without a `#!` line: `sh NAME` or `python NAME`"
        }
        _ if code == 127 => "check the spelling and that it is installed; a script in this folder is `./NAME`",
        _ if code == 126 => "it must be a program or an executable script: `chmod +x NAME`, or `python NAME`",
        _ => "the system log may say more (`dmesg`)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_named_after_scripts() {
        let name = |words: &[&str]| base_name(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(name(&["python", "-u", "src/train.py", "--out", "b.py"]), "train");
        assert_eq!(name(&["/usr/bin/torchrun", "--nproc", "2"]), "torchrun");
        assert_eq!(name(&["sh", "-c", "exit 1"]), "sh");
        assert_eq!(name(&["sh", "-c", "KEY=CANARY python train.py"]), "sh");
        assert_eq!(name(&["./a b\u{1b}.py"]), "a-b-");
        assert_eq!(name(&["..."]), "run");
        assert_eq!(name(&[]), "run");
    }

    proptest! {
        #[test]
        fn names_are_valid_folder_names(words in proptest::collection::vec(".{0,20}", 0..4)) {
            let name = base_name(&words.iter().map(OsString::from).collect::<Vec<_>>());
            prop_assert_eq!(Path::new(&name).file_name(), Some(name.as_ref()));
        }
    }
}
