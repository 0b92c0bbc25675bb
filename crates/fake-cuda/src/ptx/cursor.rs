//! A position in the tokens of a text, and immediates.

use super::error::{ParseError, ParseErrorKind};
use super::lexer::{Placed, Token};

/// A position in the tokens.
pub(super) struct Cursor<'a, 't> {
    /// The whole text.
    pub text: &'a str,
    /// Its tokens.
    pub tokens: &'t [Placed<'a>],
    /// Index of the next token.
    pub at: usize,
}

impl<'a> Cursor<'a, '_> {
    /// Whether no tokens are left.
    pub fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Line of the previous token.
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at.saturating_sub(1)).map_or(1, |placed| placed.line)
    }

    /// An error at this position.
    pub fn error(&self, kind: ParseErrorKind) -> ParseError {
        ParseError { line: self.line(), kind }
    }

    /// An error about unsupported text at this position.
    pub fn unsupported(&self, what: String) -> ParseError {
        self.error(ParseErrorKind::Unsupported(what))
    }

    /// An error about an invalid number at this position.
    pub fn number(&self, text: &str) -> ParseError {
        self.error(ParseErrorKind::Number(text.to_owned()))
    }

    /// The next token, which is not taken.
    pub fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|placed| placed.token)
    }

    /// Takes a token.
    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        let token = self.peek().ok_or_else(|| self.error(ParseErrorKind::Unfinished))?;
        self.at += 1;
        Ok(token)
    }

    /// Takes a character if it is next.
    pub fn take(&mut self, c: char) -> bool {
        let there = self.peek() == Some(Token::Punct(c));
        self.at += usize::from(there);
        there
    }

    /// Takes a required character.
    pub fn expect(&mut self, c: char, what: &'static str) -> Result<(), ParseError> {
        if self.take(c) { Ok(()) } else { Err(self.error(ParseErrorKind::Expected(what))) }
    }

    /// Takes a word.
    pub fn word(&mut self, what: &'static str) -> Result<&'a str, ParseError> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            _ => Err(self.error(ParseErrorKind::Expected(what))),
        }
    }

    /// Takes a small integer.
    pub fn integer(&mut self, what: &'static str) -> Result<u32, ParseError> {
        let word = self.word(what)?;
        word.parse().map_err(|_| self.number(word))
    }

    /// Takes up to three extents and returns their product.
    pub fn extents(&mut self) -> Result<u32, ParseError> {
        let mut product = 1u32;
        loop {
            let extent = self.integer("an extent")?;
            product = product.checked_mul(extent).ok_or_else(|| self.number(&extent.to_string()))?;
            if !self.take(',') {
                return Ok(product);
            }
        }
    }

    /// Takes an immediate: an integer, hexadecimal, or a float's bits after `0f` or `0d`.
    pub fn immediate(&mut self) -> Result<u64, ParseError> {
        let negative = self.take('-');
        let word = self.word("a number")?;
        let value = immediate(word).ok_or_else(|| self.number(word))?;
        Ok(if negative { value.wrapping_neg() } else { value })
    }
}

/// The bits of an immediate without its sign.
pub(super) fn immediate(word: &str) -> Option<u64> {
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let prefixed = |prefix: &str| word.strip_prefix(prefix);
    if let Some(digits) = prefixed("0f").or(prefixed("0F")).or(prefixed("0d")).or(prefixed("0D")) {
        return hexadecimal(digits);
    }
    let word = word.strip_suffix('U').unwrap_or(word);
    match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits),
        None => word.parse().ok(),
    }
}
