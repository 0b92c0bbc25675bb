//! Methods of texts, lists, dicts, loops and cyclers.

use crate::arguments::{Arguments, given, integer, text};
use crate::compare::equal;
use crate::error::{Error, Result};
use crate::objects::Object;
use crate::predicates::{has_lower_or_title, has_upper_or_title};
use crate::render::Render;
use crate::unicode::{is_alpha, is_alphanumeric, is_decimal, is_line_break, is_printable, is_space, title_of};
use crate::value::ObjectId;
use crate::{Dict, Text, Value, View};
use std::collections::HashSet;
use std::sync::Arc;

impl<'t> Render<'t> {
    /// Calls a method that the value has.
    pub(crate) fn call_method(&mut self, of: &Value, name: &str, arguments: Arguments) -> Result<Value> {
        match of {
            Value::Text(text) => self.text_method(text, name, arguments),
            Value::Dict(dict) => self.dict_method(dict, name, arguments),
            Value::List(items) | Value::Tuple(items) => match name {
                "copy" => arguments.none(name).map(|()| of.clone()),
                "count" => {
                    let [value] = arguments.bind(name, [""], 1)?;
                    let value = value.unwrap_or(Value::None);
                    let mut count = 0_usize;
                    for item in items.iter() {
                        count += usize::from(equal(&mut self.meter, item, &value)?);
                    }
                    Ok(Value::from(count))
                }
                _ => {
                    let [value, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                    let value = value.unwrap_or(Value::None);
                    let (start, stop) = bounds(items.len(), given(start), given(stop))?;
                    for (at, item) in items.iter().enumerate().take(stop).skip(start) {
                        if equal(&mut self.meter, item, &value)? {
                            return Ok(Value::from(at));
                        }
                    }
                    Err(Error::raised("the value is not in the list"))
                }
            },
            Value::Float(number) => {
                arguments.none(name).map(|()| Value::Bool(number.is_finite() && number.fract() == 0.0))
            }
            Value::Object(id) => self.object_method(*id, name, arguments),
            _ => Err(Error::not_built(format!("`{name}`"))),
        }
    }

    fn dict_method(&mut self, dict: &Arc<Dict>, name: &str, arguments: Arguments) -> Result<Value> {
        let view = |view| Ok(Value::View(view, Arc::clone(dict)));
        match name {
            "get" => {
                let [key, default] = arguments.bind(name, ["", ""], 1)?;
                let found = dict.find(&mut self.meter, &key.unwrap_or(Value::None))?.cloned();
                return Ok(found.or(default).unwrap_or(Value::None));
            }
            _ => arguments.none(name)?,
        }
        match name {
            "keys" => view(View::Keys),
            "values" => view(View::Values),
            "items" => view(View::Items),
            _ => Ok(Value::Dict(Arc::clone(dict))),
        }
    }

    fn object_method(&mut self, id: ObjectId, name: &str, arguments: Arguments) -> Result<Value> {
        match &mut self.objects[id.0] {
            Object::Cycler(items, at) => {
                arguments.none(name)?;
                if name == "reset" {
                    *at = 0;
                    return Ok(Value::None);
                }
                let item = items[*at].clone();
                *at = (*at + 1) % items.len();
                Ok(item)
            }
            _ if !arguments.named.is_empty() => Err(Error::raised(format!("`loop.{name}` takes no named arguments"))),
            _ if name == "changed" => self.loop_changed(id, arguments.positional).map(Value::Bool),
            _ => {
                let index = self.loop_attribute(id, "index0")?.and_then(|index| index.as_int()).unwrap_or_default();
                let items = arguments.positional;
                match usize::try_from(index).ok().and_then(|index| index.checked_rem(items.len())) {
                    Some(at) => Ok(items[at].clone()),
                    None => Err(Error::raised("`loop.cycle` needs values")),
                }
            }
        }
    }

    fn text_method(&mut self, of: &Text, name: &str, arguments: Arguments) -> Result<Value> {
        // A text is read at least once, and its copy may be longer.
        self.meter.charge(of.text.len().saturating_mul(2))?;
        let whole = &*of.text;
        let like = |text: String| Ok(Value::like(of, text));
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [characters] = arguments.bind(name, [""], 0)?;
                let characters = given(characters);
                self.strip(of, name, characters.as_ref())
            }
            "split" | "rsplit" => {
                let [separator, most] = arguments.bind(name, ["sep", "maxsplit"], 0)?;
                let most = most.as_ref().map(integer).transpose()?.filter(|most| *most >= 0);
                let most = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
                self.split(of, given(separator).as_ref(), most, name == "rsplit")
            }
            "splitlines" => {
                let [keeps_ends] = arguments.bind(name, ["keepends"], 0)?;
                self.pieces(of, lines(whole, keeps_ends.is_some_and(|keeps| keeps.is_true())))
            }
            "partition" | "rpartition" => {
                let [separator] = arguments.bind(name, [""], 1)?;
                self.partition(of, &separator.unwrap_or(Value::None), name == "rpartition")
            }
            "startswith" | "endswith" => {
                let [affix, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                let part = part(whole, given(start), given(stop))?;
                self.has_affix(part, &affix.unwrap_or(Value::None), name == "endswith").map(Value::Bool)
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [wanted, start, stop] = arguments.bind(name, ["", "", ""], 1)?;
                find(whole, name, &wanted.unwrap_or(Value::None), given(start), given(stop))
            }
            "replace" => {
                let [old, new, count] = arguments.bind(name, ["", "", "count"], 2)?;
                let (old, new) = (old.unwrap_or(Value::None), new.unwrap_or(Value::None));
                self.only_plain(of, name)?;
                self.replace(whole, text(&old)?, text(&new)?, count.as_ref().map(integer).transpose()?.unwrap_or(-1))
            }
            "join" => {
                let [all] = arguments.bind(name, [""], 1)?;
                self.only_plain(of, name)?;
                let items = self.items(&all.unwrap_or(Value::None))?;
                for item in &items {
                    text(item)?;
                }
                self.join(whole, &items)
            }
            "format" => self.format(of, &arguments),
            "format_map" => {
                let [map] = arguments.bind(name, [""], 1)?;
                let Some(Value::Dict(dict)) = map else {
                    return Err(Error::not_built("`format_map` of what is not a dict"));
                };
                let named = dict.iter().filter_map(|(key, value)| Some((key.as_str()?.into(), value.clone())));
                self.meter.charge_items(2 * dict.len())?;
                let arguments = Arguments { positional: Vec::new(), named: named.collect() };
                self.format(of, &arguments)
            }
            "center" | "ljust" | "rjust" => {
                let [width, fill] = arguments.bind(name, ["", ""], 1)?;
                let width = integer(&width.unwrap_or(Value::None))?;
                let fill = fill.unwrap_or(Value::from(" "));
                let mut fill = text(&fill)?.chars();
                let (Some(fill), None) = (fill.next(), fill.next()) else {
                    return Err(Error::raised(format!("`{name}` fills up with one character")));
                };
                self.justify(of, name, width, fill)
            }
            "zfill" => {
                let [width] = arguments.bind(name, [""], 1)?;
                let missing = self.missing(whole, integer(&width.unwrap_or(Value::None))?, '0')?;
                let (sign, digits) = whole.split_at(usize::from(whole.starts_with(['+', '-'])));
                like(format!("{sign}{}{digits}", "0".repeat(missing)))
            }
            "expandtabs" => {
                let [width] = arguments.bind(name, ["tabsize"], 0)?;
                self.expand_tabs(of, width.as_ref().map(integer).transpose()?.unwrap_or(8))
            }
            "removeprefix" | "removesuffix" => {
                let [affix] = arguments.bind(name, [""], 1)?;
                let affix = affix.unwrap_or(Value::None);
                let affix = text(&affix)?;
                let rest = if name == "removeprefix" { whole.strip_prefix(affix) } else { whole.strip_suffix(affix) };
                like(rest.unwrap_or(whole).to_owned())
            }
            _ => {
                arguments.none(name)?;
                self.plain_text_method(of, name)
            }
        }
    }

    /// A method without arguments.
    fn plain_text_method(&mut self, of: &Text, name: &str) -> Result<Value> {
        let whole = &*of.text;
        let like = |text: String| Ok(Value::like(of, text));
        let all = |is: fn(char) -> bool| Ok(Value::Bool(!whole.is_empty() && whole.chars().all(is)));
        match name {
            "upper" => like(whole.to_uppercase()),
            "lower" => like(whole.to_lowercase()),
            "capitalize" => capitalized(whole).map(|text| Value::like(of, text)),
            "title" => titled(whole).map(|text| Value::like(of, text)),
            "swapcase" | "casefold" if !whole.is_ascii() => Err(Error::not_built(format!("`{name}` beyond ASCII"))),
            "swapcase" => like(
                whole
                    .chars()
                    .map(|c| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
                    .collect(),
            ),
            "casefold" => like(whole.to_ascii_lowercase()),
            "isalpha" => all(is_alpha),
            "isalnum" => all(is_alphanumeric),
            "isdecimal" => all(is_decimal),
            "isdigit" | "isnumeric" | "isidentifier" if !whole.is_ascii() && !whole.chars().all(is_decimal) => {
                // Letters and most symbols are no digits; some are.
                if whole.chars().any(|c| c.is_ascii() && !c.is_ascii_digit()) && name != "isidentifier" {
                    return Ok(Value::Bool(false));
                }
                Err(Error::not_built(format!("`{name}` beyond ASCII")))
            }
            "isdigit" | "isnumeric" => all(is_decimal),
            "isidentifier" => {
                let is_word = whole.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                Ok(Value::Bool(is_word && !whole.is_empty() && !whole.starts_with(|c: char| c.is_ascii_digit())))
            }
            "isascii" => Ok(Value::Bool(whole.is_ascii())),
            "isspace" => all(is_space),
            "isprintable" => Ok(Value::Bool(whole.chars().all(is_printable))),
            "islower" => Ok(Value::Bool(whole.chars().any(char::is_lowercase) && !has_upper_or_title(whole))),
            "isupper" => Ok(Value::Bool(whole.chars().any(char::is_uppercase) && !has_lower_or_title(whole))),
            "istitle" if !whole.is_ascii() => Err(Error::not_built("`istitle` beyond ASCII")),
            "istitle" => {
                let has_letters = whole.chars().any(|c| c.is_ascii_alphabetic());
                Ok(Value::Bool(has_letters && titled(whole)? == whole))
            }
            _ => Err(Error::not_built(format!("`{name}` of a text"))),
        }
    }

    /// Markup escapes what such methods add to it.
    fn only_plain(&self, of: &Text, name: &str) -> Result<()> {
        if of.is_markup {
            return Err(Error::not_built(format!("`{name}` of a text that `escape` or `safe` returned")));
        }
        Ok(())
    }

    pub(crate) fn strip(&mut self, of: &Text, name: &str, characters: Option<&Value>) -> Result<Value> {
        let set: Option<HashSet<char>> =
            characters.map(|set| text(set).map(|set| set.chars().collect())).transpose()?;
        self.meter.charge(characters.and_then(Value::as_str).map_or(0, |set| set.len().saturating_mul(8)))?;
        let is_stripped = |c: char| set.as_ref().map_or_else(|| is_space(c), |set| set.contains(&c));
        let mut rest = &*of.text;
        if name != "rstrip" {
            rest = rest.trim_start_matches(is_stripped);
        }
        if name != "lstrip" {
            rest = rest.trim_end_matches(is_stripped);
        }
        Ok(if rest.len() == of.text.len() { Value::Text(of.clone()) } else { Value::like(of, rest) })
    }

    /// A list of texts, each of which is paid for.
    fn pieces<'p>(&mut self, of: &Text, pieces: impl Iterator<Item = &'p str>) -> Result<Value> {
        let mut list = Vec::new();
        for piece in pieces {
            self.meter.charge(piece.len() + 96)?;
            list.push(Value::like(of, piece));
        }
        Ok(Value::list(list))
    }

    fn split(&mut self, of: &Text, separator: Option<&Value>, most: usize, is_reverse: bool) -> Result<Value> {
        let whole = &*of.text;
        let pieces_max = most.saturating_add(1);
        let Some(separator) = separator else {
            let pieces = split_at_spaces(whole, most, is_reverse);
            self.meter.charge(whole.len())?;
            return self.pieces(of, pieces.into_iter());
        };
        let separator = text(separator)?;
        if separator.is_empty() {
            return Err(Error::raised("a text can't be split at an empty text"));
        }
        if !is_reverse {
            return self.pieces(of, whole.splitn(pieces_max, separator));
        }
        // Python looks for separators from the end.
        let mut pieces: Vec<&str> = Vec::new();
        for piece in whole.rsplitn(pieces_max, separator) {
            self.meter.charge(32)?;
            pieces.push(piece);
        }
        self.pieces(of, pieces.into_iter().rev())
    }

    fn partition(&mut self, of: &Text, separator: &Value, is_reverse: bool) -> Result<Value> {
        let (whole, separator) = (&*of.text, text(separator)?);
        if separator.is_empty() {
            return Err(Error::raised("a text can't be split at an empty text"));
        }
        let found = if is_reverse { whole.rsplit_once(separator) } else { whole.split_once(separator) };
        let parts = match found {
            Some((before, after)) => [before, separator, after],
            None if is_reverse => ["", "", whole],
            None => [whole, "", ""],
        };
        Ok(Value::tuple(parts.iter().map(|part| Value::like(of, *part)).collect()))
    }

    fn has_affix(&mut self, part: Option<&str>, affix: &Value, is_suffix: bool) -> Result<bool> {
        if let Value::Tuple(all) = affix {
            for affix in all.iter() {
                self.meter.step()?;
                if matches!(affix, Value::Tuple(_)) {
                    text(affix)?;
                }
                if self.has_affix(part, affix, is_suffix)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let affix = text(affix)?;
        self.meter.charge(affix.len())?;
        Ok(part.is_some_and(|part| if is_suffix { part.ends_with(affix) } else { part.starts_with(affix) }))
    }

    /// `count`: how many are replaced; all if it is negative.
    pub(crate) fn replace(&mut self, whole: &str, old: &str, new: &str, count: i128) -> Result<Value> {
        let count = usize::try_from(count).unwrap_or(if count < 0 { usize::MAX } else { 0 });
        self.meter.charge(whole.len())?;
        let found = if old.is_empty() { whole.chars().count() + 1 } else { whole.matches(old).count() };
        self.meter.charge(found.min(count).saturating_mul(new.len()))?;
        Ok(Value::from(whole.replacen(old, new, count)))
    }

    pub(crate) fn join(&mut self, separator: &str, items: &[Value]) -> Result<Value> {
        let mut joined = String::new();
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.meter.charge(separator.len())?;
                joined.push_str(separator);
            }
            self.append_text(&mut joined, item)?;
        }
        Ok(Value::from(joined))
    }

    /// How many characters a text lacks to have this many. They are paid for.
    fn missing(&mut self, whole: &str, width: i128, fill: char) -> Result<usize> {
        let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
        let missing = width.saturating_sub(whole.chars().count());
        self.meter.charge(missing.saturating_mul(fill.len_utf8()))?;
        Ok(missing)
    }

    pub(crate) fn justify(&mut self, of: &Text, name: &str, width: i128, fill: char) -> Result<Value> {
        let missing = self.missing(&of.text, width, fill)?;
        let left = match name {
            "ljust" => 0,
            "rjust" => missing,
            // An odd one is on the left if the width is odd.
            _ => missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1),
        };
        let filled = |count: usize| fill.to_string().repeat(count);
        Ok(Value::like(of, [&filled(left), &*of.text, &filled(missing - left)].concat()))
    }

    fn expand_tabs(&mut self, of: &Text, width: i128) -> Result<Value> {
        let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
        let (mut expanded, mut column) = (String::new(), 0_usize);
        for c in of.text.chars() {
            match c {
                '\t' if width > 0 => {
                    let spaces = width - column % width;
                    self.meter.charge(spaces)?;
                    expanded.push_str(&" ".repeat(spaces));
                    column += spaces;
                }
                '\t' => {}
                _ => {
                    column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    expanded.push(c);
                }
            }
        }
        Ok(Value::like(of, expanded))
    }
}

/// The lines of a text, with their ends if asked for.
pub(crate) fn lines(whole: &str, keeps_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = whole;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, end) = match rest.char_indices().find(|(_, c)| is_line_break(*c)) {
            Some((at, '\r')) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some((at, c)) => (at, at + c.len_utf8()),
            None => (rest.len(), rest.len()),
        };
        let found = if keeps_ends { &rest[..end] } else { &rest[..line] };
        rest = &rest[end..];
        Some(found)
    })
}

/// The words of a text, after or before which, past the most splits, the rest stays whole.
fn split_at_spaces(whole: &str, most: usize, is_reverse: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = if is_reverse { whole.trim_end_matches(is_space) } else { whole.trim_start_matches(is_space) };
    while !rest.is_empty() {
        if words.len() == most {
            words.push(rest);
            break;
        }
        if is_reverse {
            let start = rest.rfind(is_space).map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
            words.push(&rest[start..]);
            rest = rest[..start].trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            words.push(&rest[..end]);
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    if is_reverse {
        words.reverse();
    }
    words
}

/// Start and end of a part, as Python's methods clamp them.
fn bounds(len: usize, start: Option<Value>, stop: Option<Value>) -> Result<(usize, usize)> {
    let place = |bound: Option<Value>, default: usize| -> Result<usize> {
        let Some(bound) = bound else { return Ok(default) };
        let bound = integer(&bound)?;
        let place = if bound < 0 { bound.saturating_add(len as i128).max(0) } else { bound };
        Ok(usize::try_from(place).unwrap_or(usize::MAX))
    };
    Ok((place(start, 0)?, place(stop, len)?.min(len)))
}

/// A part of a text; `None` if its start is after its end.
fn part(whole: &str, start: Option<Value>, stop: Option<Value>) -> Result<Option<&str>> {
    if start.is_none() && stop.is_none() {
        return Ok(Some(whole));
    }
    let (start, stop) = bounds(whole.chars().count(), start, stop)?;
    let byte = |at: usize| whole.char_indices().nth(at).map_or(whole.len(), |(at, _)| at);
    Ok((start <= stop).then(|| &whole[byte(start)..byte(stop)]))
}

fn find(whole: &str, name: &str, wanted: &Value, start: Option<Value>, stop: Option<Value>) -> Result<Value> {
    let wanted = text(wanted)?;
    let (first, _) = bounds(whole.chars().count(), start.clone(), None)?;
    let part = part(whole, start, stop)?;
    if name == "count" {
        let count = part
            .map_or(0, |part| if wanted.is_empty() { part.chars().count() + 1 } else { part.matches(wanted).count() });
        return Ok(Value::from(count));
    }
    let found = part.and_then(|part| {
        let at = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| first + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Error::raised("the text has no such part")),
    }
}

pub(crate) fn capitalized(whole: &str) -> Result<String> {
    let mut characters = whole.chars();
    let Some(first) = characters.next() else { return Ok(String::new()) };
    // In context: a sigma that ends a word has another form.
    let lower = whole.to_lowercase();
    let rest = if first.to_lowercase().count() == 1 { lower.chars().skip(1).collect() } else { String::new() };
    if first.to_lowercase().count() != 1 {
        return Err(Error::not_built(format!("the lower case of `{first}` in `capitalize`")));
    }
    Ok(title_of(first)? + &rest)
}

/// Words begin with title case. A word is a run of letters that have a case.
fn titled(whole: &str) -> Result<String> {
    let mut titled = String::with_capacity(whole.len());
    let mut is_in_word = false;
    for c in whole.chars() {
        if is_in_word {
            if c == 'Σ' {
                return Err(Error::not_built("the letter `Σ` in `title`"));
            }
            titled.extend(c.to_lowercase());
        } else {
            titled += &title_of(c)?;
        }
        is_in_word = c.is_lowercase() || c.is_uppercase();
    }
    Ok(titled)
}
