//! `plimsoll top` in a terminal: runs, cards from a script, replays. `plimsoll-top` tests the contents of its screens.

use crate::support::pty::Terminal;
use crate::support::{Said, Sandbox};
use std::fs;
use std::process::{Child, Command};

const CARDS: &str = "NVIDIA GeForce RTX 4090,GPU-a,24564,400,1200";

fn command(sandbox: &Sandbox, arguments: &str) -> Command {
    fs::write(sandbox.path("script"), "0 0 temperature 61\n0 0 power 312\n0 0 power_limit 450\n").expect("written");
    let mut command = sandbox.command(arguments.split_whitespace());
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARDS);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    // The first frame is complete; later ones contain only changed cells.
    command.env_remove("NO_COLOR");
    command
}

fn leave(mut terminal: Terminal, mut child: Child) {
    terminal.press("q");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn without_a_terminal_it_names_other_commands() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("top");
    assert_eq!((said.code, said.stdout_text()), (Some(5), ""));
    assert!(said.stderr.contains("needs a terminal"), "{}", said.stderr);
    assert!(said.stderr.contains("`plimsoll gpus --watch`") && said.stderr.contains("`--json`"), "{}", said.stderr);
    for (arguments, code, words) in [
        ("top nothing", 4, "there is no run `nothing`"),
        ("top --replay nothing", 4, "there is no run `nothing`"),
        ("top --palette pink", 2, "color-blind"),
        ("top --sample-every 0", 2, "from 0.01 seconds to 24h"),
        ("top a --replay b", 2, "cannot be used with"),
    ] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments}: {}", said.stderr);
    }
}

#[test]
fn cards_and_runs_are_shown_and_a_run_is_found_by_its_name() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name first --max-steps 3");
    sandbox.must_train("--name second --max-steps 5");
    for (arguments, others) in [("top --sample-every 0.1s", true), ("top second", false)] {
        let (terminal, child) = Terminal::start(&mut command(&sandbox, arguments), 120, 40);
        let shown = terminal.wait_for("5/5", 0);
        terminal.wait_for("RTX 4090", 0);
        terminal.wait_for("312/450 W", 0);
        assert_eq!(terminal.shows("first"), others, "{arguments}");
        assert!(shown > 0 && terminal.shows("\u{1b}[3"), "it has colors");
        leave(terminal, child);
    }
}

/// Another program that a user paused and resumes.
#[cfg(target_os = "linux")]
#[test]
fn a_paused_run_is_shown_as_paused() {
    let sandbox = Sandbox::new();
    let arguments = ["run", "--detach", "--name", "it", "--", "sleep", "600"];
    let done = |arguments: &[&str]| {
        let said = Said::of(sandbox.command(arguments).output().expect("the binary runs"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    };
    done(&arguments);
    let (terminal, child) = Terminal::start(&mut command(&sandbox, "top it --sample-every 0.1s"), 120, 40);
    let before = terminal.wait_for("running", 0);
    assert!(!terminal.shows("paused"));
    done(&["pause", "it"]);
    terminal.wait_for("paused", before);
    done(&["resume", "it"]);
    leave(terminal, child);
    done(&["stop", "it", "--now"]);
}

#[test]
fn a_run_is_replayed_and_colors_can_be_disabled() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run --max-steps 5");
    let mut top = command(&sandbox, "top --replay run");
    let (mut terminal, child) = Terminal::start(top.env("NO_COLOR", "1"), 80, 24);
    let end = terminal.wait_for("5/5", 0);
    terminal.wait_for("x speed", 0);
    terminal.press("\u{1b}[H");
    terminal.wait_for("0 s of ", end);
    for color in ["\u{1b}[32m", "\u{1b}[36m", "\u{1b}[38;5;", "\u{1b}[41m"] {
        assert!(!terminal.shows(color), "{color:?}");
    }
    leave(terminal, child);
}
