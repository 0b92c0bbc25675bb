//! Programs under `plimsoll run`: real processes that fail, hang, fork and ignore signals; that lose their supervisor
//! (`adoption.rs`), use hot cards (`heat.rs`), run out of memory (`repairs.rs`), have no space for their output
//! (`room.rs`), are sampled (`samples.rs`), or are in folders that other users control (`trust.rs`).

#![cfg(target_os = "linux")]

mod adoption;
mod heat;
mod repairs;
mod room;
mod samples;
mod trust;

use crate::interrupt::{end_of, signal, wait_until};
use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Flags of runs that restart immediately.
const QUICK: [&str; 2] = ["--backoff", "0.01s"];

/// Far longer than any wait takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// `plimsoll run FLAGS --name it -- sh -c SCRIPT`
fn command(sandbox: &Sandbox, flags: &str, script: &str) -> Command {
    let flags = flags.split_whitespace();
    let all = ["run"].into_iter().chain(QUICK).chain(["--name", "it"]).chain(flags).chain(["--", "sh", "-c", script]);
    sandbox.command(all)
}

fn run(sandbox: &Sandbox, flags: &str, script: &str) -> Said {
    Said::of(command(sandbox, flags, script).output().expect("the binary runs"))
}

fn spawn(sandbox: &Sandbox, flags: &str, script: &str) -> Child {
    command(sandbox, flags, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn report(sandbox: &Sandbox) -> Value {
    sandbox.json("runs/it/report.json")
}

/// Entries of `ps`, from its JSON.
fn listed(sandbox: &Sandbox, flags: &str) -> Vec<Value> {
    let said = sandbox.run(&format!("ps --json {flags}"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()["runs"].as_array().expect("a list").clone()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs; a zombie does not.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The pid that a script wrote into a file.
fn written_pid(sandbox: &Sandbox, name: &str) -> String {
    let read = || fs::read_to_string(sandbox.path(name)).ok().filter(|text| text.ends_with('\n'));
    until("a script writes a number", || read().is_some());
    read().expect("it is there").trim().to_owned()
}

fn kill(signal: &str, pid: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().expect("a shell");
    assert!(status.success(), "{pid} had ended");
}

#[test]
fn exit_codes_are_the_commands_or_a_shells_if_it_cannot_start() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("plain"), "no program").expect("written");
    std::os::unix::fs::symlink("ring", sandbox.path("ring")).expect("a link");
    fs::copy("/bin/true", sandbox.path("busy")).expect("copied");
    let _open = fs::OpenOptions::new().append(true).open(sandbox.path("busy")).expect("open for writing");
    for (command, code) in [
        (&["sh", "-c", "exit 0"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["no-such-program", "--flag"], 127),
        (&["./tiny"], 126),
        (&["./plain"], 126),
        (&[""], 127),
        (&["./ring"], 126),
        (&["./busy"], 126),
        (&[&"n".repeat(300)], 126),
    ] {
        let arguments = ["run", "--max-restarts", "0", "--"].iter().chain(command);
        let said = Said::of(sandbox.command(arguments).output().expect("the binary runs"));
        assert_eq!(said.code, Some(code), "{command:?}: {}", said.stderr);
        let is_refused = said.stderr.contains("can't be started: ") && said.stderr.contains("hint: ");
        assert_eq!(is_refused, code == 126 || code == 127, "{}", said.stderr);
        assert_eq!(said.stderr.contains("that it is installed"), code == 127, "{}", said.stderr);
    }
    // A command that cannot be started leaves no files.
    assert_eq!(fs::read_dir(sandbox.path("runs")).expect("runs").count(), 5);
    for (arguments, hint) in [("run", "follows `--`"), ("run sh -c true", "follows `--`"), ("run --workers 0 -- a", "")]
    {
        let said = sandbox.run(arguments);
        assert!(said.code == Some(2) && said.stderr.contains(hint), "{arguments}: {}", said.stderr);
    }
    let said = sandbox.run("run --name ../up -- true");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
}

#[test]
fn output_is_forwarded_and_stored_byte_for_byte() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "", r"printf 'a\377\000b\r50%%|'; printf 'no newline' >&2");
    assert_eq!((said.code, &said.stdout[..]), (Some(0), &b"a\xff\0b\r50%|"[..]));
    assert!(said.stderr.starts_with("no newline"), "{}", said.stderr);
    let log = sandbox.read("runs/it/output.log");
    assert_eq!(log.len(), said.stdout.len() + "no newline".len());
    let shown = sandbox.run("logs it");
    assert_eq!((shown.code, shown.stdout), (Some(0), log));
}

#[test]
fn a_command_reads_the_supervisors_stdin() {
    let sandbox = Sandbox::new();
    let mut child = command(&sandbox, "", "cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("a pipe").write_all(b"typed").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"typed");
}

#[test]
fn large_output_is_forwarded_and_its_end_is_stored() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "--log-limit 1MiB", "head -c 50000000 /dev/zero; printf end");
    assert_eq!((said.code, said.stdout.len()), (Some(0), 50_000_003));
    let kept = [sandbox.read("runs/it/output.log.1"), sandbox.read("runs/it/output.log")].concat();
    assert!(kept.len() <= 1 << 20 && kept.len() >= 1 << 19 && kept.ends_with(b"\0end"), "{}", kept.len());
    let last = sandbox.run("logs it -n 1");
    assert!(last.stdout.ends_with(b"\0end"));
}

#[test]
fn a_closed_pipe_does_not_stop_the_command() {
    let sandbox = Sandbox::new();
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; sleep 0.1; echo over; touch done";
    let mut child = spawn(&sandbox, "", script);
    drop(child.stdout.take());
    let said = end_of(child);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(sandbox.path("done").exists() && sandbox.text("runs/it/output.log").ends_with("line 1999\nover\n"));
    assert_eq!(said.stderr.matches("no longer forwarding stdout").count(), 1, "{}", said.stderr);
}

#[test]
fn a_failing_command_is_restarted_until_it_succeeds() {
    let sandbox = Sandbox::new();
    let script = "echo x >> tries; [ $(wc -l < tries) -ge 3 ] || { echo step $(wc -l < tries)/9; exit 4; }";
    let said = run(&sandbox, "", script);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let report = report(&sandbox);
    assert_eq!((&report["status"], &report["restarts"]), (&"finished".into(), &2.into()));
    assert_eq!(report["failures"], serde_json::json!({ "exit_4": 2 }));
    assert!((report["success_rate"].as_f64().expect("a rate") - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(report["attempts"][1]["progress"]["step"], 2);
    let journal = sandbox.text("runs/it/supervisor.jsonl");
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["event"].clone());
    let expected =
        ["run_started", "attempt_started", "attempt_ended", "restarting", "attempt_started", "attempt_ended"];
    assert_eq!(events.take(6).collect::<Vec<_>>(), expected);
}

#[test]
fn a_crash_loop_without_progress_ends() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "--same-error 3", "echo x >> tries; echo step 5; exit 4");
    assert_eq!((said.code, sandbox.text("tries").len()), (Some(4), 6));
    assert!(said.stderr.contains("3 times in a row without progress"), "{}", said.stderr);
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    let said = run(&sandbox, "--same-error 2 --max-restarts 5", "echo x >> more; echo step $(wc -l < more); exit 4");
    assert_eq!((said.code, sandbox.text("more").len()), (Some(4), 12));
    assert!(said.stderr.contains("restarted 5 times, which is the limit"), "{}", said.stderr);
}

#[test]
fn a_hang_is_detected_and_ended() {
    let sandbox = Sandbox::new();
    let flags = "--hang-timeout 0.4s --grace 0.2s --max-restarts 1";
    // The shell ignores SIGINT and SIGTERM, and its child is outside its group.
    let script = "trap '' TERM ABRT; echo working; setsid sleep 600 & echo $! > pid; while :; do wait; sleep 600; done";
    let said = run(&sandbox, flags, script);
    assert_eq!(said.code, Some(137), "{}", said.stderr);
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "hang": 2 }));
    assert!(
        said.stderr.contains("no output and nothing computed") && said.stderr.contains("SIGKILL"),
        "{}",
        said.stderr
    );
    assert!(!is_alive(&written_pid(&sandbox, "pid")));
}

#[test]
fn a_command_that_computes_prints_or_was_stopped_does_not_hang() {
    let sandbox = Sandbox::new();
    let busy = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done";
    let said = run(&sandbox, "--hang-timeout 1s --max-restarts 0", busy);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    let prints = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.25; echo $i; done; exit 6";
    let said = run(&sandbox, "--hang-timeout 1s --max-restarts 0", prints);
    assert_eq!(said.code, Some(6), "it waits, and says so: {}", said.stderr);
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    let child = spawn(&sandbox, "--hang-timeout 0.3s --max-restarts 0", "echo $$ > pid; kill -STOP $$; exit 5");
    let pid = written_pid(&sandbox, "pid");
    std::thread::sleep(Duration::from_secs(1));
    kill("CONT", &pid);
    assert_eq!(end_of(child).code, Some(5));
}

#[test]
fn a_command_whose_card_computes_does_not_hang() {
    let sandbox = Sandbox::new();
    for (busy, code) in [(40, 0), (0, 134)] {
        let mut command = command(&sandbox, "--hang-timeout 0.5s --grace 60s --max-restarts 0", "exec sleep 2");
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
        command.env(plimsoll_fake_nvml::MACHINE, format!("RTX 3060,GPU-a,12288,350,1200,busy={busy}"));
        let said = Said::of(command.output().expect("the binary runs"));
        assert_eq!(said.code, Some(code), "{busy} %: {}", said.stderr);
        fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    }
}

/// Starts a script that writes `ready` and waits, sends signals to the supervisor, and returns its output.
fn signaled(sandbox: &Sandbox, flags: &str, handlers: &str, signals: &[&str]) -> Said {
    let script = format!("{handlers}; echo ready; touch ready; while :; do sleep 0.02; done");
    let mut child = spawn(sandbox, flags, &script);
    assert!(wait_until(&mut child, || sandbox.path("ready").exists()), "the run ended early");
    for name in signals {
        let heard = || sandbox.text("runs/it/supervisor.jsonl").matches("forwarded").count();
        let before = heard();
        signal(&child, name);
        wait_until(&mut child, || heard() > before);
    }
    let said = end_of(child);
    fs::remove_file(sandbox.path("ready")).expect("it was there");
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    said
}

#[test]
fn signals_are_forwarded_and_the_command_is_not_restarted() {
    let sandbox = Sandbox::new();
    for (name, code) in [("INT", 7), ("TERM", 7), ("HUP", 7), ("QUIT", 7)] {
        let said = signaled(&sandbox, "", &format!("trap 'echo caught; exit 7' {name}"), &[name]);
        assert_eq!((said.code, said.stdout_text()), (Some(code), "ready\ncaught\n"), "{name}: {}", said.stderr);
        assert!(said.stderr.contains("stopped after"), "{}", said.stderr);
    }
    // These signals end nothing by themselves: the command decides. A shell that receives two at once handles the lower
    // number first.
    for [first, second] in [["USR1", "USR2"], ["XCPU", "PWR"], ["ALRM", "PROF"], ["VTALRM", "PROF"]] {
        let handlers = format!("trap 'echo one' {first}; trap 'echo two; exit 0' {second}");
        let said = signaled(&sandbox, "", &handlers, &[first, second]);
        assert_eq!((said.code, said.stdout_text()), (Some(0), "ready\none\ntwo\n"), "{first}: {}", said.stderr);
        assert!(said.stderr.contains("finished"), "{}", said.stderr);
    }
}

/// Job schedulers send a signal to every process of a job, including the keeper.
#[test]
fn a_signal_to_every_process_of_a_job_leaves_the_exit_code_known() {
    let sandbox = Sandbox::new();
    let script = "trap 'touch heard' USR1; touch ready; while [ ! -e go ]; do sleep 0.02; done; exit 6";
    let mut child = spawn(&sandbox, "--max-restarts 0", script);
    assert!(wait_until(&mut child, || sandbox.path("ready").exists()), "the run ended early");
    let keeper = || sandbox.json("runs/it/process.json").pointer("/workers/0/keeper/pid").map(ToString::to_string);
    until("it is entered", || keeper().is_some());
    kill("USR1", &keeper().expect("a keeper"));
    signal(&child, "USR1");
    assert!(wait_until(&mut child, || sandbox.path("heard").exists()), "the run ended early");
    sandbox.write("go", "");
    let said = end_of(child);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
}

#[test]
fn a_command_that_ignores_signals_is_killed() {
    let sandbox = Sandbox::new();
    let said = signaled(&sandbox, "--grace 0.2s", "trap '' TERM", &["TERM"]);
    assert_eq!(said.code, Some(137), "{}", said.stderr);
    let said = signaled(&sandbox, "", "trap '' INT", &["INT", "INT"]);
    assert_eq!(said.code, Some(130), "a second interrupt leaves at once: {}", said.stderr);
    let said = signaled(&sandbox, "--grace 0.2s", "trap '' INT TERM", &["INT", "TERM"]);
    assert_eq!(said.code, Some(137), "{}", said.stderr);
}

/// As under `nohup`.
#[test]
fn a_signal_that_the_supervisor_was_started_to_ignore_is_ignored() {
    let sandbox = Sandbox::new();
    let mut command = Command::new("sh");
    let script = "touch ready; while [ ! -e go ]; do sleep 0.02; done; exit 6";
    let arguments =
        ["trap '' HUP; exec \"$0\" run --max-restarts 0 -- sh -c \"$1\"", env!("CARGO_BIN_EXE_plimsoll"), script];
    command.arg("-c").args(arguments);
    sandbox.confine(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    assert!(wait_until(&mut child, || sandbox.path("ready").exists()));
    signal(&child, "HUP");
    std::thread::sleep(Duration::from_millis(200));
    sandbox.write("go", "");
    assert_eq!(end_of(child).code, Some(6));
}

/// Shells without job control start `nohup … &` with SIGINT ignored. The wait for SIGINT would be longer than this
/// test.
#[test]
fn stop_does_not_wait_for_a_signal_that_is_ignored() {
    let sandbox = Sandbox::new();
    let mut command = Command::new("sh");
    let script = "trap 'exit 6' TERM; touch ready; while :; do sleep 0.02; done";
    let run = "trap '' INT HUP; exec \"$0\" run --max-restarts 0 --name it -- sh -c \"$1\"";
    command.args(["-c", run, env!("CARGO_BIN_EXE_plimsoll"), script]);
    sandbox.confine(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    assert!(wait_until(&mut child, || sandbox.path("ready").exists()));
    let stopped = sandbox.run("stop it --grace 1h");
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert!(!stopped.stderr.contains("SIGINT") && stopped.stderr.contains("ended after SIGTERM"), "{}", stopped.stderr);
    assert_eq!(end_of(child).code, Some(6));
}

#[test]
fn no_process_is_left_behind() {
    let sandbox = Sandbox::new();
    let script = "sleep 600 & echo $! > in-group; \
                  (setsid sh -c 'echo $$ > outside; trap \"\" TERM; while :; do sleep 600; done' &) ; \
                  (setsid env -i PATH=\"$PATH\" sh -c 'echo $$ > unmarked; sleep 600' &) ; \
                  until [ -s outside ] && [ -s unmarked ]; do sleep 0.01; done; exit 5";
    let said = run(&sandbox, "--max-restarts 0 --grace 0.2s", script);
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    for name in ["in-group", "outside", "unmarked"] {
        assert!(!is_alive(&written_pid(&sandbox, name)), "{name}: {}", said.stderr);
    }
    assert!(said.stderr.contains("left running"), "{}", said.stderr);
}

/// A killed supervisor does not know these processes, but its keeper does.
#[test]
fn stop_ends_processes_that_left_the_group_and_the_environment() {
    let sandbox = Sandbox::new();
    let script = "(setsid env -i PATH=\"$PATH\" sh -c 'echo $$ > unmarked; sleep 600' &); sleep 600";
    let mut child = spawn(&sandbox, "", script);
    let pid = written_pid(&sandbox, "unmarked");
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    let said = sandbox.run("stop it --now");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!is_alive(&pid), "{}", said.stderr);
}

/// A program that forks twice repeatedly must not fill the process table.
#[test]
fn orphaned_processes_are_reaped() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'echo $$ >> left' &); done; echo $$ > pid; \
                  until [ -e go ]; do sleep 0.01; done";
    let mut child = spawn(&sandbox, "", script);
    written_pid(&sandbox, "pid");
    let is_gone = |pid: &str| !Path::new(&format!("/proc/{pid}")).exists();
    let left = || fs::read_to_string(sandbox.path("left")).unwrap_or_default();
    until("all are reaped", || left().lines().count() == 10 && left().lines().all(is_gone));
    sandbox.write("go", "");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "--duration 0.3s", "trap 'echo saved; exit 9' INT; while :; do sleep 0.02; done");
    assert_eq!((said.code, said.stdout_text()), (Some(9), "saved\n"), "{}", said.stderr);
    assert_eq!(report(&sandbox)["status"], "time_over");
}

#[test]
fn commands_receive_defaults_for_the_machine_unless_the_user_set_them() {
    let sandbox = Sandbox::new();
    let mut command = command(
        &sandbox,
        "--disable-cudagraphs --alloc-conf max_split_size_mb:64 --threads 3 --memory-fraction 0.5",
        "env",
    );
    command.env("CUDA_MODULE_LOADING", "EAGER").env("MKL_NUM_THREADS", "9").env_remove("OMP_NUM_THREADS");
    command.env("PYTORCH_CUDA_ALLOC_CONF", "b:2").env_remove("PYTHONUNBUFFERED");
    let said = Said::of(command.output().expect("the binary runs"));
    let lines = said.stdout_text().lines().collect::<Vec<_>>();
    for expected in [
        "CUDA_MODULE_LOADING=EAGER",
        "MKL_NUM_THREADS=9",
        "OMP_NUM_THREADS=3",
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
        "PYTORCH_ALLOC_CONF=max_split_size_mb:64",
        "PYTHONUNBUFFERED=1",
        "TORCHINDUCTOR_CUDAGRAPHS=0",
        "PLIMSOLL_MEMORY_FRACTION=0.5",
    ] {
        assert!(lines.contains(&expected), "{expected} of {lines:?}");
    }
}

/// PyTorch would refuse such settings at the start of each attempt.
#[test]
fn unknown_settings_of_pytorchs_allocator_are_refused() {
    let sandbox = Sandbox::new();
    for settings in ["nonsense:1", "max_split_size_mb", "expandable_segments:True,max_split:9"] {
        for command in [format!("run --alloc-conf {settings} -- true"), format!("estimate --alloc-conf {settings}")] {
            let said = sandbox.run(&command);
            assert_eq!(said.code, Some(2), "{command}: {}", said.stderr);
            assert!(said.stderr.contains("roundup_power2_divisions"), "{command}: {}", said.stderr);
        }
    }
    assert!(!sandbox.path("runs").exists());
    let known = "backend:native,roundup_power2_divisions:[256:1,>:4],pinned_use_background_threads:True";
    assert_eq!(sandbox.run(&format!("run --alloc-conf {known} -- true")).code, Some(0));
}

/// With and without repairs.
#[test]
fn a_command_that_cannot_work_is_started_once() {
    let sandbox = Sandbox::new();
    for flags in ["", "--no-repair"] {
        let said = run(&sandbox, flags, "echo x >> seen; exec sh missing.sh");
        assert_eq!((said.code, sandbox.text("seen").as_str()), (Some(2), "x\n"), "{}", said.stderr);
        assert!(said.stderr.contains("not restarting: its script is missing"), "{}", said.stderr);
        fs::remove_file(sandbox.path("seen")).expect("it was there");
        fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    }
    // Plimsoll's exit codes are known: 3 means that the run does not fit.
    let own = sandbox
        .command(["run", "--name", "own", "--"])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", "--model", "gpt2", "--vram", "1MiB", "--data", "text.txt"])
        .output();
    let said = Said::of(own.expect("the binary runs"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stderr.contains("not restarting: `plimsoll train` does not fit"), "{}", said.stderr);
    // In another program, 3 is a crash like any other.
    let said = run(&sandbox, "", "exit 3");
    assert_eq!((said.code, &report(&sandbox)["failures"]["exit_3"]), (Some(3), &3.into()), "{}", said.stderr);
}

#[test]
fn workers_start_one_after_the_other_and_one_alone_is_started_again() {
    let sandbox = Sandbox::new();
    // The first continues once the second has started, and the second fails once.
    let script = "echo $PLIMSOLL_WORKER of $PLIMSOLL_WORKERS {worker}; touch begun-{worker}; \
                  if [ {worker} = 0 ]; then sleep 0.3; [ -e begun-1 ] && exit 9; echo step 1/10; \
                      until [ -e begun-1 ]; do sleep 0.01; done; \
                  else [ -e failed ] || { touch failed; exit 3; }; fi; printf 'over {worker}'";
    let said = run(&sandbox, "--workers 2 --stagger 0.1 --stagger-time 10m", script);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let report = report(&sandbox);
    assert_eq!((&report["workers_succeeded"], &report["restarts"]), (&2.into(), &1.into()), "{report}");
    let of =
        |worker: u64| report["attempts"].as_array().expect("a list").iter().filter(|a| a["worker"] == worker).count();
    assert_eq!((of(0), of(1)), (1, 2));
    assert_eq!(sandbox.text("runs/it/output-1.log"), "1 of 2 1\n1 of 2 1\nover 1");
    assert!(said.stdout_text().contains("[0] over 0\n") && said.stdout_text().contains("[1] over 1\n"));
    assert_eq!(sandbox.run("logs it --worker 2").code, Some(2));
}

#[test]
fn workers_share_cards_and_processors() {
    let sandbox = Sandbox::new();
    let mut command =
        command(&sandbox, "--workers 2 --stagger-time 0", "echo $CUDA_VISIBLE_DEVICES $PLIMSOLL_MEMORY_FRACTION");
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
    command.env(plimsoll_fake_nvml::MACHINE, "A,GPU-a,12288,350,0;B,GPU-b,12288,350,0");
    let said = Said::of(command.output().expect("the binary runs"));
    let mut lines = said.stdout_text().lines().collect::<Vec<_>>();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] GPU-a 0.45", "[1] GPU-a 0.45", "[2] GPU-b 0.45", "[3] GPU-b 0.45"], "{}", said.stderr);
}

/// The card has 12 GiB.
#[test]
fn workers_do_not_exceed_a_cards_memory() {
    let sandbox = Sandbox::new();
    let on_cards = |flags: &str| {
        let mut command = command(&sandbox, flags, "echo $PLIMSOLL_MEMORY_FRACTION");
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
        command.env(plimsoll_fake_nvml::MACHINE, "A,GPU-a,12288,350,0;B,GPU-b,12288,350,0");
        Said::of(command.output().expect("the binary runs"))
    };
    for (flags, words) in [
        ("--workers 3 --memory-fraction 0.5", "150 % of a GPU's memory"),
        ("--workers 3 --memory-fraction 0.5", "`--workers 2` fits, or `--memory-fraction 0.333` for 3"),
        ("--workers 7@3.33GiB", "7 workers of 3.33 GiB use 23.3 GiB, but GPU 0 (A) has 11.7 GiB free of 12.0 GiB"),
        ("--workers 7@3.33GiB", "`--workers 3@3409MiB` fits, or `--workers 7@1705MiB`"),
        ("--workers 2@20GiB", "hint: `--workers 2@5969MiB` fits"),
        ("--workers 2@1GiB --memory-fraction 0.2", "both set the memory of a worker"),
    ] {
        let said = on_cards(flags);
        assert_eq!(said.code, Some(2), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
        assert!(!sandbox.path("runs").exists(), "{flags}");
    }
    let said = on_cards("--workers 2@3GiB --stagger-time 0");
    assert_eq!(said.stdout_text().lines().filter(|line| line.ends_with(" 0.25")).count(), 4, "{}", said.stderr);
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    assert_eq!(on_cards("--workers 3 --memory-fraction 0.3333 --stagger-time 0").code, Some(0));
}

/// The card has 12 GiB. MPS counts as running if its pipe is there.
#[test]
fn running_workers_have_no_more_than_their_cards() {
    let sandbox = Sandbox::new();
    let on_card = |name: &str, flags: &str, script: &str| {
        let all = ["run", "--name", name].into_iter().chain(flags.split_whitespace()).chain(["--", "sh", "-c", script]);
        let mut command = sandbox.command(all);
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
        command.env(plimsoll_fake_nvml::MACHINE, "A,GPU-a,12288,350,0");
        command.env("CUDA_MPS_PIPE_DIRECTORY", sandbox.path("mps"));
        Said::of(command.output().expect("the binary runs"))
    };
    const SHOW: &str = "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    let said = on_card("a", "--gpu-share 60%", SHOW);
    assert!(said.code == Some(2) && said.stderr.contains("nvidia-cuda-mps-control -d"), "{}", said.stderr);
    sandbox.write("mps/control", "");
    let said = on_card("a", "--gpu-share 60% --workers 1@6GiB", SHOW);
    assert_eq!((said.code, said.stdout_text()), (Some(0), "60 0=6144M\n"), "{}", said.stderr);
    let said = on_card("b", "--gpu-share 60% --workers 1@6GiB --detach", "sleep 600");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(listed(&sandbox, "")[0]["shares"][0]["memory_bytes"], 6_u64 << 30);
    assert!(sandbox.run("ps").stdout_text().contains("6.00 GiB, 60%"), "{}", sandbox.run("ps").stdout_text());
    for (flags, words) in [
        ("--workers 2@4GiB", "8.00 GiB of GPU 0 (A), and b 6.00 GiB: more than 12.0 GiB"),
        ("--workers 2@4GiB", "`--workers 2@3072MiB` fits"),
        ("--memory-fraction 0.6", "and b 6.00 GiB"),
        ("--gpu-share 50%", "50% of GPU 0 (A), and b 60%: more than 100%"),
        ("--gpu-share 50%", "`--gpu-share 40%` fits"),
        ("--workers 3 --gpu-share 50%", "use more than a GPU"),
    ] {
        let said = on_card("c", flags, "true");
        assert!(said.code == Some(2) && said.stderr.contains(words), "{flags}: {}", said.stderr);
        assert!(!sandbox.path("runs/c").exists(), "{flags}");
    }
    assert_eq!(on_card("c", "--workers 1@6GiB --gpu-share 0.4", "true").code, Some(0));
    assert_eq!(sandbox.run("stop b --now").code, Some(0));
    assert_eq!(on_card("d", "--workers 2@4GiB --stagger-time 0", "true").code, Some(0), "the run has ended");
}

#[test]
fn a_run_in_the_background_is_listed_followed_and_stopped() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo saved; exit 8' INT; i=0; while :; do i=$((i+1)); echo step $i/100000; sleep 0.02; done";
    let said = run(&sandbox, "--detach", script);
    assert_eq!((said.code, said.stdout_text()), (Some(0), "it\n"), "{}", said.stderr);
    until("progress is listed", || listed(&sandbox, "")[0]["progress"]["step"].as_u64().is_some_and(|step| step > 2));
    let run = &listed(&sandbox, "")[0];
    assert_eq!((&run["state"], &run["kind"], &run["name"]), (&"running".into(), &"run".into(), &"it".into()));
    let attached =
        sandbox.command(["attach", "it"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    // Its name identifies it from any folder.
    let mut stop = sandbox.command(["stop", "it"]);
    let stopped = Said::of(stop.current_dir("/").output().expect("the binary runs"));
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("ended after SIGINT"), "{}", stopped.stderr);
    let attached = end_of(attached);
    assert!(attached.code == Some(8) && attached.stdout_text().ends_with("saved\n"), "{attached:?}");
    assert_eq!(listed(&sandbox, "").len(), 0);
    let run = &listed(&sandbox, "--all")[0];
    assert_eq!((&run["state"], &run["status"], &run["exit_code"]), (&"ended".into(), &"stopped".into(), &8.into()));
    assert!(sandbox.run("ps --all").stdout_text().contains("ended (8)"));
    assert_eq!(sandbox.run("stop it").code, Some(0));
    assert_eq!(sandbox.run("stop that").code, Some(4));
    assert_eq!(sandbox.run("run --adopt it").code, Some(2), "no process of it runs");
}

#[test]
fn a_detached_run_that_cannot_be_started_says_so() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("run --detach -- no-such-program");
    assert!(said.code == Some(127) && said.stderr.contains("can't be started"), "{}", said.stderr);
    assert_eq!(fs::read_dir(sandbox.path("runs")).expect("runs").count(), 0);
}

#[test]
fn stop_kills_programs_that_ignore_signals() {
    let sandbox = Sandbox::new();
    let script = "trap '' INT TERM; echo $$ > pid; while :; do sleep 0.02; done";
    for flags in ["--now", "--grace 0.2s"] {
        let said = run(&sandbox, "--detach --grace 0.2s", script);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let pid = written_pid(&sandbox, "pid");
        let said = sandbox.run(&format!("stop it {flags}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert!(!is_alive(&pid), "{flags}: {}", said.stderr);
        assert_eq!(said.stderr.contains("killed after"), flags == "--now", "{}", said.stderr);
        // Its keeper may still be writing the result.
        until("all writers have ended", || fs::remove_dir_all(sandbox.path("runs")).is_ok());
        fs::remove_file(sandbox.path("pid")).expect("it was there");
    }
}

#[test]
fn runs_of_plimsoll_train_are_listed_too() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name own --max-steps 4");
    let run = &listed(&sandbox, "--all")[0];
    assert_eq!((&run["kind"], &run["state"], &run["exit_code"]), (&"train".into(), &"ended".into(), &0.into()));
    assert_eq!(run["progress"]["step"], 4);
    assert!(sandbox.run("logs own -n 3").stdout_text().contains("step 4: "));
    sandbox.must_train("--name newer --max-steps 4");
    let runs = listed(&sandbox, "--all");
    assert!(runs[0]["speed"]["per_s"].as_f64().is_some_and(|speed| speed > 0.0), "{}", runs[0]);
    assert_eq!((&runs[0]["compared"]["with"], &runs[0]["speed"]["unit"]), (&"newer".into(), &"tokens".into()));
    assert!(runs[0]["compared"]["speed"].is_f64() && runs[1]["compared"].is_null(), "{}", runs[1]);
    assert!(sandbox.run("ps -a").stdout_text().contains(" ×) "), "{}", sandbox.run("ps -a").stdout_text());
    let arguments = Sandbox::train_arguments("--name long --max-steps 100000");
    let mut child = sandbox.command(arguments).stderr(Stdio::piped()).spawn().expect("it runs");
    assert!(wait_until(&mut child, || listed(&sandbox, "").iter().any(|run| run["progress"]["step"].is_u64())));
    let said = sandbox.run("stop long");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(end_of(child).code, Some(130), "it was interrupted, and saved");
    assert!(sandbox.path("runs/long/checkpoints").read_dir().expect("a folder").count() > 0);
}

/// Needs permission to create control groups, as in most test containers, but on no desktop.
#[test]
fn a_kill_by_the_kernels_oom_killer_is_recognized() {
    let sandbox = Sandbox::new();
    let Some(group) = control_group() else {
        eprintln!("SKIPPED: no control group can be made here");
        return;
    };
    let script = "echo $$ > \"$0/cgroup.procs\"; exec \"$1\" run --max-restarts 0 --name it -- tail /dev/zero";
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(&group).arg(env!("CARGO_BIN_EXE_plimsoll"));
    sandbox.confine(&mut command);
    let said = Said::of(command.output().expect("a shell"));
    let report = report(&sandbox);
    until("the group is empty", || fs::remove_dir(&group).is_ok());
    assert_eq!(said.code, Some(137), "{}", said.stderr);
    assert_eq!(report["failures"], serde_json::json!({ "host_memory": 1 }), "{report}");
}

/// Creates a control group with 64 MiB.
fn control_group() -> Option<std::path::PathBuf> {
    let name = format!("plimsoll-test-{}", std::process::id());
    let limits = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
    limits.iter().find_map(|(root, limit)| {
        let group = Path::new(root).join(&name);
        fs::create_dir(&group).ok()?;
        let is_limited = group.join(limit).exists() && fs::write(group.join(limit), "67108864").is_ok();
        if !is_limited {
            let _ = fs::remove_dir(&group);
        }
        is_limited.then_some(group)
    })
}

#[cfg(target_os = "linux")]
#[test]
fn a_system_limit_is_retried_and_named() {
    let sandbox = Sandbox::new();
    let mut command = Command::new("sh");
    let script = "ulimit -n 9 && exec \"$0\" run --max-restarts 1 --backoff 0s --runs-dir runs -- true";
    command.args(["-c", script, env!("CARGO_BIN_EXE_plimsoll")]);
    sandbox.confine(&mut command);
    let said = Said::of(command.output().expect("a shell"));
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    for words in [
        "it was restarted once",
        "true can't be started: Too many open files",
        "hint: the process has too many open files",
    ] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
    assert_eq!(fs::read_dir(sandbox.path("runs")).expect("runs").count(), 0, "nothing was started");
}
