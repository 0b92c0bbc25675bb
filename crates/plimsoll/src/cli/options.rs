//! Parsers of values that several flags share.

use plimsoll_torch_memory::snapshot::{refused_settings, setting_names};
use plimsoll_units::{Bytes, Seconds, parse_count};

/// A count above zero; accepts `20k` and `1.5M` too.
pub(super) fn positive_count(text: &str) -> Result<u64, String> {
    match parse_count(text).map_err(|e| e.to_string())? {
        0 => Err("must be at least 1".to_owned()),
        n => Ok(n),
    }
}

/// A count above zero that fits `usize`.
pub(super) fn positive_size(text: &str) -> Result<usize, String> {
    usize::try_from(positive_count(text)?).map_err(|e| e.to_string())
}

/// A finite number above zero.
pub(super) fn positive_number(text: &str) -> Result<f64, String> {
    number_where(text, |x| x > 0.0, "must be above 0")
}

/// A finite number, zero or more.
pub(super) fn number_from_zero(text: &str) -> Result<f64, String> {
    number_where(text, |x| x >= 0.0, "must be 0 or more")
}

/// A number from 0 up to, but not including, 1.
pub(super) fn rate(text: &str) -> Result<f32, String> {
    number_where(text, |x| (0.0..1.0).contains(&x), "must be from 0 to below 1").map(|x| x as f32)
}

/// A number above 0 and up to 1.
pub(super) fn part(text: &str) -> Result<f32, String> {
    number_where(text, |x| x > 0.0 && x <= 1.0, "must be above 0 and at most 1").map(|x| x as f32)
}

fn number_where(text: &str, accept: impl Fn(f64) -> bool, rule: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && accept(number) { Ok(number) } else { Err(format!("`{text}` {rule}")) }
}

/// `auto`, or what `parse` reads.
pub(super) fn auto_or<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<AutoOr<T>, String> {
    if text.trim().eq_ignore_ascii_case("auto") { Ok(AutoOr::Auto) } else { parse(text).map(AutoOr::Given) }
}

/// `auto`, or a whole number above zero.
pub(super) fn auto_or_size(text: &str) -> Result<AutoOr<usize>, String> {
    auto_or(text, positive_size)
}

/// A value that the planner may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoOr<T> {
    /// The planner chooses.
    Auto,
    /// The user's value.
    Given(T),
}

impl<T: Copy> AutoOr<T> {
    /// The user's value; `None` for `auto`.
    pub(super) fn given(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Given(value) => Some(value),
        }
    }
}

impl<T: std::fmt::Display> std::fmt::Display for AutoOr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Given(value) => value.fmt(f),
        }
    }
}

/// Runs that share a device: `2`, `auto` for as many as fit, or `7@3.33GiB` with the memory of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workers {
    pub(super) count: AutoOr<usize>,
    /// The memory of each run; `None` shares the device evenly.
    pub(super) each: Option<Bytes>,
}

/// `N`, `auto`, `N@SIZE` or `auto@SIZE`.
pub(super) fn workers(text: &str) -> Result<Workers, String> {
    let (count, each) = match text.split_once('@') {
        None => (text, None),
        Some((count, each)) => {
            (count, Some(each.trim().parse::<Bytes>().map_err(|e: plimsoll_units::ParseQuantityError| e.to_string())?))
        }
    };
    if each == Some(Bytes::ZERO) {
        return Err("each worker needs more than 0 B".to_owned());
    }
    Ok(Workers { count: auto_or_size(count)?, each })
}

/// A number from 0 to 1.
pub(super) fn part_from_zero(text: &str) -> Result<f64, String> {
    number_where(text, |x| (0.0..=1.0).contains(&x), "must be from 0 to 1")
}

/// A duration above zero.
pub(super) fn positive_duration(text: &str) -> Result<Seconds, String> {
    match text.parse::<Seconds>().map_err(|e| e.to_string())? {
        Seconds(0.0) => Err("must be above 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Settings of PyTorch's allocator, which refuses to start with an unknown name.
pub(super) fn alloc_conf(text: &str) -> Result<String, String> {
    let Some(refused) = refused_settings(text).into_iter().next() else { return Ok(text.to_owned()) };
    let names = setting_names().collect::<Vec<_>>().join(", ");
    Err(format!(
        "PyTorch's allocator does not accept `{refused}`: a setting is `NAME:VALUE`, with one of the names {names}"
    ))
}

/// A seed: any `u64`.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number from 0 to {}", u64::MAX))
}

/// A margin: a bare number is MiB, unlike elsewhere, since margins are small.
pub(super) fn margin(text: &str) -> Result<Bytes, String> {
    let bare = text.trim().parse::<f64>().is_ok();
    let text = if bare { format!("{} MiB", text.trim()) } else { text.to_owned() };
    text.parse().map_err(|e: plimsoll_units::ParseQuantityError| e.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::{Args, Command};
    use serde_json::{Map, Value};

    /// Asserts that `given` has every flag of these arguments, and that a run resumed with the settings of `resolved` has
    /// the same arguments.
    pub(in crate::cli) fn assert_resumed_alike<A: Args + std::fmt::Debug>(
        given: &[&str],
        resolved: impl Fn(&A) -> Map<String, Value>,
    ) {
        let command = A::augment_args(Command::new("train").no_binary_name(true));
        for argument in command.get_arguments() {
            let flag = format!("--{}=", argument.get_long().expect("a flag"));
            assert!(given.iter().any(|given| given.starts_with(&flag)), "add a value for {flag} to this test");
        }
        let parse = |flags: &[String]| {
            A::from_arg_matches(&command.clone().try_get_matches_from(flags).expect("flags")).expect("arguments")
        };
        let first = parse(&given.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        let settings = resolved(&first).into_iter().map(|(key, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("--{}={value}", key.replace('_', "-"))
        });
        let settings = settings.collect::<Vec<_>>();
        for argument in command.get_arguments() {
            let flag = format!("--{}=", argument.get_long().expect("a flag"));
            assert!(settings.iter().any(|setting| setting.starts_with(&flag)), "{flag} is forgotten: {settings:?}");
        }
        assert_eq!(resolved(&parse(&settings)), resolved(&first));
    }

    #[test]
    fn invalid_numbers_are_rejected() {
        for text in ["nan", "NaN", "inf", "-1", "x", ""] {
            assert!(positive_number(text).is_err() && number_from_zero(text).is_err(), "{text}");
            assert!(rate(text).is_err() && positive_count(text).is_err(), "{text}");
        }
        assert!(positive_number("0").is_err() && number_from_zero("0").is_ok());
        assert!(rate("1").is_err() && part("1").is_ok() && part("0").is_err());
        assert!(part_from_zero("0").is_ok() && part_from_zero("1").is_ok() && part_from_zero("1.1").is_err());
        assert!(positive_duration("0s").is_err() && positive_duration("1s").is_ok());
        assert!(seed("18446744073709551615").is_ok() && seed("-1").is_err() && seed("1e3").is_err());
    }

    #[test]
    fn workers_are_a_number_with_or_without_a_size() {
        let (given, mib) = (AutoOr::Given, Bytes::mib);
        for (text, count, each) in [
            ("2", given(2), None),
            ("auto", AutoOr::Auto, None),
            ("7@3.33GiB", given(7), Some("3.33GiB".parse().expect("a size"))),
            ("3@600MiB", given(3), Some(mib(600))),
            ("auto@2", AutoOr::Auto, Some(mib(2048))),
        ] {
            assert_eq!(workers(text), Ok(Workers { count, each }), "{text}");
        }
        for text in ["0", "@2", "2@", "2@0", "2@many", "two", "2@1@1", "-1", ""] {
            assert!(workers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bare_margin_is_mebibytes() {
        assert_eq!(margin("500"), Ok(Bytes::mib(500)));
        assert_eq!(margin("1gb"), Ok(Bytes::gib(1)));
    }
}
