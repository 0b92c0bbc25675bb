//! `plimsoll train --log-to`: files of a real run for other tools, and messages about them.
#![cfg(unix)]

use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Losses of a run's journal.
fn losses(sandbox: &Sandbox, run: &str) -> Vec<(u64, f64)> {
    let journal = sandbox.text(&format!("{run}/journal.jsonl"));
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let steps = events.filter(|event| event["event"] == "step");
    steps.map(|event| (event["step"].as_u64().expect("a step"), event["loss"].as_f64().expect("a loss"))).collect()
}

fn logged(sandbox: &Sandbox, file: &str) -> Vec<(u64, f64)> {
    let text = sandbox.text(file);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["train/loss"].as_f64()?))).collect()
}

fn files_below(folder: PathBuf) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(path)) } else { files.push(path) }
    }
    files
}

#[test]
fn a_run_is_logged_for_every_tool_and_a_resumed_one_continues() {
    let sandbox = Sandbox::new();
    let said = sandbox.must_train("--name logged --max-steps 6 --checkpoint-every 3 --eval-every 3 --log-to all");
    assert!(said.stderr.contains("W&B: `wandb sync runs/logged/logs/wandb/offline-run-"), "{}", said.stderr);
    assert!(!said.stderr.contains("lacks"), "{}", said.stderr);
    assert_eq!(logged(&sandbox, "runs/logged/logs/metrics.jsonl"), losses(&sandbox, "runs/logged"));
    let files = files_below(sandbox.path("runs/logged/logs"));
    for part in
        ["tensorboard/events.out.tfevents.", ".wandb", "metrics.csv", "metrics/eval/loss", "params/learning_rate"]
    {
        assert!(files.iter().any(|file| file.to_string_lossy().contains(part)), "no {part} in {files:?}");
    }
    // The trackers are among the settings that a resumed run keeps.
    let resumed = sandbox.run("train --resume runs/logged --max-steps 8");
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let steps = logged(&sandbox, "runs/logged/logs/metrics.jsonl");
    assert_eq!(steps, losses(&sandbox, "runs/logged"));
    assert_eq!(steps.len(), 8);
}

#[test]
fn runs_share_a_folder_of_logs_and_log_at_the_requested_interval() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        sandbox.must_train(&format!("--name {name} --max-steps 5 --log-every 2 --log-to jsonl,csv --log-dir shared"));
        let steps = logged(&sandbox, &format!("shared/{name}/metrics.jsonl"));
        assert_eq!(steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 4]);
        assert!(!sandbox.path(&format!("runs/{name}/logs")).exists());
    }
}

#[test]
fn an_api_key_reaches_only_the_program_that_syncs() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "bin/wandb",
        "#!/bin/sh\ncd \"$HOME\" && test \"$WANDB_API_KEY\" = CANARY && echo \"$@\" > synced.new && mv synced.new synced\n",
    );
    fs::set_permissions(sandbox.path("bin/wandb"), fs::Permissions::from_mode(0o755)).expect("executable");
    sandbox.write(".env", "WANDB_API_KEY=CANARY\n");
    fs::set_permissions(sandbox.path(".env"), fs::Permissions::from_mode(0o600)).expect("private");
    let mut command = sandbox.command(Sandbox::train_arguments("--name synced --max-steps 2 --log-to wandb"));
    command.env("PATH", std::env::join_paths([sandbox.path("bin"), "/usr/bin".into(), "/bin".into()]).expect("paths"));
    let said = Said::of(command.output().expect("the binary runs"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("W&B: the run is being uploaded; see runs/synced/logs/wandb/"), "{}", said.stderr);
    let begun = std::time::Instant::now();
    while !sandbox.path("synced").exists() {
        assert!(begun.elapsed().as_secs() < 60, "syncing took too long");
        std::thread::yield_now();
    }
    let synced = sandbox.text("synced");
    assert!(synced.starts_with("sync ") && synced.contains("runs/synced/logs/wandb/offline-run-"), "{synced}");
    assert!(!said.stderr.contains("CANARY") && !said.stdout_text().contains("CANARY"));
    for file in files_below(sandbox.path("runs/synced")) {
        let bytes = fs::read(&file).expect("a file");
        assert!(!bytes.windows(6).any(|window| window == b"CANARY"), "{}", file.display());
    }
}

#[test]
fn unusable_trackers_are_refused_before_any_file_is_written() {
    let sandbox = Sandbox::new();
    let unknown = sandbox.train("--name none --log-to pigeon");
    assert!(
        unknown.code == Some(2)
            && unknown.stderr.contains("unknown tracker `pigeon`; expected one of tensorboard, wandb"),
        "{}",
        unknown.stderr
    );
    let mut command = sandbox.command(Sandbox::train_arguments("--name none --log-to mlflow"));
    command.env("MLFLOW_TRACKING_URI", "sqlite:///CANARY.db");
    let database = Said::of(command.output().expect("the binary runs"));
    assert!(database.code == Some(4) && database.stderr.contains("start `mlflow server`"), "{}", database.stderr);
    assert!(!database.stderr.contains("CANARY") && !sandbox.path("runs/none").exists());
    // If a server does not respond, the run loses only its logs there.
    let mut command = sandbox.command(Sandbox::train_arguments("--name alone --max-steps 2 --log-to mlflow,csv"));
    command.env("MLFLOW_TRACKING_URI", "http://127.0.0.1:9");
    let alone = Said::of(command.output().expect("the binary runs"));
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert!(alone.stderr.contains("warning: mlflow is missing "), "{}", alone.stderr);
    assert_eq!(sandbox.text("runs/alone/logs/metrics.csv").lines().count(), 4);
}

/// axolotl's files enable W&B with a project; `report_to` decides if both are set.
#[test]
fn a_wandb_project_enables_it() {
    let sandbox = Sandbox::new();
    for (name, keys, is_logged) in [
        ("project", "wandb_project: tides\nwandb_entity: me\n", true),
        ("both", "report_to: wandb\nwandb_project: tides\n", true),
        ("elsewhere", "report_to: csv\nwandb_project: tides\n", false),
        ("disabled", "wandb_mode: disabled\nwandb_project: tides\n", false),
        ("empty", "wandb_project:\n", false),
    ] {
        sandbox.write("trainer.yml", keys);
        sandbox.must_train(&format!("--config trainer.yml --name {name} --max-steps 1"));
        let logs = sandbox.tree(&format!("runs/{name}/logs"));
        let wandb = logs.iter().find(|(path, _)| path.extension().is_some_and(|extension| extension == "wandb"));
        assert_eq!(wandb.is_some(), is_logged, "{name}: {:?}", logs.keys());
        assert!(wandb.is_none_or(|(_, log)| log.windows(5).any(|word| word == b"tides")), "{name}");
    }
}
