//! Quantities and names as people write them: bytes, durations, counts, dates, and names that are misspelled.
//! Not here: anything that knows what the quantities are for. Read next: `bytes.rs`.

mod bytes;
mod count;
mod date;
mod duration;
pub mod spelling;

pub use bytes::Bytes;
pub use count::{ParseCountError, parse_count};
pub use date::{CivilDate, civil_from_days};
pub use duration::{Seconds, format_duration};

/// Why a quantity could not be read. The message quotes the text and says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text has no number in front, or the number is not finite and positive.
    #[error("`{text}` is not a {what}; write for example {example}")]
    NotANumber {
        /// What the user wrote.
        text: String,
        /// "size" or "duration".
        what: &'static str,
        /// Accepted spellings.
        example: &'static str,
    },
    /// The suffix is not a unit that is known.
    #[error("`{unit}` in `{text}` is not a unit of {what}; write for example {example}")]
    UnknownUnit {
        /// What the user wrote.
        text: String,
        /// The suffix of it.
        unit: String,
        /// "size" or "duration".
        what: &'static str,
        /// Accepted spellings.
        example: &'static str,
    },
    /// A duration without a unit.
    #[error("`{text}` has no unit of time: write `{text}s`, `{text}m` or `{text}h`")]
    NoUnit {
        /// What the user wrote.
        text: String,
    },
    /// The quantity does not fit 64 bits.
    #[error("`{text}` is too large")]
    TooLarge {
        /// What the user wrote.
        text: String,
    },
}

/// Splits `12.5gib` into 12.5 and `gib`. The number must be finite and not negative.
fn split_number(text: &str, what: &'static str, example: &'static str) -> Result<(f64, String), ParseQuantityError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let number = trimmed[..end].replace('_', "").parse::<f64>().ok().filter(|n| n.is_finite());
    match number {
        Some(n) => Ok((n, trimmed[end..].trim().to_ascii_lowercase())),
        None => Err(ParseQuantityError::NotANumber { text: text.to_owned(), what, example }),
    }
}
