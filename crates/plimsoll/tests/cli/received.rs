//! Folders of runs that another user made, that are damaged, or that may not be read: nothing outside them is written,
//! nothing in them blocks, and unreadable files do not count as missing.

#![cfg(unix)]

use crate::support::{Said, Sandbox};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PRECIOUS: &str = "another user's file\n";

/// Runs `train`, which must end by itself within the time limit.
fn train_in_time(sandbox: &Sandbox, flags: &str) -> Said {
    let mut command = sandbox.command(Sandbox::train_arguments(flags));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let start = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        if start.elapsed() > Duration::from_secs(90) {
            child.kill().expect("killed");
            panic!("{flags}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Said::of(child.wait_with_output().expect("a child can be waited for"))
}

fn assert_said(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    for words in words {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}

#[test]
fn links_under_the_names_of_files_that_a_run_writes_are_not_followed() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name sent --max-steps 5");
    sandbox.write("precious", PRECIOUS);
    let written = ["config.yaml", "config.json", "plan.json", "report.json", "report.html"];
    let temporary = written.map(|name| format!(".{name}.writing"));
    let older = ["config.tmp", "plan.tmp", "report.tmp"].map(str::to_owned);
    let others = written.map(str::to_owned).into_iter().skip(2);
    for name in temporary.into_iter().chain(older).chain(others) {
        let link = sandbox.path(&format!("runs/sent/{name}"));
        let _ = fs::remove_file(&link);
        symlink(sandbox.path("precious"), link).expect("a link");
    }
    let leftover = sandbox.path("runs/sent/checkpoints/.writing-step-000006");
    symlink(sandbox.root(), leftover).expect("a link");
    assert_said(&train_in_time(&sandbox, "--resume runs/sent --max-steps 6"), 0, &["resumed after step 5 "]);
    assert_eq!(sandbox.text("precious"), PRECIOUS);
    assert!(sandbox.path("text.txt").exists(), "a link was followed and its target deleted");
    // Files to append to or to delete are refused.
    for (name, words) in [
        ("journal.jsonl", "it is a symbolic link, not a regular file"),
        ("lock", "it is a symbolic link, not a regular file"),
        ("checkpoints", "is a symbolic link; a run writes and deletes only inside its own folder"),
    ] {
        let (path, aside) = (sandbox.path(&format!("runs/sent/{name}")), sandbox.path("aside"));
        fs::rename(&path, &aside).expect("renamed");
        symlink(if name == "checkpoints" { aside.clone() } else { sandbox.path("precious") }, &path).expect("a link");
        for resume in ["--resume runs/sent", "--name sent --resume auto", "--name sent"] {
            let said = train_in_time(&sandbox, &format!("{resume} --max-steps 7"));
            assert!(matches!(said.code, Some(2 | 4 | 5)), "{name}, {resume}: {}", said.stderr);
            assert!(said.code == Some(2) || said.stderr.contains(words), "{name}, {resume}: {}", said.stderr);
        }
        assert_eq!(sandbox.text("precious"), PRECIOUS, "{name}");
        fs::remove_file(&path).expect("removed");
        fs::rename(&aside, &path).expect("renamed");
    }
    assert_said(&train_in_time(&sandbox, "--resume runs/sent --max-steps 7"), 0, &["resumed after step 6 "]);
}

/// A page may be read by other users, and writing through a link would replace its target.
#[test]
fn no_link_in_a_runs_folder_is_followed() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name sent --max-steps 5 --sample-every 0.05s --log-to csv");
    let private = "key: CANARY\n";
    sandbox.write("private/secret", private);
    let at = |name: &str| sandbox.path(&format!("runs/sent/{name}"));
    let link = |name: &str, to: &str| {
        fs::rename(at(name), sandbox.path("aside")).expect("renamed");
        symlink(sandbox.path(to), at(name)).expect("a link");
    };
    let back = |name: &str| {
        fs::remove_file(at(name)).expect("removed");
        fs::rename(sandbox.path("aside"), at(name)).expect("renamed");
    };
    for name in ["config.yaml", "sample.json", "report.json", "plan.json"] {
        if !at(name).exists() {
            sandbox.write(&format!("runs/sent/{name}"), "{}");
        }
        link(name, "private/secret");
        for flags in ["", "--md", "--json"] {
            let said = sandbox.run(&format!("report runs/sent {flags}"));
            assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
            assert!(!said.stdout_text().contains("CANARY") && !said.stderr.contains("CANARY"), "{name}");
            assert!(!sandbox.text("runs/sent/report.html").contains("CANARY"), "{name} is in the page");
        }
        back(name);
    }
    for name in ["config.yaml", "journal.jsonl"] {
        link(name, "private/secret");
        let said = train_in_time(&sandbox, "--resume runs/sent --max-steps 6");
        assert_said(&said, 4, &["it is a symbolic link, not a regular file"]);
        assert!(!said.stderr.contains("CANARY"), "{}", said.stderr);
        back(name);
    }
    fs::create_dir(sandbox.path("elsewhere")).expect("a folder");
    for (name, words) in [
        ("samples", "note: samples are not saved: runs/sent/samples is a symbolic link"),
        ("logs", "runs/sent/logs is a symbolic link; a run writes only inside its own folder"),
    ] {
        link(name, "elsewhere");
        let resume = "--resume runs/sent --sample-every 0.05s --log-to csv --max-steps";
        let steps = if name == "samples" { 6 } else { 7 };
        assert_said(&train_in_time(&sandbox, &format!("{resume} {steps}")), 0, &[words]);
        assert_eq!(fs::read_dir(sandbox.path("elsewhere")).expect("a folder").count(), 0, "{name} was written through");
        back(name);
    }
    assert_eq!(sandbox.text("private/secret"), private);
}

#[test]
fn pipes_in_place_of_files_do_not_block() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name whole --max-steps 10");
    let newest = "checkpoints/step-000010";
    let damaged = (0, "skipping checkpoint ");
    for (number, (name, (code, words))) in [
        (format!("{newest}/state.json"), damaged),
        (format!("{newest}/model.safetensors"), damaged),
        (format!("{newest}/optimizer.safetensors"), damaged),
        (format!("{newest}/config.json"), damaged),
        ("checkpoints/branches.json".to_owned(), (4, "a named pipe")),
        ("journal.jsonl".to_owned(), (4, "a named pipe")),
        ("lock".to_owned(), (5, "a named pipe")),
        ("config.yaml".to_owned(), (0, "resumed after step 10 ")),
        ("config.json".to_owned(), (0, "resumed after step 10 ")),
        ("plan.json".to_owned(), (0, "resumed after step 10 ")),
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("runs/sent-{number}");
        sandbox.copy("runs/whole", &run);
        let path = sandbox.path(&format!("{run}/{name}"));
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        assert!(fs::metadata(&path).expect("a pipe").file_type().is_fifo());
        assert_said(
            &train_in_time(&sandbox, &format!("--name sent-{number} --resume auto --max-steps 12")),
            code,
            &[words],
        );
    }
}

/// Runs `train` without permission to read; as another user if the tests run as root, who may read everything.
fn train_without_permission(sandbox: &Sandbox, flags: &str) -> Option<Said> {
    const UNPRIVILEGED_UID: u32 = 65_534;
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let mut command = sandbox.command(Sandbox::train_arguments(flags));
    if is_root {
        command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    }
    match command.output() {
        Ok(output) => Some(Said::of(output)),
        Err(error) => {
            eprintln!("SKIPPED: the binary can't be run by another user: {error}");
            None
        }
    }
}

#[test]
fn unreadable_checkpoints_are_an_error_and_the_run_does_not_start_over() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name kept --max-steps 5");
    let chmod = |mode: u32, name: &str| {
        fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(mode)).expect("permissions");
    };
    let open =
        || assert!(Command::new("chmod").args(["-R", "a+rwX"]).arg(sandbox.root()).status().expect("chmod").success());
    open();
    let files = || sandbox.tree("runs/kept");
    for name in [
        "runs/kept/checkpoints",
        "runs/kept/checkpoints/step-000005",
        "runs/kept/checkpoints/step-000005/state.json",
        "runs/kept/checkpoints/step-000005/model.safetensors",
        "runs",
    ] {
        let before = files();
        chmod(0o000, name);
        let said = train_without_permission(&sandbox, "--name kept --resume auto --max-steps 7");
        chmod(0o777, name);
        let Some(said) = said else { return };
        assert_said(&said, 5, &["Permission denied"]);
        assert!(!said.stderr.contains("the run begins"), "{name}: {}", said.stderr);
        assert!(files() == before, "{name}: the run's files changed");
    }
    open();
    let said = train_without_permission(&sandbox, "--name kept --resume auto --max-steps 7").expect("it ran before");
    assert_said(&said, 0, &["resumed after step 5 "]);
}

/// A configuration next to a checkpoint has a checksum, which is compared with the run's own.
#[test]
fn an_edited_configuration_is_detected() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name kept --max-steps 5");
    let own = sandbox.text("runs/kept/config.json");
    let epsilon = "9.999999747378752e-6";
    let heads = "attention heads 2 instead of 4";
    for (words, from, to) in [(heads, "\"n_head\": 2", "\"n_head\": 4"), ("`layer_norm_epsilon` ", epsilon, "1e-3")] {
        assert!(own.contains(from), "{own}");
        sandbox.write("runs/kept/config.json", own.replace(from, to));
        for flags in ["--resume runs/kept", "--resume runs/kept/checkpoints/step-000005", "--resume auto"] {
            let said = sandbox.run(&format!("train {flags} --runs-dir runs --max-steps 7"));
            assert_said(&said, 4, &["is of another model than this run's: ", words, "hint: "]);
        }
    }
    sandbox.write("runs/kept/config.json", &own);
    let saved = "runs/kept/checkpoints/step-000005/config.json";
    sandbox.write(saved, own.replace(epsilon, "1e-3"));
    for command in [
        "train --resume runs/kept/checkpoints/step-000005 --max-steps 7",
        "generate --checkpoint runs/kept/checkpoints/step-000005 --max-tokens 3",
    ] {
        assert_said(&sandbox.run(command), 4, &["step-000005/config.json is damaged: it has "]);
    }
}

/// Later sessions keep the choice of an older checkpoint.
#[test]
fn a_branch_is_kept_and_named() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name tree --max-steps 20 --keep-checkpoints 9");
    let losses = |run: &str| sandbox.json(&format!("{run}/report.json"))["losses"].as_array().expect("losses").clone();
    let before = losses("runs/tree");
    let said = sandbox.must_train("--resume runs/tree/checkpoints/step-000005 --max-steps 12 --learning-rate 5e-3");
    for words in ["starting a new branch after step 5", "step-000020, step-000015"] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
    for resume in ["--name tree --resume auto", "--resume auto", "--resume runs/tree"] {
        let said = sandbox.must_train(&format!("{resume} --max-steps 12 --learning-rate 5e-3"));
        for words in [
            "resumed after step 12 ",
            "step-000020, step-000015 is on an older branch; continuing the newest branch",
            "hint: `--resume runs/tree/checkpoints/step-000020` returns to it",
        ] {
            assert!(said.stderr.contains(words), "{resume} lacks `{words}`: {}", said.stderr);
        }
    }
    let branch = losses("runs/tree");
    assert_eq!((branch.len(), &branch[..5]), (12, &before[..5]));
    assert_ne!(branch[11], before[11]);
    sandbox.must_train("--resume runs/tree/checkpoints/step-000020 --max-steps 21");
    assert_eq!(losses("runs/tree")[..20], before, "back on the first branch, with its losses");
}

/// Steps count from 1. A step 0 caused an overflow when losses before a checkpoint were read.
#[test]
fn step_zero_in_a_journal_is_ignored() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name sent --max-steps 5");
    let journal = sandbox.text("runs/sent/journal.jsonl");
    for (run, from, to) in [
        ("runs/started", "\"first_step\":1,", "\"first_step\":0,"),
        ("runs/stepped", "\"step\",\"step\":3,", "\"step\",\"step\":0,"),
    ] {
        assert!(journal.contains(from), "{journal}");
        sandbox.copy("runs/sent", run);
        sandbox.write(&format!("{run}/journal.jsonl"), journal.replace(from, to));
        assert_said(&train_in_time(&sandbox, &format!("--resume {run} --max-steps 6")), 0, &["resumed after step 5 "]);
        assert_said(&sandbox.run(&format!("report {run}")), 0, &[]);
    }
}
