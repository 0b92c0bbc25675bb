//! The `%` operator and `format` method of texts: code shared by printf-style formats (`percent.rs`) and format strings
//! (`fields.rs`).

mod fields;
mod layout;
mod percent;

use crate::Value;
use crate::error::{Error, Result};
use crate::state::Render;

/// A limit below Rust's own, and higher than templates need.
const PRECISION_MAX: usize = 1000;

/// The layout of a field.
#[derive(Debug, Clone, Default)]
struct Layout {
    fill: Option<char>,
    /// `<`, `>`, `^`, or `=` (padding after the sign).
    align: Option<char>,
    /// `+` or ` `: the sign of numbers that are not negative; `None` for no sign.
    sign: Option<char>,
    is_alternate: bool,
    width: usize,
    /// `,` or `_`: the separator between groups of digits.
    grouping: Option<char>,
    precision: Option<usize>,
}

fn wrong(what: impl Into<String>) -> Error {
    Error::raised(what)
}

fn checked_precision(precision: usize) -> Result<usize> {
    if precision <= PRECISION_MAX { Ok(precision) } else { Err(Error::unsupported("a precision beyond 1000")) }
}

impl Render<'_> {
    /// Appends a text with its sign and prefix, padded to its width.
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

    /// `ascii` of a value: `repr` with escapes for all characters beyond ASCII.
    fn ascii_of(&mut self, value: &Value) -> Result<String> {
        let repr = self.repr_of(value)?;
        self.meter.charge(repr.len().saturating_mul(3))?;
        let mut ascii = String::new();
        for c in repr.chars() {
            if c.is_ascii() { ascii.push(c) } else { crate::repr::push_escape(&mut ascii, c) }
        }
        Ok(ascii)
    }
}

fn first_characters(text: &str, most: Option<usize>) -> &str {
    let end = most.and_then(|most| text.char_indices().nth(most));
    end.map_or(text, |(at, _)| &text[..at])
}

fn sign_of(is_negative: bool, layout: &Layout) -> String {
    if is_negative { "-".to_owned() } else { layout.sign.map_or(String::new(), String::from) }
}

/// The prefix and digits of a number's absolute value.
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
