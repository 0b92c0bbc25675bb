//! Counts such as `100M` tokens, with decimal multiples.

/// A text is not a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a whole count; write for example 5000, 20k, 100M or 1.5B")]
pub struct ParseCountError {
    text: String,
}

/// Parses `5000`, `20k`, `100M`, `1.5B`. Multiples are decimal.
/// Errors: not a number, negative, not whole after scaling, or beyond 2^53.
pub fn parse_count(text: &str) -> Result<u64, ParseCountError> {
    let error = || ParseCountError { text: text.to_owned() };
    let trimmed = text.trim();
    let (digits, scale) = match trimmed.chars().last() {
        Some('k' | 'K') => (&trimmed[..trimmed.len() - 1], 1e3),
        Some('m' | 'M') => (&trimmed[..trimmed.len() - 1], 1e6),
        Some('b' | 'B' | 'g' | 'G') => (&trimmed[..trimmed.len() - 1], 1e9),
        _ => (trimmed, 1.0),
    };
    if !digits.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '_') {
        return Err(error());
    }
    let value = digits.replace('_', "").parse::<f64>().map_err(|_| error())? * scale;
    if value.fract() != 0.0 || value > (1u64 << 53) as f64 {
        return Err(error());
    }
    Ok(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_accept_decimal_suffixes() {
        for (text, count) in [("5000", 5000), ("20k", 20_000), ("100M", 100_000_000), ("1.5B", 1_500_000_000)] {
            assert_eq!(parse_count(text), Ok(count));
        }
        for text in ["", "k", "-1", "1.5", "1e3", "nan"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = parse_count(&text);
        }
    }
}
