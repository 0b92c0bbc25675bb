//! Stdin of the programs. They inherit a file or a pipe. A terminal is read here: a program in its own process group
//! may not read it, and the system would stop it if it tried.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use std::io::{self, IsTerminal, Read, Write, stdin};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often to check whether this process is in the foreground of the terminal.
const EVERY: Duration = Duration::from_millis(200);

/// Where programs read stdin from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The supervisor's own stdin.
    Own,
    /// `/dev/null`.
    Nothing,
}

/// Reads a terminal and passes the input to the running program.
#[derive(Debug)]
pub(crate) struct Keyboard {
    input: Input,
    /// The stdin of the program that receives typed input; `None` if stdin is not a terminal.
    reader: Option<Arc<Mutex<Option<ChildStdin>>>>,
}

impl Keyboard {
    pub(crate) fn new(input: Input) -> io::Result<Self> {
        if input == Input::Nothing || !stdin().is_terminal() {
            return Ok(Self { input, reader: None });
        }
        let reader = Arc::new(Mutex::new(None));
        let typed_for = Arc::clone(&reader);
        std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || pass_on(&typed_for))?;
        Ok(Self { input, reader: Some(reader) })
    }

    /// The stdin to start a program with.
    pub(crate) fn stdin(&self) -> Stdio {
        match (&self.reader, self.input) {
            (Some(_), _) => Stdio::piped(),
            (None, Input::Own) => Stdio::inherit(),
            (None, Input::Nothing) => Stdio::null(),
        }
    }

    /// Sends typed input to this program from now on, or drops it if `None`.
    pub(crate) fn connect(&self, program: Option<ChildStdin>) {
        if let Some(reader) = &self.reader {
            *reader.lock().unwrap_or_else(PoisonError::into_inner) = program;
        }
    }
}

fn pass_on(reader: &Mutex<Option<ChildStdin>>) {
    let mut typed = [0; 4096];
    loop {
        // The system stops a background process that reads the terminal.
        if tcgetpgrp(stdin()).ok() != Some(getpgrp()) {
            std::thread::sleep(EVERY);
            continue;
        }
        let input = stdin();
        let mut waited = [PollFd::new(&input, PollFlags::IN)];
        let every = Timespec { tv_sec: 0, tv_nsec: EVERY.subsec_nanos().into() };
        if !matches!(poll(&mut waited, Some(&every)), Ok(1..)) {
            continue;
        }
        let count = match stdin().read(&mut typed) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = reader.as_mut().is_some_and(|program| program.write_all(&typed[..count]).is_err());
        if count == 0 || is_refused {
            *reader = None;
        }
        drop(reader);
        if count == 0 {
            // Ctrl-D ends one input, but the terminal can be read again.
            std::thread::sleep(EVERY);
        }
    }
}
