//! Tokens of a PTX text, with their source lines.

use super::error::{ParseError, ParseErrorKind};

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A name, number, directive or opcode with all its modifiers: `%r1`, `0f3F800000`, `.reg`, `ld.global.f32`.
    Word(&'a str),
    /// One character.
    Punct(char),
    /// A quoted string, without its quotes.
    Quoted(&'a str),
    /// `.loc`: the source location of the following instructions.
    Source {
        /// Index of the source file, from `.file`.
        file: u32,
        /// Line of that file.
        line: u32,
    },
}

/// A token with its position.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'a> {
    /// The token.
    pub token: Token<'a>,
    /// Offset of its first byte.
    pub at: usize,
    /// Line, from 1.
    pub line: u32,
}

/// The tokens of a text.
pub fn tokens(text: &str) -> Result<Vec<Placed<'_>>, ParseError> {
    let mut lexer = Lexer { text, at: 0, line: 1 };
    let mut all = Vec::new();
    while let Some(placed) = lexer.next()? {
        all.push(placed);
    }
    Ok(all)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Result<Option<Placed<'a>>, ParseError> {
        self.skip_blanks()?;
        let (at, line) = (self.at, self.line);
        let Some(first) = self.rest().chars().next() else { return Ok(None) };
        let token = if is_word(first) {
            self.word()?
        } else if first == '"' {
            let inner = &self.rest()[1..];
            let end = inner.find('"').ok_or(self.unfinished())?;
            self.advance(end + 2);
            Token::Quoted(&inner[..end])
        } else {
            self.advance(first.len_utf8());
            Token::Punct(first)
        };
        Ok(Some(Placed { token, at, line }))
    }

    fn word(&mut self) -> Result<Token<'a>, ParseError> {
        let rest = self.rest();
        let mut end = 0;
        while let Some(c) = rest[end..].chars().next() {
            // `shared::cta` is one word; the colon after a label is not part of it.
            let scope = rest[end..].starts_with("::");
            if !is_word(c) && !scope {
                break;
            }
            end += if scope { 2 } else { 1 };
        }
        let word = &rest[..end];
        if word != ".loc" {
            self.advance(end);
            return Ok(Token::Word(word));
        }
        // The only statement that ends at the end of its line.
        let statement = rest.lines().next().unwrap_or(rest);
        let mut numbers = statement.split_whitespace().skip(1).map(|n| n.trim_end_matches(',').parse::<u32>());
        let (Some(Ok(file)), Some(Ok(line))) = (numbers.next(), numbers.next()) else {
            return Err(self.error(ParseErrorKind::Expected("a file and a line after .loc")));
        };
        self.advance(statement.len());
        Ok(Token::Source { file, line })
    }

    fn skip_blanks(&mut self) -> Result<(), ParseError> {
        loop {
            let rest = self.rest();
            if rest.starts_with("//") {
                self.advance(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                let end = rest.find("*/").ok_or(self.unfinished())?;
                self.advance(end + 2);
            } else if let Some(blank) = rest.chars().next().filter(|c| c.is_whitespace() || *c == '\0') {
                self.advance(blank.len_utf8());
            } else {
                return Ok(());
            }
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.rest()[..bytes].matches('\n').count() as u32;
        self.at += bytes;
    }

    fn error(&self, kind: ParseErrorKind) -> ParseError {
        ParseError { line: self.line, kind }
    }

    fn unfinished(&self) -> ParseError {
        self.error(ParseErrorKind::Unfinished)
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}
