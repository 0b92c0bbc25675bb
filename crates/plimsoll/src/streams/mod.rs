//! The two streams: stdout is data, stderr is talk. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them. Neither shows control characters, whoever's
//! text they are in.
//!
//! Nor can a reader that stops reading, such as a terminal after Ctrl-S, hold up a command that has something to save:
//! after [`wait_for_no_reader`] a thread writes what is said (`plimsoll_telemetry::Outlet`).

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

/// Whether the command was asked to end, so that data waits no longer for its reader either.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// From here on nothing that is said waits for a reader, panics included: a thread writes it. For commands that save
/// something when a signal asks them to end; others are ended by the signal itself.
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

/// The command was asked to end: from here on data waits only a moment for its reader.
pub(crate) fn end_soon() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Waits until everything that was said is written, for as long as something reads it. A reader that had stopped reading by
/// the last call is not waited for again.
pub(crate) fn finish(patience: Duration) {
    static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
    if STDERR.is_started() {
        let patience = if HAS_STOPPED.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
        HAS_STOPPED.store(!STDERR.drain(patience, Waiting::is_empty), Ordering::Relaxed);
    }
}

/// Finishes what is said when the command ends, in whatever way.
pub(crate) struct Finish;

impl Drop for Finish {
    fn drop(&mut self) {
        finish(READER_PATIENCE);
    }
}

/// Says a line. What can't be said is lost, and nothing else is. On a terminal that has colors, labels have theirs.
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

/// The text with the labels of its lines, such as `error:`, in the colors that compilers have for them.
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

/// Writes a line of data. A reader that goes away has seen enough. Errors: stdout refuses it.
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

/// Writes on a thread, and waits for it until the command is asked to end. Errors: the stream refuses it; nothing reads it.
fn on_a_thread(write: impl FnOnce() -> std::io::Result<()> + Send + 'static) -> std::io::Result<()> {
    // On a terminal, data comes after what was said before it.
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

/// Writes what another program printed, as it is: bars are drawn with control characters. A reader that goes away has seen
/// enough. Errors: stdout refuses it.
#[cfg(unix)]
pub(crate) fn pass(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::device(format!("stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes text that a model made: to a file or a pipe as it is, to a terminal without control characters.
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
