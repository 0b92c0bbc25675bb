//! Methods that split, search and join texts.

use super::bounds;
use crate::arguments::text;
use crate::error::{Error, Result};
use crate::state::Render;
use crate::unicode::{is_line_break, is_space};
use crate::{Text, Value};
use std::collections::HashSet;

impl Render<'_> {
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

    /// A list of texts. Charges for each.
    pub(super) fn pieces<'p>(&mut self, of: &Text, pieces: impl Iterator<Item = &'p str>) -> Result<Value> {
        let mut list = Vec::new();
        for piece in pieces {
            self.meter.charge(piece.len() + 96)?;
            list.push(Value::like(of, piece));
        }
        Ok(Value::list(list))
    }

    pub(super) fn split(
        &mut self,
        of: &Text,
        separator: Option<&Value>,
        most: usize,
        is_reverse: bool,
    ) -> Result<Value> {
        let whole = &*of.text;
        let pieces_max = most.saturating_add(1);
        let Some(separator) = separator else {
            let pieces = split_at_spaces(whole, most, is_reverse);
            self.meter.charge(whole.len())?;
            return self.pieces(of, pieces.into_iter());
        };
        let separator = text(separator)?;
        if separator.is_empty() {
            return Err(Error::raised("a text can't be split at an empty separator"));
        }
        if !is_reverse {
            return self.pieces(of, whole.splitn(pieces_max, separator));
        }
        // Python searches for separators from the end.
        let mut pieces: Vec<&str> = Vec::new();
        for piece in whole.rsplitn(pieces_max, separator) {
            self.meter.charge(32)?;
            pieces.push(piece);
        }
        self.pieces(of, pieces.into_iter().rev())
    }

    pub(super) fn partition(&mut self, of: &Text, separator: &Value, is_reverse: bool) -> Result<Value> {
        let (whole, separator) = (&*of.text, text(separator)?);
        if separator.is_empty() {
            return Err(Error::raised("a text can't be split at an empty separator"));
        }
        let found = if is_reverse { whole.rsplit_once(separator) } else { whole.split_once(separator) };
        let parts = match found {
            Some((before, after)) => [before, separator, after],
            None if is_reverse => ["", "", whole],
            None => [whole, "", ""],
        };
        Ok(Value::tuple(parts.iter().map(|part| Value::like(of, *part)).collect()))
    }

    pub(super) fn has_affix(&mut self, part: Option<&str>, affix: &Value, is_suffix: bool) -> Result<bool> {
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

    /// `count`: maximum number of replacements; negative for all.
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

    /// Number of characters missing to this width. Charges for them.
    pub(super) fn missing(&mut self, whole: &str, width: i128, fill: char) -> Result<usize> {
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
            // If the number is odd and the width too, the extra one is on the left.
            _ => missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1),
        };
        let filled = |count: usize| fill.to_string().repeat(count);
        Ok(Value::like(of, [&filled(left), &*of.text, &filled(missing - left)].concat()))
    }

    pub(super) fn expand_tabs(&mut self, of: &Text, width: i128) -> Result<Value> {
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

/// The lines of a text, optionally with their ends.
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

/// The words of a text; after the maximum number of splits, the rest stays whole, at the end or, in reverse, at the
/// start.
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

/// A part of a text; `None` if its start is after its end.
pub(super) fn part(whole: &str, start: Option<Value>, stop: Option<Value>) -> Result<Option<&str>> {
    if start.is_none() && stop.is_none() {
        return Ok(Some(whole));
    }
    let (start, stop) = bounds(whole.chars().count(), start, stop)?;
    let byte = |at: usize| whole.char_indices().nth(at).map_or(whole.len(), |(at, _)| at);
    Ok((start <= stop).then(|| &whole[byte(start)..byte(stop)]))
}

pub(super) fn find(
    whole: &str,
    name: &str,
    wanted: &Value,
    start: Option<Value>,
    stop: Option<Value>,
) -> Result<Value> {
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
        None => Err(Error::raised("the text does not contain it")),
    }
}
