//! Splits a chat template into text, comments and tags, and a tag into tokens, by the rules of the template engine.
//! Not here: what tokens mean (`guarded.rs`).

/// Tokens that all tags of a template may have together. Real templates have up to 2,000.
const TOKENS_MAX: usize = 50_000;

/// Two characters come first, so that they are not split.
const SIGNS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", ".", ",", ":", "~", "|", "=", ">", "<", "(", ")", "[",
    "]", "{", "}",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Number(&'a str),
    /// A string literal, with its quotes.
    Text(&'a str),
    Sign(&'static str),
}

impl<'a> Token<'a> {
    pub(super) fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Number(text) | Self::Text(text) | Self::Sign(text) => text,
        }
    }
}

/// A token and the line, counted from 1, that it begins in.
pub(super) type Located<'a> = (Token<'a>, usize);

/// `{{ … }}` or `{% … %}`.
#[derive(Debug)]
pub(super) struct Tag<'a> {
    /// With the sign of white space control, such as `{%-`.
    pub opening: &'a str,
    pub tokens: Vec<Located<'a>>,
    pub closing: &'a str,
    pub first_line: usize,
    pub last_line: usize,
}

#[derive(Debug)]
pub(super) enum Part<'a> {
    /// Text, comments and `{% raw %}` blocks, which the engine evaluates nothing of.
    Verbatim(&'a str),
    Tag(Tag<'a>),
}

pub(super) struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    tokens: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(template: &'a str) -> Self {
        Self { rest: template, line: 1, tokens: 0 }
    }

    /// The line that was reached.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The next part; `None` at the end. Errors: something is not closed, or there are too many tokens.
    pub(super) fn next(&mut self) -> Result<Option<Part<'a>>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let start = self.rest.match_indices('{').map(|(at, _)| at).find(|&at| {
            let after = self.rest.as_bytes().get(at + 1);
            matches!(after, Some(b'{' | b'%' | b'#'))
        });
        match start {
            None => Ok(Some(Part::Verbatim(self.take(self.rest.len())))),
            Some(0) => self.marked().map(Some),
            Some(at) => Ok(Some(Part::Verbatim(self.take(at)))),
        }
    }

    fn marked(&mut self) -> Result<Part<'a>, String> {
        let signed = 2 + usize::from(self.rest[2..].starts_with(['-', '+']));
        match self.rest.as_bytes()[1] {
            b'#' => {
                let end = self.rest[signed..].find("#}").ok_or("a comment has no `#}`")?;
                Ok(Part::Verbatim(self.take(signed + end + 2)))
            }
            b'%' if let Some(content) = basic_tag(&self.rest[signed..], "raw") => {
                let mut at = signed + content;
                loop {
                    at += self.rest[at..].find("{%").ok_or("a raw block has no `{% endraw %}`")? + 2;
                    let unsigned = self.rest[at..].strip_prefix(['-', '+']).unwrap_or(&self.rest[at..]);
                    if let Some(end) = basic_tag(unsigned, "endraw") {
                        return Ok(Part::Verbatim(self.take(self.rest.len() - unsigned.len() + end)));
                    }
                }
            }
            kind => self.tag(signed, if kind == b'%' { "%}" } else { "}}" }).map(Part::Tag),
        }
    }

    fn tag(&mut self, signed: usize, end: &str) -> Result<Tag<'a>, String> {
        let first_line = self.line;
        let opening = self.take(signed);
        let mut tokens = Vec::new();
        let mut open_brackets = 0_usize;
        loop {
            let blank = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace()).len();
            self.take(blank);
            let unsigned = self.rest.strip_prefix(['-', '+']).unwrap_or(self.rest);
            if open_brackets == 0 && unsigned.starts_with(end) {
                let closing = self.take(self.rest.len() - unsigned.len() + end.len());
                return Ok(Tag { opening, tokens, closing, first_line, last_line: self.line });
            }
            let line = self.line;
            let token = self.token(tokens.last().map(|&(token, _)| token))?;
            match token {
                Token::Sign("(" | "[" | "{") => open_brackets += 1,
                Token::Sign(sign @ (")" | "]" | "}")) => {
                    open_brackets = open_brackets.checked_sub(1).ok_or_else(|| format!("unexpected `{sign}`"))?;
                }
                _ => {}
            }
            tokens.push((token, line));
            self.tokens += 1;
            if self.tokens > TOKENS_MAX {
                return Err(format!("it has more than {TOKENS_MAX} tokens"));
            }
        }
    }

    fn token(&mut self, before: Option<Token<'_>>) -> Result<Token<'a>, String> {
        let first = self.rest.chars().next().ok_or("a tag is not closed")?;
        let is_in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match first {
            '0'..='9' => Ok(Token::Number(self.number(before == Some(Token::Sign("."))))),
            '"' | '\'' => {
                let mut escaped = false;
                let end = self.rest.bytes().skip(1).position(|byte| {
                    let ends = !escaped && byte == first as u8;
                    escaped = !escaped && byte == b'\\';
                    ends
                });
                Ok(Token::Text(self.take(end.ok_or("a text in quotes does not end")? + 2)))
            }
            _ if is_in_word(first) => {
                let len = self.rest.find(|c| !is_in_word(c)).unwrap_or(self.rest.len());
                Ok(Token::Word(self.take(len)))
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| self.rest.starts_with(sign));
                let sign = sign.ok_or_else(|| format!("unexpected character `{first}`"))?;
                self.take(sign.len());
                Ok(Token::Sign(sign))
            }
        }
    }

    /// A number has no fraction after a dot, since it is an index there, and `1.x` is an attribute.
    fn number(&mut self, is_index: bool) -> &'a str {
        let bytes = self.rest.as_bytes();
        let digits =
            |from: usize| bytes[from..].iter().take_while(|&&b| b.is_ascii_alphanumeric() || b == b'_').count();
        let mut len = digits(0);
        let is_fraction =
            bytes.get(len) == Some(&b'.') && !bytes.get(len + 1).is_some_and(|&b| b.is_ascii_alphabetic() || b == b'_');
        if is_fraction && !is_index {
            len += 1;
            len += digits(len);
        }
        let is_exponent = matches!(bytes[len - 1], b'e' | b'E') && !self.rest.starts_with("0x");
        if is_exponent && matches!(bytes.get(len), Some(b'-' | b'+')) {
            len += 1;
            len += digits(len);
        }
        self.take(len)
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }
}

/// How long what is left of a tag is that has this word alone, if it has. The tag was opened.
fn basic_tag(text: &str, word: &str) -> Option<usize> {
    let blank = |c: char| c.is_ascii_whitespace();
    let after = text.trim_start_matches(blank).strip_prefix(word)?.trim_start_matches(blank);
    let after = after.strip_prefix(['-', '+']).unwrap_or(after).strip_prefix("%}")?;
    Some(text.len() - after.len())
}
