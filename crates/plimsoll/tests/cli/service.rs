//! `plimsoll install-service`: the units that it prints, and what it asks of systemd, whose `systemctl` is a script here.

use crate::support::{Said, Sandbox};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs the command with a `systemctl` and a `loginctl` that log their arguments.
fn run(sandbox: &Sandbox, arguments: &[&str]) -> Said {
    let path = format!("{}:{}", sandbox.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = sandbox.command(["install-service"].iter().chain(arguments));
    Said::of(command.env("PATH", path).output().expect("the binary runs"))
}

/// A sandbox with these scripts.
fn with_systemd(script: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["systemctl", "loginctl"] {
        let file = format!("bin/{name}");
        sandbox.write(&file, format!("#!/bin/sh\necho {name} $* >> calls\n{script}\n"));
        fs::set_permissions(sandbox.path(&file), fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    sandbox
}

const UNIT: &str = ".config/systemd/user/plimsoll-night.service";

#[test]
fn a_unit_resumes_its_run_and_is_valid_for_systemd() {
    let sandbox = Sandbox::new();
    let commands: [(&[&str], &[&str]); 3] = [
        (
            &["train", "--data", "a $b 50%", "--model", "tiny"],
            &[
                r#""train" "--data" "a $$b 50%%" "--model" "tiny" "--resume" "auto" "--name" "night""#,
                "Restart=on-failure",
                "RestartPreventExitStatus=2 3 4 7",
                "SuccessExitStatus=130\n",
                "TimeoutStopSec=300s",
                "disable plimsoll-night",
            ],
        ),
        (
            &["plimsoll", "run", "--grace", "10m", "--", "python", "t.py", "--detach"],
            &[r#""run" "--grace" "10m" "--" "python" "t.py" "--detach""#, "Restart=on-abnormal", "TimeoutStopSec=660s"],
        ),
        (&["serve", "--listen", "7078"], &[r#""serve" "--listen" "7078""#, "Restart=on-failure"]),
    ];
    let mut skipped = None;
    for (command, expected) in commands {
        let said = run(&sandbox, &[&["night", "--print", "--"], command].concat());
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let text = said.stdout_text();
        for line in expected {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(text.contains("systemctl --user disable"), command[0] != "serve", "{text}");
        sandbox.write("plimsoll-night.service", text);
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--user", "--man=no"]).arg(sandbox.path("plimsoll-night.service"));
        match verify.env("XDG_RUNTIME_DIR", sandbox.root()).output() {
            Ok(output) => {
                let problems = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success() && !problems.contains("plimsoll-night"), "{problems}\n{text}");
            }
            Err(error) => skipped = Some(error),
        }
    }
    skipped.into_iter().for_each(|error| eprintln!("SKIPPED: systemd-analyze did not check the units: {error}"));
    assert!(!sandbox.path(UNIT).exists(), "it is only printed");
}

#[test]
fn a_service_is_installed_once_and_removed() {
    let sandbox = with_systemd("[ $1 != show-user ] || echo no");
    let train = ["night", "--", "train", "--data", "text.txt"];
    let said = run(&sandbox, &train);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(
        said.stderr.contains("loginctl enable-linger") && said.stderr.contains("journalctl --user -fu plimsoll-night"),
        "{}",
        said.stderr
    );
    assert_eq!(said.stdout_text().trim(), sandbox.path(UNIT).display().to_string());
    assert!(sandbox.text(UNIT).contains("\"--resume\" \"auto\""));
    assert!(sandbox.text("calls").contains("systemctl --user enable --now plimsoll-night.service"));
    let said = run(&sandbox, &train);
    assert!(said.code == Some(2) && said.stderr.contains("--uninstall"), "{}", said.stderr);
    let said = run(&sandbox, &["night", "--uninstall"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!sandbox.path(UNIT).exists());
    assert!(sandbox.text("calls").contains("systemctl --user disable --now plimsoll-night.service"));
    let said = run(&sandbox, &["night", "--uninstall"]);
    assert!(said.code == Some(4) && said.stderr.contains("there is no service night"), "{}", said.stderr);
    sandbox.write(UNIT, "[Unit]\n");
    let said = run(&sandbox, &["night", "--uninstall"]);
    assert!(said.code == Some(4) && sandbox.path(UNIT).exists(), "another program's unit stays: {}", said.stderr);
}

#[test]
fn without_a_user_instance_of_systemd_nothing_is_written() {
    for script in
        ["echo 'Failed to connect to bus' >&2; exit 1", "[ $2 != enable ] || { echo 'bad unit' >&2; exit 1; }"]
    {
        let sandbox = with_systemd(script);
        let said = run(&sandbox, &["night", "--", "serve"]);
        assert_eq!(said.code, Some(5), "{script}: {}", said.stderr);
        assert!(said.stderr.contains("to connect to bus") || said.stderr.contains("bad unit"), "{}", said.stderr);
        assert!(!sandbox.path(UNIT).exists());
    }
}

#[test]
fn commands_that_no_service_can_repeat_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name a --max-steps 1");
    for (arguments, words) in [
        ("night -- plan --model gpt2", "not a command for a service"),
        ("night -- train --detach", "needs no `--detach`"),
        ("night -- train --resume runs/a/checkpoints/step-000001", "would resume from"),
        ("night -- train --no-such-flag", "--no-such-flag"),
        ("night -- run --name a -- sleep 1", "omit them"),
        ("night -- run sleep 1", "follows `--`"),
        ("../night -- serve", "letters, digits"),
        ("night", "COMMAND"),
    ] {
        let said = run(&sandbox, &arguments.split(' ').collect::<Vec<_>>());
        assert_eq!(said.code, Some(2), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments}: {}", said.stderr);
    }
    assert!(!sandbox.path(".config").exists());
}
