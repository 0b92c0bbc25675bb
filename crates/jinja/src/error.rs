//! Errors of templates, and the budget of a render.

use std::fmt;

/// What kind of problem an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Jinja2 in Python raises an error here too.
    Raised,
    /// Jinja2 in Python may give a value here. This crate doesn't, and the message names what is missing.
    NotBuilt,
    /// The render takes more steps or memory than its limits allow, or nests too deep.
    OverBudget,
}

/// Why a template can't be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Whether Python would raise an error too.
    pub kind: ErrorKind,
    /// What is wrong.
    pub message: String,
    /// The line of the template, counted from 1.
    pub line: Option<usize>,
}

impl Error {
    pub(crate) fn raised(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Raised, message: message.into(), line: None }
    }

    /// `what` is a noun phrase, such as "`{% include %}`".
    pub(crate) fn not_built(what: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::NotBuilt, message: format!("{what} is not supported in templates"), line: None }
    }

    /// The same in words of its own.
    pub(crate) fn not_built_as(message: String) -> Self {
        Self { kind: ErrorKind::NotBuilt, message, line: None }
    }

    pub(crate) fn over_budget(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::OverBudget, message: message.into(), line: None }
    }

    /// The error with a line, if it has none yet.
    pub(crate) fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (line {line} of the template)", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// A step costs as much as this many bytes.
const STEP_BYTES: u64 = 64;

/// What is left of the budget of a render: steps and bytes alike.
#[derive(Debug)]
pub(crate) struct Meter {
    bytes: u64,
}

impl Meter {
    pub(crate) fn new(steps: u64) -> Self {
        Self { bytes: steps.saturating_mul(STEP_BYTES) }
    }

    pub(crate) fn step(&mut self) -> Result<()> {
        self.charge(STEP_BYTES as usize)
    }

    /// Pays for bytes that are read or written.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.bytes.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes = left;
                Ok(())
            }
            None => Err(Error::over_budget("it takes more steps or memory than a chat of this size may")),
        }
    }

    /// Pays for values that are put into a list.
    pub(crate) fn charge_items(&mut self, items: usize) -> Result<()> {
        self.charge(items.saturating_mul(size_of::<crate::Value>()))
    }
}
