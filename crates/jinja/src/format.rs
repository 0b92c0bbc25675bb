//! `%` and `format` of texts: Python's printf-style formats and format strings.

use crate::arguments::{Arguments, integer};
use crate::error::{Error, Result};
use crate::numbers::{float_in_form, float_repr, int_of_float};
use crate::render::Render;
use crate::unicode::is_printable;
use crate::{Text, Value};
use std::sync::Arc;

/// Rust has bounds for it, and no template needs more.
const PRECISION_MAX: usize = 1000;

/// A format and those in its fields.
const FORMATS_MAX: u32 = 3;

/// How a field is laid out.
#[derive(Debug, Clone, Default)]
struct Layout {
    fill: Option<char>,
    /// `<`, `>`, `^`, or `=`: after the sign.
    align: Option<char>,
    /// `+`, ` `, or none: the sign of what is not negative.
    sign: Option<char>,
    is_alternate: bool,
    width: usize,
    /// `,` or `_` between groups of digits.
    grouping: Option<char>,
    precision: Option<usize>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::raised(what)
}

fn checked_precision(precision: usize) -> Result<usize> {
    if precision <= PRECISION_MAX { Ok(precision) } else { Err(Error::not_built("a precision beyond 1000")) }
}

impl Render<'_> {
    /// Appends a text with its sign and prefix, filled up to its width.
    fn append_padded(
        &mut self,
        out: &mut String,
        head: &str,
        body: &str,
        layout: &Layout,
        default: char,
    ) -> Result<()> {
        self.meter.charge(head.len() + body.len())?;
        let len = head.chars().count() + body.chars().count();
        let missing = layout.width.saturating_sub(len);
        let fill = layout.fill.unwrap_or(' ');
        self.meter.charge(missing.saturating_mul(fill.len_utf8()))?;
        let filled = |count: usize| fill.to_string().repeat(count);
        match layout.align.unwrap_or(default) {
            '<' => *out += &[head, body, &filled(missing)].concat(),
            '^' => *out += &[&filled(missing / 2), head, body, &filled(missing - missing / 2)].concat(),
            '=' => *out += &[head, &filled(missing), body].concat(),
            _ => *out += &[&filled(missing), head, body].concat(),
        }
        Ok(())
    }

    /// `ascii` of a value: `repr` with escapes for all beyond ASCII.
    fn ascii_of(&mut self, value: &Value) -> Result<String> {
        let repr = self.repr_of(value)?;
        self.meter.charge(repr.len().saturating_mul(3))?;
        let mut ascii = String::new();
        for c in repr.chars() {
            if c.is_ascii() { ascii.push(c) } else { crate::repr::push_escape(&mut ascii, c) }
        }
        debug_assert!(ascii.chars().all(is_printable));
        Ok(ascii)
    }

    /// `format % values`.
    pub(crate) fn percent(&mut self, format: &Text, right: &Value) -> Result<Value> {
        if format.is_markup {
            return Err(Error::not_built("`%` of a text that `escape` or `safe` returned"));
        }
        let mut values = Values { of: right, single: Some(right.clone()), next: 0 };
        let mut out = String::new();
        let mut rest = &*format.text;
        while let Some(at) = rest.find('%') {
            self.meter.charge(at + 64)?;
            out.push_str(&rest[..at]);
            rest = self.percent_field(&rest[at + 1..], &mut values, &mut out)?;
        }
        self.meter.charge(rest.len())?;
        out.push_str(rest);
        let is_mapping = matches!(right, Value::List(_) | Value::Dict(_) | Value::Range(_) | Value::Undefined(_));
        let is_left = match right {
            Value::Tuple(items) => values.next < items.len() && values.single.is_some(),
            _ => values.next == 0 && !is_mapping,
        };
        if is_left { Err(wrong("a format has fewer fields than there are values")) } else { Ok(Value::from(out)) }
    }

    /// A field after its `%`. Returns what follows it.
    fn percent_field<'f>(&mut self, field: &'f str, values: &mut Values<'_>, out: &mut String) -> Result<&'f str> {
        let mut rest = field;
        if rest.starts_with('(') {
            let mut open = 0_usize;
            let end = rest.find(|c| {
                open = if c == '(' { open + 1 } else { open - usize::from(c == ')') };
                open == 0
            });
            let end = end.ok_or_else(|| wrong("a key in a format does not end"))?;
            let Value::Dict(dict) = values.of else { return Err(wrong("a format with keys needs a dict")) };
            let key = &rest[1..end];
            self.meter.charge(key.len())?;
            values.single = Some(dict.get(key).ok_or_else(|| wrong(format!("a format has the key `{key}`")))?.clone());
            values.next = 0;
            rest = &rest[end + 1..];
        }
        let mut layout = Layout::default();
        let (mut is_left, mut has_zeros) = (false, false);
        loop {
            match rest.as_bytes().first() {
                Some(b'-') => is_left = true,
                Some(b'0') => has_zeros = true,
                Some(b'+') => layout.sign = Some('+'),
                Some(b' ') => layout.sign = layout.sign.or(Some(' ')),
                Some(b'#') => layout.is_alternate = true,
                _ => break,
            }
            rest = &rest[1..];
        }
        let mut number = |rest: &mut &'f str| -> Result<Option<i128>> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                return integer(&values.take()?).map(Some);
            }
            let (digits, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
            *rest = after;
            Ok(if digits.is_empty() { None } else { Some(digits.parse().unwrap_or(i128::MAX)) })
        };
        let width = number(&mut rest)?.unwrap_or(0);
        is_left |= width < 0;
        layout.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            let precision = number(&mut rest)?.unwrap_or(0).max(0);
            layout.precision = Some(usize::try_from(precision).unwrap_or(usize::MAX));
        }
        rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let conversion = rest.chars().next().ok_or_else(|| wrong("a format ends in a field"))?;
        let after = &rest[conversion.len_utf8()..];
        if conversion == '%' {
            out.push('%');
            return Ok(after);
        }
        let value = values.take()?;
        let is_number = !matches!(conversion, 's' | 'r' | 'a' | 'c');
        (layout.align, layout.fill) = match (is_left, has_zeros && is_number) {
            (true, _) => (Some('<'), None),
            (false, true) => (Some('='), Some('0')),
            (false, false) => (Some('>'), None),
        };
        match conversion {
            's' | 'r' | 'a' => {
                let text = match conversion {
                    's' => self.text_of(&value)?,
                    'r' => self.repr_of(&value)?.into(),
                    _ => self.ascii_of(&value)?.into(),
                };
                let text = first_characters(&text, layout.precision);
                self.append_padded(out, "", text, &layout, '>')?;
            }
            'c' => {
                let code = value.as_int().and_then(|code| char::from_u32(u32::try_from(code).ok()?));
                let text = code.map(String::from).or_else(|| value.as_str().map(str::to_owned));
                let text = text.filter(|text| text.chars().count() == 1);
                let text = text.ok_or_else(|| wrong("`%c` needs a character"))?;
                self.append_padded(out, "", &text, &layout, '>')?;
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let number = match (&value, conversion) {
                    (Value::Float(number), 'd' | 'i' | 'u') => {
                        int_of_float(*number)?.ok_or_else(|| wrong("NaN is not an integer"))?
                    }
                    _ => value
                        .as_int()
                        .ok_or_else(|| wrong(format!("`%{conversion}` needs a number, not a {}", value.type_name())))?,
                };
                let (prefix, digits) = digits_of(number, conversion);
                let digits = with_zeros(&digits, checked_precision(layout.precision.unwrap_or(0))?);
                let prefix = if layout.is_alternate { prefix } else { "" };
                let head = format!("{}{prefix}", sign_of(number < 0, &layout));
                self.append_padded(out, &head, &digits, &layout, '>')?;
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = as_float(&value, &format!("`%{conversion}`"))?;
                let precision = checked_precision(layout.precision.unwrap_or(6))?;
                let lower = conversion.to_ascii_lowercase();
                if layout.is_alternate && (lower != 'g' || !number.is_finite()) {
                    return Err(Error::not_built("`#` in a format of a float"));
                }
                let text = float_in_form(number, lower, precision, layout.is_alternate);
                let text = if conversion == lower { text } else { text.to_ascii_uppercase() };
                let is_negative = number.is_sign_negative() && !number.is_nan();
                self.append_padded(out, &sign_of(is_negative, &layout), &text, &layout, '>')?;
            }
            _ => return Err(wrong(format!("a format has the unknown conversion `{conversion}`"))),
        }
        Ok(after)
    }

    /// `format.format(…)`.
    pub(crate) fn format(&mut self, format: &Text, arguments: &Arguments) -> Result<Value> {
        if format.is_markup {
            return Err(Error::not_built("`format` of a text that `escape` or `safe` returned"));
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
            let end = end.ok_or_else(|| wrong("a field of a format does not end"))?;
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

    /// Python's `format` of a value.
    fn append_formatted(&mut self, out: &mut String, value: &Value, spec: &str) -> Result<()> {
        if spec.is_empty() {
            return self.append_text(out, value);
        }
        let (layout, kind) = layout_of(spec)?;
        match value {
            Value::Text(text) => {
                if !matches!(kind, None | Some('s')) || layout.sign.is_some() || layout.is_alternate {
                    return Err(wrong("a text has another format"));
                }
                if layout.align == Some('=') || layout.grouping.is_some() {
                    return Err(wrong("a text has another format"));
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
                        let c = c.ok_or_else(|| wrong("a number is not that of a character"))?;
                        self.append_padded(out, "", &c.to_string(), &layout, '<')
                    }
                    Some('n') => Err(Error::not_built("the format `n`")),
                    _ => Err(wrong("an integer has another format")),
                }
            }
            Value::Float(number) => match kind {
                None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => self.append_float(out, *number, &layout, kind),
                Some('n') => Err(Error::not_built("the format `n`")),
                _ => Err(wrong("a float has another format")),
            },
            _ => Err(wrong(format!("a {} has no formats", self.type_of(value)))),
        }
    }

    fn append_integer(&mut self, out: &mut String, number: i128, layout: &Layout, kind: Option<char>) -> Result<()> {
        if layout.precision.is_some() {
            return Err(wrong("the format of an integer has a precision"));
        }
        let kind = kind.unwrap_or('d');
        let (prefix, digits) = digits_of(number, kind);
        let group = if kind == 'd' { 3 } else { 4 };
        if layout.grouping == Some(',') && kind != 'd' {
            return Err(wrong("`,` groups decimal digits alone"));
        }
        let prefix = if layout.is_alternate { prefix } else { "" };
        let head = format!("{}{prefix}", sign_of(number < 0, layout));
        self.append_grouped(out, &head, &digits, "", group, layout)
    }

    fn append_float(&mut self, out: &mut String, number: f64, layout: &Layout, kind: Option<char>) -> Result<()> {
        if layout.is_alternate {
            return Err(Error::not_built("`#` in a format of a float"));
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

    /// Appends digits in groups, with what precedes and follows them.
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
            return Err(Error::not_built("zeros before groups of digits"));
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

/// The values of `%`: those of a tuple, or one.
struct Values<'v> {
    of: &'v Value,
    /// What is next if it is not a tuple's; `None` after it was taken.
    single: Option<Value>,
    next: usize,
}

impl Values<'_> {
    fn take(&mut self) -> Result<Value> {
        let missing = || wrong("a format has more fields than there are values");
        if let Value::Tuple(items) = self.of {
            self.next += 1;
            return items.get(self.next - 1).cloned().ok_or_else(missing);
        }
        self.next += 1;
        self.single.take().ok_or_else(missing)
    }
}

struct FormatState<'a> {
    arguments: &'a Arguments,
    /// The number of the next field without a number.
    next: usize,
    is_manual: bool,
}

impl FormatState<'_> {
    fn value(&mut self, name: &str) -> Result<Value> {
        let mixed = || wrong("a format has fields with numbers and without");
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
        return Err(Error::not_built("`z` in a format"));
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

fn first_characters(text: &str, most: Option<usize>) -> &str {
    let end = most.and_then(|most| text.char_indices().nth(most));
    end.map_or(text, |(at, _)| &text[..at])
}

fn sign_of(is_negative: bool, layout: &Layout) -> String {
    if is_negative { "-".to_owned() } else { layout.sign.map_or(String::new(), String::from) }
}

/// The prefix and the digits of a number's absolute value.
fn digits_of(number: i128, kind: char) -> (&'static str, String) {
    let number = number.unsigned_abs();
    match kind {
        'b' => ("0b", format!("{number:b}")),
        'o' => ("0o", format!("{number:o}")),
        'x' => ("0x", format!("{number:x}")),
        'X' => ("0X", format!("{number:X}")),
        _ => ("", number.to_string()),
    }
}

fn with_zeros(digits: &str, least: usize) -> String {
    "0".repeat(least.saturating_sub(digits.len())) + digits
}

fn as_float(value: &Value, what: &str) -> Result<f64> {
    match value {
        Value::Float(number) => Ok(*number),
        Value::Undefined(undefined) => Err(undefined.error()),
        _ => {
            let number = value.as_int().map(|number| number as f64);
            number.ok_or_else(|| wrong(format!("{what} needs a number, not a {}", value.type_name())))
        }
    }
}

/// The format of a float with a precision and no type: `g`, with a digit after the point.
fn short_form(number: f64, precision: usize) -> String {
    let text = float_in_form(number, 'g', precision, false);
    if !number.is_finite() || text.contains(['.', 'e']) {
        return text;
    }
    // One digit more than the precision is in another form.
    if text.len() >= precision { float_in_form(number, 'e', precision - 1, false) } else { text + ".0" }
}
