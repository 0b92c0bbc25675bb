//! Makes untrusted text safe to show. A file's name, a line of a user's YAML or a library's message may hold
//! escape codes that move the cursor, rename the window or paste into a shell; or marks that reverse text, so that
//! it reads as something else.
//! Not here: writing it, which the caller does.

use std::borrow::Cow;
use std::fmt::Write;

/// A text of several lines: as it is, but for control characters other than the line feed and the tabulator, and for
/// those that change the direction of text. They become escapes such as `\u001b`, as in JSON, so
/// JSON stays JSON.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |character| is_harmful(character) && !matches!(character, '\n' | '\t'))
}

/// A text of one line, such as a message with a path in it. Line feeds are escaped too.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_escaped(character) {
            true => write!(shown, "\\u{:04x}", u32::from(character)).expect("a string takes all text"),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Control characters (C0, DEL, C1) and those of UAX 9 that embed, override or isolate a direction, all below U+10000.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_codes_are_shown_and_words_left_alone() {
        assert_eq!(printable("a\u{1b}[2Jb\n\tc\r"), "a\\u001b[2Jb\n\tc\\u000d");
        assert_eq!(printable("\u{9b}31m \u{7f} \u{202e}gpj"), "\\u009b31m \\u007f \\u202egpj");
        assert_eq!(printable_line("a\nerror: b"), "a\\u000aerror: b");
        assert!(matches!(printable("Größe 漢字 🙂 ━╸"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn json_stays_the_same_json(text in "\\PC*|[\u{0}-\u{a0}]*") {
            let json = serde_json::to_string_pretty(&serde_json::json!({ "text": text })).unwrap();
            let shown = printable(&json);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
            let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
            prop_assert_eq!(read["text"].as_str(), Some(text.as_str()));
        }
    }
}
