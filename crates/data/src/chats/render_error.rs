//! Why a chat has no text to train on.

use super::template::TemplateError;
use plimsoll_units::Bytes;

/// Why a chat has no text to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RenderError {
    /// The template fails on these messages.
    Template(TemplateError),
    /// The text does not show the bounds of the answer in this message, counted from 1.
    UnclearAnswer(usize),
    /// The text is longer than this.
    TooLong(Bytes),
}

impl From<TemplateError> for RenderError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}
