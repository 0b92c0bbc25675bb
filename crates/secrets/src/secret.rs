//! Secret text, and removal of secrets from other text.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use std::fmt;
use std::sync::Arc;

/// Placeholder for a secret.
pub(crate) const HIDDEN: &str = "…";

/// A password, a token, or a secret URL. It displays itself as `…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// The text, to be sent to its own server only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HIDDEN)
    }
}

/// Removes secrets from text. Servers quote what they receive, and libraries quote URLs.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Longest first, so that a whole secret is replaced before its parts.
    needles: Arc<[String]>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Redactor")
    }
}

/// Shorter strings occur in ordinary text.
const NEEDLE_MIN: usize = 3;

/// Shorter secrets may be words of a message.
const SECRET_MIN: usize = 8;

/// Shorter parts of URLs are words such as `api`, not secrets.
const PART_MIN: usize = 6;

impl Redactor {
    /// Removes these secrets, their parts and their usual encodings.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut plain = Vec::new();
        for secret in secrets {
            let text = secret.expose();
            plain.push(text.to_owned());
            if let Some((_, rest)) = text.split_once("://") {
                let parts = rest.split(['/', '?', '&', '=', '#', '@']);
                plain.extend(parts.filter(|part| part.len() >= PART_MIN).map(str::to_owned));
                plain.extend(rest.split_once('/').map(|(_, path)| path.to_owned()));
            } else if text.contains(':') {
                plain.extend(text.split(':').filter(|part| part.len() >= PART_MIN).map(str::to_owned));
            }
        }
        let mut needles = Vec::new();
        for text in plain.into_iter().filter(|text| text.len() >= NEEDLE_MIN) {
            needles.extend([percent_encoded(&text), STANDARD.encode(&text), STANDARD_NO_PAD.encode(&text)]);
            needles.push(serde_json::Value::from(text.as_str()).to_string().trim_matches('"').to_owned());
            needles.push(text);
        }
        needles.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        needles.dedup();
        Self { needles: needles.into() }
    }

    /// The text with each secret replaced by `…`, and without control characters. The text may be cut at its end, within a
    /// secret.
    pub fn clean(&self, text: &str) -> String {
        let text = self.without_cut_secret(self.without(text, 0));
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
    }

    /// The text of a message with each secret replaced by `…`, except short ones, which may be words: a topic may be
    /// `train`.
    pub fn redact(&self, text: &str) -> String {
        self.without(text, SECRET_MIN)
    }

    fn without(&self, text: &str, shortest: usize) -> String {
        let needles = self.needles.iter().filter(|needle| needle.len() >= shortest);
        needles.fold(text.to_owned(), |text, needle| text.replace(needle, HIDDEN))
    }

    /// Replaces the beginning of a secret at the end of a text by `…`.
    fn without_cut_secret(&self, mut text: String) -> String {
        let kept = text.trim_end_matches(|c: char| c.is_whitespace() || c == '…');
        let cut_of = |needle: &str| {
            let lengths = (PART_MIN..needle.len()).rev().filter(|&length| needle.is_char_boundary(length));
            lengths.into_iter().find(|&length| kept.ends_with(&needle[..length]))
        };
        if let Some(cut) = self.needles.iter().filter_map(|needle| cut_of(needle)).max() {
            text.truncate(kept.len() - cut);
            text.push_str(HIDDEN);
        }
        text
    }
}

/// Percent encoding. Source: RFC 3986, section 2.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_displayed() {
        let secret = Secret::new("CANARY");
        assert_eq!(format!("{secret} {secret:?} {:?} {:#?}", Some(&secret), [&secret]).matches("CANARY").count(), 0);
    }

    #[test]
    fn secrets_are_removed_in_every_encoding() {
        let url = Secret::new("https://hooks.example/services/T0/CANARY-one?key=CANARY%two");
        let token = Secret::new("123456:CANARY-three");
        let password = Secret::new("CANARY \"four\"");
        let redactor = Redactor::new([&url, &token, &password]);
        for text in [
            "GET https://hooks.example/services/T0/CANARY-one?key=CANARY%two refused",
            "no route for /services/T0/CANARY-one",
            "path CANARY-one",
            "bot123456:CANARY-three not found",
            "CANARY-three",
            "123456%3ACANARY-three",
            r#"{"password":"CANARY \"four\""}"#,
            "CANARY%20%22four%22",
        ] {
            let cleaned = redactor.clean(text);
            assert!(!cleaned.contains("CANARY"), "{text} -> {cleaned}");
            assert!(cleaned.contains(HIDDEN), "{cleaned}");
        }
        let encoded = STANDARD.encode("CANARY \"four\"");
        assert_eq!(redactor.clean(&format!("auth {encoded}\r\n")), "auth …");
        assert_eq!(redactor.clean("Unknown Webhook"), "Unknown Webhook");
        // An answer that is quoted is cut, perhaps within a secret.
        for cut in ["Bearer 123456:CANARY…", "Bearer 123456:CANARY", "at services/T0/CANARY-o… "] {
            let cleaned = redactor.clean(cut);
            assert!(!cleaned.contains("CANARY") && cleaned.ends_with(HIDDEN), "{cut} -> {cleaned}");
        }
        let topic = Redactor::new([&Secret::new("train"), &Secret::new("CANARY-five")]);
        assert_eq!(topic.redact("training\nCANARY-five"), "training\n…");
    }
}
