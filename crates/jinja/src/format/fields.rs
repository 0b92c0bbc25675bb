//! Format strings: `'{name}'.format(…)`.
//! Not here: the layout of a value (`layout.rs`).

use super::wrong;
use crate::arguments::Arguments;
use crate::error::{Error, Result};
use crate::state::Render;
use crate::{Text, Value};
use std::sync::Arc;

/// Maximum nesting of formats in fields.
const FORMATS_MAX: u32 = 3;

impl Render<'_> {
    /// `format.format(…)`.
    pub(crate) fn format(&mut self, format: &Text, arguments: &Arguments) -> Result<Value> {
        if format.is_markup {
            return Err(Error::unsupported("`format` of a text that `escape` or `safe` returned"));
        }
        let mut state = FormatState { arguments, next: 0, is_manual: false };
        let mut out = String::new();
        self.append_format(&mut out, &format.text, &mut state, FORMATS_MAX)?;
        Ok(Value::from(out))
    }

    fn append_format(&mut self, out: &mut String, format: &str, state: &mut FormatState<'_>, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(wrong("a format nests too deep"));
        }
        self.meter.charge(format.len())?;
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            self.meter.charge(at + 64)?;
            out.push_str(&rest[..at]);
            let sign = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(sign) {
                out.push_str(sign);
                rest = after;
                continue;
            } else if sign == "}" {
                return Err(wrong("a format has a `}` without a field"));
            }
            let mut open = 1_usize;
            let end = rest.find(|c| {
                open = if c == '{' { open + 1 } else { open - usize::from(c == '}') };
                open == 0
            });
            let end = end.ok_or_else(|| wrong("a field of a format is not closed"))?;
            self.append_field(out, &rest[..end], state, depth)?;
            rest = &rest[end + 1..];
        }
        self.meter.charge(rest.len())?;
        out.push_str(rest);
        Ok(())
    }

    /// A field without its braces: `name.attribute[item]!conversion:layout`.
    fn append_field(&mut self, out: &mut String, field: &str, state: &mut FormatState<'_>, depth: u32) -> Result<()> {
        let mut in_brackets = false;
        let name_end = field.find(|c| {
            in_brackets = c == '[' || (in_brackets && c != ']');
            !in_brackets && matches!(c, '!' | ':')
        });
        let (name, rest) = field.split_at(name_end.unwrap_or(field.len()));
        let (conversion, rest) = match rest.strip_prefix('!') {
            None => (None, rest),
            Some(rest) => {
                let conversion = rest.chars().next().ok_or_else(|| wrong("a field has `!` without a conversion"))?;
                (Some(conversion), &rest[conversion.len_utf8()..])
            }
        };
        let layout = match rest.strip_prefix(':') {
            Some(layout) => layout,
            None if rest.is_empty() => "",
            None => return Err(wrong("a field has more than a conversion after `!`")),
        };
        let mut value = self.field_value(name, state)?;
        value = match conversion {
            None => value,
            Some('s') => Value::from(self.text_of(&value)?),
            Some('r') => Value::from(self.repr_of(&value)?),
            Some('a') => Value::from(self.ascii_of(&value)?),
            Some(other) => return Err(wrong(format!("a field has the unknown conversion `{other}`"))),
        };
        let mut nested = String::new();
        self.append_format(&mut nested, layout, state, depth - 1)?;
        self.append_formatted(out, &value, &nested)
    }

    fn field_value(&mut self, name: &str, state: &mut FormatState<'_>) -> Result<Value> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(first_end);
        if first.is_empty() && !rest.is_empty() {
            return Err(wrong("a field has no name before its attribute or item"));
        }
        let mut value = state.value(first)?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                if end == 0 {
                    return Err(wrong("a field has an empty attribute"));
                }
                value = self.attribute(&value, &Arc::from(&after[..end]))?;
                rest = &after[end..];
            } else {
                let end = rest.find(']').ok_or_else(|| wrong("a field has a `[` without `]`"))?;
                let key = rest.get(1..end).filter(|key| !key.is_empty() && rest.starts_with('['));
                let key = key.ok_or_else(|| wrong("a field has an empty item"))?;
                let index = key.parse::<i128>().ok().filter(|_| key.bytes().all(|byte| byte.is_ascii_digit()));
                value = self.item(&value, &index.map_or(Value::from(key), Value::Int))?;
                rest = &rest[end + 1..];
            }
        }
        Ok(value)
    }
}

struct FormatState<'a> {
    arguments: &'a Arguments,
    /// The number of the next field without an explicit number.
    next: usize,
    is_manual: bool,
}

impl FormatState<'_> {
    fn value(&mut self, name: &str) -> Result<Value> {
        let mixed = || wrong("a format mixes numbered and unnumbered fields");
        let number = if name.is_empty() {
            if self.is_manual {
                return Err(mixed());
            }
            self.next += 1;
            Some(self.next - 1)
        } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
            if self.next > 0 {
                return Err(mixed());
            }
            self.is_manual = true;
            Some(name.parse().unwrap_or(usize::MAX))
        } else {
            None
        };
        let found = match number {
            Some(number) => self.arguments.positional.get(number),
            None => self.arguments.named.iter().find(|(other, _)| **other == *name).map(|(_, value)| value),
        };
        found.cloned().ok_or_else(|| wrong(format!("a format has no value for the field `{name}`")))
    }
}
