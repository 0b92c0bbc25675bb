//! Parses and displays durations: `5m`, `90s`, `1h30m`.

use crate::ParseQuantityError;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

const EXAMPLE: &str = "90s, 5m, 1h30m";

/// A span of time in seconds.
#[derive(Debug, Default, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// Accepts numbers followed by `s`, `m`, `h` or `d`, and 0. Rejects a number without a unit, since other programs read
/// it as minutes.
impl FromStr for Seconds {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not_a_number =
            || ParseQuantityError::NotANumber { text: text.to_owned(), what: "duration", example: EXAMPLE };
        let mut rest = text.trim();
        let mut total = 0.0;
        if rest.is_empty() {
            return Err(not_a_number());
        }
        while !rest.is_empty() {
            let number_end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
            let number: f64 = rest[..number_end].parse().map_err(|_| not_a_number())?;
            rest = rest[number_end..].trim_start();
            let unit_end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
            let unit = rest[..unit_end].to_ascii_lowercase();
            total += number
                * match unit.as_str() {
                    "" if number != 0.0 => return Err(ParseQuantityError::NoUnit { text: text.trim().to_owned() }),
                    "" | "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
                    "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
                    "h" | "hr" | "hour" | "hours" => 3600.0,
                    "d" | "day" | "days" => 86400.0,
                    _ => {
                        return Err(ParseQuantityError::UnknownUnit {
                            text: text.to_owned(),
                            unit,
                            what: "duration",
                            example: EXAMPLE,
                        });
                    }
                };
            rest = rest[unit_end..].trim_start();
        }
        if !total.is_finite() || total > 1e10 {
            return Err(ParseQuantityError::TooLarge { text: text.to_owned() });
        }
        Ok(Self(total))
    }
}

/// Formats a duration with its two largest units: `7 s`, `1 min 40 s`, `3 h 4 min`, `4 d 5 h`. A negative or non-finite
/// one is `-`.
pub fn format_duration(duration: Seconds) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    if !duration.0.is_finite() || duration.0 < 0.0 {
        return "-".to_owned();
    }
    let total = duration.0.round() as u64;
    let largest = UNITS.iter().position(|(_, seconds)| total >= *seconds).unwrap_or(UNITS.len() - 1);
    let (name, seconds) = UNITS[largest];
    let (count, rest) = (total / seconds, total % seconds);
    let next = UNITS.get(largest + 1).map(|(name, seconds)| (rest / seconds, name)).filter(|(count, _)| *count > 0);
    next.map_or(format!("{count} {name}"), |(of_next, next)| format!("{count} {name} {of_next} {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_spellings_of_durations_are_parsed() {
        for (text, seconds) in [("0", 0.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("1.5 h", 5400.0)] {
            assert_eq!(text.parse(), Ok(Seconds(seconds)), "{text}");
        }
        for text in ["5", "0.5", "1h30"] {
            let message = text.parse::<Seconds>().unwrap_err().to_string();
            assert_eq!(message, format!("`{text}` has no unit of time: write `{text}s`, `{text}m` or `{text}h`"));
        }
        for text in ["", "m", "five", "3 fortnights", "-1s", "1e99"] {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_with_two_units() {
        for (seconds, text) in [
            (0.2, "0 s"),
            (7.2, "7 s"),
            (59.7, "1 min"),
            (100.0, "1 min 40 s"),
            (11_045.0, "3 h 4 min"),
            (7200.0, "2 h"),
            (363_600.0, "4 d 5 h"),
            (86_401.0, "1 d"),
            (-1.0, "-"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(format_duration(Seconds(seconds)), text);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = text.parse::<Seconds>();
        }
    }
}
