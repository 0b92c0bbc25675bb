//! Python's classification of characters. `regex-syntax` has the tables of categories.

use crate::error::{Error, Result};
use std::sync::OnceLock;

/// Noncharacters that callers may use as marks (see [`crate::Marks`]). They are never escaped.
pub(crate) fn is_mark(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c)
}

/// `str.isspace` of a character, and `\s`.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether `str.splitlines` ends a line at a character, in addition to `\r\n`.
pub(crate) fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

type Ranges = Vec<(char, char)>;

/// The characters of a class of regular expressions.
fn class(cell: &'static OnceLock<Ranges>, pattern: &str) -> &'static Ranges {
    cell.get_or_init(|| {
        let hir = regex_syntax::parse(pattern).expect("a class");
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = hir.kind() else {
            unreachable!("a class of characters")
        };
        class.ranges().iter().map(|range| (range.start(), range.end())).collect()
    })
}

fn is_in(ranges: &Ranges, c: char) -> bool {
    let next = ranges.partition_point(|&(_, end)| end < c);
    ranges.get(next).is_some_and(|&(start, _)| start <= c)
}

/// Whether `repr` writes a character unescaped.
pub(crate) fn is_printable(c: char) -> bool {
    static HIDDEN: OnceLock<Ranges> = OnceLock::new();
    match c {
        ' '..='~' => true,
        _ if c.is_ascii() => false,
        _ => is_mark(c) || !is_in(class(&HIDDEN, r"[\p{C}\p{Z}]"), c),
    }
}

/// `str.isalpha` of a character.
pub(crate) fn is_alpha(c: char) -> bool {
    static LETTERS: OnceLock<Ranges> = OnceLock::new();
    if c.is_ascii() { c.is_ascii_alphabetic() } else { is_in(class(&LETTERS, r"\p{L}"), c) }
}

/// `str.isdecimal` of a character.
pub(crate) fn is_decimal(c: char) -> bool {
    static DIGITS: OnceLock<Ranges> = OnceLock::new();
    if c.is_ascii() { c.is_ascii_digit() } else { is_in(class(&DIGITS, r"\p{Nd}"), c) }
}

/// `str.isalnum` of a character, and `\w` without `_`.
pub(crate) fn is_alphanumeric(c: char) -> bool {
    is_alpha(c) || c.is_numeric()
}

/// The title case of a character, which starts words. Errors: Rust does not know it.
pub(crate) fn title_of(c: char) -> Result<String> {
    let upper: String = c.to_uppercase().collect();
    // Digraphs and Georgian letters have a separate title case.
    let is_special = matches!(c, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{10d0}'..='\u{10ff}');
    // Also Greek letters with an iota subscript.
    let has_iota = matches!(c, '\u{1f80}'..='\u{1fff}');
    if is_special || has_iota || upper.chars().count() > 1 {
        return Err(Error::unsupported(format!("the title case of `{c}`")));
    }
    Ok(upper)
}
