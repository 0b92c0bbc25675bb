//! The screen in a real pseudo-terminal: it is taken over, and restored however the program ends or is suspended.

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const TAKEN: &str = "\u{1b}[?1049h";
const RESTORED: &str = "\u{1b}[?1049l";

/// Far longer than any wait should take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Terminal {
    keyboard: File,
    program_side: OwnedFd,
    shown: Arc<(Mutex<String>, Condvar)>,
    child: Child,
    _runs: tempfile::TempDir,
}

impl Terminal {
    fn start(words: &[&str]) -> Self {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&control).expect("granted");
        unlockpt(&control).expect("unlocked");
        let name = ptsname(&control, vec![]).expect("its name");
        let side = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the program's side");
        tcsetwinsize(&side, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let runs = tempfile::tempdir().expect("a temporary folder");
        let stdio = || Stdio::from(side.try_clone().expect("a descriptor"));
        let child = Command::new(env!("CARGO_BIN_EXE_plimsoll-top-shown"))
            .arg(runs.path())
            .args(words)
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .expect("the program runs");
        let shown = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let mut screen = File::from(control.try_clone().expect("a descriptor"));
        let theirs = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                theirs.0.lock().expect("whole").push_str(&String::from_utf8_lossy(&bytes[..count]));
                theirs.1.notify_all();
            }
        });
        Self { keyboard: File::from(control), program_side: side, shown, child, _runs: runs }
    }

    /// Waits until a text was shown `times` times.
    fn wait_for(&self, text: &str, times: usize) -> String {
        self.wait_until(|shown| shown.matches(text).count() >= times)
    }

    /// Waits until the output satisfies a condition.
    fn wait_until(&self, is_so: impl Fn(&str) -> bool) -> String {
        let shown = self.shown.0.lock().expect("whole");
        let (shown, waited) = self.shown.1.wait_timeout_while(shown, PATIENCE, |shown| !is_so(shown)).expect("whole");
        assert!(!waited.timed_out(), "not shown: {shown:?}");
        shown.clone()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process exists");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).expect("a number")
    }

    /// Whether the terminal edits lines and echoes input, as a shell expects.
    fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.program_side).expect("its modes").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// The exit code, after checking that the terminal is restored.
    fn end(mut self) -> i32 {
        let status = self.child.wait().expect("it ends");
        assert!(self.is_restored());
        let shown = self.wait_for(RESTORED, 1);
        assert!(shown.contains("\u{1b}[?25h"), "the cursor is shown again: {shown:?}");
        status.code().expect("no signal ended it")
    }
}

#[test]
fn q_quits_and_restores_the_terminal() {
    let mut terminal = Terminal::start(&[]);
    terminal.wait_for(TAKEN, 1);
    terminal.wait_for("no runs found", 1);
    assert!(!terminal.is_restored(), "the terminal is in raw mode");
    terminal.keyboard.write_all(b"q").expect("typed");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn signals_that_end_it_restore_the_terminal() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let terminal = Terminal::start(&[]);
        terminal.wait_for("no runs found", 1);
        terminal.signal(signal);
        assert_eq!(terminal.end(), code);
    }
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    let terminal = Terminal::start(&["panic"]);
    let shown = terminal.wait_for("requested panic", 1);
    let (back, told) = (shown.find(RESTORED), shown.find("requested panic"));
    assert!(back < told && back.is_some(), "{shown:?}");
    assert_eq!(terminal.end(), 1);
}

/// Suspends by Ctrl-Z and by a signal; each time it resumes.
#[test]
fn it_suspends_and_resumes() {
    let mut terminal = Terminal::start(&[]);
    terminal.wait_for("no runs found", 1);
    for round in 1..=2 {
        match round {
            1 => terminal.keyboard.write_all(b"\x1a").expect("typed"),
            _ => terminal.signal(Signal::TSTP),
        }
        let (_, status) =
            waitpid(Some(terminal.pid()), WaitOptions::UNTRACED).expect("a child").expect("it has stopped");
        assert!(status.stopped(), "{status:?}");
        terminal.wait_for(RESTORED, round);
        assert!(terminal.is_restored());
        terminal.signal(Signal::CONT);
        terminal.wait_until(|shown| shown.rfind("no runs found") > shown.rfind(RESTORED));
        assert!(!terminal.is_restored());
    }
    terminal.keyboard.write_all(b"q").expect("typed");
    assert_eq!(terminal.end(), 0);
}

/// Closing the terminal ends the program.
#[test]
fn a_terminal_that_goes_away_ends_it() {
    let Terminal { keyboard, program_side, mut child, shown, _runs } = Terminal::start(&[]);
    let waits = |shown: &mut String| !shown.contains("no runs found");
    drop(shown.1.wait_timeout_while(shown.0.lock().expect("whole"), PATIENCE, waits).expect("whole"));
    kill_process(Pid::from_raw(child.id() as i32).expect("a number"), Signal::HUP).expect("the process exists");
    drop((keyboard, program_side));
    child.wait().expect("it ends");
}
