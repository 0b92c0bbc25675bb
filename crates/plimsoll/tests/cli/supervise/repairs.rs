//! Programs that run out of memory, with the flags `--ladder` and `--no-repair`. The library's tests cover the default
//! steps and compare results with those of an uninterrupted run.

use super::*;

/// A program with memory for two samples at a time, and a user's ladder for it. `wait`: shell commands that it runs
/// first; `$n` is the attempt.
pub(super) fn trainer(sandbox: &Sandbox, wait: &str) -> [&'static str; 4] {
    let script = format!(
        "echo \"$* $WORD\" >> seen; n=$(wc -l < seen); touch begun-$n; {wait}\n\
         case \"$*\" in *'--batch-size 2'*) echo trained; exit 0;; esac\n\
         cat >&2 <<'END'\nTraceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nEND\nexit 1\n"
    );
    sandbox.write("trainer.sh", script);
    sandbox.write(
        "ladder.yaml",
        "steps:\n  - name: half\n    flags:\n      --batch-size: 4\n  - name: quarter\n    flags:\n      \
         --batch-size: 2\n    env:\n      WORD: w\n",
    );
    ["sh", "trainer.sh", "--batch-size", "8"]
}

fn run(sandbox: &Sandbox, flags: &str, command: &[&str]) -> Said {
    let arguments = ["run", "--backoff", "0", "--name", "it"].into_iter().chain(flags.split_whitespace()).chain(["--"]);
    Said::of(sandbox.command(arguments.chain(command.iter().copied())).output().expect("the binary runs"))
}

#[test]
fn a_custom_ladder_is_climbed_step_by_step() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "--ladder ladder.yaml", &trainer(&sandbox, ":"));
    assert_eq!((said.code, said.stdout_text()), (Some(0), "trained\n"), "{}", said.stderr);
    assert_eq!(sandbox.text("seen"), "--batch-size 8 \n--batch-size 4 \n--batch-size 2 w\n");
    assert!(said.stderr.contains("half") && said.stderr.contains("quarter"), "{}", said.stderr);
    // The next run of the same kind starts with the step that worked.
    fs::remove_file(sandbox.path("seen")).expect("it was there");
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    let said = run(&sandbox, "--ladder ladder.yaml", &trainer(&sandbox, ":"));
    assert_eq!((said.code, sandbox.text("seen").as_str()), (Some(0), "--batch-size 2 w\n"), "{}", said.stderr);
}

#[test]
fn without_repair_a_failed_command_is_restarted_unchanged() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "--no-repair --max-restarts 2 --same-error 9", &trainer(&sandbox, ":"));
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert_eq!(sandbox.text("seen"), "--batch-size 8 \n".repeat(3));
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "exit_1": 3 }));
}

#[test]
fn an_invalid_ladder_is_refused_before_the_start() {
    let sandbox = Sandbox::new();
    let command = trainer(&sandbox, ":");
    for (text, what) in [
        ("steps: 7\n", "ladder.yaml"),
        ("steps:\n  - name: nothing\n", "ladder.yaml"),
        ("steps:\n  - files:\n      absent.yaml:\n        a: 1\n", "absent.yaml"),
    ] {
        sandbox.write("ladder.yaml", text);
        let said = run(&sandbox, "--ladder ladder.yaml", &command);
        assert_eq!(said.code, Some(4), "{text}: {}", said.stderr);
        assert!(said.stderr.contains(what) && said.stderr.contains("hint: "), "{text}: {}", said.stderr);
        let _ = fs::remove_dir_all(sandbox.path("runs"));
    }
    let said = run(&sandbox, "--ladder none.yaml", &command);
    assert!(said.code.is_some_and(|code| code != 0) && said.stderr.contains("none.yaml"), "{}", said.stderr);
    let said = run(&sandbox, "--ladder ladder.yaml --no-repair", &command);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(!sandbox.path("seen").exists());
}

/// Runs out of memory until the file `ok` exists, but with the shortest samples only waits for a signal.
const SHORT_OF_MEMORY: &str = "echo \"$*\" >> seen\n\
    case \"$*\" in *'_length 128'*) trap 'exit 143' TERM; while :; do sleep 0.02; done;; esac\n\
    [ ! -e ok ] || { echo trained; exit 0; }\n\
    echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2; exit 1\n";

/// Starts it on a card of which other processes use this many MiB of 12 GiB.
fn short_of_memory(sandbox: &Sandbox, used: u32, flags: &str) -> Child {
    sandbox.write("short.sh", SHORT_OF_MEMORY);
    super::heat::set_reading(sandbox, "used", used);
    let flags = ["run", "--name", "it", "--backoff", "0.01s"].into_iter().chain(flags.split_whitespace());
    let command = ["--", "sh", "short.sh", "--batch_size", "1", "--max_seq_length", "512"];
    let mut command = sandbox.command(flags.chain(command));
    super::heat::add_card(&mut command, sandbox, "0 0 used 300\n");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn seen(sandbox: &Sandbox) -> Vec<String> {
    fs::read_to_string(sandbox.path("seen")).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_run_waits_until_other_processes_release_memory() {
    let sandbox = Sandbox::new();
    let child = short_of_memory(&sandbox, 8000, "");
    until("it waits", || sandbox.run("ps").stdout_text().contains("waits for memory"));
    let waits = || sandbox.text("runs/it/supervisor.jsonl").matches("waiting_for_memory").count();
    until("it waits again", || waits() > 1);
    assert_eq!(seen(&sandbox).len(), 2, "it is not restarted while nothing is free");
    sandbox.write("ok", "");
    super::heat::set_reading(&sandbox, "used", 300);
    let said = end_of(child);
    assert_eq!((said.code, said.stdout_text()), (Some(0), "trained\n"), "{}", said.stderr);
    assert!(said.stderr.contains("for free memory: out of GPU memory"), "{}", said.stderr);
    assert_eq!(seen(&sandbox).len(), 3, "the command, the allocator's option, and one restart after all waits");
}

#[test]
fn a_run_does_not_wait_for_memory_that_it_has_for_itself() {
    for (used, flags, words) in
        [(100, "", "hardly any other process uses"), (8000, "--on-no-memory stop", "no steps are left")]
    {
        let sandbox = Sandbox::new();
        let said = end_of(short_of_memory(&sandbox, used, flags));
        assert!(said.code == Some(1) && said.stderr.contains(words), "{flags}: {}", said.stderr);
        assert!(!said.stderr.contains("waiting"), "{}", said.stderr);
    }
}

#[test]
fn a_run_returns_from_its_smallest_settings_when_memory_is_free() {
    let sandbox = Sandbox::new();
    let child = short_of_memory(&sandbox, 8000, "--on-no-memory minimal");
    until("it has its smallest settings", || seen(&sandbox).iter().any(|line| line.ends_with("_length 128")));
    sandbox.write("ok", "");
    super::heat::set_reading(&sandbox, "used", 300);
    let said = end_of(child);
    assert_eq!((said.code, said.stdout_text()), (Some(0), "trained\n"), "{}", said.stderr);
    assert!(said.stderr.contains("memory is free again"), "{}", said.stderr);
    assert_eq!(seen(&sandbox).last().map(String::as_str), Some("--batch_size 1 --max_seq_length 512"));
    let report = report(&sandbox);
    assert_eq!(report["failures"], serde_json::json!({ "card_memory": 2 }), "{report}");
}

/// Copies of settings may contain API keys.
#[test]
fn copies_of_settings_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let command = trainer(&sandbox, ":");
    sandbox.write("c.yaml", "batch: 8\nhub_token: hf_secret\n");
    sandbox.write("ladder.yaml", "steps:\n  - files:\n      c.yaml:\n        batch: 4\n");
    let said = run(&sandbox, "--ladder ladder.yaml", &[&command[..], &["c.yaml"]].concat());
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let copy = fs::read_dir(sandbox.path("runs/it/repair-0"))
        .expect("a folder")
        .flatten()
        .find_map(|step| fs::read_dir(step.path()).ok()?.flatten().next())
        .expect("a copy");
    assert!(fs::read_to_string(copy.path()).expect("text").contains("hf_secret"));
    let mode = fs::metadata(sandbox.path("runs/it")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// No message has arguments of the command, or secrets of its environment that its output quotes.
#[test]
fn a_failure_is_one_message_without_the_commands_arguments() {
    use crate::support::receiver::MessageServer;
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(200));
    let flags = ["run", "--same-error", "1", "--max-restarts", "0", "--notify", "webhook", "--"];
    let command = ["sh", "-c", "echo hf_CANARY; exit 3", "--token", "CANARY", "https://me:CANARY@host/"];
    let mut run = sandbox.command(flags.into_iter().chain(command));
    run.env("PLIMSOLL_WEBHOOK_URL", format!("{}/hook/1", server.url)).env("HF_TOKEN", "hf_CANARY");
    assert_eq!(run.output().expect("the binary runs").status.code(), Some(3));
    let bodies = server.requests.try_iter().map(|request| request.split_once("\r\n\r\n").expect("a body").1.to_owned());
    let bodies = bodies.collect::<Vec<_>>();
    assert!(!bodies.concat().contains("CANARY"), "{bodies:?}");
    let kinds =
        bodies.iter().map(|body| serde_json::from_str::<serde_json::Value>(body).expect("JSON")["kind"].clone());
    assert_eq!(kinds.collect::<Vec<_>>(), ["start", "failure"], "{bodies:?}");
}

/// A repair that prevents a failure is sent to the configured services, and so are start, failures and end.
#[test]
fn a_repair_is_sent_as_out_of_memory_averted() {
    use crate::support::receiver::MessageServer;
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(200));
    let command = trainer(&sandbox, ":");
    let flags = ["run", "--backoff", "0", "--name", "it", "--ladder", "ladder.yaml", "--notify", "webhook", "--"];
    let mut run = sandbox.command(flags.into_iter().chain(command));
    run.env("PLIMSOLL_WEBHOOK_URL", format!("{}/hook/CANARY", server.url));
    let said = Said::of(run.output().expect("the binary runs"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let messages = server.requests.try_iter().map(|request| {
        let (_, body) = request.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str::<serde_json::Value>(body).expect("JSON")
    });
    let messages = messages.collect::<Vec<_>>();
    let text = messages.iter().map(ToString::to_string).collect::<String>();
    for (kind, words) in [
        ("start", "Started: trainer.sh."),
        ("out_of_memory_averted", "card memory"),
        ("out_of_memory_averted", "Out of memory averted: "),
        ("end", "Finished; exit code 0."),
    ] {
        assert!(text.contains(kind) && text.contains(words), "{kind}: {text}");
    }
    assert!(messages.iter().all(|message| message["run"] == "it"), "{text}");
    // Without its secret the run does not start.
    let refused = sandbox.run("run --name none --notify webhook -- true");
    assert!(refused.code != Some(0) && refused.stderr.contains("PLIMSOLL_WEBHOOK_URL"), "{}", refused.stderr);
    assert!(!sandbox.path("runs/none").exists());
}
