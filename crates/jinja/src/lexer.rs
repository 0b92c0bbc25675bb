//! Splits a template into text and the tokens of its tags, by the rules of Jinja2's lexer with `trim_blocks` and
//! `lstrip_blocks`.
//! Not here: the meaning of tokens (`parser.rs`).

use crate::error::{Error, Result};
use crate::unicode::is_space;

/// Maximum tokens of a template. Real templates have up to 2,000.
const TOKENS_MAX: usize = 50_000;

/// Longest first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", ".", ",", ":", ";", "~", "|", "=", ">", "<", "(", ")",
    "[", "]", "{", "}",
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// Text outside of tags.
    Data(String),
    /// `{{`
    PrintBegin,
    /// `}}`
    PrintEnd,
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

impl Token {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Data(_) => "text".to_owned(),
            Self::PrintBegin => "`{{`".to_owned(),
            Self::PrintEnd => "`}}`".to_owned(),
            Self::BlockBegin => "`{%`".to_owned(),
            Self::BlockEnd => "`%}`".to_owned(),
            Self::Name(name) => format!("`{name:.60}`"),
            Self::Text(text) => format!("'{text:.60}'"),
            Self::Int(number) => format!("`{number}`"),
            Self::Float(number) => format!("`{number}`"),
            Self::Operator(operator) => format!("`{operator}`"),
            Self::End => "the end of the template".to_owned(),
        }
    }
}

/// A token and the line where it begins, counted from 1.
pub(crate) type Located = (Token, usize);

/// The tokens of a template, ending with `End`. Errors: a tag is not closed, or contains an invalid token.
pub(crate) fn tokens(template: &str) -> Result<Vec<Located>> {
    let source = template.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, before: None, line: 1, begins_line: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.root().map_err(|error| error.at(lexer.line))?;
    }
    lexer.tokens.push((Token::End, lexer.line));
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    /// The character before `rest`.
    before: Option<char>,
    line: usize,
    /// Whether the last tag ended with a line break, or there was none yet.
    begins_line: bool,
    tokens: Vec<Located>,
}

/// The white-space control character of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    None,
    Strip,
    Keep,
}

impl<'a> Lexer<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.before = taken.chars().next_back().or(self.before);
        self.rest = rest;
        taken
    }

    fn take_sign(&mut self) -> Sign {
        let sign = match self.rest.as_bytes().first() {
            Some(b'-') => Sign::Strip,
            Some(b'+') => Sign::Keep,
            _ => return Sign::None,
        };
        self.take(1);
        sign
    }

    fn push(&mut self, token: Token, line: usize) -> Result<()> {
        self.tokens.push((token, line));
        if self.tokens.len() > TOKENS_MAX {
            return Err(Error::over_budget(format!("it has more than {TOKENS_MAX} tokens")));
        }
        Ok(())
    }

    /// Reads text up to the next tag, and the start of that tag.
    fn root(&mut self) -> Result<()> {
        let opens = |&(at, _): &(usize, &str)| matches!(self.rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
        let Some((at, _)) = self.rest.match_indices('{').find(opens) else {
            let line = self.line;
            let text = self.take(self.rest.len()).to_owned();
            return self.push(Token::Data(text), line);
        };
        let line = self.line;
        let text = self.take(at);
        let opening = self.take(2);
        let sign = self.take_sign();
        self.push_text(text, sign, opening != "{{", line)?;
        match opening {
            "{#" => self.comment(),
            "{%" => match self.word_alone("raw").filter(|(_, sign)| *sign != Sign::Keep) {
                Some((bytes, sign)) => {
                    self.take(bytes);
                    self.end_tag(sign, false);
                    if self.rest.is_empty() { Ok(()) } else { self.raw() }
                }
                None => self.tag(Token::BlockBegin, Token::BlockEnd, "%}"),
            },
            _ => self.tag(Token::PrintBegin, Token::PrintEnd, "}}"),
        }
    }

    /// Appends the text before a tag, without the white space that the tag removes.
    fn push_text(&mut self, text: &str, sign: Sign, is_block: bool, line: usize) -> Result<()> {
        let mut kept = text;
        if sign == Sign::Strip {
            kept = text.trim_end_matches(is_space);
        } else if sign == Sign::None && is_block {
            let line_begin = text.rfind('\n').map_or(0, |at| at + 1);
            if (line_begin > 0 || self.begins_line) && text[line_begin..].chars().all(is_space) {
                kept = &text[..line_begin];
            }
        }
        if kept.is_empty() { Ok(()) } else { self.push(Token::Data(kept.to_owned()), line) }
    }

    /// Skips the white space that a tag removes after its end. The tag was consumed.
    fn end_tag(&mut self, sign: Sign, trims_line_break: bool) {
        let blank = match sign {
            Sign::Strip => self.rest.len() - self.rest.trim_start_matches(is_space).len(),
            Sign::None if trims_line_break => usize::from(self.rest.starts_with('\n')),
            Sign::None | Sign::Keep => 0,
        };
        self.begins_line = self.take(blank).ends_with('\n');
    }

    fn comment(&mut self) -> Result<()> {
        // Jinja2 ignores a comment or raw block that begins at the end of the template.
        if self.rest.is_empty() {
            return Ok(());
        }
        let end = self.rest.find("#}").ok_or_else(|| Error::raised("a comment has no `#}`"))?;
        let sign = match self.take(end).as_bytes().last() {
            Some(b'-') => Sign::Strip,
            Some(b'+') => Sign::Keep,
            _ => Sign::None,
        };
        self.take(2);
        self.end_tag(sign, true);
        Ok(())
    }

    fn raw(&mut self) -> Result<()> {
        let (line, mut at) = (self.line, 0);
        loop {
            let missing = || Error::raised("a raw block has no `{% endraw %}`");
            at += self.rest[at..].find("{%").ok_or_else(missing)?;
            let mut inner = Lexer { rest: &self.rest[at + 2..], tokens: Vec::new(), ..*self };
            let sign = inner.take_sign();
            if let Some((bytes, end_sign)) = inner.word_alone("endraw") {
                let text = self.take(at);
                self.push_text(text, sign, true, line)?;
                self.take(2 + usize::from(sign != Sign::None) + bytes);
                self.end_tag(end_sign, true);
                return Ok(());
            }
            at += 2;
        }
    }

    /// The length and closing control character of the rest of a tag, if it contains only this word.
    fn word_alone(&self, word: &str) -> Option<(usize, Sign)> {
        let after = self.rest.trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space);
        let (sign, end) = match after.as_bytes().first()? {
            b'-' => (Sign::Strip, &after[1..]),
            b'+' => (Sign::Keep, &after[1..]),
            _ => (Sign::None, after),
        };
        Some((self.rest.len() - end.strip_prefix("%}")?.len(), sign))
    }

    fn tag(&mut self, begin: Token, end: Token, closing: &str) -> Result<()> {
        self.push(begin, self.line)?;
        let mut brackets = Vec::new();
        let unclosed = || Error::raised("a tag is not closed");
        loop {
            let is_block = end == Token::BlockEnd;
            if brackets.is_empty() {
                let (sign, bytes) = match self.rest.as_bytes().first().ok_or_else(unclosed)? {
                    b'-' => (Sign::Strip, 1),
                    b'+' if is_block => (Sign::Keep, 1),
                    _ => (Sign::None, 0),
                };
                if self.rest[bytes..].starts_with(closing) {
                    self.push(end, self.line)?;
                    self.take(bytes + closing.len());
                    self.end_tag(sign, is_block);
                    return Ok(());
                }
            }
            let first = self.rest.chars().next().ok_or_else(unclosed)?;
            if is_space(first) {
                self.take(first.len_utf8());
                continue;
            }
            let line = self.line;
            let token = self.token(first)?;
            match token {
                Token::Operator("(") => brackets.push(")"),
                Token::Operator("[") => brackets.push("]"),
                Token::Operator("{") => brackets.push("}"),
                Token::Operator(sign @ (")" | "]" | "}")) => match brackets.pop() {
                    Some(expected) if expected == sign => {}
                    Some(expected) => return Err(Error::raised(format!("unexpected `{sign}`, expected `{expected}`"))),
                    None => return Err(Error::raised(format!("unexpected `{sign}`"))),
                },
                _ => {}
            }
            self.push(token, line)?;
        }
    }

    fn token(&mut self, first: char) -> Result<Token> {
        match first {
            '0'..='9' => self.number(),
            '"' | '\'' => self.text(first),
            _ if first.is_alphabetic() || first == '_' => {
                let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
                let name = self.take(end);
                if !name.is_ascii() {
                    return Err(Error::unsupported(format!("the name `{name}`, which has letters beyond ASCII,")));
                }
                Ok(Token::Name(name.to_owned()))
            }
            _ => {
                let operator = OPERATORS.into_iter().find(|operator| self.rest.starts_with(operator));
                let operator = operator.ok_or_else(|| Error::raised(format!("unexpected character `{first}`")))?;
                self.take(operator.len());
                Ok(Token::Operator(operator))
            }
        }
    }

    fn number(&mut self) -> Result<Token> {
        let bytes = self.rest.as_bytes();
        // After a dot, a number is an index.
        if self.before != Some('.') {
            let whole = digits(bytes, 0, 10, false).expect("it begins with a digit");
            let fraction = if bytes.get(whole) == Some(&b'.') { digits(bytes, whole + 1, 10, false) } else { None };
            let mantissa = fraction.unwrap_or(whole);
            let exponent = matches!(bytes.get(mantissa), Some(b'e' | b'E')).then(|| {
                digits(
                    bytes,
                    mantissa + 1 + usize::from(matches!(bytes.get(mantissa + 1), Some(b'+' | b'-'))),
                    10,
                    false,
                )
            });
            if let Some(end) = exponent.flatten().or(fraction) {
                let number: f64 = self.take(end).replace('_', "").parse().expect("digits, a dot, an exponent");
                let too_large = || Error::unsupported("a number beyond 1e308");
                return if number.is_finite() { Ok(Token::Float(number)) } else { Err(too_large()) };
            }
        }
        let base = match bytes.get(..2).map(<[u8]>::to_ascii_lowercase).as_deref() {
            Some(b"0b") => 2,
            Some(b"0o") => 8,
            Some(b"0x") => 16,
            _ => 10,
        };
        let prefixed = if base == 10 { None } else { digits(bytes, 2, base, true) };
        let (end, base) = match prefixed {
            Some(end) => (end, base),
            None if bytes[0] == b'0' => (bytes.iter().take_while(|&&b| b == b'0').count(), 10),
            None => (digits(bytes, 0, 10, false).expect("it begins with a digit"), 10),
        };
        let number = self.take(end).replace('_', "");
        let digits = if prefixed.is_some() { &number[2..] } else { &number };
        let too_large = |_| Error::unsupported("an integer beyond 127 bits");
        i128::from_str_radix(digits, base).map(Token::Int).map_err(too_large)
    }

    fn text(&mut self, quote: char) -> Result<Token> {
        let mut is_escaped = false;
        let end = self.rest.bytes().skip(1).position(|byte| {
            let ends = !is_escaped && byte == quote as u8;
            is_escaped = !is_escaped && byte == b'\\';
            ends
        });
        let end = end.ok_or_else(|| Error::raised("a text in quotes is not closed"))? + 1;
        let text = self.take(end + 1);
        unescaped(&text[1..end]).map(Token::Text)
    }
}

/// The end of the digits from a position on, with single `_` between (or before) them; `None` without digits.
fn digits(bytes: &[u8], from: usize, base: u32, may_begin_with_line: bool) -> Option<usize> {
    let is_digit = |at: usize| bytes.get(at).is_some_and(|&byte| char::from(byte).is_digit(base));
    let mut end = from;
    loop {
        let line = usize::from(bytes.get(end) == Some(&b'_') && (may_begin_with_line || end > from));
        if !is_digit(end + line) {
            break;
        }
        end += line + 1;
    }
    (end > from).then_some(end)
}

/// Processes the escapes of Python's string literals. Unknown escapes stay unchanged.
fn unescaped(text: &str) -> Result<String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        result.push_str(&rest[..at]);
        let escaped = rest[at + 1..].chars().next().ok_or_else(|| Error::raised("a text ends with `\\`"))?;
        rest = &rest[at + 1 + escaped.len_utf8()..];
        let mut hexadecimal = |digits: usize| {
            let wrong = || Error::raised(format!("`\\{escaped}` needs {digits} hexadecimal digits"));
            let code =
                rest.get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit())).ok_or_else(wrong)?;
            rest = &rest[digits..];
            let code = u32::from_str_radix(code, 16).expect("hexadecimal digits");
            char::from_u32(code).ok_or_else(|| Error::unsupported(format!("`\\{escaped}{code:0digits$x}`")))
        };
        match escaped {
            '\n' => {}
            '\\' | '\'' | '"' => result.push(escaped),
            'a' => result.push('\u{7}'),
            'b' => result.push('\u{8}'),
            'f' => result.push('\u{c}'),
            'n' => result.push('\n'),
            'r' => result.push('\r'),
            't' => result.push('\t'),
            'v' => result.push('\u{b}'),
            'x' => result.push(hexadecimal(2)?),
            'u' => result.push(hexadecimal(4)?),
            'U' => result.push(hexadecimal(8)?),
            'N' => return Err(Error::unsupported("`\\N` in a text")),
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let code = format!("{escaped}{}", &rest[..more]);
                rest = &rest[more..];
                let code = u32::from_str_radix(&code, 8).expect("octal digits");
                result.push(char::from_u32(code).expect("up to 0o777"));
            }
            // Jinja2 first writes the character as an escape, whose `\` this one then escapes.
            _ if !escaped.is_ascii() => crate::repr::push_escape(&mut result, escaped),
            _ => {
                result.push('\\');
                result.push(escaped);
            }
        }
    }
    Ok(result + rest)
}
