//! Orders to a run: pause, resume, another budget, stop; its losses are those of a run without orders.

#![cfg(unix)]

use crate::interrupt::{INTERRUPTED, end_of, signal, steps_logged, wait_until};
use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A run that never ends by itself, and whose learning rate does not depend on its length.
const RUN: &str =
    "--scheduler constant --warmup-steps 0 --eval-every 0 --checkpoint-every 0 --micro-batch 2 --vram 0.1";

const USAGE: i32 = 2;
const DOES_NOT_FIT: i32 = 3;
const BAD_INPUT: i32 = 4;

fn start(sandbox: &Sandbox, name: &str) -> Child {
    let arguments = Sandbox::train_arguments(&format!("{RUN} --max-steps 50000000 --name {name}"));
    let mut command = sandbox.command(arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let journal = sandbox.path(&format!("runs/{name}/journal.jsonl"));
    assert!(wait_until(&mut child, || steps_logged(&journal) > 3), "it ended by itself");
    child
}

/// The events of a run's journal of these kinds, or all.
fn events(sandbox: &Sandbox, name: &str, kinds: &[&str]) -> Vec<Value> {
    let text = sandbox.text(&format!("runs/{name}/journal.jsonl"));
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("whole lines once it has ended"));
    events.filter(|event| kinds.is_empty() || kinds.iter().any(|kind| event["event"] == *kind)).collect()
}

/// Each step's loss, as its bits.
fn losses(sandbox: &Sandbox, name: &str) -> Vec<(u64, u64)> {
    let steps = events(sandbox, name, &["step"]);
    let loss = |step: &Value| step["loss"].as_f64().expect("a number").to_bits();
    steps.iter().map(|step| (step["step"].as_u64().expect("a number"), loss(step))).collect()
}

fn said(sandbox: &Sandbox, code: i32, arguments: &str) -> String {
    let said = sandbox.run(arguments);
    assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
    said.stderr
}

#[test]
fn invariant_7_a_run_that_is_paused_and_given_other_budgets_has_the_same_losses() {
    let sandbox = Sandbox::new();
    let child = start(&sandbox, "asked");
    let journal = sandbox.path("runs/asked/journal.jsonl");
    assert!(said(&sandbox, 0, "pause asked").contains("asked: paused in step "));
    let told = steps_logged(&journal);
    // It is paused, and still listed as running.
    assert!(said(&sandbox, USAGE, "pause asked").contains("it is already paused"));
    assert_eq!(steps_logged(&journal), told);
    assert_eq!(sandbox.run("ps --json").json()["runs"][0]["state"], "running");
    assert!(said(&sandbox, 0, "resume asked").contains("asked: continues in step "));
    assert!(said(&sandbox, USAGE, "resume asked").contains("it is not paused"));
    assert!(said(&sandbox, 0, "budget asked 8MiB").contains("continues with a plan of "));
    let refused = said(&sandbox, DOES_NOT_FIT, "budget asked 100KiB");
    assert!(refused.contains("the budget is 100 KiB") && refused.contains("is enough"), "{refused}");
    assert!(said(&sandbox, 0, "budget asked 60MiB").contains("continues with a plan of "));
    let more = said(&sandbox, DOES_NOT_FIT, "budget asked 0B");
    assert!(more.contains("the budget is 0 B"), "{more}");
    // As `plimsoll stop` does, which sends signals.
    said(&sandbox, 0, "stop asked --grace 60s");
    let ended = end_of(child);
    assert_eq!(ended.code, Some(INTERRUPTED), "{}", ended.stderr);
    assert!(ended.stderr.contains("resume with:"), "{}", ended.stderr);
    let kinds = ["run_started", "paused", "unpaused", "replanned", "order_refused", "interrupted"];
    let told = events(&sandbox, "asked", &kinds);
    let names = told.iter().map(|event| event["event"].as_str().expect("a name")).collect::<Vec<_>>();
    let expected = [
        "run_started",
        "paused",
        "order_refused",
        "unpaused",
        "order_refused",
        "replanned",
        "run_started",
        "order_refused",
        "replanned",
        "run_started",
        "order_refused",
        "interrupted",
    ];
    assert_eq!(names, expected);
    let budgets =
        told.iter().filter(|event| event["event"] == "run_started").map(|event| event["budget_bytes"].clone());
    assert_eq!(budgets.collect::<Vec<_>>(), [107_374_182_u64, 8 << 20, 60 << 20].map(Value::from));
    for event in told.iter().filter(|event| event["event"] == "run_started") {
        assert!(event["planned_bytes"].as_u64() <= event["budget_bytes"].as_u64(), "{event}");
    }
    // A resumed run has the last budget.
    assert!(
        sandbox.text("runs/asked/config.yaml").contains(&format!("vram: {}b", 60 << 20)),
        "of the plan that it has"
    );
    let asked = losses(&sandbox, "asked");
    let steps = asked.len() as u64;
    assert_eq!(asked.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..=steps).collect::<Vec<_>>());
    sandbox.must_train(&format!("{RUN} --max-steps {steps} --name whole"));
    assert_eq!(losses(&sandbox, "whole"), asked, "to the bit");
    let weights = |name: &str| sandbox.read(&format!("runs/{name}/checkpoints/step-{steps:06}/model.safetensors"));
    assert_eq!(weights("whole"), weights("asked"));
}

#[test]
fn a_signal_stops_a_paused_run_and_its_step_time_excludes_the_pause() {
    let sandbox = Sandbox::new();
    for (name, how) in [("a", "INT"), ("b", "TERM")] {
        let child = start(&sandbox, name);
        said(&sandbox, 0, &format!("pause {name}"));
        std::thread::sleep(Duration::from_millis(1200));
        signal(&child, how);
        let ended = end_of(child);
        assert_eq!(ended.code, Some(INTERRUPTED), "{}", ended.stderr);
        let told = events(&sandbox, name, &["paused", "unpaused", "interrupted"]);
        let kinds = told.iter().map(|event| event["event"].as_str().expect("a name")).collect::<Vec<_>>();
        assert_eq!(kinds, ["paused", "unpaused", "interrupted"]);
        let waited = told[1]["seconds"].as_f64().expect("a number");
        assert!(waited > 1.0 && told[1]["order"].is_null(), "{told:?}");
        // The step during which it was paused.
        let (steps, paused_in) = (events(&sandbox, name, &["step"]), told[0]["step"].as_u64());
        let step = steps.iter().find(|step| step["step"].as_u64() == paused_in).expect("it was finished");
        assert!(step["step_ms"].as_f64() < Some(1000.0), "{step}");
        let report = sandbox.json(&format!("runs/{name}/report.json"));
        assert_eq!(report["status"], "interrupted");
    }
}

#[test]
fn orders_in_the_file_are_obeyed_and_invalid_ones_refused() {
    use plimsoll_orders::{Order, give};
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, "it");
    let run = sandbox.path("runs/it");
    give(&run, Order::Stop).expect("it takes orders");
    assert!(!wait_until(&mut child, || false), "it ends");
    let ended = end_of(child);
    assert_eq!(ended.code, Some(INTERRUPTED), "{}", ended.stderr);
    assert!(ended.stderr.contains("asked to stop"), "{}", ended.stderr);
    // A run that has ended accepts no orders, and its next session ignores old ones.
    for order in ["pause it", "resume it", "budget it 5"] {
        let refused = said(&sandbox, BAD_INPUT, order);
        assert!(refused.contains("nothing trains there") && refused.contains("plimsoll train --resume"), "{refused}");
    }
    let made = losses(&sandbox, "it").len() as u64 + 3;
    let resumed = sandbox.run(&format!("train --resume runs/it --max-steps {made} --cache-dir cache"));
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    for (order, code) in
        [("pause unknown", BAD_INPUT), ("budget it", USAGE), ("budget it much", USAGE), ("pause", USAGE)]
    {
        said(&sandbox, code, order);
    }
}

/// The state of a process by the kernel: `T` is stopped.
#[cfg(target_os = "linux")]
fn state(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn other_programs_are_paused_resumed_and_end_when_stopped_while_they_are_paused() {
    let sandbox = Sandbox::new();
    // A shell that is stopped while it starts a program (vfork) is not in state T, but waits for the program.
    let script = "echo $$ > pid; exec sleep 600";
    let arguments = ["run", "--detach", "--name", "it", "--", "sh", "-c", script];
    let started = Said::of(sandbox.command(arguments).output().expect("the binary runs"));
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    let read = || std::fs::read_to_string(sandbox.path("pid")).ok().filter(|text| text.ends_with('\n'));
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("it starts", &|| read().is_some());
    let pid = read().expect("it is there").trim().to_owned();
    assert!(said(&sandbox, USAGE, "resume it").contains("it is not paused"));
    assert!(said(&sandbox, USAGE, "budget it 5").contains("can change their budget"));
    said(&sandbox, 0, "pause it");
    until("it is stopped", &|| state(&pid) == "T");
    until("its supervisor is, too", &|| sandbox.run("pause it").stderr.contains("it is already paused"));
    said(&sandbox, 0, "resume it");
    until("it resumes", &|| state(&pid) != "T");
    said(&sandbox, 0, "pause it");
    until("it is stopped again", &|| sandbox.run("pause it").stderr.contains("it is already paused"));
    let stopped = said(&sandbox, 0, "stop it --grace 30s");
    assert!(!stopped.contains("SIGKILL"), "a paused program still receives signals: {stopped}");
}

/// It has one entry, its log is in its folder, and an error at its start is reported immediately, with its exit code.
#[test]
fn a_detached_run_has_one_entry() {
    let sandbox = Sandbox::new();
    let said = sandbox.train(&format!("{RUN} --max-steps 50000000 --name night --detach"));
    assert_eq!((said.code, said.stdout_text()), (Some(0), "night\n"), "{}", said.stderr);
    assert!(
        said.stderr.contains("the CPU") && said.stderr.contains("`plimsoll stop night` stops it"),
        "{}",
        said.stderr
    );
    let runs = sandbox.run("ps --json").json();
    assert_eq!((&runs["runs"][0]["name"], runs["runs"].as_array().map(Vec::len)), (&"night".into(), Some(1)), "{runs}");
    // Closing the terminal ends only processes of the terminal's session.
    let pid = sandbox.json("runs/night/process.json")["process"]["pid"].as_u64().expect("its process");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let session = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(3)).expect("a session");
    assert_eq!(session, pid.to_string(), "it has its own session");
    assert_eq!(sandbox.run("ps --check").code, Some(0));
    assert_eq!(sandbox.run("stop night").code, Some(0));
    assert_eq!(sandbox.run("logs -f night").code, Some(0));
    assert_eq!(sandbox.run("ps --check").code, Some(5), "it has ended");
    assert!(sandbox.text("runs/night/train.log").contains("--resume"), "{}", sandbox.text("runs/night/train.log"));
    let said = sandbox.train("--data none.txt --detach");
    assert_eq!(said.code, Some(BAD_INPUT));
    assert!(said.stderr.contains("error: ") && said.stderr.contains("none.txt"), "{}", said.stderr);
    let files =
        std::fs::read_dir(sandbox.path("runs")).expect("the runs").map(|entry| entry.expect("a file").file_name());
    assert!(files.into_iter().all(|name| name == "night"), "no log remains");
}
