//! What programs read. A file or a pipe is handed on as it is. A terminal is read here: a program in a group of its own may
//! not read it, and would be stopped by the system if it tried.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use std::io::{self, IsTerminal, Read, Write, stdin};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a terminal is asked whether it is ours.
const EVERY: Duration = Duration::from_millis(200);

/// Where programs read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Where the supervisor does.
    Own,
    /// Nowhere.
    Nothing,
}

/// Reads a terminal for whichever program runs.
#[derive(Debug)]
pub(crate) struct Keyboard {
    input: Input,
    /// Who gets what is typed, where a terminal is read.
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

    /// What a program is started with.
    pub(crate) fn stdin(&self) -> Stdio {
        match (&self.reader, self.input) {
            (Some(_), _) => Stdio::piped(),
            (None, Input::Own) => Stdio::inherit(),
            (None, Input::Nothing) => Stdio::null(),
        }
    }

    /// From here on what is typed is for this program, or for none.
    pub(crate) fn connect(&self, program: Option<ChildStdin>) {
        if let Some(reader) = &self.reader {
            *reader.lock().unwrap_or_else(PoisonError::into_inner) = program;
        }
    }
}

fn pass_on(reader: &Mutex<Option<ChildStdin>>) {
    let mut typed = [0; 4096];
    loop {
        // A terminal of which this is not the foreground would stop whoever reads it.
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
            // The end of a terminal's input, Ctrl-D, is not the terminal's end.
            std::thread::sleep(EVERY);
        }
    }
}
