//! Parses and displays quantities: bytes, durations, counts, dates. Also suggests known names for misspelled ones.
//! Not here: the use of quantities. Read next: `bytes.rs`.

mod bytes;
mod count;
mod date;
mod duration;
pub mod patterns;
pub mod spelling;

pub use bytes::Bytes;
pub use count::{ParseCountError, parse_count};
pub use date::{CivilDate, civil_from_days};
pub use duration::{Seconds, format_duration};

/// Why a quantity could not be parsed. The message quotes the text and shows valid examples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text does not start with a number, or the number is negative or not finite.
    #[error("`{text}` is not a {what}; write for example {example}")]
    NotANumber {
        /// The text.
        text: String,
        /// `size` or `duration`.
        what: &'static str,
        /// Valid examples.
        example: &'static str,
    },
    /// The suffix is not a known unit.
    #[error("`{unit}` in `{text}` is not a unit of {what}; write for example {example}")]
    UnknownUnit {
        /// The text.
        text: String,
        /// The suffix.
        unit: String,
        /// `size` or `duration`.
        what: &'static str,
        /// Valid examples.
        example: &'static str,
    },
    /// A duration without a unit.
    #[error("`{text}` has no unit of time: write `{text}s`, `{text}m` or `{text}h`")]
    NoUnit {
        /// The text.
        text: String,
    },
    /// The quantity does not fit 64 bits.
    #[error("`{text}` is too large")]
    TooLarge {
        /// The text.
        text: String,
    },
}

/// Splits `12.5gib` into 12.5 and `gib`. Errors: the number is negative or not finite.
fn split_number(text: &str, what: &'static str, example: &'static str) -> Result<(f64, String), ParseQuantityError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let number = trimmed[..end].replace('_', "").parse::<f64>().ok().filter(|n| n.is_finite());
    match number {
        Some(n) => Ok((n, trimmed[end..].trim().to_ascii_lowercase())),
        None => Err(ParseQuantityError::NotANumber { text: text.to_owned(), what, example }),
    }
}
