//! Errors of templates, and the budget of a render.
//!
//! A chat template comes with a model and is untrusted. The parser refuses more than 512 KiB, 50,000 tokens, 400 operators in a
//! tag, 32 open brackets, or 140 open blocks: at least ten times as much as real templates have. A render pays for each step
//! and byte before it reads or writes it ([`Meter`]). Values nest up to 160 levels; calls, blocks and expressions up to 600.

use std::fmt;

/// The kind of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Jinja2 in Python also raises an error here.
    Raised,
    /// Jinja2 in Python may return a value here. This crate does not support it, and the message names the feature.
    Unsupported,
    /// The render exceeds the limits on steps, memory or nesting.
    OverBudget,
}

/// Why a template can't be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The kind of error.
    pub kind: ErrorKind,
    /// The message.
    pub message: String,
    /// The line of the template, counted from 1.
    pub line: Option<usize>,
}

impl Error {
    pub(crate) fn raised(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Raised, message: message.into(), line: None }
    }

    /// `what` is a noun phrase, such as "`{% include %}`".
    pub(crate) fn unsupported(what: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Unsupported, message: format!("{what} is not supported in templates"), line: None }
    }

    /// Like [`unsupported`](Self::unsupported), with a complete message.
    pub(crate) fn unsupported_as(message: String) -> Self {
        Self { kind: ErrorKind::Unsupported, message, line: None }
    }

    pub(crate) fn over_budget(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::OverBudget, message: message.into(), line: None }
    }

    /// Adds a line, unless the error already has one.
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

/// One step corresponds to this many bytes.
const STEP_BYTES: u64 = 64;

/// The remaining budget of a render, in steps; bytes are converted to steps.
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

    /// Charges for bytes that are read or written.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.bytes.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes = left;
                Ok(())
            }
            None => Err(Error::over_budget("it needs more steps or memory than allowed for a chat of this size")),
        }
    }
}
