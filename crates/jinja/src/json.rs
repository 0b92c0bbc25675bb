//! `tojson`: JSON in the format of Python's `json.dumps`, without HTML escapes, as configured by `transformers`.

use crate::Value;
use crate::arguments::{Arguments, given, integer, text};
use crate::error::{Error, Result};
use crate::numbers::float_repr;
use crate::state::Render;
use crate::unicode::is_mark;
use std::fmt::Write;
use std::sync::Arc;

struct Style {
    /// The indentation per level; `None` for a single line.
    indent: Option<String>,
    between_items: Arc<str>,
    after_key: Arc<str>,
    is_ascii: bool,
    sorts_keys: bool,
}

pub(crate) fn tojson(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let parameters = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [is_ascii, indent, separators, sorts_keys] = arguments.bind("tojson", parameters, 0)?;
    let indent = match given(indent) {
        None => None,
        Some(Value::Text(text)) => Some(text.text.to_string()),
        Some(width) => {
            let width = integer(&width)?.max(0);
            let width = usize::try_from(width).unwrap_or(usize::MAX);
            render.meter.charge(width)?;
            Some(" ".repeat(width))
        }
    };
    let (between_items, after_key) = match given(separators) {
        Some(separators) => {
            let both = render.items(&separators)?;
            let [between, after] = &both[..] else { return Err(Error::raised("`separators` must be two texts")) };
            (text(between)?.into(), text(after)?.into())
        }
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let style =
        Style { indent, between_items, after_key, is_ascii: is_true(is_ascii), sorts_keys: is_true(sorts_keys) };
    let mut out = String::new();
    render.append_json(&mut out, &value, &style, 1)?;
    Ok(Value::from(out))
}

impl Render<'_> {
    fn append_json(&mut self, out: &mut String, value: &Value, style: &Style, level: usize) -> Result<()> {
        self.meter.charge(32)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(number) => _ = write!(out, "{number}"),
            Value::Float(number) => out.push_str(&json_of_float(*number)),
            Value::Text(text) => self.append_string(out, &text.text, style)?,
            Value::List(items) | Value::Tuple(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.begin_item(out, at, style, level)?;
                    self.append_json(out, item, style, level + 1)?;
                }
                self.end_items(out, items.len(), style, level)?;
                out.push(']');
            }
            Value::Dict(dict) => {
                let mut entries: Vec<(Value, Value)> =
                    dict.iter().map(|(key, item)| (key.clone(), item.clone())).collect();
                self.meter.charge_items(2 * entries.len())?;
                if style.sorts_keys {
                    crate::value::compare::sort(&mut self.meter, &mut entries, false)?;
                }
                out.push('{');
                for (at, (key, item)) in entries.iter().enumerate() {
                    self.begin_item(out, at, style, level)?;
                    let key = match key {
                        Value::Text(text) => Arc::clone(&text.text),
                        Value::None => "null".into(),
                        Value::Bool(true) => "true".into(),
                        Value::Bool(false) => "false".into(),
                        Value::Int(number) => number.to_string().into(),
                        Value::Float(number) => json_of_float(*number).into(),
                        _ => return Err(Error::raised(format!("a {} can't be a key in JSON", self.type_of(key)))),
                    };
                    self.append_string(out, &key, style)?;
                    self.meter.charge(style.after_key.len())?;
                    out.push_str(&style.after_key);
                    self.append_json(out, item, style, level + 1)?;
                }
                self.end_items(out, entries.len(), style, level)?;
                out.push('}');
            }
            _ => return Err(Error::raised(format!("a {} can't be written as JSON", self.type_of(value)))),
        }
        Ok(())
    }

    fn begin_item(&mut self, out: &mut String, at: usize, style: &Style, level: usize) -> Result<()> {
        if at > 0 {
            self.meter.charge(style.between_items.len())?;
            out.push_str(&style.between_items);
        }
        self.break_line(out, style, level)
    }

    fn end_items(&mut self, out: &mut String, count: usize, style: &Style, level: usize) -> Result<()> {
        if count > 0 { self.break_line(out, style, level - 1) } else { Ok(()) }
    }

    fn break_line(&mut self, out: &mut String, style: &Style, level: usize) -> Result<()> {
        if let Some(indent) = &style.indent {
            self.meter.charge(indent.len().saturating_mul(level) + 1)?;
            out.push('\n');
            out.push_str(&indent.repeat(level));
        }
        Ok(())
    }

    fn append_string(&mut self, out: &mut String, text: &str, style: &Style) -> Result<()> {
        self.meter.charge(text.len().saturating_mul(2))?;
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => _ = write!(out, "\\u{:04x}", c as u32),
                '\u{7f}'.. if style.is_ascii && !is_mark(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}

fn json_of_float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float_repr(number),
    }
}
