//! Text in cells, and formatted quantities.

use plimsoll_units::{Bytes, Seconds, format_duration};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

/// Writes text from a column, up to but excluding `end`. Returns the column after the text.
pub(crate) fn put(buffer: &mut Buffer, x: u16, y: u16, end: u16, text: &str, style: Style) -> u16 {
    let area = buffer.area;
    if y < area.top() || y >= area.bottom() || x < area.left() || x >= end.min(area.right()) {
        return x;
    }
    let room = usize::from(end.min(area.right()) - x);
    buffer.set_stringn(x, y, text, room, style).0
}

/// Writes right-aligned text and returns its first column. Text that does not fit is not written.
pub(crate) fn put_right(buffer: &mut Buffer, area: Rect, text: &str, style: Style) -> u16 {
    let columns = columns(text);
    if columns > usize::from(area.width) {
        return area.right();
    }
    let x = area.right() - columns as u16;
    put(buffer, x, area.y, area.right(), text, style);
    x
}

/// Number of columns that a text occupies.
pub(crate) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// The leading parts that fit into a width, joined.
pub(crate) fn put_parts(buffer: &mut Buffer, area: Rect, parts: &[(String, Style)]) {
    let mut x = area.x;
    for (part, style) in parts.iter().filter(|(part, _)| !part.is_empty()) {
        let gap = if x > area.x { 2 } else { 0 };
        let wanted = columns(part) as u16;
        if u32::from(x) + u32::from(gap) + u32::from(wanted) > u32::from(area.right()) {
            break;
        }
        x = put(buffer, x + gap, area.y, area.right(), part, *style);
    }
}

/// Wraps text into lines of a width, between words.
pub(crate) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && columns(&line) + 1 + columns(word) > most {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Shown for an unknown value.
pub(crate) const NONE: &str = "-";

/// A reading with its unit; `-` if unknown.
pub(crate) fn reading(value: Option<f64>, unit: &str) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{value:.0} {unit}"))
}

/// A size; `-` if unknown.
pub(crate) fn size(bytes: Option<Bytes>) -> String {
    bytes.map_or(NONE.to_owned(), |bytes| bytes.to_string())
}

/// `5.94/8.00 GiB`; with both units if they differ.
pub(crate) fn size_of(used: Bytes, all: Bytes) -> String {
    let (used, all) = (used.to_string(), all.to_string());
    match (used.split_once(' '), all.split_once(' ')) {
        (Some((value, unit)), Some((_, other))) if unit == other => format!("{value}/{all}"),
        _ => format!("{used}/{all}"),
    }
}

/// A loss, with four decimals.
pub(crate) fn loss(value: f64) -> String {
    if value.abs() < 1e4 { format!("{value:.4}") } else { format!("{value:.2e}") }
}

/// `12,345`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Remaining or elapsed time; `-` if unknown.
pub(crate) fn time(seconds: Option<f64>) -> String {
    seconds.map_or(NONE.to_owned(), |seconds| format_duration(Seconds(seconds)))
}

/// Age in its largest unit: `3m`. A time in the future, after a clock jump, is `now`.
pub(crate) fn age(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 || s.is_nan() => "now".to_owned(),
        s if s < 60.0 => format!("{s:.0}s"),
        s if s < 3600.0 => format!("{:.0}m", (s / 60.0).floor()),
        s if s < 86_400.0 => format!("{:.0}h", (s / 3600.0).floor()),
        s => format!("{:.0}d", (s / 86_400.0).floor().min(99_999.0)),
    }
}

/// Time of day, UTC.
pub(crate) fn clock(time_s: f64) -> String {
    let seconds = if time_s.is_finite() { time_s.rem_euclid(86_400.0) as u64 } else { 0 };
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A product's name without its vendor's.
pub(crate) fn product(name: &str) -> &str {
    let name = name.strip_prefix("NVIDIA ").unwrap_or(name);
    let name = name.strip_prefix("GeForce ").unwrap_or(name);
    if name.is_empty() { "GPU" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short() {
        assert_eq!([0.4, 59.0, 61.0, 7_300.0, 1e9].map(age), ["now", "59s", "1m", "2h", "11574d"]);
        assert_eq!([f64::NAN, -5.0, f64::INFINITY].map(age), ["now", "now", "99999d"]);
        assert_eq!([1e9, -1.0, f64::NAN].map(clock), ["01:46:40 UTC", "23:59:59 UTC", "00:00:00 UTC"]);
        assert_eq!([0, 999, 1_000, u64::MAX].map(grouped), ["0", "999", "1,000", "18,446,744,073,709,551,615"]);
        assert_eq!(size_of(Bytes(3 << 29), Bytes::gib(2)), "1.50/2.00 GiB");
        assert_eq!(size_of(Bytes(1 << 20), Bytes::gib(2)), "1.00 MiB/2.00 GiB");
        assert_eq!((reading(None, "W"), reading(Some(312.4), "W")), ("-".to_owned(), "312 W".to_owned()));
        assert_eq!(wrapped("a bb ccc", 4), ["a bb", "ccc"]);
    }
}
