//! `str` and `repr` of values.

use crate::error::{Error, Result};
use crate::numbers::float_repr;
use crate::state::{Object, Render};
use crate::unicode::is_printable;
use crate::{Value, View};
use std::fmt::Write;
use std::sync::Arc;

impl Render<'_> {
    /// Writes `str` of a value to the text of the template.
    pub(crate) fn write_value(&mut self, value: &Value) -> Result<()> {
        let mut out = std::mem::take(&mut self.out);
        let result = self.append_text(&mut out, value);
        self.out = out;
        result
    }

    /// `str` of a value.
    pub(crate) fn text_of(&mut self, value: &Value) -> Result<Arc<str>> {
        if let Value::Text(text) = value {
            return Ok(Arc::clone(&text.text));
        }
        let mut out = String::new();
        self.append_text(&mut out, value)?;
        Ok(out.into())
    }

    pub(crate) fn repr_of(&mut self, value: &Value) -> Result<String> {
        let mut out = String::new();
        self.append_repr(&mut out, value)?;
        Ok(out)
    }

    /// Appends `str` of a value.
    pub(crate) fn append_text(&mut self, out: &mut String, value: &Value) -> Result<()> {
        match value {
            Value::Text(text) => {
                // A growing text uses up to twice its length.
                self.meter.charge(text.text.len().saturating_mul(2))?;
                out.push_str(&text.text);
                Ok(())
            }
            Value::Undefined(_) => Ok(()),
            _ => self.append_repr(out, value),
        }
    }

    pub(crate) fn append_repr(&mut self, out: &mut String, value: &Value) -> Result<()> {
        self.meter.charge(32)?;
        // A list may contain a namespace that contains the list.
        self.deeper(|render| render.append_repr_of_parts(out, value))
    }

    fn append_repr_of_parts(&mut self, out: &mut String, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(number) => _ = write!(out, "{number}"),
            Value::Float(number) => out.push_str(&float_repr(*number)),
            Value::Text(text) => {
                self.meter.charge(text.text.len().saturating_mul(4))?;
                let (before, after) = if text.is_markup { ("Markup(", ")") } else { ("", "") };
                out.push_str(before);
                push_quoted(out, &text.text);
                out.push_str(after);
            }
            Value::List(items) => {
                out.push('[');
                self.append_all(out, items)?;
                out.push(']');
            }
            Value::Tuple(items) => {
                out.push('(');
                self.append_all(out, items)?;
                out.push_str(if items.len() == 1 { ",)" } else { ")" });
            }
            Value::Dict(dict) => self.append_entries(out, dict.iter())?,
            Value::View(view, dict) => {
                out.push_str(value.type_name());
                let item = |(key, value): (&Value, &Value)| match view {
                    View::Keys => key.clone(),
                    View::Values => value.clone(),
                    View::Items => Value::tuple(vec![key.clone(), value.clone()]),
                };
                self.meter.charge_items(4 * dict.len())?;
                let items: Vec<Value> = dict.iter().map(item).collect();
                out.push_str("([");
                self.append_all(out, &items)?;
                out.push_str("])");
            }
            Value::Range(range) if range.step == 1 => _ = write!(out, "range({}, {})", range.start, range.stop),
            Value::Range(range) => _ = write!(out, "range({}, {}, {})", range.start, range.stop, range.step),
            Value::Function(_) | Value::Method(_) => return Err(Error::unsupported("printing a function")),
            Value::Object(id) => return self.append_object(out, *id),
        }
        Ok(())
    }

    fn append_object(&mut self, out: &mut String, id: crate::ObjectId) -> Result<()> {
        match &self.objects[id.0] {
            Object::Namespace(attributes) => {
                self.meter.charge_items(2 * attributes.len())?;
                let attributes = attributes.clone();
                out.push_str("<Namespace ");
                self.append_entries(out, attributes.iter().map(|(key, value)| (key, value)))?;
                out.push('>');
            }
            Object::Macro(node, _) => {
                out.push_str("<Macro ");
                match &node.name {
                    Some(name) => push_quoted(out, name),
                    None => out.push_str("anonymous"),
                }
                out.push('>');
            }
            Object::Loop(_) => {
                let index = self.loop_attribute(id, "index")?.and_then(|index| index.as_int()).unwrap_or_default();
                let len = self.loop_len(id)?;
                _ = write!(out, "<LoopContext {index}/{len}>");
            }
            // Python prints their memory address.
            Object::Generator(_) => {
                return Err(Error::unsupported("printing an iterator (`| list` converts it to a list)"));
            }
            Object::Cycler(..) | Object::Joiner(..) => return Err(Error::unsupported("printing a cycler or joiner")),
        }
        Ok(())
    }

    fn append_all(&mut self, out: &mut String, items: &[Value]) -> Result<()> {
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(", ");
            }
            self.append_repr(out, item)?;
        }
        Ok(())
    }

    fn append_entries<'v>(
        &mut self,
        out: &mut String,
        entries: impl Iterator<Item = (&'v Value, &'v Value)>,
    ) -> Result<()> {
        out.push('{');
        for (at, (key, value)) in entries.enumerate() {
            if at > 0 {
                out.push_str(", ");
            }
            self.append_repr(out, key)?;
            out.push_str(": ");
            self.append_repr(out, value)?;
        }
        out.push('}');
        Ok(())
    }
}

/// A quoted text, with escapes for unprintable characters.
fn push_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            _ if is_printable(c) => out.push(c),
            _ => push_escape(out, c),
        }
    }
    out.push(quote);
}

/// `\x00`, `\u0000` or `\U00000000`.
pub(crate) fn push_escape(out: &mut String, c: char) {
    let code = c as u32;
    _ = if code <= 0xff {
        write!(out, "\\x{code:02x}")
    } else if code <= 0xffff {
        write!(out, "\\u{code:04x}")
    } else {
        write!(out, "\\U{code:08x}")
    };
}
