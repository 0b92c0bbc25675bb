//! Python's `format` of a value: `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`.

use super::{Layout, checked_precision, digits_of, first_characters, sign_of, wrong};
use crate::Value;
use crate::error::{Error, Result};
use crate::numbers::{float_in_form, float_repr};
use crate::state::Render;

impl Render<'_> {
    /// Appends a value in Python's `format`.
    pub(super) fn append_formatted(&mut self, out: &mut String, value: &Value, spec: &str) -> Result<()> {
        if spec.is_empty() {
            return self.append_text(out, value);
        }
        let (layout, kind) = layout_of(spec)?;
        match value {
            Value::Text(text) => {
                if !matches!(kind, None | Some('s')) || layout.sign.is_some() || layout.is_alternate {
                    return Err(wrong("the format is not valid for a text"));
                }
                if layout.align == Some('=') || layout.grouping.is_some() {
                    return Err(wrong("the format is not valid for a text"));
                }
                let text = first_characters(&text.text, layout.precision);
                self.append_padded(out, "", text, &layout, '<')
            }
            Value::Int(_) | Value::Bool(_) => {
                let number = value.as_int().unwrap_or_default();
                match kind {
                    None | Some('d' | 'b' | 'o' | 'x' | 'X') => self.append_integer(out, number, &layout, kind),
                    Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
                        self.append_float(out, number as f64, &layout, kind)
                    }
                    Some('c') if layout.precision.is_none() && layout.sign.is_none() => {
                        let c = u32::try_from(number).ok().and_then(char::from_u32);
                        let c = c.ok_or_else(|| wrong("the number is not that of a character"))?;
                        self.append_padded(out, "", &c.to_string(), &layout, '<')
                    }
                    Some('n') => Err(Error::unsupported("the format `n`")),
                    _ => Err(wrong("the format is not valid for an integer")),
                }
            }
            Value::Float(number) => match kind {
                None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => self.append_float(out, *number, &layout, kind),
                Some('n') => Err(Error::unsupported("the format `n`")),
                _ => Err(wrong("the format is not valid for a float")),
            },
            _ => Err(wrong(format!("a {} does not support formats", self.type_of(value)))),
        }
    }

    fn append_integer(&mut self, out: &mut String, number: i128, layout: &Layout, kind: Option<char>) -> Result<()> {
        if layout.precision.is_some() {
            return Err(wrong("the format of an integer can't have a precision"));
        }
        let kind = kind.unwrap_or('d');
        let (prefix, digits) = digits_of(number, kind);
        let group = if kind == 'd' { 3 } else { 4 };
        if layout.grouping == Some(',') && kind != 'd' {
            return Err(wrong("`,` only groups decimal digits"));
        }
        let prefix = if layout.is_alternate { prefix } else { "" };
        let head = format!("{}{prefix}", sign_of(number < 0, layout));
        self.append_grouped(out, &head, &digits, "", group, layout)
    }

    fn append_float(&mut self, out: &mut String, number: f64, layout: &Layout, kind: Option<char>) -> Result<()> {
        if layout.is_alternate {
            return Err(Error::unsupported("`#` in a format of a float"));
        }
        let precision = layout.precision.map(checked_precision).transpose()?;
        let text = match kind {
            None => match precision {
                None => float_repr(number.abs()),
                Some(precision) => short_form(number, precision.max(1)),
            },
            Some('%') => float_in_form(number * 100.0, 'f', precision.unwrap_or(6), false) + "%",
            Some(kind) => {
                let text = float_in_form(number, kind.to_ascii_lowercase(), precision.unwrap_or(6), false);
                if kind.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text }
            }
        };
        let head = sign_of(number.is_sign_negative() && !number.is_nan(), layout);
        let whole = text.bytes().take_while(u8::is_ascii_digit).count();
        self.append_grouped(out, &head, &text[..whole], &text[whole..], 3, layout)
    }

    /// Appends digits in groups, with prefix and suffix.
    fn append_grouped(
        &mut self,
        out: &mut String,
        head: &str,
        digits: &str,
        tail: &str,
        group: usize,
        layout: &Layout,
    ) -> Result<()> {
        let Some(separator) = layout.grouping else {
            return self.append_padded(out, head, &[digits, tail].concat(), layout, '>');
        };
        if layout.align == Some('=') && layout.fill == Some('0') {
            return Err(Error::unsupported("leading zeros with grouped digits"));
        }
        let mut grouped = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(group) {
                grouped.push(separator);
            }
            grouped.push(digit);
        }
        self.append_padded(out, head, &(grouped + tail), layout, '>')
    }
}

/// `[[fill]align][sign][z][#][0][width][grouping][.precision][type]`.
fn layout_of(spec: &str) -> Result<(Layout, Option<char>)> {
    let mut layout = Layout::default();
    let mut characters: Vec<char> = spec.chars().collect();
    characters.reverse();
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
    if characters.len() > 1 && is_align(characters.get(characters.len() - 2)) {
        layout.fill = characters.pop();
        layout.align = characters.pop();
    } else if is_align(characters.last()) {
        layout.align = characters.pop();
    }
    let mut take = |wanted: &[char]| {
        let found = characters.last().copied().filter(|c| wanted.contains(c));
        if found.is_some() {
            characters.pop();
        }
        found
    };
    layout.sign = take(&['+', '-', ' ']).filter(|sign| *sign != '-');
    if take(&['z']).is_some() {
        return Err(Error::unsupported("`z` in a format"));
    }
    layout.is_alternate = take(&['#']).is_some();
    if take(&['0']).is_some() {
        layout.fill = layout.fill.or(Some('0'));
        layout.align = layout.align.or(Some('='));
    }
    const DIGITS: [char; 10] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];
    let mut digits = String::new();
    while let Some(digit) = take(&DIGITS) {
        digits.push(digit);
    }
    layout.width = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) };
    layout.grouping = take(&[',', '_']);
    if take(&['.']).is_some() {
        let mut digits = String::new();
        while let Some(digit) = take(&DIGITS) {
            digits.push(digit);
        }
        layout.precision = Some(digits.parse().map_err(|_| wrong("a format has a `.` without a precision"))?);
    }
    let kind = characters.pop();
    if characters.is_empty() { Ok((layout, kind)) } else { Err(wrong(format!("`{spec:.60}` is not a format"))) }
}

/// A float with a precision and no type: `g`, but with at least one digit after the point.
fn short_form(number: f64, precision: usize) -> String {
    let text = float_in_form(number, 'g', precision, false);
    if !number.is_finite() || text.contains(['.', 'e']) {
        return text;
    }
    // If there are as many digits as the precision, Python uses the exponent form.
    if text.len() >= precision { float_in_form(number, 'e', precision - 1, false) } else { text + ".0" }
}
