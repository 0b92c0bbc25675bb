//! The two streams: stdout is data, stderr is talk. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them. Neither shows control characters, whoever's
//! text they are in.

use crate::cli::Failure;
use crate::printable::printable;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// Says a line. What can't be said is lost, and nothing else is.
pub(crate) fn talk(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(&line.to_string()));
}

/// Writes a line of data. A reader that goes away has seen enough. Errors: stdout refuses it.
pub(crate) fn write_data(line: impl Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", printable(&line.to_string())).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::device(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Writes text that a model made: to a file or a pipe as it is, to a terminal without control characters.
pub(crate) fn write_text(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.is_terminal() {
        true => stdout.write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes())?,
        false => stdout.write_all(bytes)?,
    }
    stdout.flush()
}
