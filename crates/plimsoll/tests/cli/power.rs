//! A run's power limit, clock offsets, energy and health, with the CUDA and NVML stand-ins: earlier values are restored
//! in every case, and reports match the card's readings.

#![cfg(unix)]

use crate::interrupt::{end_of, signal, steps_logged, wait_until};
use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Stdio};

const UUID: &str = "GPU-66616b65-2d63-7564-612d-636172642d30";

/// The stand-in's first card, for the driver and for NVML.
const CARD: &str = "NVIDIA GeForce RTX 3060,GPU-66616b65-2d63-7564-612d-636172642d30,12288,350,100";

/// Few short steps, because each instruction of each thread is interpreted.
const RUN: &str = "--global-batch 2 --micro-batch 1 --seq-len 8 --checkpoint-every 0 --eval-every 0 \
                   --eval-samples 2 --precision fp32 --sample-tokens 0 --device cuda --vram 2 --json";

/// A card that accepts all settings.
const WILLING: &str = "\
clock real 1
0 0 temperature 55
0 0 power 150
0 0 power_limit 170
0 0 power_default 170
0 0 power_min 100
0 0 power_max 212
0 0 clock_offset 0
0 0 clock_offset_min -500
0 0 clock_offset_max 300
0 0 memory_clock_offset 10
0 0 memory_clock_offset_min -1000
0 0 memory_clock_offset_max 2000
";

fn on_card(sandbox: &Sandbox, script: &str, arguments: &[String]) -> Command {
    fs::write(sandbox.path("script"), script).expect("written");
    let mut command = sandbox.command_on_card("", arguments);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARD);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    command.env(plimsoll_fake_nvml::STATE, sandbox.path("state"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn arguments(flags: &str) -> Vec<String> {
    let steps = if flags.contains("--max-steps") { "" } else { "--max-steps 3" };
    let samples = if flags.contains("--sample-every") { "" } else { "--sample-every 0.01s" };
    Sandbox::train_arguments(&format!("{RUN} {steps} {samples} {flags}"))
}

fn train(sandbox: &Sandbox, script: &str, flags: &str) -> Said {
    Said::of(on_card(sandbox, script, &arguments(flags)).output().expect("the binary runs"))
}

fn must_train(sandbox: &Sandbox, script: &str, flags: &str) -> Said {
    let said = train(sandbox, script, flags);
    assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
    said
}

fn gpus(sandbox: &Sandbox, flags: &str) -> Said {
    let arguments = format!("gpus {flags}").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    Said::of(on_card(sandbox, WILLING, &arguments).output().expect("the binary runs"))
}

/// Values set for a setting, in order.
fn values_set(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let state = fs::read_to_string(sandbox.path("state")).unwrap_or_default();
    let of = format!("0 {name} ");
    state.lines().filter_map(|line| line.strip_prefix(&of)).map(str::to_owned).collect()
}

fn has_record(sandbox: &Sandbox) -> bool {
    sandbox.path(&format!(".local/state/plimsoll/power/{UUID}.json")).exists()
}

fn events(sandbox: &Sandbox, run: &str, kind: &str) -> Vec<Value> {
    let journal = sandbox.text(&format!("runs/{run}/journal.jsonl"));
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.filter(|event| event["event"] == kind).collect()
}

fn assert_says(said: &Said, words: &[&str]) {
    for words in words {
        assert!(said.stderr.contains(words), "{words}: {}", said.stderr);
    }
}

#[test]
fn requested_settings_are_made_reported_and_restored() {
    let sandbox = Sandbox::new();
    let flags = "--name set --power-limit 80% --clock-offset -100 --memory-clock-offset 200";
    let said = must_train(&sandbox, WILLING, flags);
    assert_eq!(values_set(&sandbox, "power_limit"), ["136", "170"]);
    assert_eq!(values_set(&sandbox, "clock_offset"), ["-100", "0"]);
    assert_eq!(values_set(&sandbox, "memory_clock_offset"), ["200", "10"]);
    assert!(!has_record(&sandbox));
    assert_says(
        &said,
        &[
            "power limit: 136 W; 170 W before, restored at the end",
            "clock offset: -100 MHz; +0 MHz before",
            "may void its warranty",
            "power limit: 170 W again, as before",
            "memory clock offset: +10 MHz again",
        ],
    );
    // A resumed run makes the same settings.
    let config = sandbox.text("runs/set/config.yaml");
    for line in ["power_limit: 80%", "clock_offset: ", "memory_clock_offset: "] {
        assert!(config.contains(line), "{line}: {config}");
    }
}

#[test]
fn settings_outside_the_cards_bounds_are_refused_before_any_file_is_written() {
    let sandbox = Sandbox::new();
    for (flags, words) in [
        (
            "--power-limit 500",
            "`--power-limit 500` is outside the range of NVIDIA GeForce RTX 3060: 100 W to 212 W, 170 W by default",
        ),
        ("--power-limit 10%", "`--power-limit 10%`, 17 W, is outside the range"),
        (
            "--clock-offset 9999",
            "`--clock-offset 9999` is outside the range of NVIDIA GeForce RTX 3060: -500 to 300 MHz",
        ),
        ("--memory-clock-offset -2000", "NVIDIA GeForce RTX 3060: -1000 to 2000 MHz"),
        ("--power-limit warm", "is not `auto`, watts such as 200"),
        ("--kwh-price 1e9", "is not a price"),
        ("--power-limit auto --sample-every off", "`--sample-every off` takes none"),
    ] {
        let said = train(&sandbox, WILLING, &format!("--name none {flags}"));
        assert_eq!(said.code, Some(2), "{flags}: {}", said.stderr);
        assert_says(&said, &[words]);
    }
    let said = sandbox.train("--name none --device cpu --power-limit 150");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert_says(&said, &["`--power-limit` is for GPUs, but this run uses the CPU"]);
    assert!(!sandbox.path("runs/none").exists() && values_set(&sandbox, "power_limit").is_empty());
}

#[test]
fn without_permission_the_command_is_printed_and_the_run_continues() {
    let sandbox = Sandbox::new();
    let script =
        format!("{WILLING}0 0 error nvmlDeviceSetPowerManagementLimit 4\n0 0 error nvmlDeviceSetClockOffsets 4\n");
    let said = must_train(&sandbox, &script, "--name poor --power-limit 150 --clock-offset 50");
    let command = format!("hint: `sudo nvidia-smi -i {UUID} -pl 150` sets it");
    assert_says(&said, &["the power limit of 150 W is not set: no permission; the run continues without it", &command]);
    assert_says(&said, &["nvidia-settings -c :0 -a '[gpu:0]/GPUGraphicsClockOffsetAllPerformanceLevels=50'"]);
    let auto = must_train(&sandbox, &script, "--name auto --power-limit auto");
    let command = format!("hint: `sudo nvidia-smi -i {UUID} -pl 136` sets it");
    assert_says(
        &auto,
        &["the power limit can't be lowered for heat; only pauses cool the GPU: no permission", &command],
    );
    // A card without these settings, and no driver at all.
    let bare = must_train(&sandbox, "0 0 temperature 55\n", "--name bare --power-limit 150");
    assert_says(&bare, &["does not report the range of its power limit, so it is not set"]);
    assert!(values_set(&sandbox, "power_limit").is_empty() && !has_record(&sandbox));
}

/// The limit is lowered with the temperature, losses do not change, and the earlier value is restored, also after a
/// stop for heat.
#[test]
fn a_hot_card_lowers_its_power_limit_before_the_run_pauses() {
    let sandbox = Sandbox::new();
    let cool = must_train(&sandbox, WILLING, "--name cool --power-limit auto");
    assert_eq!(values_set(&sandbox, "power_limit"), ["170"], "set to its current value, to test the permission");
    let hot =
        must_train(&sandbox, &WILLING.replace("temperature 55", "temperature 80"), "--name hot --power-limit auto");
    let limits = values_set(&sandbox, "power_limit");
    let lowest = limits.iter().map(|watts| watts.parse::<f64>().expect("watts")).fold(170.0, f64::min);
    assert!((100.0..160.0).contains(&lowest), "{limits:?}");
    assert_eq!(limits.last().map(String::as_str), Some("170"), "{limits:?}");
    assert_says(&hot, &["power limit lowered, to ", "its core is at 80 °C of 78"]);
    assert_eq!(cool.json()["losses"], hot.json()["losses"]);
    let stopped = train(
        &sandbox,
        &WILLING.replace("temperature 55", "temperature 90"),
        "--name stopped --power-limit 120 --max-steps 50",
    );
    assert_eq!(stopped.code, Some(6), "{}", stopped.stderr);
    assert_eq!(values_set(&sandbox, "power_limit").last().map(String::as_str), Some("170"));
    assert!(!has_record(&sandbox));
}

fn spawn(sandbox: &Sandbox, flags: &str) -> Child {
    on_card(sandbox, WILLING, &arguments(&format!("--max-steps 5000 {flags}"))).spawn().expect("the binary runs")
}

#[test]
fn a_stopped_run_restores_its_settings() {
    let sandbox = Sandbox::new();
    for name in ["INT", "TERM", "HUP"] {
        let journal = sandbox.path(&format!("runs/{name}/journal.jsonl"));
        let mut child = spawn(&sandbox, &format!("--name {name} --power-limit 120"));
        assert!(wait_until(&mut child, || steps_logged(&journal) >= 1), "{}", end_of(child).stderr);
        assert_eq!(values_set(&sandbox, "power_limit").last().map(String::as_str), Some("120"));
        signal(&child, name);
        let said = end_of(child);
        assert_eq!(said.code, Some(130), "{}", said.stderr);
        assert_eq!(values_set(&sandbox, "power_limit").last().map(String::as_str), Some("170"), "{name}");
        assert!(!has_record(&sandbox), "{name}");
    }
    // Two signals at once quit without the usual end.
    let journal = sandbox.path("runs/twice/journal.jsonl");
    let mut child = spawn(&sandbox, "--name twice --power-limit 120");
    assert!(wait_until(&mut child, || steps_logged(&journal) >= 1), "{}", end_of(child).stderr);
    signal(&child, "INT");
    signal(&child, "INT");
    end_of(child);
    assert_eq!(values_set(&sandbox, "power_limit").last().map(String::as_str), Some("170"));
    assert!(!has_record(&sandbox));
}

#[test]
fn the_second_of_two_runs_leaves_settings_alone_and_a_killed_run_is_cleaned_up() {
    let sandbox = Sandbox::new();
    let journal = sandbox.path("runs/first/journal.jsonl");
    let mut first = spawn(&sandbox, "--name first --power-limit 120");
    assert!(wait_until(&mut first, || steps_logged(&journal) >= 1), "{}", end_of(first).stderr);
    let second = must_train(&sandbox, WILLING, "--name second --power-limit 150");
    assert_says(&second, &["power and clocks are not changed: plimsoll train first (process "]);
    assert_eq!(values_set(&sandbox, "power_limit"), ["120"]);
    let refused = gpus(&sandbox, "--restore");
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    assert_says(&refused, &["plimsoll train first (process ", "still runs"]);
    first.kill().expect("SIGKILL");
    first.wait().expect("it ended");
    assert_eq!(values_set(&sandbox, "power_limit"), ["120"]);
    // The next start restores it, and keeps the card's own value.
    let next = must_train(&sandbox, WILLING, "--name next --power-limit 150");
    assert_says(
        &next,
        &["plimsoll train first ended without restoring the settings", "power limit: 150 W; 170 W before"],
    );
    assert_eq!(values_set(&sandbox, "power_limit"), ["120", "170", "150", "170"]);
}

#[test]
fn settings_of_a_killed_run_are_restored_by_command_but_not_over_newer_ones() {
    let sandbox = Sandbox::new();
    let kill = |name: &str| {
        let journal = sandbox.path(&format!("runs/{name}/journal.jsonl"));
        let mut child = spawn(&sandbox, &format!("--name {name} --power-limit 120 --clock-offset 50"));
        assert!(wait_until(&mut child, || steps_logged(&journal) >= 1), "{}", end_of(child).stderr);
        child.kill().expect("SIGKILL");
        child.wait().expect("it ended");
    };
    kill("killed");
    let said = gpus(&sandbox, "--restore");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_says(&said, &["power limit: 170 W again, as before", "clock offset: +0 MHz again"]);
    assert_eq!(values_set(&sandbox, "power_limit"), ["120", "170"]);
    assert_says(&gpus(&sandbox, "--restore"), &["nothing to restore"]);
    kill("again");
    let state = sandbox.text("state") + "0 power_limit 199\n";
    sandbox.write("state", state);
    let said = gpus(&sandbox, "--restore");
    assert_says(
        &said,
        &["another process set the power limit to 199 W meanwhile, so it stays; it was 170 W before the run"],
    );
    assert_eq!(values_set(&sandbox, "power_limit").last().map(String::as_str), Some("199"));
    assert_eq!(values_set(&sandbox, "clock_offset").last().map(String::as_str), Some("0"));
    assert!(!has_record(&sandbox));
}

#[test]
fn energy_is_reported_with_its_price_and_summed_over_sessions() {
    let sandbox = Sandbox::new();
    let counting = format!("{WILLING}0..10000 0 energy 1000..3001000\n");
    let said = must_train(&sandbox, &counting, "--name used --kwh-price 0.30EUR");
    let report = sandbox.json("runs/used/report.json");
    let energy = report["energy"]["energy_j"].as_f64().expect("energy");
    // 300 W for the duration of the run, between zero and a minute.
    assert!(energy > 0.0 && energy < 60.0 * 300.0, "{report}");
    assert_eq!((&report["energy"]["by"], &report["energy"]["currency"]), (&"counter".into(), &"EUR".into()));
    let cost = report["energy"]["cost"].as_f64().expect("a price");
    assert!((cost - 0.3 * energy / 3.6e6).abs() < 1e-12);
    let tokens = report["tokens_seen"].as_f64().expect("tokens");
    assert!((report["energy_j_per_token"].as_f64().expect("energy") - energy / tokens).abs() < 1e-9);
    assert_says(&said, &["energy     ", "J a token, by the GPU's counter"]);
    assert!(!events(&sandbox, "used", "energy").is_empty());
    let arguments = ["train", "--resume", "runs/used", "--max-steps", "6"].map(str::to_owned);
    let resumed = Said::of(on_card(&sandbox, &counting, &arguments).output().expect("the binary runs"));
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let both = sandbox.json("runs/used/report.json")["energy"].clone();
    assert!(both["energy_j"].as_f64().expect("energy") > energy, "{both}");
    assert_eq!(both["currency"], "EUR", "the price is a setting of the run");
    // A card that does not report energy, and a CPU.
    must_train(&sandbox, "0 0 temperature 55\n", "--name silent --kwh-price 1");
    assert_eq!(sandbox.json("runs/silent/report.json")["energy"], Value::Null);
    sandbox.must_train("--name cpu --device cpu --kwh-price 1");
    assert_eq!(sandbox.json("runs/cpu/report.json")["energy"], Value::Null);
}

#[test]
fn a_fault_of_a_card_is_an_event_with_advice() {
    let sandbox = Sandbox::new();
    let said = must_train(&sandbox, &format!("{WILLING}0 0 xid 79\n0 0 xid 79\n"), "--name ill");
    assert_says(&said, &["error: GPU 0 (NVIDIA GeForce RTX 3060): Xid 79: the GPU fell off the bus", "hint: reboot"]);
    let found = events(&sandbox, "ill", "health");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["kind"], &found[0]["level"]), (&"xid".into(), &"error".into()));
    let logs = sandbox.run("logs ill");
    assert!(logs.stdout_text().contains("Xid 79"), "{}", logs.stdout_text());
}

/// Without samples there is no heat control, history or energy, as requested.
#[test]
fn sampling_can_be_off() {
    let sandbox = Sandbox::new();
    let hot = WILLING.replace("temperature 55", "temperature 90");
    must_train(&sandbox, &hot, "--name off --sample-every off");
    assert!(!sandbox.path("runs/off/samples").exists());
    assert!(sandbox.text("runs/off/config.yaml").contains("sample_every: "));
    let arguments = ["train", "--resume", "runs/off", "--max-steps", "4"].map(str::to_owned);
    let resumed = Said::of(on_card(&sandbox, &hot, &arguments).output().expect("the binary runs"));
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
}

/// A plan that needs memory held by other processes.
#[test]
fn processes_that_hold_needed_memory_are_named_with_what_would_fit_without_them() {
    let sandbox = Sandbox::new();
    sandbox
        .write("wide/config.json", crate::support::tiny_config(&serde_json::json!({"vocab_size": 4096, "n_embd": 64})));
    let own = std::process::id();
    let nvml = format!("NVIDIA GeForce RTX 3060,{UUID},20,0,19,holder={own}/19");
    let arguments = "train --model wide --device cuda --vram-auto --vram-margin 0 --host-ram 1 --global-batch 2 --seq-len 8 \
                     --precision fp32 --max-steps 1 --data text.txt --tokenizer bytes --name none";
    let mut command = sandbox.command_on_card("memory=20;others=19;context=0;module=0", arguments.split_whitespace());
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
    let said = Said::of(command.output().expect("the binary runs"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert_says(
        &said,
        &["19.0 MiB is held by ", &format!("({own}) of "), "hint: without them it fits in ", "with a micro-batch of "],
    );
}
