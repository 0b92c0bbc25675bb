//! A run on a card that gets hot, with the CUDA and NVML stand-ins: it is throttled, released, or saved and ended, and
//! its losses do not change.

use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;

/// The stand-in's first card, for the driver and for NVML.
const CARD: &str = "NVIDIA GeForce RTX 3060,GPU-66616b65-2d63-7564-612d-636172642d30,12288,350,100";

/// Few short steps, because each instruction of each thread is interpreted.
const RUN: &str = "--max-steps 4 --global-batch 2 --micro-batch 1 --seq-len 8 --checkpoint-every 0 --eval-every 0 \
                   --eval-samples 2 --precision fp32 --sample-tokens 0 --device cuda --vram 2 --sample-every 0.01s --json";

fn on_card(sandbox: &Sandbox, script: &str, arguments: &[String]) -> Said {
    fs::write(sandbox.path("script"), script).expect("written");
    let mut command = sandbox.command_on_card("", arguments);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARD);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    Said::of(command.output().expect("the binary runs"))
}

fn train(sandbox: &Sandbox, script: &str, flags: &str) -> Said {
    on_card(sandbox, script, &Sandbox::train_arguments(&format!("{RUN} {flags}")))
}

/// Events about the card in the run's journal.
fn heat(sandbox: &Sandbox, run: &str) -> Vec<String> {
    let journal = sandbox.text(&format!("runs/{run}/journal.jsonl"));
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let heat = events.filter(|event| event["event"] == "heat");
    heat.map(|event| event["what"].as_str().expect("words").to_owned()).collect()
}

#[test]
fn a_throttled_run_has_the_same_losses_and_keeps_its_samples() {
    let sandbox = Sandbox::new();
    let cool = train(&sandbox, "0 0 temperature 55\n", "--name cool");
    assert_eq!(cool.code, Some(0), "{}", cool.stderr);
    assert_eq!(heat(&sandbox, "cool"), Vec::<String>::new());
    let hot = train(&sandbox, "0 0 temperature 80\n0 0 throttling 64\n", "--name hot");
    assert_eq!(hot.code, Some(0), "{}", hot.stderr);
    let told = heat(&sandbox, "hot");
    // It is throttled from the start; its release is tested with simulated cards in simulated time.
    for words in ["slowed to ", "lowers its own clocks (HW thermal slowdown) at 80 °C"] {
        assert!(told.iter().any(|what| what.contains(words)), "{words}: {told:?}");
    }
    // At 60 °C the temperature is not the reason: the driver's reason is named.
    let warm = train(&sandbox, "0 0 temperature 60\n0 0 throttling 32\n", "--name warm");
    assert_eq!(warm.code, Some(0), "{}", warm.stderr);
    let told = heat(&sandbox, "warm");
    let by_card = "of the time: it lowers its own clocks (SW thermal slowdown); its core is at 60 °C";
    assert!(told.iter().any(|what| what.contains(by_card)), "{told:?}");
    assert!(hot.stderr.contains("GPU 0 (NVIDIA GeForce RTX 3060): slowed to "), "{}", hot.stderr);
    assert_eq!(cool.json()["losses"], hot.json()["losses"]);
    let samples = fs::read_dir(sandbox.path("runs/hot/samples")).expect("a folder").count();
    assert!(samples >= 2, "names of GPUs, and the samples of an hour");
}

#[test]
fn above_the_maximum_a_run_saves_and_ends_and_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let whole = train(&sandbox, "0 0 temperature 55\n", "--name whole");
    let said = train(&sandbox, "0 0 temperature 55\n6 0 temperature 90\n", "--name hot");
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    assert!(said.stderr.contains("stopped for heat; when the GPU has cooled, resume with:"), "{}", said.stderr);
    assert!(said.stderr.contains("its core is at 90 °C, above 83: the run saves and ends"), "{}", said.stderr);
    let report = sandbox.json("runs/hot/report.json");
    assert_eq!(report["status"], "too_hot");
    assert_eq!(report["saved_step"].as_u64(), report["losses"].as_array().map(|losses| losses.len() as u64));
    let arguments = ["train", "--resume", "runs/hot", "--json"].map(str::to_owned);
    let resumed = on_card(&sandbox, "0 0 temperature 55\n", &arguments);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(resumed.json()["losses"], whole.json()["losses"]);
}

/// The card's own limit applies if it is lower than the requested one; a card without a sensor can be trained on.
#[test]
fn a_cards_own_limit_applies_and_a_card_without_a_sensor_trains() {
    let sandbox = Sandbox::new();
    let said = train(&sandbox, "0 0 temperature 80\n0 0 slowdown 75\n", "--name weak --max-temp 95 --throttle-temp 90");
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    assert!(said.stderr.contains("above 73"), "{}", said.stderr);
    let said = train(&sandbox, "0 0 error nvmlDeviceGetTemperature 3\n", "--name blind");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(heat(&sandbox, "blind"), ["tells no temperature: heat is not watched"]);
}

#[test]
fn invalid_limits_are_refused_before_any_file_is_written() {
    let sandbox = Sandbox::new();
    for (flags, words) in [
        ("--max-temp 75", "must be at least"),
        ("--resume-temp 80", "must be at least"),
        ("--max-temp NaN", "is not between"),
        ("--memory-temp 300", "is not between"),
        ("--sample-every 0", "--sample-every"),
    ] {
        let said = sandbox.run(&Sandbox::train_arguments(&format!("--name none {flags}"))[..].join(" "));
        assert_eq!(said.code, Some(2), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
    assert!(!sandbox.path("runs/none").exists());
}
