//! Bars with segments and marks, and sparklines.

use super::text::put;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// A segment of a bar: its character, style, and share of the whole.
pub(crate) type Segment = (char, Style, f64);

/// A mark on a bar: its character, style, and position from 0 to 1.
pub(crate) type Mark = (char, Style, f64);

/// Draws `▕████░░▒▒│  ▏` in one line. Each nonempty segment gets at least one cell, if there is room.
pub(crate) fn bar(buffer: &mut Buffer, area: Rect, parts: &[Segment], marks: &[Mark], frame: Style) {
    if area.width < 3 {
        return;
    }
    put(buffer, area.x, area.y, area.right(), "▕", frame);
    put(buffer, area.right() - 1, area.y, area.right(), "▏", frame);
    let inner = usize::from(area.width - 2);
    let mut cells = vec![(' ', Style::new()); inner];
    let (mut done, mut from) = (0.0, 0);
    let mut later = parts.iter().filter(|(_, _, share)| *share > 0.0).count();
    for (fill, style, share) in parts.iter().filter(|(_, _, share)| *share > 0.0) {
        done += if share.is_finite() { *share } else { 0.0 };
        later -= 1;
        let to = ((done * inner as f64).round() as usize).min(inner.saturating_sub(later)).max(from + 1).min(inner);
        cells[from..to].fill((*fill, *style));
        from = to;
    }
    for (sign, style, place) in marks.iter().filter(|(_, _, place)| (0.0..=1.0).contains(place)) {
        // A line is drawn in the cell where its segment ends.
        let cell = ((place * inner as f64).ceil() as usize).saturating_sub(1);
        cells[cell] = (*sign, *style);
    }
    for (x, (fill, style)) in (area.x + 1..).zip(cells) {
        put(buffer, x, area.y, area.right() - 1, fill.encode_utf8(&mut [0; 4]), style);
    }
}

/// Bars of a sparkline, lowest first.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A sparkline of the newest values that fit, one character each, scaled between two bounds.
pub(crate) fn sparkline(values: impl DoubleEndedIterator<Item = f64>, [low, high]: [f64; 2], columns: usize) -> String {
    let height = |value: f64| {
        let part = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        HEIGHTS[(part * 7.0).round() as usize]
    };
    let mut newest = values.rev().take(columns).map(height).collect::<Vec<_>>();
    newest.reverse();
    newest.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: u16, parts: &[Segment], marks: &[Mark]) -> String {
        let area = Rect::new(0, 0, width, 1);
        let mut buffer = Buffer::empty(area);
        bar(&mut buffer, area, parts, marks, Style::new());
        buffer.content.iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn segments_have_their_share_and_small_ones_a_cell() {
        let style = Style::new();
        let parts = [('█', style, 0.5), ('░', style, 0.001), ('▒', style, 0.2)];
        assert_eq!(drawn(12, &parts, &[('│', style, 0.95)]), "▕█████░▒  │▏");
        assert_eq!(drawn(8, &[('█', style, 0.5), (' ', style, 0.4999), ('▓', style, 0.0001)], &[]), "▕███  ▓▏");
        assert_eq!(drawn(12, &[('█', style, 0.5)], &[('│', style, 0.5), ('┃', style, 1.0)]), "▕████│    ┃▏");
        assert_eq!(drawn(5, &[('█', style, 9.0), ('▒', style, 1.0)], &[]), "▕██▒▏");
        assert_eq!(drawn(5, &[('█', style, f64::NAN), ('▒', style, -1.0)], &[('│', style, 7.0)]), "▕   ▏");
        assert_eq!(drawn(2, &parts, &[]), "  ");
    }

    #[test]
    fn a_sparkline_shows_the_newest_values() {
        assert_eq!(sparkline([9.0, 0.0, 50.0, 100.0, 200.0].into_iter(), [0.0, 100.0], 4), "▁▅██");
        assert_eq!(sparkline([1.0].into_iter(), [5.0, 5.0], 4), "▁");
    }
}
