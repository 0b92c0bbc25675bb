//! Why a message could not be sent, and whether to retry.

use std::time::Duration;

/// An error. The text may contain secrets; the worker redacts it before showing it.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) text: String,
    pub(crate) retry: Retry,
}

/// Whether to retry, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Retry later.
    Later,
    /// Retry after the time that the server requested.
    After(Duration),
    /// Do not retry.
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
