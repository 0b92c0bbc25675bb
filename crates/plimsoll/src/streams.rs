//! The two streams: stdout is data, stderr is talk. Neither can end a run: `println!` and `eprintln!` panic when a
//! reader goes away or a log fills its disk, so nothing here uses them. Neither shows control characters, whoever's
//! text they are in.

use crate::cli::Failure;
use crate::printable::printable;
use console::Style;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// Says a line. What can't be said is lost, and nothing else is. On a terminal that has colors, labels have theirs.
pub(crate) fn talk(line: impl Display) {
    let line = line.to_string();
    let shown = printable(&line);
    let _ = match console::colors_enabled_stderr() {
        true => writeln!(std::io::stderr().lock(), "{}", with_colored_labels(&shown)),
        false => writeln!(std::io::stderr().lock(), "{shown}"),
    };
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
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{}", printable(&line.to_string())).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::device(format!("stdout: {error}"))),
        _ => Ok(()),
    }
}

/// Writes what another program printed, as it is: bars are drawn with control characters. A reader that goes away has seen
/// enough. Errors: stdout refuses it.
#[cfg(unix)]
pub(crate) fn pass(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::device(format!("stdout: {error}"))),
        Ok(()) => Ok(()),
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
