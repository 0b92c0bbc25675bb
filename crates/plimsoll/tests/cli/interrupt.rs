//! Runs that end early: killed, interrupted, out of disk, or in conflict. Each resumes where it stopped, bit for bit.

#![cfg(unix)]

use crate::support::{Random, Said, Sandbox, tiny_config};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirEntryExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const INTERRUPTED: i32 = 130;
const SIGKILL: i32 = 9;
const DEVICE_FAILED: i32 = 5;

/// Far longer than any wait takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `is_so`, or until the process has ended; returns whether it still runs.
pub(super) fn wait_until(child: &mut Child, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if child.try_wait().expect("a child can be waited for").is_some() {
            return false;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened");
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

pub(super) fn signal(child: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
    assert!(status.expect("a shell").success(), "the process ended before SIG{name}");
}

/// Number of step events in a run's journal; repeated steps count again.
pub(super) fn steps_logged(journal: &Path) -> usize {
    let text = fs::read(journal).unwrap_or_default();
    text.split(|&b| b == b'\n').filter(|line| line.windows(14).any(|w| w == b"\"event\":\"step\"")).count()
}

/// Starts the binary with piped streams.
fn spawn(sandbox: &Sandbox, arguments: &[String]) -> Child {
    sandbox.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

pub(super) fn end_of(child: Child) -> Said {
    Said::of(child.wait_with_output().expect("a child can be waited for"))
}

/// When a run is killed.
#[derive(Debug)]
enum Moment {
    /// This long after the start of its process.
    Started(Duration),
    /// After this many steps in this session.
    Stepped(usize, Duration),
    /// After it began to write a checkpoint.
    Saving(Duration),
}

impl Moment {
    fn random(random: &mut Random) -> Self {
        let mut below = |milliseconds: u64| Duration::from_micros(random.below(milliseconds * 1000));
        let (short, long) = (below(5), below(40));
        match random.below(3) {
            0 => Self::Started(long),
            1 => Self::Stepped(random.below(60) as usize, short),
            _ => Self::Saving(short),
        }
    }

    /// Waits for the moment; returns whether the process still runs.
    fn wait(&self, child: &mut Child, run: &Path, told: usize, stale: &BTreeSet<u64>) -> bool {
        let (runs, then) = match self {
            Self::Started(then) => (true, then),
            Self::Stepped(steps, then) => {
                (wait_until(child, || steps_logged(&run.join("journal.jsonl")) > told + steps), then)
            }
            Self::Saving(then) => {
                (wait_until(child, || unfinished(run).iter().any(|folder| !stale.contains(folder))), then)
            }
        };
        std::thread::sleep(*then);
        runs
    }
}

/// Inodes of the checkpoints that a run is writing, or left when it was killed.
fn unfinished(run: &Path) -> BTreeSet<u64> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let unfinished = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".writing"));
    unfinished.map(|entry| entry.ino()).collect()
}

#[test]
fn invariant_7_a_run_killed_at_twenty_random_moments_ends_with_the_same_weights() {
    let sandbox = Sandbox::new();
    train_whole(&sandbox);
    let reached = killed(&sandbox, "killed", 20);
    eprintln!("steps made before each kill: {reached:?}");
    println!("evidence: {} kills of one run", reached.len());
}

/// The evidence for `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `cargo test -p plimsoll --test cli -- --ignored --nocapture evidence`"]
fn evidence_of_kills() {
    let sandbox = Sandbox::new();
    train_whole(&sandbox);
    let kills = (0..60).map(|run| killed(&sandbox, &format!("killed-{run}"), 20 + run).len()).sum::<usize>();
    println!("evidence: {kills} kills of 60 runs");
    assert_eq!(kills, 1200);
}

/// Steps of the runs that are killed.
const STEPS: u64 = 1000;

/// Flags of these runs: with dropout, several micro-batches, and held-out losses.
fn flags_of_killed() -> String {
    format!("--max-steps {STEPS} --micro-batch 2 --eval-every 70 --learning-rate 1e-3")
}

/// The run that is not interrupted.
fn train_whole(sandbox: &Sandbox) {
    sandbox.must_train(&format!("{} --name whole --checkpoint-every 0", flags_of_killed()));
}

/// Kills a run at twenty random moments, resumes it to its end, and compares its weights with those of the
/// uninterrupted run. Returns the number of steps before each kill.
fn killed(sandbox: &Sandbox, name: &str, seed: u64) -> Vec<(usize, Moment)> {
    let flags = flags_of_killed();
    // The killed run must tokenize for itself, too.
    let arguments = Sandbox::train_arguments(&format!(
        "{flags} --name {name} --resume auto --cache-dir cache-of-{name} --checkpoint-every 8"
    ));
    let run = sandbox.path(&format!("runs/{name}"));
    let mut random = Random(seed);
    let mut reached = Vec::new();
    for kill in 0..20 {
        let moment = Moment::random(&mut random);
        let (told, stale) = (steps_logged(&run.join("journal.jsonl")), unfinished(&run));
        let mut child = sandbox.command(&arguments).stderr(Stdio::null()).spawn().expect("the binary runs");
        let runs = moment.wait(&mut child, &run, told, &stale);
        let _ = child.kill();
        let status = child.wait().expect("a child can be waited for");
        assert!(runs && status.signal() == Some(SIGKILL), "kill {kill} ({moment:?}) came too late: {status}");
        reached.push((steps_logged(&run.join("journal.jsonl")) - told, moment));
    }
    let said = end_of(spawn(sandbox, &arguments));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    sandbox.assert_same_run(&format!("runs/{name}"), "runs/whole", STEPS);
    let left =
        fs::read_dir(run.join("checkpoints")).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let expected = [STEPS - 16, STEPS - 8, STEPS].map(|step| format!("step-{step:06}").into());
    assert_eq!(left.collect::<BTreeSet<_>>(), BTreeSet::from(expected), "only complete checkpoints remain");
    reached
}

/// The resume command in a run's output.
pub(super) fn printed_command(said: &Said) -> String {
    let mut lines = said.stderr.lines().skip_while(|line| !line.contains("resume with:"));
    lines.nth(1).unwrap_or_else(|| panic!("no command: {}", said.stderr)).trim().to_owned()
}

/// Runs a command as a user who pastes it: with a shell that has the binary in its path.
fn run_in_shell(sandbox: &Sandbox, command: &str) -> Said {
    let folder = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().expect("a file has a folder");
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder.to_owned()).chain(std::env::split_paths(&rest)));
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PATH", path.expect("names of folders"));
    sandbox.confine(&mut shell);
    Said::of(shell.output().expect("a shell"))
}

#[test]
fn an_interrupted_run_saves_its_last_step_and_prints_the_resume_command() {
    const STEPS: u64 = 1000;
    let sandbox = Sandbox::new();
    let flags = format!("--max-steps {STEPS} --checkpoint-every 0 --global-batch 8 --seq-len 32");
    sandbox.must_train(&format!("{flags} --name whole"));
    for (run, signals) in [("it's cut", "INT"), ("terminated", "TERM"), ("warned", "USR1")] {
        let mut arguments = Sandbox::train_arguments(&flags);
        arguments.extend(["--name".to_owned(), run.to_owned()]);
        let journal = sandbox.path(&format!("runs/{run}/journal.jsonl"));
        let mut child = spawn(&sandbox, &arguments);
        assert!(wait_until(&mut child, || steps_logged(&journal) >= 10), "{}", end_of(child).stderr);
        signal(&child, signals);
        let said = end_of(child);
        assert_eq!((said.code, said.stdout_text()), (Some(INTERRUPTED), ""), "{}", said.stderr);
        assert!(said.stderr.contains("stopping after this step"), "{}", said.stderr);
        let last = steps_logged(&journal) as u64;
        assert!(last < STEPS, "the run ended before it was interrupted");
        sandbox.tensors(&format!("runs/{run}"), last);
        assert_eq!(sandbox.json(&format!("runs/{run}/report.json"))["status"], "interrupted");

        let command = printed_command(&said);
        assert!(command.starts_with("plimsoll train --resume "), "{command}");
        let said = run_in_shell(&sandbox, &command);
        assert_eq!(said.code, Some(0), "{command}: {}", said.stderr);
        assert!(said.stderr.contains(&format!("resumed after step {last} from")), "{}", said.stderr);
        sandbox.assert_same_run(&format!("runs/{run}"), "runs/whole", STEPS);
    }
}

#[test]
fn a_second_interrupt_quits_immediately() {
    let sandbox = Sandbox::new();
    // A step that takes longer than sending two signals.
    let flags = "--model nano --seq-len 64 --global-batch 4096 --micro-batch 4 --name slow";
    let mut child = spawn(&sandbox, &Sandbox::train_arguments(flags));
    let journal = sandbox.path("runs/slow/journal.jsonl");
    assert!(
        wait_until(&mut child, || fs::read(&journal).is_ok_and(|text| !text.is_empty())),
        "{}",
        end_of(child).stderr
    );
    signal(&child, "INT");
    let mut talk = BufReader::new(child.stderr.take().expect("it is kept")).lines().map_while(Result::ok);
    assert!(talk.any(|line| line.contains("Ctrl-C again quits immediately")));
    let start = Instant::now();
    signal(&child, "INT");
    assert_eq!(end_of(child).code, Some(INTERRUPTED));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(
        (steps_logged(&journal), sandbox.tree("runs/slow/checkpoints").len()),
        (0, 0),
        "the step was not finished"
    );
}

/// A job scheduler sends SIGTERM or SIGUSR1, and later SIGKILL.
#[test]
fn invariant_7_a_run_ends_within_its_grace_period_although_its_step_is_longer() {
    let flags =
        "--model nano --seq-len 64 --micro-batch 4 --max-steps 2 --checkpoint-every 0 --eval-samples 1 --name slow";
    let sandbox = Sandbox::new();
    let mut arguments = Sandbox::train_arguments(&format!("{flags} --grace 3s --resume auto --global-batch 4096"));
    for name in ["TERM", "USR1"] {
        let mut child = spawn(&sandbox, &arguments);
        let journal = sandbox.path("runs/slow/journal.jsonl");
        let sessions = || fs::read_to_string(&journal).unwrap_or_default().matches("run_started").count();
        let before = sessions();
        assert!(wait_until(&mut child, || sessions() > before), "{}", end_of(child).stderr);
        let start = Instant::now();
        signal(&child, name);
        let said = end_of(child);
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
        assert_eq!(said.code, Some(INTERRUPTED), "{name}: {}", said.stderr);
        for words in ["within 3 s", "saving the state before it", "longer than `--grace 3 s`"] {
            assert!(said.stderr.contains(words), "{name} lacks `{words}`: {}", said.stderr);
        }
        assert_eq!(steps_logged(&journal), 0, "{name}");
        sandbox.tensors("runs/slow", 0);
        // The settings of the first session apply to the next one.
        arguments = ["train", "--resume", "runs/slow"].map(str::to_owned).to_vec();
    }
}

/// A closed terminal sends SIGHUP, and a job scheduler SIGUSR1 and SIGTERM, possibly repeatedly: these still wait for
/// the step.
#[test]
fn other_repeated_signals_wait_for_the_step_and_its_checkpoint() {
    for signals in [
        ["TERM", "HUP"],
        ["HUP", "HUP"],
        ["INT", "TERM"],
        ["TERM", "INT"],
        ["USR1", "TERM"],
        ["USR2", "XCPU"],
        ["ALRM", "VTALRM"],
        ["PROF", "USR1"],
    ] {
        let sandbox = Sandbox::new();
        // A step that takes longer than sending two signals, but ends.
        let flags = "--model nano --seq-len 64 --global-batch 64 --micro-batch 4 --name slow --checkpoint-every 0 --eval-samples 1 \
                     --max-steps 1000";
        let mut child = spawn(&sandbox, &Sandbox::train_arguments(flags));
        let journal = sandbox.path("runs/slow/journal.jsonl");
        // During a step: before the first one the run may end earlier.
        assert!(wait_until(&mut child, || journal.exists() && steps_logged(&journal) > 0), "the run must start");
        signal(&child, signals[0]);
        let mut talk = BufReader::new(child.stderr.take().expect("it is kept")).lines().map_while(Result::ok);
        assert!(talk.any(|line| line.contains("stopping after this step")), "{signals:?}");
        signal(&child, signals[1]);
        let rest = talk.collect::<Vec<_>>().join("\n");
        assert_eq!(end_of(child).code, Some(INTERRUPTED), "{signals:?}: {rest}");
        assert!(rest.contains("resume with:"), "{signals:?}: {rest}");
        let last = steps_logged(&journal) as u64;
        assert!(last > 0, "{signals:?}");
        sandbox.tensors("runs/slow", last);
    }
}

/// `nohup` starts a program with SIGHUP ignored, and shells start background jobs with SIGINT ignored.
#[test]
fn signals_that_were_ignored_when_the_run_was_started_stay_ignored() {
    for (ignored, heard) in [("HUP", "INT"), ("INT", "TERM")] {
        let sandbox = Sandbox::new();
        let arguments = Sandbox::train_arguments("--name kept --max-steps 1000000 --checkpoint-every 0");
        let Some(mut child) = spawn_by(&sandbox, &format!("trap '' {ignored}"), &arguments) else {
            return eprintln!("SKIPPED: no bash to ignore a signal in");
        };
        let journal = sandbox.path("runs/kept/journal.jsonl");
        assert!(wait_until(&mut child, || steps_logged(&journal) > 0), "{ignored}: {}", end_of(child).stderr);
        for _ in 0..3 {
            let told = steps_logged(&journal);
            signal(&child, ignored);
            assert!(
                wait_until(&mut child, || steps_logged(&journal) > told + 5),
                "{ignored}: {}",
                end_of(child).stderr
            );
        }
        signal(&child, heard);
        let said = end_of(child);
        assert_eq!(said.code, Some(INTERRUPTED), "{}", said.stderr);
    }
}

#[test]
fn a_damaged_checkpoint_is_skipped_and_named() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name whole");
    let newest = "checkpoints/step-000020";
    let other = sandbox.read("runs/whole/checkpoints/step-000015/model.safetensors");
    let flip = |file: &str, at: usize| {
        let mut contents = sandbox.read(&format!("runs/whole/{newest}/{file}"));
        contents[at] ^= 1;
        Some(contents)
    };
    let damages: &[(&str, Option<Vec<u8>>, &str)] = &[
        ("model.safetensors", Some(other[..1000].to_vec()), "has 1000 bytes"),
        ("model.safetensors", Some(other), "its contents changed"),
        ("optimizer.safetensors", flip("optimizer.safetensors", 5000), "its contents changed"),
        ("optimizer.safetensors", None, "No such file"),
        ("config.json", flip("config.json", 9), "its contents changed"),
        ("state.json", flip("state.json", 40), "state.json is damaged"),
        ("state.json", Some(vec![]), "state.json is damaged"),
        ("state.json", None, "No such file"),
    ];
    for (number, (file, contents, reason)) in damages.iter().enumerate() {
        let run = format!("runs/cut-{number}");
        sandbox.copy("runs/whole", &run);
        let path = format!("{run}/{newest}/{file}");
        match contents {
            Some(contents) => sandbox.write(&path, contents),
            None => fs::remove_file(sandbox.path(&path)).expect("it is there"),
        }
        let said = sandbox.must_train(&format!("--name cut-{number} --resume auto"));
        for words in [&format!("warning: skipping checkpoint {run}/{newest}: "), *reason, "resumed after step 15"] {
            assert!(said.stderr.contains(words), "{path} lacks `{words}`: {}", said.stderr);
        }
        sandbox.assert_same_run(&run, "runs/whole", 20);
    }
}

#[test]
fn a_second_run_in_the_same_folder_is_refused_and_the_first_continues() {
    let sandbox = Sandbox::new();
    let mut first = spawn(&sandbox, &Sandbox::train_arguments("--name one --max-steps 1000000 --checkpoint-every 0"));
    let journal = sandbox.path("runs/one/journal.jsonl");
    assert!(wait_until(&mut first, || steps_logged(&journal) > 0), "{}", end_of(first).stderr);
    for flags in ["--name one", "--name one --resume auto", "--resume runs/one"] {
        let said = sandbox.train(flags);
        assert_eq!((said.code, said.stdout_text()), (Some(2), ""), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains("error: runs/one is in use by another run"), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains("hint: "), "{flags}: {}", said.stderr);
    }
    let told = steps_logged(&journal);
    assert!(wait_until(&mut first, || steps_logged(&journal) > told + 10), "{}", end_of(first).stderr);
    signal(&first, "INT");
    let said = end_of(first);
    assert_eq!(said.code, Some(INTERRUPTED), "{}", said.stderr);
    let last = steps_logged(&journal) as u64;
    assert_eq!(sandbox.json("runs/one/report.json")["losses"].as_array().map(|l| l.len() as u64), Some(last));
}

/// Runs the binary with a limit on file sizes, which stands in for a full disk: weights exceed it, the run's other
/// files do not.
fn train_on_a_full_disk(sandbox: &Sandbox, kib: u64, flags: &str) -> Option<Child> {
    let child = spawn_by(sandbox, &format!("ulimit -f {kib}"), &Sandbox::train_arguments(flags));
    if child.is_none() {
        eprintln!("SKIPPED: no bash to set a limit with");
    }
    child
}

/// Starts the binary from a shell that runs another command first.
fn spawn_by(sandbox: &Sandbox, before: &str, arguments: &[String]) -> Option<Child> {
    let mut bash = from_shell(before, arguments);
    sandbox.confine(&mut bash);
    bash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()
}

/// The binary, started from a shell that runs another command first.
pub(super) fn from_shell(before: &str, arguments: &[String]) -> Command {
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{before} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_plimsoll")]).args(arguments);
    bash
}

#[test]
fn a_full_disk_loses_checkpoints_but_keeps_the_older_one() {
    let sandbox = Sandbox::new();
    sandbox.write("wide/config.json", tiny_config(&serde_json::json!({"n_embd": 48})));
    let flags = |run: &str, steps: u64| format!("--model wide --name {run} --max-steps {steps} --learning-rate 1e-3");
    sandbox.must_train(&flags("whole", 30));
    sandbox.must_train(&format!("{} --warmup-steps 3", flags("full", 10)));
    let weights = sandbox.tensors("runs/full", 10)[0].len() as u64 / 1024;
    let others =
        sandbox.tree("runs/full").into_iter().filter(|(path, _)| path.extension().is_none_or(|e| e != "safetensors"));
    let most = others.map(|(_, contents)| contents.len() as u64 / 1024).max().expect("files");
    assert!(most + 20 < weights - 1, "there is no limit between {most} KiB and {weights} KiB");
    let before = sandbox.tree("runs/full/checkpoints");

    let resumed = format!("{} --resume auto", flags("full", 30));
    let Some(child) = train_on_a_full_disk(&sandbox, weights - 1, &resumed) else { return };
    let said = end_of(child);
    assert_eq!((said.code, said.stdout_text()), (Some(DEVICE_FAILED), ""), "{}", said.stderr);
    for step in [15, 20, 25, 30] {
        let words = format!("warning: the checkpoint after step {step} could not be written");
        assert!(said.stderr.contains(&words), "lacks `{words}`: {}", said.stderr);
    }
    for words in [
        "File too large",
        "hint: check for a full disk; training continues, and older checkpoints are kept",
        "error: the state after step 30 is not on disk: ",
        "hint: the newest checkpoint on disk is runs/full/checkpoints/step-000010, after step 10",
        "free disk space, then rerun the steps since then: plimsoll train --resume runs/full",
    ] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
    assert!(!said.stderr.contains("finished"), "{}", said.stderr);
    let report = sandbox.json("runs/full/report.json");
    assert_eq!((&report["status"], &report["saved_step"]), (&"unsaved".into(), &10.into()));
    assert!(sandbox.tree("runs/full/checkpoints") == before, "the older checkpoints changed, or partial files remain");
    assert_eq!(sandbox.json("runs/full/report.json")["losses"].as_array().map(Vec::len), Some(30));

    // With free space again, the lost steps are repeated.
    let said = sandbox.must_train(&resumed);
    assert!(said.stderr.contains("resumed after step 10"), "{}", said.stderr);
    assert_eq!(sandbox.tensors("runs/full", 30)[0].len() as u64 / 1024, weights);
}

/// An interrupted run says that it can be resumed only if that is true.
#[test]
fn an_interrupted_run_that_cannot_be_saved_says_so() {
    let sandbox = Sandbox::new();
    sandbox.write("wide/config.json", tiny_config(&serde_json::json!({"n_embd": 48})));
    // Space for everything except the weights.
    let flags = "--model wide --name cut --max-steps 1000000 --checkpoint-every 0";
    let Some(mut child) = train_on_a_full_disk(&sandbox, 100, flags) else { return };
    let journal = sandbox.path("runs/cut/journal.jsonl");
    assert!(wait_until(&mut child, || steps_logged(&journal) >= 3), "{}", end_of(child).stderr);
    signal(&child, "INT");
    let said = end_of(child);
    assert_eq!(said.code, Some(DEVICE_FAILED), "{}", said.stderr);
    for words in [
        "is not on disk: ",
        "hint: no checkpoint is on disk",
        "free disk space, then start again: plimsoll train --resume auto --runs-dir runs --name cut\n",
    ] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
    assert!(!said.stderr.contains("resume with:"), "{}", said.stderr);
    // With free space again, the printed command works.
    let said = sandbox.run("train --resume auto --runs-dir runs --name cut --max-steps 3");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("no checkpoint in runs/cut yet; starting the run"), "{}", said.stderr);
}

/// Runs `train` where `disk` is a file system of this size, and copies its contents to `after`; `None` if the system
/// cannot mount one.
#[cfg(target_os = "linux")]
fn train_on_a_disk(sandbox: &Sandbox, kib: usize, flags: &str) -> Option<Said> {
    let mount = format!("rm -rf after && mkdir -p disk after && mount -t tmpfs -o size={kib}k none disk");
    let before = "if [ -d before ]; then cp -R before/. disk; fi";
    let script = format!("{mount} || exit 99; {before}; \"$0\" \"$@\"; code=$?; cp -R disk/. after; exit $code");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--map-root-user", "sh", "-c", &script, env!("CARGO_BIN_EXE_plimsoll")]);
    shell.args(Sandbox::train_arguments(&format!("--runs-dir disk {flags}")));
    sandbox.confine(&mut shell);
    let refused = match shell.output() {
        Ok(output) if output.status.code() != Some(99) => {
            let said = Said::of(output);
            if !said.stderr.contains("unshare:") {
                return Some(said);
            }
            said.stderr
        }
        refused => format!("{refused:?}"),
    };
    eprintln!("SKIPPED: no disk can be mounted here: {refused}");
    None
}

/// A disk that is too small is detected before the first step, and the hint works.
#[cfg(target_os = "linux")]
#[test]
fn checkpoints_that_do_not_fit_the_disk_are_detected_before_the_first_step() {
    let sandbox = Sandbox::new();
    let kib = |bytes: usize| bytes.next_multiple_of(4096) / 1024;
    sandbox.must_train("--name whole --max-steps 20 --keep-checkpoints 1");
    let sizes = |folder: &str| sandbox.tree(folder).values().map(|contents| kib(contents.len())).sum::<usize>();
    let checkpoint = sizes("runs/whole/checkpoints");
    // The run's size without its checkpoints, its page (which may be lost) and some folders.
    let page = kib(sandbox.read("runs/whole/report.html").len());
    let rest = sizes("runs/whole") - checkpoint - page + 40;

    // Not even one checkpoint.
    let flags = "--name none --max-steps 20";
    let Some(said) = train_on_a_disk(&sandbox, rest + checkpoint / 2, flags) else { return };
    assert_eq!((said.code, said.stdout_text()), (Some(DEVICE_FAILED), ""), "{}", said.stderr);
    assert!(said.stderr.contains("error: a checkpoint of this run needs "), "{}", said.stderr);
    assert!(said.stderr.contains("store runs on another disk with `--runs-dir PATH`"), "{}", said.stderr);
    assert!(!said.stderr.contains("--checkpoint-every 0") && !said.stderr.contains("step 1"), "{}", said.stderr);
    assert!(sandbox.tree("after/none/checkpoints").is_empty());

    // One checkpoint, which the next could not replace atomically; as the hint says, only the last is written.
    let one = rest + checkpoint + checkpoint / 2;
    let said = train_on_a_disk(&sandbox, one, "--name one --max-steps 20").expect("as before");
    assert_eq!(said.code, Some(DEVICE_FAILED), "{}", said.stderr);
    assert!(said.stderr.contains("`--checkpoint-every 0` writes only the last one"), "{}", said.stderr);
    let said = train_on_a_disk(&sandbox, one, "--name one --max-steps 20 --checkpoint-every 0").expect("as before");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(sandbox.json("after/one/report.json")["saved_step"], 20);

    // Two checkpoints, of the four that exist at a time: the last one and the one before it are kept.
    let two = rest + 2 * checkpoint + checkpoint / 2;
    let said = train_on_a_disk(&sandbox, two, "--name two --max-steps 20").expect("as before");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("hint: `--keep-checkpoints 1` keeps as many as fit"), "{}", said.stderr);
    assert!(!said.stderr.contains("could not be written"), "{}", said.stderr);
    let steps = |run: &str| fs::read_dir(sandbox.path(&format!("{run}/checkpoints"))).expect("a folder").count();
    assert_eq!((steps("after/two"), &sandbox.json("after/two/report.json")["saved_step"]), (2, &20.into()));
    sandbox.assert_same_run("after/two", "runs/whole", 20);
    let said = train_on_a_disk(&sandbox, two, "--name two --max-steps 20 --keep-checkpoints 1").expect("as before");
    assert!(said.code == Some(0) && !said.stderr.contains("warning"), "{}", said.stderr);

    // A resumed run with three checkpoints: new ones replace old ones.
    sandbox.must_train("--name old --max-steps 15 --runs-dir before");
    // Its page is there too.
    let rest = rest + page;
    let three = rest + 3 * checkpoint + checkpoint / 2;
    let said = train_on_a_disk(&sandbox, three, "--resume disk/old --max-steps 20").expect("as before");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(sandbox.path("after/old/checkpoints/step-000020").exists(), "{}", said.stderr);
    // Or there is no space for one, even then.
    let said = train_on_a_disk(&sandbox, rest + checkpoint + checkpoint / 2, "--resume disk/old --max-steps 20");
    assert_ne!(said.expect("as before").code, Some(0));
}

/// A run's messages may go to a log on a full disk, or to a pipe whose reader has closed it.
#[test]
fn messages_that_cannot_be_written_do_not_end_the_run() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name whole");
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = sandbox.command(Sandbox::train_arguments("--name closed --json"));
    let status = command.stdout(closed.try_clone().expect("a pipe")).stderr(closed).status().expect("the binary runs");
    assert_eq!(status.code(), Some(0));
    sandbox.assert_same_run("runs/closed", "runs/whole", 20);
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else {
        eprintln!("SKIPPED: this machine has no /dev/full");
        return;
    };
    let mut command = sandbox.command(Sandbox::train_arguments("--name full"));
    let status =
        command.stdout(Stdio::null()).stderr(full.try_clone().expect("a file")).status().expect("the binary runs");
    assert_eq!(status.code(), Some(0));
    sandbox.assert_same_run("runs/full", "runs/whole", 20);
    // Data that cannot be written is an error, help and versions included.
    for arguments in
        ["plan --vram 1 --json", "--help", "-h", "--version", "train --help", "help plan", "completions bash", "models"]
    {
        let stdout = full.try_clone().expect("a file");
        let output = sandbox.command(arguments.split(' ')).stdout(stdout).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(5), "{arguments}");
        assert!(Said::of(output).stderr.contains("error: stdout: "), "{arguments}");
    }
}

/// An empty HOME, and one in which no folder can be created. A run needs no cache, and leaves no temporary files.
#[test]
fn a_run_without_a_home_folder_caches_nothing() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name whole");
    fs::create_dir(sandbox.path("temporary")).expect("a folder");
    let arguments = |name: &str| {
        let mut arguments = Sandbox::train_arguments(&format!("--name {name}"));
        let flag = arguments.iter().position(|argument| argument == "--cache-dir").expect("a default");
        arguments.drain(flag..flag + 2);
        arguments
    };
    for (name, home) in [("empty", ""), ("file", "/dev/null")] {
        let mut command = sandbox.command(arguments(name));
        let said =
            Said::of(command.env("HOME", home).env("TMPDIR", sandbox.path("temporary")).output().expect("it runs"));
        assert_eq!(said.code, Some(0), "{home}: {}", said.stderr);
        assert!(said.stderr.contains("note: tokens are not cached"), "{home}: {}", said.stderr);
        assert!(!said.stderr.contains("warning:"), "{home}: {}", said.stderr);
        sandbox.assert_same_run(&format!("runs/{name}"), "runs/whole", 20);
        assert_eq!(fs::read_dir(sandbox.path("temporary")).expect("a folder").count(), 0, "{home}");
        // Measurements need a place, and what can't be written is not measured first.
        let said = Said::of(sandbox.command(["calibrate"]).env("HOME", home).output().expect("it runs"));
        assert!(matches!(said.code, Some(2 | 5)) && said.stderr.contains("`--out FILE`"), "{home}: {}", said.stderr);
    }
}
