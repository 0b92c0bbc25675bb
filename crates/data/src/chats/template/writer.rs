//! Copies the tokens of a tag, with guards around what was copied, and counts what nests.
//! Not here: the grammar (`expressions.rs`, `guarded.rs`).

use super::tags::{Located, Tag, Token};
use std::borrow::Cow;

/// Operators, attributes, subscripts, calls, filters, tests and conditions in a tag.
const OPERATORS_MAX: usize = 400;
const OPEN_BRACKETS_MAX: usize = 32;

/// What precedes an operator that was just written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    /// A filter that follows takes it as a whole.
    Whole,
    /// Operators of one level, which need parentheses before a filter.
    Chain,
}

/// Which marks a tag of a loop needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopMark {
    Begin,
    End,
}

/// Reads a tag's tokens by the grammar of the engine, and writes them with guards.
pub(super) struct Writer<'t, 'a> {
    pub(super) tokens: &'t [Located<'a>],
    pub(super) at: usize,
    /// The line of the last token that was written.
    pub(super) line: usize,
    pub(super) out: Vec<Cow<'a, str>>,
    pub(super) operators: usize,
    pub(super) brackets: usize,
    pub(super) loop_mark: Option<LoopMark>,
}

pub(super) type Written<T = ()> = Result<T, String>;

impl<'t, 'a> Writer<'t, 'a> {
    pub(super) fn new(tag: &'t Tag<'a>) -> Self {
        Self {
            tokens: &tag.tokens,
            at: 0,
            line: tag.first_line,
            out: Vec::new(),
            operators: 0,
            brackets: 0,
            loop_mark: None,
        }
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|&(token, _)| token)
    }

    pub(super) fn is_sign(&self, sign: &'static str) -> bool {
        self.peek() == Some(Token::Sign(sign))
    }

    pub(super) fn is_word(&self, word: &'static str) -> bool {
        self.peek() == Some(Token::Word(word))
    }

    pub(super) fn unexpected(&self, expected: &str) -> String {
        let found = self.peek().map_or("the end of the tag".to_owned(), |token| format!("`{}`", token.text()));
        format!("unexpected {found}, expected {expected}")
    }

    /// Copies a token.
    pub(super) fn take(&mut self) {
        let (token, line) = self.tokens[self.at];
        if line > self.line {
            self.out.push("\n".repeat(line - self.line).into());
            self.line = line;
        }
        self.out.push(token.text().into());
        self.at += 1;
    }

    pub(super) fn take_sign(&mut self, sign: &'static str) -> bool {
        let found = self.is_sign(sign);
        if found {
            self.take();
        }
        found
    }

    pub(super) fn take_word(&mut self, word: &'static str) -> bool {
        let found = self.is_word(word);
        if found {
            self.take();
        }
        found
    }

    pub(super) fn expect_sign(&mut self, sign: &'static str) -> Written {
        if self.take_sign(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub(super) fn name(&mut self) -> Written<&'a str> {
        match self.peek() {
            Some(Token::Word(name)) => {
                self.take();
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn count_operator(&mut self) -> Written {
        self.operators += 1;
        if self.operators <= OPERATORS_MAX {
            return Ok(());
        }
        Err(format!("a tag has more than {OPERATORS_MAX} operators"))
    }

    pub(super) fn check_brackets(&self, open: usize) -> Written {
        if open <= OPEN_BRACKETS_MAX { Ok(()) } else { Err(format!("more than {OPEN_BRACKETS_MAX} brackets are open")) }
    }

    /// Something in brackets.
    pub(super) fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Written<T>) -> Written<T> {
        self.brackets += 1;
        self.check_brackets(self.brackets)?;
        let written = inside(self)?;
        self.brackets -= 1;
        Ok(written)
    }

    /// Where an opening parenthesis may be put later.
    pub(super) fn mark(&mut self) -> usize {
        self.out.push("".into());
        self.out.len() - 1
    }

    pub(super) fn parenthesize(&mut self, mark: usize) {
        self.out[mark].to_mut().push('(');
        self.out.push(")".into());
    }

    /// Passes what was written since the mark to a filter.
    pub(super) fn guard(&mut self, mark: usize, operand: Operand, filter: &'static str) {
        if operand == Operand::Chain {
            self.parenthesize(mark);
        }
        self.out.push(filter.into());
    }
}
