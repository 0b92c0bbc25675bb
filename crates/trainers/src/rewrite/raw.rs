//! Sets keys by their exact names: for settings without a [`SettingChange`](crate::SettingChange), such as the
//! checkpoint to resume from, and for keys in a user's ladder. Not here: the meaning of keys.

use super::edit::{Edit, Literal};
use super::flags::Rewritten;
use super::{RewriteError, entangled, text};
use crate::command::Command;
use crate::document::Document;

/// Sets keys in the text of any YAML or JSON file, or removes them (`None`). Dots separate nested keys. Values that
/// look like numbers, `true`, `false` or `null` are written as such, all others as strings.
/// Errors: `Unreadable`, `Entangled`; all changes are made or none.
pub fn rewrite_keys(text: &str, keys: &[(String, Option<String>)]) -> Result<String, RewriteError> {
    let mut text = text.to_owned();
    for edit in keys.iter().map(edit) {
        let document = Document::parse(&text).map_err(|what| RewriteError::Unreadable { what })?;
        text = text::apply(&text, &document, &edit).ok_or_else(|| entangled(&document, &edit))?;
    }
    Ok(text)
}

/// Sets keys in a trainer's command line and file: changes each key where it is set, in the arguments if it is in both.
/// Adds missing keys to the file if there is one. `file`: the text of `command.config`.
/// Errors: those of [`rewrite_keys`].
pub fn rewrite_command_keys(
    command: &Command,
    argv: &[String],
    file: Option<&str>,
    keys: &[(String, Option<String>)],
) -> Result<Rewritten, RewriteError> {
    let mut rewritten = Rewritten { argv: argv.to_vec(), file: file.map(str::to_owned) };
    for edit in keys.iter().map(edit) {
        rewritten.edit(command, &edit)?;
    }
    Ok(rewritten)
}

fn edit((key, value): &(String, Option<String>)) -> Edit {
    match value {
        Some(value) => Edit::Set(key.clone(), literal(value)),
        None => Edit::Remove(key.clone()),
    }
}

fn literal(text: &str) -> Literal {
    // Older YAML reads a leading zero as octal, so such a number is written as a string.
    let digits = text.trim_start_matches('-');
    let is_octal = digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !is_octal;
    let is_number = begins && text.parse::<f64>().is_ok_and(f64::is_finite);
    match text {
        "null" => Literal::Null,
        "true" => Literal::Bool(true),
        "false" => Literal::Bool(false),
        text if !is_number => Literal::Text(text.to_owned()),
        text => text.parse().map_or_else(|_| Literal::Decimal(text.to_owned()), Literal::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use proptest::prelude::*;

    fn keys(pairs: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
    }

    #[test]
    fn values_are_written_as_their_apparent_types() {
        let text = "# mine\nlr: 1e-4\nmodel:\n  width: 8 # narrow\n";
        let wanted =
            keys(&[("lr", Some("0.5")), ("model.width", Some("4")), ("name", Some("a b")), ("on", Some("true"))]);
        let text = rewrite_keys(text, &wanted).expect("written");
        assert!(text.starts_with("# mine\nlr: 0.5\nmodel:\n  width: 4 # narrow\n"), "{text}");
        let document = Document::parse(&text).expect("YAML");
        assert_eq!((document.plain("name"), document.plain("on")), (Some("a b"), Some("true")));
        let json =
            rewrite_keys("{\"a\": 1, \"b\": {\"c\": 2}}", &keys(&[("b.c", Some("-3")), ("a", None)])).expect("written");
        assert_eq!(serde_json_like(&json), "{\"b\":{\"c\":-3}}");
    }

    /// Numbers keep their notation, including leading zeros.
    #[test]
    fn numbers_keep_their_notation() {
        for (value, expected) in [
            ("1e-4", "lr: 1e-4\n"),
            ("0.10", "lr: 0.10\n"),
            ("-0", "lr: -0\n"),
            ("2.0", "lr: 2.0\n"),
            ("007", "lr: \"007\"\n"),
            ("1e999", "lr: \"1e999\"\n"),
            ("12", "lr: 12\n"),
        ] {
            let written = rewrite_keys("lr: 5\n", &keys(&[("lr", Some(value))])).expect("written");
            assert_eq!(written, expected);
        }
    }

    fn serde_json_like(text: &str) -> String {
        text.split_whitespace().collect()
    }

    #[test]
    fn a_key_is_set_where_it_is() {
        let argv: Vec<String> =
            "axolotl train a.yml --resume-from-checkpoint old".split(' ').map(str::to_owned).collect();
        let command = command(&argv).expect("axolotl's");
        let set = keys(&[("resume_from_checkpoint", Some("/new"))]);
        let both = rewrite_command_keys(&command, &argv, Some("a: 1\n"), &set).expect("written");
        assert_eq!((both.argv[4].as_str(), both.file.as_deref()), ("/new", Some("a: 1\n")));
        let file = rewrite_command_keys(&command, &argv[..3], Some("a: 1\n"), &set).expect("written");
        assert_eq!(file.file.as_deref(), Some("a: 1\nresume_from_checkpoint: /new\n"));
    }

    proptest! {
        #[test]
        fn a_set_key_is_read_back(key in "[a-z_]{1,8}(\\.[a-z_]{1,8})?", value in "[ -~]{0,20}", text in "([a-c]: [a-z0-9]{1,4}\n){0,3}") {
            if let Ok(written) = rewrite_keys(&text, &[(key.clone(), Some(value.clone()))]) {
                let document = Document::parse(&written).expect("still YAML");
                let expected = Some(value.as_str()).filter(|value| *value != "null");
                let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
                let found = document.plain(&key);
                let is_as_large = number(found).is_some() && number(found) == number(expected);
                prop_assert!(found == expected || is_as_large, "{:?} for {:?} in {}", found, expected, written);
            }
        }
    }
}
