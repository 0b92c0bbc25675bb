//! A budget that follows the free memory: its flags, its settings, and a run on the stand-in's card whose memory another program
//! takes. How a run shrinks, waits and grows is tested in `session/tests/control/pressure.rs`.

use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;

/// The stand-in's first card, for the driver and for NVML.
const CARD: &str = "NVIDIA GeForce RTX 3060,GPU-66616b65-2d63-7564-612d-636172642d30,12288,350,100";

/// Few short steps, because each instruction of each thread is interpreted.
const ON_CARD: &str = "--max-steps 4 --global-batch 2 --micro-batch 1 --seq-len 8 --checkpoint-every 0 --eval-every 0 \
                       --eval-samples 2 --precision fp32 --sample-tokens 0 --device cuda --sample-every 0.01s --json";

const RANGE: &str = "--vram 1.5GiB..2GiB";

fn on_card(sandbox: &Sandbox, script: &str, arguments: &[String]) -> Said {
    fs::write(sandbox.path("script"), script).expect("written");
    let mut command = sandbox.command_on_card("", arguments);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARD);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    Said::of(command.output().expect("the binary runs"))
}

fn train(sandbox: &Sandbox, script: &str, flags: &str) -> Said {
    on_card(sandbox, script, &Sandbox::train_arguments(&format!("{ON_CARD} {flags}")))
}

/// What the run's journal says of its memory.
fn pressure(sandbox: &Sandbox, run: &str) -> Vec<String> {
    let journal = sandbox.text(&format!("runs/{run}/journal.jsonl"));
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let pressure = events.filter(|event| event["event"] == "memory_pressure");
    pressure.map(|event| event["what"].as_str().expect("words").to_owned()).collect()
}

#[test]
fn a_run_whose_memory_another_program_takes_follows_its_policy_and_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let whole = train(&sandbox, "0 0 used 100\n", &format!("{RANGE} --name whole"));
    assert_eq!((whole.code, pressure(&sandbox, "whole")), (Some(0), vec![]), "{}", whole.stderr);
    // Of the card's 12 GiB another program takes all that is free.
    let taken = "0 0 used 100\n6 0 used 11900\n";
    let stopped = train(&sandbox, taken, &format!("{RANGE} --name stopped --on-pressure stop"));
    assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
    let said = pressure(&sandbox, "stopped");
    let is_said = |what: &String| what.starts_with("the run can have ") && what.ends_with(": saving and ending");
    assert!(matches!(&said[..], [what] if is_said(what)), "{said:?}");
    assert!(stopped.stderr.contains(&said[0]), "{}", stopped.stderr);
    let settings = sandbox.text("runs/stopped/config.yaml");
    for line in ["vram: 1610612736b..2147483648b", "on_pressure: stop"] {
        assert!(settings.lines().any(|setting| setting == line), "{line}: {settings}");
    }
    let arguments = ["train", "--resume", "runs/stopped", "--json"].map(str::to_owned);
    let resumed = on_card(&sandbox, "0 0 used 100\n", &arguments);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(resumed.json()["losses"], whole.json()["losses"]);
    let saved = train(&sandbox, taken, &format!("{RANGE} --name saved --on-pressure checkpoint"));
    assert_eq!((saved.code, saved.json()["losses"].clone()), (Some(0), whole.json()["losses"].clone()));
    assert!(pressure(&sandbox, "saved").iter().all(|what| what.ends_with(": saving a checkpoint")));
    // A budget that stays as it is.
    let kept = train(&sandbox, taken, "--vram 2GiB --name kept");
    assert_eq!((kept.code, pressure(&sandbox, "kept")), (Some(0), vec![]), "{}", kept.stderr);
}

#[test]
fn a_run_that_waits_for_memory_can_be_stopped_and_resumed() {
    let sandbox = Sandbox::new();
    let taken = "0 0 used 100\n6 0 used 11900\n";
    let arguments = Sandbox::train_arguments(&format!("{ON_CARD} {RANGE} --name waits"));
    fs::write(sandbox.path("script"), taken).expect("written");
    let mut command = sandbox.command_on_card("", arguments);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARD);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let journal = sandbox.path("runs/waits/journal.jsonl");
    let waits = || fs::read_to_string(&journal).is_ok_and(|text| text.contains(r#""waits":true"#));
    assert!(crate::interrupt::wait_until(&mut child, waits), "it does not wait");
    crate::interrupt::signal(&child, "TERM");
    let ended = crate::interrupt::end_of(child);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("resume with:"), "{}", ended.stderr);
    let arguments = ["train", "--resume", "runs/waits", "--json"].map(str::to_owned);
    let resumed = on_card(&sandbox, "0 0 used 100\n", &arguments);
    let whole = train(&sandbox, "0 0 used 100\n", &format!("{RANGE} --name whole"));
    assert_eq!((resumed.code, whole.code), (Some(0), Some(0)), "{}", resumed.stderr);
    assert_eq!(resumed.json()["losses"], whole.json()["losses"]);
}

/// A model whose fastest plan is larger than the smallest first one.
#[test]
fn a_progressive_run_begins_small_and_grows_and_has_the_same_losses() {
    let sandbox = Sandbox::new();
    let sizes = serde_json::json!({ "vocab_size": 50_304, "n_embd": 160, "n_head": 2 });
    sandbox.write("wide/config.json", crate::support::tiny_config(&sizes));
    let flags = "--model wide --tokenizer bytes --max-steps 12 --vram 1 --micro-batch 4 --grad-clip 0 --eval-samples 1 --sample-every 0.01s \
                 --checkpoint-every 0 --eval-every 0 --sample-tokens 0";
    sandbox.must_train(&format!("{flags} --name whole"));
    let said = sandbox.must_train(&format!("{flags} --name grown --progressive"));
    assert!(said.stderr.contains("progressive: the run begins with "), "{}", said.stderr);
    let losses = |run: &str| sandbox.json(&format!("runs/{run}/report.json"))["losses"].clone();
    assert_eq!(losses("grown"), losses("whole"));
    let planned = |run: &str| {
        let journal = sandbox.text(&format!("runs/{run}/journal.jsonl"));
        let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let starts = events.filter(|event| event["event"] == "run_started");
        starts.map(|event| event["planned_bytes"].as_u64().expect("bytes")).collect::<Vec<_>>()
    };
    let (grown, whole) = (planned("grown"), planned("whole"));
    assert!(grown[0] < whole[0] && grown.is_sorted(), "{grown:?} {whole:?}");
    assert_eq!(grown.last(), whole.last(), "{grown:?}");
    let settings = sandbox.text("runs/grown/config.yaml");
    for line in ["progressive: true", "vram: 1073741824b"] {
        assert!(settings.lines().any(|setting| setting == line), "{line}: {settings}");
    }
}

#[test]
fn flags_of_a_moving_budget_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::new();
    for (flags, code, words) in [
        ("--vram 2GiB..1GiB", 2, "its first size must be above 0 and below its second"),
        ("--vram 0..1GiB", 2, "its first size must be above 0 and below its second"),
        ("--vram 1GiB..", 2, "is not a size"),
        ("--vram 64MiB..1GiB --sample-every off", 2, "needs samples"),
        ("--vram 64MiB --on-pressure wait --sample-every off", 2, "needs samples"),
        ("--vram 64MiB..1GiB --memory-fraction 0.5", 2, "`--memory-fraction` is not for a budget"),
        ("--vram 64MiB --on-pressure panic", 2, "possible values: shrink, wait, checkpoint, stop"),
        ("--vram 900GiB..1000GiB", 3, "asks for at least 900 GiB, but only"),
        ("--vram 64MiB --emergency-reserve 900TiB", 3, "nothing is left of 64.0 MiB"),
        ("--vram 64MiB..100MiB --emergency-reserve 900TiB", 3, "is free besides the 900 TiB of `--emergency-reserve`"),
    ] {
        let said = sandbox.train(flags);
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
    for (range, words) in [
        ("50MiB..100MiB", "in 50.0 MiB, the least of the range: "),
        ("1MiB..100MiB", "in 1.00 MiB, the least of the range, no plan fits: below "),
    ] {
        let said = sandbox.run(&format!("plan --model nano --device cpu --global-batch 64 --vram {range}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert!(said.stdout_text().contains(words), "{}", said.stdout_text());
    }
    for command in ["bench --model nano", "generate --checkpoint runs/none"] {
        let said = sandbox.run(&format!("{command} --vram 1..2"));
        assert_eq!(said.code, Some(2), "{command}: {}", said.stderr);
        assert!(said.stderr.contains("`--vram 2048MiB` is the largest of this range"), "{command}: {}", said.stderr);
    }
}

#[test]
fn a_run_keeps_its_range_and_reserve_when_it_is_resumed() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--vram 8MiB..64MiB --emergency-reserve 16MiB --name it");
    let settings = sandbox.text("runs/it/config.yaml");
    for line in [format!("vram: {}b..{}b", 8 << 20, 64 << 20), format!("emergency_reserve: {}b", 16 << 20)] {
        assert!(settings.lines().any(|setting| setting == line), "{line}: {settings}");
    }
    let more = sandbox.run("train --resume runs/it --max-steps 40 --cache-dir cache");
    assert_eq!(more.code, Some(0), "{}", more.stderr);
    assert_eq!(sandbox.text("runs/it/config.yaml").lines().filter(|line| line.starts_with("vram")).count(), 1);
}
