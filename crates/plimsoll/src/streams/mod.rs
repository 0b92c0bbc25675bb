//! The two streams: stdout is data, stderr is messages. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them. Neither shows control characters, from any
//! text.
//!
//! A reader that stops reading, such as a terminal after Ctrl-S, blocks no command: a thread writes the messages
//! (`plimsoll_telemetry::Outlet`). Data waits for its reader, since without it the command is pointless.

mod bar;
mod waiting;

pub(crate) use bar::{Bar, bar_text};

use crate::failure::Failure;
use console::Style;
use plimsoll_render::printable;
use plimsoll_telemetry::{Outlet, READER_PATIENCE};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdout};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use waiting::Waiting;

/// Messages, and the thread that writes them, which the first message starts. If the system refuses the thread, the
/// calling threads write what stderr accepts without waiting.
static STDERR: OnceLock<Outlet<Waiting>> = OnceLock::new();

/// How long the report of a finished run waits for a reader that reads nothing. It is in the run's folder as well.
pub(crate) const REPORT_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of data per `write`: progress of the reader is seen between two of them.
const PIECE: usize = 4096;

/// Whether signals ask the command to end instead of ending it.
static HANDLES_SIGNALS: AtomicBool = AtomicBool::new(false);

/// Whether the command was asked to end, so that data no longer waits for its reader.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// For commands that save something when a signal asks them to end: after this call, writing data can't delay that.
pub(crate) fn handle_signals() {
    HANDLES_SIGNALS.store(true, Ordering::Relaxed);
}

/// Prints panics as messages, which wait for no reader.
pub(crate) fn print_panics_as_messages() {
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
    let Some(outlet) = STDERR.get() else { return };
    let patience = if HAS_STOPPED.load(Ordering::Relaxed) { Duration::ZERO } else { patience };
    let is_written = match outlet.is_started() {
        true => outlet.drain(patience, Waiting::is_empty),
        false => outlet.write_now(&mut stderr().lock(), |_| (), || stderr_accepts(patience)),
    };
    HAS_STOPPED.store(!is_written, Ordering::Relaxed);
}

/// Whether stderr accepts output within this time.
#[cfg(unix)]
fn stderr_accepts(patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (tv_sec, tv_nsec) = (patience.as_secs().try_into().unwrap_or(i64::MAX), patience.subsec_nanos().into());
    let stream = stderr();
    let mut polled = [PollFd::new(&stream, PollFlags::OUT)];
    // A stream that can't be polled is written, so that its error shows.
    poll(&mut polled, Some(&Timespec { tv_sec, tv_nsec })).map_or(true, |ready| ready > 0)
}

/// Systems without `poll` write at once.
#[cfg(not(unix))]
fn stderr_accepts(_: Duration) -> bool {
    true
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
    let outlet = STDERR.get_or_init(|| {
        let outlet = Outlet::new(Waiting::default());
        // Without a thread, this thread writes.
        let _ = outlet.start("stderr", stderr());
        outlet
    });
    match outlet.is_started() {
        true => drop(outlet.put(change)),
        false => drop(outlet.write_now(&mut stderr().lock(), change, || stderr_accepts(Duration::ZERO))),
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

/// Writes a line of data, and waits for its reader. A closed pipe is not an error. Errors: stdout refuses the data; the
/// command was asked to end and nothing reads it.
pub(crate) fn write_data(line: impl Display) -> Result<(), Failure> {
    write_data_within(Duration::MAX, line)
}

/// Like [`write_data`], for a command that handles signals. Errors: also that nothing is read for `patience`.
pub(crate) fn write_data_within(patience: Duration, line: impl Display) -> Result<(), Failure> {
    let text = printable(&line.to_string()).into_owned() + "\n";
    // On a terminal, data comes after the messages before it.
    finish(READER_PATIENCE);
    let written = match HANDLES_SIGNALS.load(Ordering::Relaxed) {
        true => write_on_a_thread(stdout, &text, patience),
        false => write_in_pieces(&mut stdout(), &text, || ()),
    };
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::device(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Writes a text and flushes it. Calls `progress` after each piece.
fn write_in_pieces(stream: &mut impl Write, text: &str, progress: impl Fn()) -> io::Result<()> {
    for piece in text.as_bytes().chunks(PIECE) {
        stream.write_all(piece)?;
        progress();
    }
    stream.flush()
}

/// Writes on a thread, and waits for it until the command is asked to end or nothing is read for `patience`. The calling
/// thread writes if the system refuses a thread. Errors: the stream refuses the data; nothing reads it.
fn write_on_a_thread<W: Write>(
    open: impl Fn() -> W + Clone + Send + 'static,
    text: &str,
    patience: Duration,
) -> io::Result<()> {
    let (send, written) = channel();
    let (open_there, text_there) = (open.clone(), text.to_owned());
    let write = move || {
        let result = write_in_pieces(&mut open_there(), &text_there, || drop(send.send(Ok(()))));
        result.or_else(|error| send.send(Err(error)))
    };
    if std::thread::Builder::new().name("stdout".to_owned()).spawn(write).is_err() {
        return write_in_pieces(&mut open(), text, || ());
    }
    let mut last_progress = Instant::now();
    loop {
        match written.recv_timeout(READER_PATIENCE.min(patience)) {
            Ok(Ok(())) => last_progress = Instant::now(),
            Ok(Err(error)) => return Err(error),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout)
                if !IS_ENDING.load(Ordering::Relaxed) && last_progress.elapsed() < patience => {}
            Err(RecvTimeoutError::Timeout) => return Err(io::Error::new(ErrorKind::TimedOut, "nothing reads it")),
        }
    }
}

/// Writes another program's output unchanged: bars are drawn with control characters. A closed pipe is not an error.
/// Errors: stdout refuses the data.
#[cfg(unix)]
pub(crate) fn pass(bytes: &[u8]) -> Result<(), Failure> {
    finish(READER_PATIENCE);
    let mut stdout = stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::device(format!("stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes text of a model: unchanged to a file or a pipe, without control characters to a terminal.
pub(crate) fn write_text(bytes: &[u8]) -> io::Result<()> {
    finish(READER_PATIENCE);
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

    /// A reader that accepts this many pieces and then stops reading.
    struct Stopping(usize);

    impl Write for Stopping {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let Some(left) = self.0.checked_sub(1) else {
                loop {
                    std::thread::park()
                }
            };
            self.0 = left;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn data_waits_a_bounded_time_for_a_reader_that_stopped() {
        let text = "x".repeat(3 * PIECE);
        let patience = Duration::from_millis(1);
        let error = write_on_a_thread(|| Stopping(2), &text, patience).expect_err("a piece is not read");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(write_on_a_thread(|| Stopping(3), &text, Duration::MAX).is_ok());
    }

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
