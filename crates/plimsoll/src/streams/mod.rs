//! The two streams: stdout is data, stderr is messages. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them. Neither shows control characters, from any
//! text.
//!
//! A reader that stops reading, such as a terminal after Ctrl-S, can't block a command that has something to save:
//! after [`wait_for_no_reader`] a thread writes the messages (`plimsoll_telemetry::Outlet`).

mod bar;
mod waiting;

pub(crate) use bar::{Bar, bar_text};

use crate::failure::Failure;
use console::Style;
use plimsoll_render::printable;
use plimsoll_telemetry::{Outlet, READER_PATIENCE};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use waiting::Waiting;

static STDERR: LazyLock<Outlet<Waiting>> = LazyLock::new(|| Outlet::new(Waiting::default()));

/// Whether the command was asked to end, so that data no longer waits for its reader.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// After this call a thread writes messages and panics, so that none waits for a reader. For commands that save
/// something when a signal asks them to end; the signal itself ends other commands.
pub(crate) fn wait_for_no_reader() {
    if let Err(error) = STDERR.start("stderr", stderr()) {
        talk(format_args!("note: a terminal that stops reading stops this command: no thread can be started: {error}"));
    }
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        talk(format_args!("thread '{}' {panic}", thread.name().unwrap_or("<unnamed>")));
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => talk(backtrace),
            _ => talk("note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"),
        }
    }));
}

/// Records that the command was asked to end: from here on data waits only a moment for its reader.
pub(crate) fn end_soon() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Waits until all messages are written, as long as a reader reads them. Does not wait again for a reader that had
/// stopped reading by the last call.
pub(crate) fn finish(patience: Duration) {
    static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
    if STDERR.is_started() {
        let patience = if HAS_STOPPED.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
        HAS_STOPPED.store(!STDERR.drain(patience, Waiting::is_empty), Ordering::Relaxed);
    }
}

/// Writes pending messages when the command ends, in any way.
pub(crate) struct Finish;

impl Drop for Finish {
    fn drop(&mut self) {
        finish(READER_PATIENCE);
    }
}

/// Prints a message line to stderr. A failed write loses only the line. On a terminal with colors, labels are colored.
pub(crate) fn talk(line: impl Display) {
    let line = line.to_string();
    let shown = printable(&line);
    let shown = match console::colors_enabled_stderr() {
        true => with_colored_labels(&shown),
        false => shown.into_owned(),
    };
    put(|waiting| waiting.say(shown));
}

fn put(change: impl FnOnce(&mut Waiting)) {
    match STDERR.is_started() {
        true => drop(STDERR.put(change)),
        false => STDERR.write_now(&mut stderr().lock(), change),
    }
}

/// The text with the labels of its lines, such as `error:`, in the colors that compilers use.
fn with_colored_labels(text: &str) -> String {
    let colored = |line: &str| {
        let labels =
            [("error:", Style::new().red()), ("warning:", Style::new().yellow()), ("hint:", Style::new().cyan())];
        let labeled = labels.iter().find_map(|(label, color)| Some((label, color, line.strip_prefix(label)?)));
        match labeled {
            Some((label, color, rest)) => format!("{}{rest}", color.clone().bold().force_styling(true).apply_to(label)),
            None => line.to_owned(),
        }
    };
    text.split('\n').map(colored).collect::<Vec<_>>().join("\n")
}

/// Writes a line of data. A closed pipe is not an error. Errors: stdout refuses the data.
pub(crate) fn write_data(line: impl Display) -> Result<(), Failure> {
    let text = printable(&line.to_string()).into_owned() + "\n";
    let write = move || {
        let mut stdout = stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
    };
    let written = match STDERR.is_started() {
        true => on_a_thread(write),
        false => write(),
    };
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::device(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Writes on a thread, and waits for it until the command is asked to end. Errors: the stream refuses the data; nothing
/// reads it.
fn on_a_thread(write: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> std::io::Result<()> {
    // On a terminal, data comes after the messages before it.
    finish(READER_PATIENCE);
    let (send, written) = channel();
    std::thread::Builder::new().name("stdout".to_owned()).spawn(move || send.send(write()))?;
    loop {
        match written.recv_timeout(READER_PATIENCE) {
            Ok(written) => return written,
            Err(RecvTimeoutError::Timeout) if !IS_ENDING.load(Ordering::Relaxed) => {}
            Err(_) => return Err(std::io::Error::new(ErrorKind::TimedOut, "nothing reads it")),
        }
    }
}

/// Writes another program's output unchanged: bars are drawn with control characters. A closed pipe is not an error.
/// Errors: stdout refuses the data.
#[cfg(unix)]
pub(crate) fn pass(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::device(format!("stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes text of a model: unchanged to a file or a pipe, without control characters to a terminal.
pub(crate) fn write_text(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = stdout().lock();
    match stdout.is_terminal() {
        true => stdout.write_all(printable(&String::from_utf8_lossy(bytes)).as_bytes())?,
        false => stdout.write_all(bytes)?,
    }
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_colors_and_the_text_stays_as_it_is() {
        let text = "error: a hint: b\nhint: c\n\n  warning: d\n";
        let colored = with_colored_labels(text);
        assert_eq!(
            colored,
            "\u{1b}[31m\u{1b}[1merror:\u{1b}[0m a hint: b\n\u{1b}[36m\u{1b}[1mhint:\u{1b}[0m c\n\n  warning: d\n"
        );
        assert_eq!(console::strip_ansi_codes(&colored), text);
    }
}
