//! Why a command fails: a message, hints, and the documented exit code. Not here: the conversion of libraries' errors,
//! and how a failure is printed (`cli/failure.rs`).

use plimsoll_plan::FailureKind;
use std::fmt::{self, Display, Formatter};

/// The documented exit codes.
pub mod exit_code {
    /// The command succeeded.
    pub const DONE: u8 = 0;
    /// The command line or a file of settings is wrong.
    pub const USAGE: u8 = 2;
    /// No plan fits the budget.
    pub const DOES_NOT_FIT: u8 = 3;
    /// Data, a checkpoint or a configuration can't be used.
    pub const BAD_INPUT: u8 = 4;
    /// The device or the system refused something.
    pub const DEVICE_FAILED: u8 = 5;
    /// A GPU was too hot; the run is saved and can be resumed.
    pub const TOO_HOT: u8 = 6;
    /// Loss or gradient became NaN or infinite.
    pub const DIVERGED: u8 = 7;
    /// Stopped by a signal; the run can be resumed.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    pub(crate) message: Message,
    hints: Vec<String>,
    kind: Option<FailureKind>,
}

#[derive(Debug)]
pub(crate) enum Message {
    Text(String),
    /// clap's own message, which includes help and version.
    Clap(Box<clap::Error>),
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Message::Text(message.into()), hints: vec![], kind: None }
    }

    pub(crate) fn usage(error: clap::Error) -> Self {
        Self { code: exit_code::USAGE, message: Message::Clap(Box::new(error)), hints: vec![], kind: None }
    }

    pub(crate) fn bad_flag(message: impl Into<String>) -> Self {
        Self::new(exit_code::USAGE, message)
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::new(exit_code::BAD_INPUT, message)
    }

    pub(crate) fn device(message: impl Into<String>) -> Self {
        Self::new(exit_code::DEVICE_FAILED, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The message, for a failure that does not end the command.
    pub(crate) fn message(&self) -> String {
        match &self.message {
            Message::Clap(error) => error.to_string(),
            Message::Text(text) => text.clone(),
        }
    }

    /// Marks it as one that later runs on the device must know of.
    pub(crate) fn of_kind(mut self, kind: FailureKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// What later runs on the device must know of.
    pub(crate) fn kind(&self) -> Option<FailureKind> {
        self.kind
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What to do about it.
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}
