//! Memory of the binary: every command has a limit outside its plan, measured by the kernel; and within a memory limit
//! a run is refused or finishes, but is never killed.
#![cfg(target_os = "linux")]

mod support;

use crate::support::{Said, Sandbox};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

const MIB: u64 = 1 << 20;

/// Limit outside the plan for commands that execute one: the 64 MiB that are reserved for the process by default.
const OUTSIDE_PLAN: u64 = 64 * MIB;

/// Result of a command.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", self.stdout, self.stderr))
    }

    /// The exit code. Panics if a signal ended it.
    fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("killed: {:?}\n{}", self.status, self.stderr))
    }
}

/// Environment variable with the command that [`small_parent`] runs and the file for its output, as JSON.
const MEASURED: &str = "PLIMSOLL_TEST_MEASURED";

/// Runs a command to its end.
fn run(sandbox: &Sandbox, mut command: Command) -> Ended {
    let [out, err] = ["stdout", "stderr"].map(|name| sandbox.path(name));
    let file = |path: &Path| File::create(path).expect("a file in the sandbox");
    let status = command.stdout(file(&out)).stderr(file(&err)).status().expect("the binary runs");
    let text = |path: &Path| fs::read_to_string(path).expect("what was written");
    Ended { status, stdout: text(&out), stderr: text(&err) }
}

/// Runs a command to its end; returns its peak memory in bytes as well.
fn measure(sandbox: &Sandbox, command: &Command) -> (Ended, u64) {
    let [out, err] = ["stdout", "stderr"].map(|name| sandbox.path(name));
    let parent = by_small_parent(sandbox, command, json!({ "stdout": out, "stderr": err })).output();
    let parent = Said::of(parent.expect("this test runs"));
    let (status, peak_rss) = ended(sandbox).unwrap_or_else(|| panic!("{}", parent.stderr));
    let text = |path: &Path| fs::read_to_string(path).expect("what was written");
    (Ended { status, stdout: text(&out), stderr: text(&err) }, peak_rss)
}

/// The command with [`small_parent`] as its parent: the kernel starts a child's peak with its parent's memory, which
/// here includes the texts and threads of all tests.
fn by_small_parent(sandbox: &Sandbox, command: &Command, output: Value) -> Command {
    let text = |text: &OsStr| text.to_str().expect("Unicode").to_owned();
    let arguments: Vec<_> = command.get_args().map(text).collect();
    let measured = json!({
        "program": text(command.get_program()),
        "arguments": arguments,
        "output": output,
        "result": sandbox.path("ended"),
    });
    let mut parent = Command::new(env::current_exe().expect("the name of this program"));
    parent.args(["--exact", "small_parent", "--ignored", "--nocapture"]);
    sandbox.confine(&mut parent);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => parent.env(name, value),
            None => parent.env_remove(name),
        };
    }
    parent.env(MEASURED, measured.to_string());
    parent
}

/// Exit status and peak memory of [`small_parent`]'s child; `None` if it did not start.
fn ended(sandbox: &Sandbox) -> Option<(ExitStatus, u64)> {
    let ended = fs::read_to_string(sandbox.path("ended")).ok()?;
    fs::remove_file(sandbox.path("ended")).expect("removed, so that it is read once");
    let (status, peak_rss) = ended.split_once(' ').expect("two numbers");
    Some((ExitStatus::from_raw(status.parse().expect("a status")), peak_rss.parse().expect("bytes")))
}

/// Not a test: a process with little memory that starts measured commands.
#[test]
#[ignore = "started by other tests"]
#[expect(clippy::zombie_processes, reason = "`wait4` waits for it, and returns its memory")]
fn small_parent() {
    let Ok(measured) = env::var(MEASURED) else { return };
    let measured: Value = serde_json::from_str(&measured).expect("what `by_small_parent` wrote");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let mut command = Command::new(text(&measured["program"]));
    command.args(measured["arguments"].as_array().expect("a list").iter().map(text)).env_remove(MEASURED);
    let file = |name: &str| {
        let path = measured["output"][name].as_str()?;
        Some(File::create(path).expect("a file in the sandbox"))
    };
    file("stdout").map(|file| command.stdout(file));
    file("stderr").map(|file| command.stderr(file));
    let child = command.spawn().expect("the binary runs");
    let mut status = 0;
    // SAFETY: a `rusage` consists of plain numbers, so all zeros are valid.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: the process is an unreaped child of this one, and both results are local variables.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    assert_eq!(waited, child.id() as libc::pid_t, "waiting for {}", child.id());
    fs::write(text(&measured["result"]), format!("{status} {}", usage.ru_maxrss as u64 * 1024)).expect("written");
}

fn must(sandbox: &Sandbox, arguments: &[&str]) -> (Ended, u64) {
    let (ended, peak_rss) = measure(sandbox, &sandbox.command(arguments));
    assert_eq!(ended.code(), 0, "{arguments:?}: {}", ended.stderr);
    (ended, peak_rss)
}

fn bytes(value: &Value, keys: [&str; 2]) -> u64 {
    value[keys[0]][keys[1]].as_u64().unwrap_or_else(|| panic!("{keys:?} of {value}"))
}

/// The commands that `--help` lists.
fn commands(sandbox: &Sandbox) -> BTreeSet<String> {
    let help = Said::of(sandbox.command(["--help"]).output().expect("the binary runs"));
    let listed = help.stdout_text().split("Commands:").nth(1).expect("a list of commands").split("Options:").next();
    let lines = listed.expect("the list").lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_ascii_whitespace().next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// A text of four megabytes, and a model whose largest tensor has the same size.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let line = |i: u64| format!("line {i} of a text has {} in it, and {}\n", i * i % 977, i * 31 % 7919);
    sandbox.write("large.txt", (0..80_000).map(line).collect::<String>());
    sandbox.write(
        "wide/config.json",
        crate::support::tiny_config(&serde_json::json!({ "vocab_size": 50_304, "n_embd": 64 })),
    );
    sandbox.write("snapshot.pickle", crate::support::torch::snapshot());
    sandbox.write("lifetimes.csv", "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\n");
    sandbox.write("lines.txt", (0..1_500).map(line).collect::<String>());
    sandbox.write("pairs.tsv", (0..2_000).map(|i| format!("word {i}\tits meaning is {}\n", i * 7)).collect::<String>());
    sandbox
}

/// All commands except `calibrate`, which is slow, and `top`, which needs a terminal; both have limits below.
#[test]
fn every_command_uses_little_outside_its_plan() {
    let sandbox = sandbox();
    let server = crate::support::receiver::MessageServer::start(200);
    sandbox.write("mine", format!("PLIMSOLL_WEBHOOK_URL={}\n", server.url));
    fs::set_permissions(sandbox.path("mine"), fs::Permissions::from_mode(0o600)).expect("a mode");
    // Commands with their limits in MiB. Part of each is code, of which test builds have more: 26 to 33 MiB for any
    // command, depending on the kernel's read-ahead. Counting words needs memory per word.
    let kept = OUTSIDE_PLAN / MIB;
    let all: &[(u64, &str)] = &[
        // Commands that execute no plan have no plan's memory.
        (128, "plan --model gpt2-xl --gpu 4090"),
        (80, "models"),
        (36, "gpus"),
        (36, "gpus --restore"),
        (36, "doctor"),
        (36, "limits"),
        (kept, "stress --device cpu --vram 8MiB --phase 1 --duration 1s"),
        (36, "completions bash"),
        (36, "man manual"),
        (36, "arena lifetimes.csv"),
        (192, "tokenizer train --data large.txt --kind bpe --vocab-size 400 --output bpe.json"),
        (kept, "tokenizer train --data pairs.tsv --kind unigram --vocab-size 300 --output unigram.json"),
        (kept, "bench --data-only --data pairs.tsv --tokenizer bytes --cache-dir cache"),
        (kept, "bench --model nano --seq-len 64 --global-batch 32 --vram 1 --steps 2 --warmup 1 --json"),
        (kept, "bench --model wide --seq-len 32 --micro-batch 2 --vram 1 --steps 2 --warmup 1 --json"),
        (kept, "bench --model t5-nano --seq-len 32 --micro-batch 2 --vram 1 --steps 2 --warmup 1 --json"),
        (
            kept,
            "train --model wide --data large.txt --tokenizer gpt2 --seq-len 32 --global-batch 4 --max-steps 4 \
             --checkpoint-every 2 --sample-tokens 4 --vram 1 --name run --cache-dir cache --runs-dir runs --json",
        ),
        (kept, "train --resume runs/run --max-steps 6 --vram 1 --cache-dir cache --json"),
        (
            kept,
            "train --model t5-nano --data pairs.tsv --tokenizer bytes --source-len 32 --target-len 32 --global-batch 4 \
             --max-steps 2 --sample-tokens 4 --vram 1 --name pairs --cache-dir cache --runs-dir runs --json",
        ),
        (
            kept,
            "train --model bert-nano --data pairs.tsv --source-column 1 --target-column 2 --tokenizer bytes --source-len 32 \
             --target-len 32 --global-batch 4 --max-steps 1 --vram 1 --name bert --cache-dir cache --runs-dir runs --json",
        ),
        (kept, "embed --checkpoint runs/bert --vram 1 --data lines.txt --max-tokens 32 --out vectors.npy"),
        (kept, "generate --checkpoint runs/run --vram 1 --max-tokens 4 --prompt line --json"),
        (kept, "generate --checkpoint runs/run --vram 1 --logits logits.json --prompt line --json"),
        (
            kept,
            "train --init runs/run/model --method lora --lora-rank 2 --data large.txt --tokenizer gpt2 --seq-len 32 \
             --global-batch 4 --max-steps 1 --sample-tokens 0 --vram 1 --name adapted --cache-dir cache --runs-dir runs --json",
        ),
        (kept, "merge --checkpoint runs/adapted --out merged --no-check"),
        (96, "export --checkpoint runs/run --gguf Q4_K_M --out run.gguf"),
        (40, "report runs/run"),
        (36, "replay snapshot.pickle --html memory.html"),
        (48, "estimate --model google/flan-t5-xl --precision pure-bf16 --micro-batch 8 --seq-len 16 --gpu 5090"),
        (36, "notify test --notify webhook --secrets mine"),
        (36, "run --name kept --runs-dir runs -- echo words"),
        (36, "ps --all"),
        (36, "logs kept"),
        (36, "stop kept"),
        (36, "attach kept"),
        (36, "install-service kept --print -- serve"),
        (36, "run --detach --name going --runs-dir runs -- sleep 600"),
        (36, "pause going"),
        (36, "resume going"),
        (36, "stop going --now"),
    ];
    let mut seen = BTreeSet::from(["calibrate", "budget", "serve", "top"].map(str::to_owned));
    let mut over = Vec::new();
    for (most, arguments) in all {
        let (ended, peak_rss) = measure(&sandbox, &sandbox.command(arguments.split_whitespace()));
        assert_eq!(ended.code(), 0, "{arguments}: {}", ended.stderr);
        let planned = if ended.stdout.contains("arena_resident_bytes") {
            let value = ended.json();
            let outside = bytes(&value, ["measured", "outside_plan_bytes"]);
            assert!(outside < most * MIB, "{arguments}: {outside} bytes outside the plan");
            bytes(&value, ["measured", "arena_resident_bytes"])
        } else if arguments.starts_with("generate") || arguments.starts_with("embed") {
            planned_by_generate(&ended.stderr)
        } else {
            0
        };
        let outside = peak_rss.saturating_sub(planned);
        eprintln!("{} MiB outside a plan of {} MiB: {arguments}", outside / MIB, planned / MIB);
        if outside >= most * MIB {
            over.push(*arguments);
        }
        seen.insert(arguments.split(' ').next().expect("a command").to_owned());
    }
    assert_eq!(over, [""; 0], "these exceed their limits");
    assert_eq!(seen, commands(&sandbox), "every command has its limit here");
}

/// Commands that do not end by themselves or have nothing to do here: a server, and an order that no run accepts.
#[test]
fn servers_and_orders_use_little() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name a");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let script = format!(
        "{program} serve --listen 127.0.0.1:0 --token my-own-token > link & until [ -s link ]; do sleep 0.01; done; \
         sleep 1; kill -TERM $!; wait $!"
    );
    let mut serve = Command::new("sh");
    serve.args(["-c", &script]);
    sandbox.confine(&mut serve);
    for (command, code) in [(serve, 0), (sandbox.command(["budget", "a", "1"]), 4)] {
        let (ended, peak_rss) = measure(&sandbox, &command);
        assert_eq!(ended.code(), code, "{}", ended.stderr);
        eprintln!("{} MiB", peak_rss / MIB);
        assert!(peak_rss < 36 * MIB, "{} MiB", peak_rss / MIB);
    }
}

/// With a run of a hundred thousand steps.
#[test]
fn top_uses_little() {
    let sandbox = sandbox();
    let step = |step: u64| {
        format!(
            "{{\"v\":1,\"time_s\":{step},\"event\":\"step\",\"step\":{step},\"loss\":2.0,\"learning_rate\":1e-3,\
             \"grad_norm\":1.0,\"step_ms\":1.0,\"tokens_per_s\":9.0,\"memory_bytes\":9}}\n"
        )
    };
    sandbox.write("runs/long/journal.jsonl", (1..=100_000).map(step).collect::<String>());
    let mut command = by_small_parent(&sandbox, &sandbox.command(["top"]), json!({}));
    let (mut terminal, mut parent) = crate::support::pty::Terminal::start(&mut command, 300, 60);
    terminal.wait_for("100000", 0);
    terminal.press("q");
    parent.wait().expect("its end");
    let (status, peak_rss) = ended(&sandbox).expect("it began");
    assert_eq!(status.code(), Some(0));
    eprintln!("{} MiB: top", peak_rss / MIB);
    assert!(peak_rss < 36 * MIB, "{peak_rss}");
}

/// Memory that `generate` or `embed` reserved, to three digits.
fn planned_by_generate(stderr: &str) -> u64 {
    let line =
        stderr.lines().find_map(|line| line.strip_prefix("measured of this process: ")).expect("a line about memory");
    let size = line.split(" resident").next().expect("the first figure");
    size.parse::<plimsoll_units::Bytes>().unwrap_or_else(|e| panic!("{size}: {e}")).0
}

#[test]
#[ignore = "takes minutes on a busy machine; `cargo test --test memory -- --ignored` runs it"]
fn calibrate_uses_little_outside_its_plans() {
    let sandbox = sandbox();
    let (ended, peak_rss) = must(&sandbox, &["calibrate", "--threads", "2", "--out", "machine.json", "--json"]);
    let value = ended.json();
    let outside = bytes(&value, ["measured", "outside_plan_bytes"]);
    assert!(outside < OUTSIDE_PLAN, "{outside} bytes outside the plans");
    let planned = bytes(&value, ["measured", "arena_resident_peak_bytes"]);
    assert!(peak_rss.saturating_sub(planned) < OUTSIDE_PLAN, "{} in addition to {planned}", peak_rss);
}

/// A plan of some 47 MiB.
const BENCH: &[&str] = &[
    "bench",
    "--model",
    "nano",
    "--seq-len",
    "64",
    "--global-batch",
    "32",
    "--micro-batch",
    "32",
    "--recompute",
    "none",
    "--optimizer-offload",
    "0",
    "--head-chunk",
    "64",
    "--attention-rows",
    "64",
    "--steps",
    "1",
    "--warmup",
    "0",
    "--threads",
    "2",
    "--json",
];

/// Runs benchmarks with and without a budget within limits from nearly nothing to enough: each is refused or finishes.
/// `limited` creates the command with a limit.
fn never_killed(sandbox: &Sandbox, limits: &[u64], limited: impl Fn(&[&str], u64) -> Command) {
    let mut codes = BTreeSet::new();
    for &limit in limits {
        for more in [&["--vram", "1"][..], &[]] {
            let ended = run(sandbox, limited(&[BENCH, more].concat(), limit));
            let code = ended.code();
            eprintln!("{} MiB {more:?}: {code} {}", limit / MIB, ended.stderr);
            assert!([0, 3].contains(&code), "{code} under {} MiB: {}", limit / MIB, ended.stderr);
            assert!(
                code == 0 || (ended.stderr.contains("error: ") && ended.stderr.contains("hint: ")),
                "{}",
                ended.stderr
            );
            codes.insert(code);
        }
    }
    assert_eq!(codes, BTreeSet::from([0, 3]), "limits from too small to enough");
}

/// `sh -c` that sets a limit before it executes the binary.
fn under(sandbox: &Sandbox, limit: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_plimsoll")]).args(arguments);
    sandbox.confine(&mut command);
    command.process_group(0);
    command
}

#[test]
fn invariant_6_a_limit_on_addresses_refuses_and_never_kills() {
    let sandbox = Sandbox::new();
    never_killed(&sandbox, &[160, 256, 1024].map(|mib| mib * MIB), |arguments, limit| {
        under(&sandbox, &format!("ulimit -v {}", limit / 1024), arguments)
    });
}

/// Stacks of threads and heaps are addresses too: between limits that suffice there is none that does not.
#[test]
fn invariant_6_enough_addresses_for_a_run_stay_enough() {
    let sandbox = Sandbox::new();
    let mut codes = Vec::new();
    for mib in (104..=360).step_by(16) {
        let name = format!("run-{mib}");
        let arguments = format!(
            "train --data text.txt --model tiny --seq-len 16 --global-batch 4 --max-steps 2 --sample-tokens 0 --vram 8MiB \
             --threads 2 --log-to jsonl --sample-every 0.1s --cache-dir cache --runs-dir runs --name {name}"
        );
        let ended = run(&sandbox, under(&sandbox, &format!("ulimit -v {}", mib * 1024), &split(&arguments)));
        let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, usize::from(ended.code() != 0), "{mib} MiB: {}", ended.stderr);
        assert!(ended.code() == 0 || !sandbox.path("runs").join(&name).exists(), "{mib} MiB: it began");
        codes.push(ended.code());
    }
    let least = codes.iter().position(|code| *code == 0).expect("some limit suffices");
    let expected = (0..codes.len()).map(|index| if index < least { 3 } else { 0 }).collect::<Vec<_>>();
    assert!(codes == expected && least > 0, "{codes:?}");
}

#[test]
fn invariant_6_a_limit_on_data_refuses_and_never_kills() {
    let sandbox = Sandbox::new();
    never_killed(&sandbox, &[64, 128, 1024].map(|mib| mib * MIB), |arguments, limit| {
        under(&sandbox, &format!("ulimit -d {}", limit / 1024), arguments)
    });
}

/// A control group of version 1 or 2 with a limit, removed when dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` if this user cannot create one.
    fn new(name: &str) -> Option<Self> {
        let name = format!("plimsoll-test-{name}-{}", std::process::id());
        let groups = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(|root| (Path::new(root).join(&name), root));
        groups.into_iter().find_map(|(group, root)| {
            let is_memory =
                ["memory.limit_in_bytes", "cgroup.subtree_control"].map(|f| Path::new(root).join(f).exists());
            if !is_memory.contains(&true) || fs::create_dir(&group).is_err() {
                return None;
            }
            let group = Self(group);
            group.limit(1 << 40).then_some(group)
        })
    }

    fn limit(&self, bytes: u64) -> bool {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| self.0.join(file));
        files.iter().filter(|file| file.exists()).any(|file| fs::write(file, bytes.to_string()).is_ok())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn invariant_6_a_control_group_refuses_and_never_kills() {
    let Some(group) = ControlGroup::new("bench") else {
        eprintln!("SKIPPED: this user cannot create control groups");
        return;
    };
    let sandbox = Sandbox::new();
    never_killed(&sandbox, &[24, 56, 85, 160, 300].map(|mib| mib * MIB), |arguments, limit| {
        assert!(group.limit(limit), "the group is empty and takes a limit");
        under(&sandbox, &format!("echo $$ > {}/cgroup.procs", group.0.display()), arguments)
    });
}

/// A first run tokenizes its text, which needs memory outside its plan, on each thread.
#[test]
fn first_runs_in_a_control_group_are_planned_within_what_tokenizing_leaves() {
    let Some(group) = ControlGroup::new("first") else {
        eprintln!("SKIPPED: this user cannot create control groups");
        return;
    };
    let sandbox = sandbox();
    sandbox.write("model/config.json", crate::support::tiny_config(&json!({ "vocab_size": 50_304, "n_embd": 32 })));
    must(&sandbox, &split("tokenizer train --data large.txt --kind bpe --vocab-size 2000 --output bpe.json"));
    let mut codes = BTreeSet::new();
    for (tokenizer, threads, limits) in [("bpe.json", 8, &[90, 300][..]), ("gpt2", 8, &[60, 340])] {
        for limit in limits {
            assert!(group.limit(limit * MIB), "the group is empty and takes a limit");
            let _ = fs::remove_dir_all(sandbox.path("cache"));
            let name = format!("{}-{threads}-{limit}", &tokenizer[..3]);
            let arguments = format!(
                "train --model model --data large.txt --tokenizer {tokenizer} --threads {threads} --seq-len 32 \
                 --max-steps 1 --micro-batch auto --global-batch 32 --sample-tokens 0 --eval-every 0 --name {name} \
                 --cache-dir cache --runs-dir runs"
            );
            let join = format!("echo $$ > {}/cgroup.procs", group.0.display());
            let ended = run(&sandbox, under(&sandbox, &join, &split(&arguments)));
            let code = ended.code();
            let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>();
            eprintln!("{name}: {code} {errors:?}");
            assert!([0, 3].contains(&code), "{name}: {}", ended.stderr);
            assert!(code == 0 || !ended.stderr.contains("data: "), "refused after tokenizing: {}", ended.stderr);
            codes.insert(code);
        }
    }
    assert!(codes.contains(&0), "{codes:?}");
}

fn split(arguments: &str) -> Vec<&str> {
    arguments.split_whitespace().collect()
}
