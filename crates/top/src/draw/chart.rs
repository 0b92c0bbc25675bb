//! Charts of curves, drawn with dots.

use super::Pen;
use super::text::put;
use crate::palette::Role;
use plimsoll_telemetry::Curve;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget};

/// A line or points on a chart.
pub(crate) struct Line {
    pub role: Role,
    pub points: Vec<(f64, f64)>,
    pub is_line: bool,
}

impl Line {
    /// Means of a curve's stretches, over steps.
    pub fn of(curve: &Curve, role: Role, is_line: bool) -> Self {
        let points = curve.stretches().iter().map(|stretch| (stretch.last.step as f64, stretch.mean));
        Self { role, points: points.collect(), is_line }
    }
}

/// Draws lines. `ends`: labels below the first and the last value; `label`: formats a value.
pub(crate) fn chart(pen: &mut Pen, area: Rect, lines: &[Line], ends: [String; 2], label: impl Fn(f64) -> String) {
    let points =
        || lines.iter().flat_map(|line| line.points.iter().copied()).filter(|(x, y)| x.is_finite() && y.is_finite());
    if points().next().is_none() || area.height < 2 || area.width < 12 {
        let quiet = pen.style(Role::Quiet);
        put(pen.buffer, area.x + 1, area.y, area.right(), "nothing yet", quiet);
        return;
    }
    let range = |of: fn((f64, f64)) -> f64| {
        let [low, high] = points()
            .map(of)
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)]);
        // Draw a constant as a line in the middle.
        if high > low { [low, high] } else { [low - 0.5, high + 0.5] }
    };
    let (xs, ys) = (range(|(x, _)| x), range(|(_, y)| y));
    let quiet = pen.style(Role::Quiet);
    let sets = lines.iter().map(|line| {
        let (marker, kind) =
            if line.is_line { (Marker::Braille, GraphType::Line) } else { (Marker::Dot, GraphType::Scatter) };
        Dataset::default().marker(marker).graph_type(kind).style(pen.style(line.role)).data(&line.points)
    });
    let labels = |[low, high]: [f64; 2]| match area.height {
        ..=5 => vec![label(low), label(high)],
        _ => vec![label(low), label((low + high) / 2.0), label(high)],
    };
    // If there is little room, omit the labels.
    let ends = if area.height < 6 { vec![] } else { ends.map(Span::raw).to_vec() };
    let x_axis = Axis::default().bounds(xs).style(quiet).labels(ends);
    let y_axis = Axis::default().bounds(ys).style(quiet).labels(labels(ys).into_iter().map(Span::raw));
    let chart = Chart::new(sets.collect()).x_axis(x_axis).y_axis(y_axis).legend_position(None);
    chart.render(area, pen.buffer);
}
