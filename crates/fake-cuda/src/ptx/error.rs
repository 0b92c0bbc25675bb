//! Why a module is refused.

use std::fmt;

/// An error in a PTX text, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong.
    pub kind: ParseErrorKind,
}

/// The kinds of errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// The text does not have what was expected here.
    Expected(&'static str),
    /// The text ends too early.
    Unfinished,
    /// A name that nothing declared.
    Unknown(String),
    /// Not supported by the interpreter, whether or not it is valid PTX.
    Unsupported(String),
    /// An instruction that needs at least this `.version`, as major · 10 + minor, and this `.target`.
    Newer {
        /// The statement.
        statement: String,
        /// The version.
        version: u32,
        /// The target: 89 for `sm_89`.
        target: u32,
    },
    /// Not a number, or larger than any card allows.
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
            ParseErrorKind::Newer { statement, version, target } => {
                write!(f, "`{statement}` needs .version {}.{} and .target sm_{target}", version / 10, version % 10)
            }
            ParseErrorKind::Number(text) => write!(f, "`{text}` is not a valid number here"),
        }
    }
}

impl std::error::Error for ParseError {}
