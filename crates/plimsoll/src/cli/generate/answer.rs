//! The text of an answer as its tokens arrive: without special tokens, up to its end, and without an unfinished
//! character at its end.
//! Not here: where the text is written (`mod.rs`).

use plimsoll_data::{AnswerEnds, Tokenizer};

/// An answer so far. Tokenizers may join or split characters between tokens, so each token decodes the whole text
/// again.
pub(super) struct Answer<'a> {
    tokenizer: &'a Tokenizer,
    ends: &'a AnswerEnds,
    tokens: Vec<u32>,
    text: Vec<u8>,
    /// Whether the answer contains a text that ends answers.
    has_ended: bool,
}

impl<'a> Answer<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, ends: &'a AnswerEnds) -> Self {
        Self { tokenizer, ends, tokens: Vec::new(), text: Vec::new(), has_ended: false }
    }

    /// Adds a token. Returns whether the answer continues.
    pub(super) fn push(&mut self, token: u32) -> bool {
        self.tokens.push(token);
        if !self.tokenizer.is_special(token) {
            let shown = self.tokens.iter().copied().filter(|&token| !self.tokenizer.is_special(token));
            self.text = self.tokenizer.decode(&shown.collect::<Vec<_>>());
            let at = |end: &String| self.text.windows(end.len()).position(|window| window == end.as_bytes());
            if let Some(end) = self.ends.texts.iter().filter_map(at).min() {
                self.text.truncate(end);
                self.has_ended = true;
            }
        }
        !self.has_ended
    }

    /// How many tokens were written.
    pub(super) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The text of a finished answer.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The part of the text that no later token changes: without an unfinished character or the possible start of an
    /// end text.
    pub(super) fn certain(&self) -> &[u8] {
        let text = &self.text;
        let whole = match std::str::from_utf8(text) {
            Ok(whole) => whole.trim_end_matches('\u{FFFD}').len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => text.len(),
        };
        let begins_at_end = |end: &String| {
            let longest = end.len().saturating_sub(1).min(text.len());
            (1..=longest).rev().find(|&length| text.ends_with(&end.as_bytes()[..length])).unwrap_or(0)
        };
        let held = if self.has_ended { 0 } else { self.ends.texts.iter().map(begins_at_end).max().unwrap_or(0) };
        &text[..whole.min(text.len() - held)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_data::TokenizerSpec;

    /// The certain text after each byte, until the answer ends.
    fn shown(text: &[u8], ends: &[&str]) -> Vec<String> {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).expect("it is built in");
        let ends = AnswerEnds { ids: vec![0], texts: ends.iter().map(|end| (*end).to_owned()).collect() };
        let mut answer = Answer::new(&tokenizer, &ends);
        let mut shown = Vec::new();
        for &byte in text {
            let continues = answer.push(u32::from(byte));
            shown.push(String::from_utf8(answer.certain().to_vec()).expect("whole characters"));
            if !continues {
                break;
            }
        }
        shown
    }

    #[test]
    fn a_text_ends_an_answer_and_is_never_shown() {
        assert_eq!(shown(b"ab<e>c", &["<e>"]), ["a", "ab", "ab", "ab", "ab"]);
        assert_eq!(shown(b"a<b", &["<e>"]), ["a", "a", "a<b"], "what is not the end is shown late");
        assert_eq!(shown(b"a;b", &["<e>", ";"]), ["a", "a"]);
    }

    #[test]
    fn characters_are_shown_whole_and_special_tokens_never() {
        assert_eq!(shown("aé".as_bytes(), &[]), ["a", "a", "aé"]);
        assert_eq!(shown(b"a\0b", &[]), ["a", "a", "ab"]);
    }
}
