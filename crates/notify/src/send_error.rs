//! Why a message could not be sent, and whether it is worth another try.

use std::time::Duration;

/// What went wrong. The text has not been cleaned of secrets; only the worker shows it, cleaned.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) text: String,
    pub(crate) retry: Retry,
}

/// Whether another try is worthwhile, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It may work a moment later.
    Later,
    /// The server says when.
    After(Duration),
    /// It will not work.
    Never,
}

impl SendError {
    pub(crate) fn later(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry: Retry::Later }
    }

    pub(crate) fn never(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry: Retry::Never }
    }
}
