//! Why a module was refused.

use std::fmt;

/// What is wrong with a PTX text, and on which of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// The kinds of refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// Something else stands where this was expected.
    Expected(&'static str),
    /// The text ends inside of something.
    Unfinished,
    /// A name that nothing declared.
    Unknown(String),
    /// Legal or not, this is nothing that the interpreter knows.
    Unsupported(String),
    /// A number that cannot be meant: larger than any card allows, or not a number.
    Number(String),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: ", self.line)?;
        match &self.kind {
            ParseErrorKind::Expected(what) => write!(f, "expected {what}"),
            ParseErrorKind::Unfinished => write!(f, "the text ends too early"),
            ParseErrorKind::Unknown(name) => write!(f, "nothing declares `{name}`"),
            ParseErrorKind::Unsupported(what) => write!(f, "unsupported: `{what}`"),
            ParseErrorKind::Number(text) => write!(f, "`{text}` is no number that can be meant here"),
        }
    }
}

impl std::error::Error for ParseError {}
