//! A pseudo-terminal in which a command runs.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Far longer than any wait should take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal and its output.
pub struct Terminal {
    keyboard: File,
    shown: Arc<(Mutex<String>, Condvar)>,
}

impl Terminal {
    /// Starts a command in a terminal of this size. Does not wait for it.
    pub fn start(command: &mut Command, columns: u16, rows: u16) -> (Self, Child) {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&control).expect("granted");
        unlockpt(&control).expect("unlocked");
        let name = ptsname(&control, vec![]).expect("its name");
        let side = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the program's side");
        tcsetwinsize(&side, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let stdio = || Stdio::from(side.try_clone().expect("a descriptor"));
        command.env("TERM", "xterm-256color").stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().expect("the binary runs");
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
        (Self { keyboard: File::from(control), shown }, child)
    }

    /// Sends keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
    }

    /// Reads no more output of the command, whatever the terminal's mode.
    pub fn stop(&self) {
        tcflow(self.side(), Action::OOff).expect("stopped");
    }

    /// Resizes the terminal, which signals the command.
    pub fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(self.side(), Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a size");
    }

    /// The program's side.
    fn side(&self) -> OwnedFd {
        let name = ptsname(&self.keyboard, vec![]).expect("its name");
        open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the program's side")
    }

    /// Whether a text was shown.
    pub fn shows(&self, text: &str) -> bool {
        self.shown.0.lock().expect("whole").contains(text)
    }

    /// Waits until a text was shown after a position in the output; returns the position after it.
    pub fn wait_for(&self, text: &str, from: usize) -> usize {
        let shown = self.shown.0.lock().expect("whole");
        let place = |shown: &str| shown.get(from..).and_then(|rest| rest.find(text)).map(|at| from + at + text.len());
        let (shown, _) =
            self.shown.1.wait_timeout_while(shown, PATIENCE, |shown| place(shown).is_none()).expect("whole");
        place(&shown).unwrap_or_else(|| panic!("{text:?} is not shown: {shown:?}"))
    }
}
