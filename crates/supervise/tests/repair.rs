//! The ladder repairs runs that end out of memory, and they reach the result that they would have had: a trainer in
//! shell script and, if `PLIMSOLL_PYTHON` names a Python with PyTorch, a real training with limited memory.

use plimsoll_registry::output_of;
use plimsoll_registry::{Registry, Report, Status, SupervisorEvent};
use plimsoll_supervise::failures::Failures;
use plimsoll_supervise::hook::Hook;
use plimsoll_supervise::ladder::{Ladder, UserLadder};
use plimsoll_supervise::{CardPeaks, Folder, Input, Job, Limits, Mender, Stream, SuperviseSettings};
use plimsoll_supervise::{shares, supervise};
use plimsoll_units::Bytes;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The result of a supervised run.
struct Run {
    report: Report,
    events: Vec<SupervisorEvent>,
    output: String,
}

struct Workplace {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Workplace {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), variables: Vec::new() }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, argv: &[OsString], ladder: Ladder) -> Run {
        let runs = self.path("runs");
        let folder = Folder::open(&Folder::create(&runs, None, "train").expect("a folder")).expect("locked");
        let mender = Mender::new(argv, ladder, folder.path().join("repair"));
        let mender = mender.remembering(Failures::at(self.path("failures.json")), "a GPU of 8 MiB");
        let output = output_of(folder.path(), 0, 1);
        let settings = SuperviseSettings {
            limits: Limits { restarts: 12, same: 3, pause: Duration::ZERO },
            grace: Duration::from_secs(5),
            hang_timeout: None,
            duration: None,
            stagger_fraction: 0.2,
            stagger_time: Duration::from_secs(60),
            log_bytes: Bytes::mib(4),
            variables: self.variables.clone(),
        };
        let share = shares(1, &[], &[], None, None).remove(0);
        let job = Job {
            registry: Registry { state: None, runs },
            folder,
            settings,
            command: argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            workers: vec![(share, Box::new(mender))],
            keeper: vec![env!("CARGO_BIN_EXE_plimsoll-keeper").into()],
            arguments: vec![],
            input: Input::Nothing,
            streams: [nowhere(), nowhere()],
            pacer: None,
            peaks: CardPeaks::default(),
        };
        let mut events = Vec::new();
        let report = supervise(job, &mut |event| events.push(event.clone())).expect("supervised").report;
        Run { report, events, output: fs::read_to_string(output).expect("kept") }
    }
}

impl Run {
    fn final_loss(&self) -> &str {
        assert_eq!(self.report.status, Status::Finished, "{}\n{:#?}", self.output, self.events);
        self.output.lines().find_map(|line| line.strip_prefix("final loss ")).expect("it trained")
    }

    fn kinds(&self) -> Vec<&str> {
        self.report.attempts.iter().map(|attempt| attempt.kind.as_str()).collect()
    }

    /// The reasons for restarts in the journal.
    fn reasons(&self) -> Vec<&str> {
        let restarts = self.events.iter().filter_map(|event| match event {
            SupervisorEvent::Restarting { why, .. } => Some(why.as_str()),
            _ => None,
        });
        restarts.collect()
    }
}

fn program(name: &str) -> OsString {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).into()
}

/// The toy trainer. It needs a name that ends in `.py`: `sh train_toy.sh` would be an unknown trainer.
fn toy(workplace: &Workplace, flags: &str) -> Vec<OsString> {
    let mut argv = as_python(workplace, "train_toy", &["--output_dir"]);
    argv.push(workplace.path("out").into());
    argv.extend(flags.split(' ').map(OsString::from));
    argv
}

/// The command for a shell script under the name of a Python script.
fn as_python(workplace: &Workplace, name: &str, flags: &[&str]) -> Vec<OsString> {
    let script = workplace.path(&format!("{name}.py"));
    fs::copy(program(&format!("{name}.sh")), &script).expect("copied");
    ["sh".into(), script.into()].into_iter().chain(flags.iter().map(OsString::from)).collect()
}

fn unlimited(flags: &str) -> String {
    let workplace = Workplace::new();
    workplace.run(&toy(&workplace, flags), Ladder::new(false, "")).final_loss().to_owned()
}

#[test]
fn a_repaired_run_has_the_result_of_an_unlimited_one() {
    let flags = "--per_device_train_batch_size 8 --gradient_accumulation_steps 2";
    let workplace = Workplace::new().with("TOY_CAP", 8);
    let run = workplace.run(&toy(&workplace, flags), Ladder::new(false, ""));
    assert_eq!(run.final_loss(), unlimited(flags));
    // The 15 MiB of unused memory are less than each request, so the allocator setting is skipped.
    assert_eq!(run.kinds(), ["card_memory", "card_memory", "success"]);
    assert!(run.reasons()[1].contains("micro-batch 4 → 2, gradient accumulation 4 → 8"), "{:?}", run.reasons());
    assert!(run.output.contains("step 12/12"));
    // The next run starts with the steps of this one.
    fs::remove_dir_all(workplace.path("out")).expect("removed");
    let next = workplace.run(&toy(&workplace, flags), Ladder::new(false, ""));
    assert_eq!((next.final_loss(), next.kinds()), (run.final_loss(), vec!["success"]));
}

#[test]
fn a_run_resumes_from_its_newest_complete_checkpoint() {
    let flags = "--per_device_train_batch_size 8";
    let workplace = Workplace::new().with("TOY_CAP", 16).with("TOY_CAP_FROM", 9);
    fs::create_dir_all(workplace.path("out/checkpoint-900")).expect("made");
    let run = workplace.run(&toy(&workplace, flags), Ladder::new(false, ""));
    assert_eq!(run.final_loss(), unlimited(flags));
    assert!(run.output.contains("resumed at step 8"), "{}", run.output);
    assert!(run.reasons()[0].contains("checkpoint-900 is incomplete"), "{:?}", run.reasons());
}

#[test]
fn checkpointing_follows_if_a_smaller_batch_does_not_suffice() {
    let workplace = Workplace::new().with("TOY_CAP", 1);
    let run = workplace.run(&toy(&workplace, "--per_device_train_batch_size 2"), Ladder::new(false, ""));
    assert_eq!(run.final_loss(), unlimited("--per_device_train_batch_size 2"));
    // The request of 8 MiB failed with 15 MiB free in pieces, so the allocator setting comes first.
    assert_eq!(run.kinds(), ["card_memory", "card_memory", "card_memory", "success"]);
    let steps = ["expandable_segments:True", "micro-batch 2 → 1", "gradient checkpointing"];
    assert!(run.reasons().iter().zip(steps).all(|(why, step)| why.contains(step)), "{:?}", run.reasons());
}

#[test]
fn a_run_ends_with_a_reason_if_no_step_suffices() {
    let workplace = Workplace::new().with("TOY_CAP", 0);
    let run = workplace.run(&toy(&workplace, "--per_device_train_batch_size 2"), Ladder::new(true, ""));
    assert_eq!(run.report.status, Status::Failed);
    // The toy does not accept `--optim`, so that step is undone, and no steps are left.
    let last = run.events.iter().find_map(|event| match event {
        SupervisorEvent::GaveUp { why, .. } => Some(why.as_str()),
        _ => None,
    });
    assert!(last.is_some_and(|why| why.contains("no steps are left")), "{last:?}");
    assert_eq!(run.kinds(), ["card_memory", "card_memory", "card_memory", "card_memory", "configuration"]);
    assert!(last.is_some_and(|why| why.contains("unrecognized arguments: --optim")), "{last:?}");
}

/// A script that parses its own flags gets no new flags, and its effective batch stays the same.
#[test]
fn a_script_with_its_own_flags_is_repaired() {
    let flags =
        ["--batch_size", "4", "--gradient_accumulation_steps=3", "--use_cpu_offload", "--cpu_offload_fraction", "0.5"];
    let workplace = Workplace::new().with("TOY_CAP", 1).with("TOY_FRACTION", 75);
    let run = workplace.run(&as_python(&workplace, "train_own_flags", &flags), Ladder::new(false, ""));
    assert_eq!(run.report.status, Status::Finished, "{}\n{:#?}", run.output, run.events);
    assert_eq!(run.kinds(), ["card_memory", "card_memory", "card_memory", "success"]);
    let batches = run.output.lines().filter(|line| line.starts_with("effective batch ")).collect::<Vec<_>>();
    assert_eq!(batches, ["effective batch 12"; 4]);
    assert!(run.output.contains("trained with batch 1, accumulation 12, fraction 0.75"), "{}", run.output);
    assert!(
        run.reasons()[0].contains("--batch_size 4 → 2, --gradient_accumulation_steps 3 → 6"),
        "{:?}",
        run.reasons()
    );
}

#[test]
fn a_users_ladder_repairs_an_unknown_program() {
    let workplace = Workplace::new().with("TOY_CAP", 16);
    let script: OsString = program("train_toy.sh");
    let out = workplace.path("out").into();
    let flags = ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1"].map(OsString::from);
    let argv: Vec<_> = ["sh".into(), script, "--output_dir".into(), out].into_iter().chain(flags).collect();
    let text =
        "steps:\n- name: half\n  flags:\n    --per_device_train_batch_size: 4\n    --gradient_accumulation_steps: 2\n";
    let ladder =
        Ladder::new(false, "").with_user_steps(UserLadder::parse(text).expect("a ladder"), &argv).expect("steps");
    let run = workplace.run(&argv, ladder);
    assert_eq!(run.final_loss(), unlimited("--per_device_train_batch_size 8"));
    assert!(run.reasons()[0].contains("step 1 of the ladder: half"), "{:?}", run.reasons());
}

/// The Python in `PLIMSOLL_PYTHON`, if it has PyTorch.
fn python(test: &str) -> Option<OsString> {
    let python = env::var_os("PLIMSOLL_PYTHON");
    let has_torch =
        |python: &OsString| Command::new(python).args(["-c", "import torch"]).status().is_ok_and(|s| s.success());
    let found = python.filter(has_torch);
    if found.is_none() {
        eprintln!("SKIPPED {test}: PLIMSOLL_PYTHON names no Python with PyTorch");
    }
    found
}

fn tiny(python: OsString, workplace: &Workplace, flags: &str) -> Vec<OsString> {
    let words = flags.split(' ').map(OsString::from);
    let out = workplace.path("out").into();
    [python, program("train_tiny.py"), "--output_dir".into(), out].into_iter().chain(words).collect()
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

/// PyTorch really fails under these memory limits.
#[test]
fn a_repaired_pytorch_training_has_the_same_loss() {
    let flags = "--per_device_train_batch_size 64 --gradient_accumulation_steps 1";
    for (limit, bytes, kind) in [("TINY_SAVED", 9 << 20, "card_memory"), ("TINY_RLIMIT", 12 << 20, "host_memory")] {
        let Some(python) = python("repair of PyTorch") else { return };
        let free = Workplace::new();
        let whole = free.run(&tiny(python.clone(), &free, flags), Ladder::new(false, ""));
        let workplace = Workplace::new().with(limit, bytes);
        let run = workplace.run(&tiny(python, &workplace, flags), Ladder::new(false, ""));
        let (a, b) = (number(whole.final_loss()), number(run.final_loss()));
        assert!((a - b).abs() <= 1e-5 * a, "{limit}: {a} and {b}");
        let kinds = run.kinds();
        assert!(kinds.len() > 2 && kinds[..kinds.len() - 1].iter().all(|k| *k == kind), "{limit}: {kinds:?}");
        println!("{limit}: {} attempts, {:?}; loss {a} and {b}", kinds.len(), run.reasons());
    }
}

#[test]
fn losses_with_the_hook_are_bit_identical() {
    let Some(python) = python("the hook's losses") else { return };
    let losses = [false, true].map(|hooked| {
        let mut workplace = Workplace::new();
        if hooked {
            let run = workplace.folder.path();
            let variables = Hook::default().install(&plimsoll_files::Disk::default(), run, None).expect("installed");
            let text = |word: OsString| word.into_string().expect("text");
            workplace.variables = variables.into_iter().map(|(name, value)| (text(name), text(value))).collect();
        }
        let run = workplace.run(&tiny(python.clone(), &workplace, "--max_steps 3"), Ladder::new(false, ""));
        assert_eq!(workplace.path("hook.jsonl").exists(), hooked);
        run.output.lines().filter(|line| line.contains("loss")).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(losses[0], losses[1]);
}

fn nowhere() -> Stream {
    Box::new(std::io::sink())
}
