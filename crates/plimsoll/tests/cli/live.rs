//! Progress of a run: on a terminal, in a log, with and without colors.

use crate::support::{Said, Sandbox};
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};

/// What a command writes to stderr on a terminal with this many columns.
fn on_a_terminal(mut command: Command, columns: u16) -> String {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the two descriptors and the size are valid for the call, and the null arguments are allowed.
    let made = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), &raw const size as *mut _) };
    assert_eq!(made, 0, "a terminal: {}", std::io::Error::last_os_error());
    // SAFETY: both were just opened and have no other owner.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), Stdio::from(File::from_raw_fd(theirs))) };
    let mut child =
        command.env("TERM", "xterm-256color").stdout(Stdio::null()).stderr(theirs).spawn().expect("it runs");
    // The terminal ends when its other end is closed.
    drop(command);
    let mut written = Vec::new();
    let mut some = [0; 4096];
    while let Ok(count @ 1..) = ours.read(&mut some) {
        written.extend_from_slice(&some[..count]);
    }
    assert!(child.wait().expect("it ends").success(), "{}", String::from_utf8_lossy(&written));
    String::from_utf8(written).expect("stderr is UTF-8")
}

/// The rows of a terminal with this many columns, in the order in which they were written: a row ends at its last
/// column, or where the cursor moves.
fn rows(written: &str, columns: usize) -> Vec<String> {
    let plain = console::strip_ansi_codes(written);
    let pieces = plain.split(['\r', '\n']).map(|piece| piece.chars().collect::<Vec<_>>());
    pieces.flat_map(|piece| piece.chunks(columns).map(String::from_iter).collect::<Vec<_>>()).collect()
}

fn has_colors(written: &str) -> bool {
    let codes = written.split("\u{1b}[").skip(1);
    codes
        .filter_map(|code| code.find(|c: char| c.is_alphabetic()).map(|end| &code[..=end]))
        .any(|code| code.ends_with('m'))
}

#[test]
fn a_bar_fits_its_terminal_and_has_colors_unless_disabled() {
    let sandbox = Sandbox::new();
    for (columns, variable, colored) in
        [(80, None, true), (44, Some(("NO_COLOR", "1")), false), (200, Some(("CLICOLOR", "0")), false)]
    {
        let mut command = sandbox.command(Sandbox::train_arguments("--max-steps 40"));
        command.envs(variable);
        let written = on_a_terminal(command, columns);
        let rows = rows(&written, usize::from(columns));
        let of_bar = |row: &&String| {
            ["━", "╸", "loss "].iter().any(|part| row.contains(part))
                && !["held-out", "reading", "tokenizing"].iter().any(|other| row.contains(other))
        };
        let bars = rows.iter().filter(of_bar).collect::<Vec<_>>();
        assert!(bars.len() >= 2, "a bar in {columns} columns: {written:?}");
        for row in &bars {
            assert!(["━", "╸", "loss "].iter().any(|part| row.starts_with(part)), "{columns} columns: {row:?}");
            assert!(
                row.chars().nth(usize::from(columns) - 1).is_none_or(|last| last == ' '),
                "the last column: {row:?}"
            );
        }
        assert!(bars.iter().any(|line| line.contains(" left") && line.contains(" %")), "{bars:?}");
        assert!(bars.iter().any(|line| line.contains("RAM ") == (columns > 50)), "{bars:?}");
        assert_eq!(has_colors(&written), colored, "{variable:?}: {written:?}");
    }
}

#[test]
fn a_short_run_shows_the_remaining_seconds() {
    let sandbox = Sandbox::new();
    let written = on_a_terminal(sandbox.command(Sandbox::train_arguments("--duration 1s")), 80);
    assert!(written.contains("1 s left") && written.contains('━'), "{written:?}");
}

#[test]
fn a_log_has_a_line_every_few_steps() {
    let sandbox = Sandbox::new();
    let steps = |said: &Said| {
        let lines = said.stderr.lines().filter(|line| line.starts_with("step ") && line.contains("  loss "));
        lines.map(|line| line.split("  ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let said = sandbox.must_train("--max-steps 7 --log-every 3");
    assert_eq!(steps(&said), ["step 3/7", "step 6/7", "step 7/7"], "{}", said.stderr);
    sandbox.write("settings.yaml", "logging_steps: 5\n");
    let said = sandbox.must_train("--max-steps 7 --config settings.yaml");
    assert_eq!(steps(&said), ["step 5/7", "step 7/7"], "{}", said.stderr);
    let said = sandbox.train("--log-every 0");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
}

#[test]
fn colors_can_be_forced_in_a_file() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(["plan", "--model", "no-such-model"]);
    let output = command.env("CLICOLOR_FORCE", "1").output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.starts_with("\u{1b}[31m\u{1b}[1merror:\u{1b}[0m "), "{said:?}");
}
