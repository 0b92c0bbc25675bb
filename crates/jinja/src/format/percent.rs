//! Printf-style formats: `'%s' % value`.

use super::{Layout, checked_precision, digits_of, first_characters, sign_of, wrong};
use crate::arguments::integer;
use crate::error::{Error, Result};
use crate::numbers::{float_in_form, int_of_float};
use crate::state::Render;
use crate::{Text, Value};

impl Render<'_> {
    /// `format % values`.
    pub(crate) fn percent(&mut self, format: &Text, right: &Value) -> Result<Value> {
        if format.is_markup {
            return Err(Error::unsupported("`%` of a text that `escape` or `safe` returned"));
        }
        self.meter.charge(format.text.len())?;
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
        if is_left { Err(wrong("a format has fewer fields than values")) } else { Ok(Value::from(out)) }
    }

    /// Appends a field, given the text after its `%`. Returns the rest of the format.
    fn percent_field<'f>(&mut self, field: &'f str, values: &mut Values<'_>, out: &mut String) -> Result<&'f str> {
        let mut rest = field;
        if rest.starts_with('(') {
            let mut open = 0_usize;
            let end = rest.find(|c| {
                open = if c == '(' { open + 1 } else { open - usize::from(c == ')') };
                open == 0
            });
            let end = end.ok_or_else(|| wrong("a key in a format is not closed"))?;
            let Value::Dict(dict) = values.of else { return Err(wrong("a format with keys needs a dict")) };
            let key = &rest[1..end];
            self.meter.charge(key.len())?;
            values.single =
                Some(dict.get(key).ok_or_else(|| wrong(format!("the dict of a format has no key `{key}`")))?.clone());
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
        let conversion = rest.chars().next().ok_or_else(|| wrong("a format ends inside a field"))?;
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
                    return Err(Error::unsupported("`#` in a format of a float"));
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
}

/// The operands of `%`: the items of a tuple, or a single value.
struct Values<'v> {
    of: &'v Value,
    /// The single value; `None` for a tuple, or after it was used.
    single: Option<Value>,
    next: usize,
}

impl Values<'_> {
    fn take(&mut self) -> Result<Value> {
        let missing = || wrong("a format has more fields than values");
        if let Value::Tuple(items) = self.of {
            self.next += 1;
            return items.get(self.next - 1).cloned().ok_or_else(missing);
        }
        self.next += 1;
        self.single.take().ok_or_else(missing)
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
