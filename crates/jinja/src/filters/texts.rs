//! Filters of texts.

use crate::arguments::{Arguments, given, integer, text};
use crate::error::{Error, Result};
use crate::methods::{capitalized, lines};
use crate::state::Render;
use crate::unicode::{is_alphanumeric, is_space};
use crate::{Text, Value};
use std::fmt::Write;
use std::sync::Arc;

impl Render<'_> {
    /// Converts a value to text. Markup stays markup.
    fn soft_text(&mut self, value: &Value) -> Result<Text> {
        if let Value::Text(text) = value {
            self.meter.charge(text.text.len())?;
            return Ok(text.clone());
        }
        Ok(Text { text: self.text_of(value)?, is_markup: false })
    }

    /// Converts a value to text with HTML's special characters escaped. Markup stays unchanged.
    pub(crate) fn escaped(&mut self, value: &Value) -> Result<String> {
        let text = self.soft_text(value)?;
        self.meter.charge(text.text.len().saturating_mul(5))?;
        Ok(if text.is_markup { text.text.to_string() } else { escaped(&text.text) })
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

pub(super) fn escape(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("escape")?;
    render.escaped(&value).map(Value::markup)
}

pub(super) fn forceescape(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("forceescape")?;
    let text = Value::from(render.text_of(&value)?);
    render.escaped(&text).map(Value::markup)
}

pub(super) fn safe(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("safe")?;
    render.text_of(&value).map(Value::markup)
}

pub(super) fn string(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("string")?;
    render.soft_text(&value).map(Value::Text)
}

pub(super) fn upper(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("upper")?;
    let text = render.soft_text(&value)?;
    render.meter.charge(text.text.len().saturating_mul(3))?;
    Ok(Value::like(&text, text.text.to_uppercase()))
}

pub(super) fn lower(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("lower")?;
    let text = render.soft_text(&value)?;
    render.meter.charge(text.text.len().saturating_mul(3))?;
    Ok(Value::like(&text, text.text.to_lowercase()))
}

pub(super) fn capitalize(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("capitalize")?;
    let text = render.soft_text(&value)?;
    render.meter.charge(text.text.len().saturating_mul(3))?;
    capitalized(&text.text).map(|capitalized| Value::like(&text, capitalized))
}

/// Capitalizes words. White space and these characters end a word.
pub(super) fn title(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("title")?;
    let text = render.soft_text(&value)?;
    render.meter.charge(text.text.len().saturating_mul(3))?;
    let ends_word = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let (mut titled, mut rest) = (String::new(), &*text.text);
    while !rest.is_empty() {
        let begins_with_end = rest.starts_with(ends_word);
        let end = rest.find(|c| ends_word(c) != begins_with_end).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let first = word.chars().next().map_or(0, char::len_utf8);
        titled += &word[..first].to_uppercase();
        titled += &word[first..].to_lowercase();
        rest = after;
    }
    Ok(Value::from(titled))
}

pub(super) fn trim(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [characters] = arguments.bind("trim", ["chars"], 0)?;
    let text = render.soft_text(&value)?;
    render.strip(&text, "strip", given(characters).as_ref())
}

pub(super) fn replace(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [old, new, count] = arguments.bind("replace", ["old", "new", "count"], 2)?;
    let count = given(count).as_ref().map(integer).transpose()?.unwrap_or(-1);
    let whole = render.text_of(&value)?;
    let (old, new) = (render.text_of(&old.unwrap_or(Value::None))?, render.text_of(&new.unwrap_or(Value::None))?);
    render.replace(&whole, &old, &new, count)
}

pub(super) fn center(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [width] = arguments.bind("center", ["width"], 0)?;
    let text = render.soft_text(&value)?;
    render.justify(&text, "center", integer(&width.unwrap_or(Value::Int(80)))?, ' ')
}

pub(super) fn format(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let text = render.soft_text(&value)?;
    let Arguments { positional, named } = arguments;
    let values = match (positional.is_empty(), named.is_empty()) {
        (false, false) => return Err(Error::raised("`format` takes either named or positional values, not both")),
        (true, false) => Value::dict(named),
        (_, true) => Value::tuple(positional),
    };
    render.percent(&text, &values)
}

pub(super) fn indent(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"], 0)?;
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_true(first), is_true(blank));
    let indent = match width.unwrap_or(Value::Int(4)) {
        Value::Text(text) => text.text,
        width => {
            let width = usize::try_from(integer(&width)?.max(0)).unwrap_or(usize::MAX);
            render.meter.charge(width)?;
            " ".repeat(width).into()
        }
    };
    let Value::Text(whole) = &value else {
        text(&value)?;
        return Ok(value);
    };
    let with_end = format!("{}\n", whole.text);
    let mut indented = String::new();
    for (at, line) in lines(&with_end, false).enumerate() {
        if at > 0 {
            indented.push('\n');
        }
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        render.meter.charge(line.len() + 1 + if is_indented { indent.len() } else { 0 })?;
        if is_indented {
            indented.push_str(&indent);
        }
        indented.push_str(line);
    }
    Ok(Value::like(whole, indented))
}

pub(super) fn truncate(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let parameters = ["length", "killwords", "end", "leeway"];
    let [length, kills_words, end, leeway] = arguments.bind("truncate", parameters, 0)?;
    let length = integer(&length.unwrap_or(Value::Int(255)))?;
    let leeway = integer(&given(leeway).unwrap_or(Value::Int(5)))?;
    let end = end.unwrap_or(Value::from("..."));
    let end_len = render.len_of(&end)? as i128;
    if length < end_len || leeway < 0 {
        return Err(Error::raised("`truncate` needs a length of at least that of its end"));
    }
    if render.len_of(&value)? as i128 <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let (whole, end) = (text(&value)?, text(&end)?);
    render.meter.charge(whole.len())?;
    let kept = usize::try_from(length - end_len).unwrap_or(usize::MAX);
    let kept = whole.char_indices().nth(kept).map_or(whole, |(at, _)| &whole[..at]);
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !kills_words.is_some_and(|kills| kills.is_true()) => words,
        _ => kept,
    };
    Ok(Value::from([kept, end].concat()))
}

/// Source: CPython, Lib/textwrap.py, without hyphens.
pub(super) fn wordwrap(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let parameters = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, breaks_words, between, breaks_hyphens] = arguments.bind("wordwrap", parameters, 0)?;
    let width = integer(&width.unwrap_or(Value::Int(79)))?;
    let is_true = |value: Option<Value>| value.is_none_or(|value| value.is_true());
    let between = given(between).unwrap_or(Value::from("\n"));
    let (whole, between) = (text(&value)?, text(&between)?);
    if whole.contains('-') && is_true(breaks_hyphens) {
        return Err(Error::unsupported("`wordwrap` of a text with hyphens"));
    }
    let width = usize::try_from(width).ok().filter(|width| *width > 0);
    let breaks_words = is_true(breaks_words);
    let mut wrapped: Vec<String> = Vec::new();
    for line in lines(whole, false) {
        let width = width.ok_or_else(|| Error::raised("`wordwrap` needs a width above 0"));
        let width = if line.is_empty() { width.unwrap_or(1) } else { width? };
        render.meter.charge(line.len().saturating_mul(8) + (line.len() / width + 1).saturating_mul(96))?;
        wrapped.push(wrapped_line(line, width, breaks_words).join(between));
    }
    render.meter.charge(wrapped.iter().map(|line| line.len() + between.len()).sum())?;
    Ok(Value::from(wrapped.join(between)))
}

fn wrapped_line(line: &str, width: usize, breaks_words: bool) -> Vec<String> {
    // textwrap only breaks at ASCII white space.
    let is_blank = |c: char| matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ');
    // Chunks with their lengths in characters.
    let mut chunks: Vec<(&str, usize)> = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_blank(c) != is_blank(first)).unwrap_or(rest.len());
        chunks.push((&rest[..end], rest[..end].chars().count()));
        rest = &rest[end..];
    }
    chunks.reverse();
    let is_space_chunk = |chunk: &str| chunk.starts_with(is_blank) || chunk.trim_matches(is_space).is_empty();
    let mut lines = Vec::new();
    while !chunks.is_empty() {
        let (mut current, mut len): (Vec<&str>, usize) = (Vec::new(), 0);
        if !lines.is_empty() && chunks.last().is_some_and(|(chunk, _)| is_space_chunk(chunk)) {
            chunks.pop();
        }
        while let Some((chunk, chunk_len)) = chunks.pop_if(|(_, chunk_len)| len + *chunk_len <= width) {
            len += chunk_len;
            current.push(chunk);
        }
        if let Some((chunk, chunk_len)) = chunks.last_mut()
            && *chunk_len > width
        {
            if breaks_words {
                let at = chunk.char_indices().nth(width - len).map_or(chunk.len(), |(at, _)| at);
                current.push(&chunk[..at]);
                (*chunk, *chunk_len) = (&chunk[at..], *chunk_len - (width - len));
            } else if current.is_empty() {
                current.extend(chunks.pop().map(|(chunk, _)| chunk));
            }
        }
        if current.last().is_some_and(|chunk| is_space_chunk(chunk)) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.concat());
        }
    }
    lines
}

pub(super) fn wordcount(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("wordcount")?;
    let text = render.soft_text(&value)?;
    let words = text.text.split(|c| !is_alphanumeric(c) && c != '_');
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

/// Source: markupsafe, `Markup.striptags`.
pub(super) fn striptags(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("striptags")?;
    let text = render.text_of(&value)?;
    render.meter.charge(text.len().saturating_mul(4))?;
    let (mut kept, mut rest) = (String::new(), &*text);
    while let Some(start) = rest.find('<') {
        let tag = &rest[start..];
        let end = match tag.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|at| at + 7),
            None => tag.find('>').map(|at| at + 1),
        };
        let Some(end) = end else { break };
        kept.push_str(&rest[..start]);
        rest = &tag[end..];
    }
    kept.push_str(rest);
    let words: Vec<&str> = kept.split(is_space).filter(|word| !word.is_empty()).collect();
    let mut text = words.join(" ");
    for (entity, c) in [("&lt;", "<"), ("&gt;", ">"), ("&#34;", "\""), ("&quot;", "\""), ("&#39;", "'")] {
        text = text.replace(entity, c);
    }
    if text.replace("&amp;", "").contains('&') {
        return Err(Error::unsupported("`striptags` of a text with HTML entities"));
    }
    Ok(Value::from(text.replace("&amp;", "&")))
}

pub(super) fn pprint(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    const WIDTH: usize = 79;
    arguments.none("pprint")?;
    if has_several_keys(render, &value)? {
        return Err(Error::unsupported("`pprint` of a dict with several keys"));
    }
    let text = render.repr_of(&value)?;
    let is_plain = matches!(value, Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_));
    if is_plain || text.chars().count() <= WIDTH {
        return Ok(Value::from(text));
    }
    Err(Error::unsupported("`pprint` of more than a line"))
}

fn has_several_keys(render: &mut Render<'_>, value: &Value) -> Result<bool> {
    render.meter.step()?;
    match value {
        Value::Dict(dict) => {
            for (_, value) in dict.iter() {
                if has_several_keys(render, value)? {
                    return Ok(true);
                }
            }
            Ok(dict.len() > 1)
        }
        Value::List(items) | Value::Tuple(items) => {
            for item in items.iter() {
                if has_several_keys(render, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

fn url_quoted(text: &str, is_query: bool) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => quoted.push(char::from(byte)),
            b'/' if !is_query => quoted.push('/'),
            b' ' if is_query => quoted.push('+'),
            _ => _ = write!(quoted, "%{byte:02X}"),
        }
    }
    quoted
}

pub(super) fn urlencode(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("urlencode")?;
    let pairs = match &value {
        Value::Dict(dict) => render.items(&Value::View(crate::View::Items, Arc::clone(dict)))?,
        Value::Text(_) => return quoted(render, &value, false).map(Value::from),
        _ if render.iter(&value).is_err() => return quoted(render, &value, false).map(Value::from),
        _ => render.items(&value)?,
    };
    let mut parts = Vec::new();
    for pair in pairs {
        let pair = render.items(&pair)?;
        let [key, value] = &pair[..] else { return Err(Error::raised("`urlencode` needs pairs")) };
        parts.push(format!("{}={}", quoted(render, key, true)?, quoted(render, value, true)?));
    }
    Ok(Value::from(parts.join("&")))
}

fn quoted(render: &mut Render<'_>, value: &Value, is_query: bool) -> Result<String> {
    let text = render.text_of(value)?;
    render.meter.charge(text.len().saturating_mul(4))?;
    Ok(url_quoted(&text, is_query))
}

pub(super) fn xmlattr(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [autospace] = arguments.bind("xmlattr", ["autospace"], 0)?;
    let Value::Dict(dict) = &value else {
        return Err(match &value {
            Value::Undefined(undefined) => undefined.error(),
            _ => Error::raised(format!("`xmlattr` needs a dict, not a {}", render.type_of(&value))),
        });
    };
    let mut parts = Vec::new();
    for (key, value) in dict.iter().filter(|(_, value)| !matches!(value, Value::None | Value::Undefined(_))) {
        if text(key)?.contains([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '/', '>', '=']) {
            return Err(Error::raised("a key of `xmlattr` has an invalid character"));
        }
        parts.push(format!("{}=\"{}\"", render.escaped(key)?, render.escaped(value)?));
    }
    let space = if !parts.is_empty() && autospace.is_none_or(|space| space.is_true()) { " " } else { "" };
    Ok(Value::from([space, &parts.join(" ")].concat()))
}
