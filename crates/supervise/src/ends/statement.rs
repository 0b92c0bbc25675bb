//! An error statement, and how its message is read.
//! Not here: finding statements (`statements.rs`, `native.rs`).

use super::messages::Meaning;

/// Lines of a message to read after its first.
const MESSAGE_LINES: usize = 12;

/// An error statement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statement {
    /// The index of its line in the whole output.
    pub at: usize,
    /// How final it is.
    pub weight: Weight,
    /// What it means.
    pub meaning: Meaning,
}

/// How final an error statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// Python, C++ or a library ends the process after it.
    Final,
    /// It ends a thread, but not the process.
    Thread,
    /// A program printed it.
    Printed,
}

/// Lines of one process, with their indexes in the whole output.
pub(super) type Numbered<'a> = [(usize, &'a str)];

/// The lines of a message after its first.
pub(super) fn message_lines(lines: &Numbered<'_>, at: usize) -> String {
    let more = lines[at + 1..].iter().map(|(_, line)| *line);
    more.take_while(|line| !line.is_empty()).take(MESSAGE_LINES).collect::<Vec<_>>().join("\n")
}
