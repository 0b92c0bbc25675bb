//! The two streams: stdout is data, stderr is talk. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them.

use crate::cli::Failure;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Says a line. What can't be said is lost, and nothing else is.
pub(crate) fn talk(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes a line of data. A reader that goes away has seen enough. Errors: stdout refuses it.
pub(crate) fn write_data(line: impl Display) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::device(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}
