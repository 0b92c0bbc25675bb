//! A chart of a page that fills the width. Its shapes stretch; its labels keep their size, and each is
//! shown at widths that have room for it. So labels never overlap at any width of the page.
//!
//! ```text
//!   gutter │ plot: shapes in columns across and in pixels down
//!   ───────┼──────────────────────────────────────────────────
//!   12 GiB │░░░░░░▒▒▒▒ name ▒▒▒▒░░░░░      labels in parts of the width across and in pixels down
//! ```

use super::escape;
use super::steps::decimal_step;
use crate::plan_table::grouped;
use std::fmt::Write;

/// Widths of a plot in pixels, at which labels appear. No plot is narrower than the first.
pub(crate) const WIDTHS: [f64; 7] = [200.0, 290.0, 400.0, 560.0, 800.0, 1600.0, 3200.0];

/// The width of the gutter in pixels.
pub(crate) const GUTTER: f64 = 76.0;

/// The height of a label in pixels.
pub(crate) const LINE: f64 = 14.0;

/// Vertical units of shapes per pixel: halves, so that coordinates are whole numbers.
const FINE: f64 = 2.0;

/// Shapes and labels.
#[derive(Debug)]
pub(crate) struct Chart {
    /// Units across.
    columns: usize,
    /// In pixels.
    height: f64,
    shapes: String,
    labels: Vec<Label>,
}

/// A line of text on a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Label {
    pub(crate) text: String,
    /// In pixels from the chart's upper edge.
    pub(crate) top: f64,
    pub(crate) place: Place,
    /// Names of its classes of style.
    pub(crate) ink: &'static str,
    /// Shown at widths from this of [`WIDTHS`] on,
    pub(crate) from: usize,
    /// and below this.
    pub(crate) below: usize,
}

/// The horizontal position of a label, in fractions of the plot's width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Place {
    /// In the gutter, at its right edge.
    Gutter,
    /// Beginning at this part.
    From(f64),
    /// About this part.
    About(f64),
    /// Ending at this part.
    UpTo(f64),
    /// Between two parts, and never beyond them.
    Within(f64, f64),
}

impl Chart {
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns: columns.max(1), height: 0.0, shapes: String::new(), labels: Vec::new() }
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds this many pixels at the lower end. Returns where they begin.
    pub(crate) fn extend(&mut self, pixels: f64) -> f64 {
        let top = self.height;
        self.height += pixels;
        top
    }

    /// A rectangle between two columns and between two heights in pixels, with a text that is shown where
    /// the pointer rests.
    pub(crate) fn rectangle(&mut self, class: &str, across: [usize; 2], down: [f64; 2], what: Option<&str>) {
        let ([x, until], [y, bottom]) = (across, down.map(fine));
        let (width, height) = (until.saturating_sub(x), bottom - y);
        let _ =
            write!(self.shapes, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
        let _ = match what {
            Some(what) => writeln!(self.shapes, "><title>{}</title></rect>", escape(what)),
            None => writeln!(self.shapes, "/>"),
        };
    }

    /// A line across the plot, or down it.
    pub(crate) fn line(&mut self, class: &str, across: [usize; 2], down: [f64; 2]) {
        let ([x1, x2], [y1, y2]) = (across, down.map(fine));
        let _ = writeln!(self.shapes, "<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>");
    }

    /// A finished path.
    pub(crate) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            let _ = writeln!(self.shapes, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    /// Horizontal lines of a grid, at these heights.
    pub(crate) fn grid(&mut self, heights: &[f64]) {
        let path = heights.iter().map(|y| format!("M0 {}H{}", fine(*y), self.columns)).collect::<String>();
        self.path("grid", &path);
    }

    /// The break of an axis: a jagged line across the plot.
    pub(crate) fn broken(&mut self, y: f64) {
        const TEETH: usize = 48;
        let x = |tooth: usize| (tooth * self.columns) as f64 / TEETH as f64;
        let teeth = (0..=TEETH).map(|tooth| {
            let height = y + if tooth.is_multiple_of(2) { -2.5 } else { 2.5 };
            format!("{}{:.1} {}", if tooth == 0 { "M" } else { "L" }, x(tooth), fine(height))
        });
        let path = teeth.collect::<String>();
        self.path("break", &path);
    }

    /// A title above the next part.
    pub(crate) fn title(&mut self, text: impl Into<String>) {
        let top = self.extend(LINE + 3.0);
        self.label(Label::new(text, top, Place::Within(0.0, 1.0), "quiet"));
    }

    /// Round numbers from `first` to `last` along a row, at the fraction that `part` returns; each width shows as many as fit.
    pub(crate) fn ticks_across(&mut self, row: f64, [first, last]: [u64; 2], part: impl Fn(u64) -> f64) {
        for (class, width) in WIDTHS.iter().enumerate() {
            let step = decimal_step((last - first) as usize, (width / TICK_WIDTH) as usize) as u64;
            for count in (first.next_multiple_of(step)..=last).step_by(step as usize) {
                let (at, half) = (part(count), width_of(&short_count(count)) / 2.0);
                if width * at >= half && width * (1.0 - at) >= half {
                    let label = Label::new(short_count(count), row, Place::About(at), "quiet");
                    self.label(Label { from: class, below: class + 1, ..label });
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn labels(&self) -> &[Label] {
        &self.labels
    }

    pub(crate) fn label(&mut self, label: Label) {
        self.labels.push(label);
    }

    /// The chart as markup. `summary` is the text for screen readers.
    pub(crate) fn html(&self, summary: &str) -> String {
        let Self { columns, height, shapes, labels } = self;
        let of = |in_gutter: bool| {
            let labels = labels.iter().filter(|label| (label.place == Place::Gutter) == in_gutter);
            labels.map(Label::html).collect::<String>()
        };
        format!(
            "<div class=\"chart\" style=\"--height:{height}px\">\n<div class=\"gutter\">{}</div>\n\
             <div class=\"scroll\"><div class=\"plot\">\n\
             <svg viewBox=\"0 0 {columns} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">\n{shapes}</svg>\n\
             {}</div></div>\n</div>\n",
            of(true),
            fine(*height),
            escape(summary),
            of(false)
        )
    }

    /// The chart as a part of a picture, with this width and upper edge in pixels; and its height.
    pub(crate) fn svg(&self, width: f64, top: f64) -> (String, f64) {
        let Self { columns, height, shapes, labels } = self;
        let plot = width - GUTTER;
        let mut svg = format!(
            "<svg x=\"{GUTTER}\" y=\"{top}\" width=\"{plot}\" height=\"{height}\" viewBox=\"0 0 {columns} {}\" \
             preserveAspectRatio=\"none\">\n{shapes}</svg>\n",
            fine(*height)
        );
        let class = WIDTHS.iter().rposition(|width| *width <= plot).unwrap_or(0);
        for label in labels.iter().filter(|label| label.from <= class && class < label.below) {
            let (anchor, x) = match label.place {
                Place::Gutter => ("end", -PADDING),
                Place::From(at) => ("start", at * plot),
                Place::About(at) => ("middle", at * plot),
                Place::UpTo(at) => ("end", at * plot),
                Place::Within(from, _) => ("start", from * plot + PADDING),
            };
            let (x, y) = (GUTTER + x, top + label.top + LINE - 3.0);
            let (ink, text) = (label.ink, escape(&label.text));
            let _ =
                writeln!(svg, "<text class=\"{ink}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
        }
        (svg, *height)
    }
}

impl Label {
    /// A label that is shown at all widths.
    pub(crate) fn new(text: impl Into<String>, top: f64, place: Place, ink: &'static str) -> Self {
        Self { text: text.into(), top, place, ink, from: 0, below: WIDTHS.len() }
    }

    /// A label in the middle of an area, shown at widths where it fits; `None` if it fits at none of [`WIDTHS`].
    pub(crate) fn within(text: String, across: [f64; 2], down: [f64; 2], ink: &'static str) -> Option<Self> {
        let [x, until] = across;
        if down[1] - down[0] < LINE {
            return None;
        }
        let from = WIDTHS.iter().position(|width| width * (until - x) >= width_of(&text) + 2.0 * PADDING)?;
        let top = (down[0] + down[1] - LINE) / 2.0;
        Some(Self { from, ..Self::new(text, top, Place::Within(x, until), ink) })
    }

    /// Left, upper, right and lower edge in a plot of this width, in pixels; `None` if it is not shown.
    #[cfg(test)]
    pub(crate) fn bounds(&self, plot: f64) -> Option<[f64; 4]> {
        let class = WIDTHS.iter().rposition(|width| *width <= plot)?;
        let width = width_of(&self.text);
        let [left, right] = match self.place {
            Place::Gutter => [-GUTTER, -PADDING],
            Place::From(at) => [at * plot, at * plot + width],
            Place::About(at) => [at * plot - width / 2.0, at * plot + width / 2.0],
            Place::UpTo(at) => [at * plot - width, at * plot],
            Place::Within(from, until) => [from * plot + PADDING, (from * plot + PADDING + width).min(until * plot)],
        };
        (self.from <= class && class < self.below).then_some([left, self.top, right, self.top + LINE])
    }

    fn html(&self) -> String {
        let percent = |part: f64| format!("{:.2}", 100.0 * part).trim_end_matches('0').trim_end_matches('.').to_owned();
        // No font draws text wider than this.
        let most = match self.place {
            Place::Gutter | Place::Within(..) => String::new(),
            _ => format!(";max-width:{:.0}px", width_of(&self.text).ceil()),
        };
        let (class, at) = match self.place {
            Place::Gutter => ("", String::new()),
            Place::From(at) => ("", format!(";left:{}%", percent(at))),
            Place::About(at) => (" mid", format!(";left:{}%", percent(at))),
            Place::UpTo(at) => ("", format!(";right:{}%", percent(1.0 - at))),
            Place::Within(from, until) => (" in", format!(";left:{}%;width:{}%", percent(from), percent(until - from))),
        };
        let from = if self.from > 0 { format!(" f{}", self.from) } else { String::new() };
        let below = if self.below < WIDTHS.len() { format!(" b{}", self.below) } else { String::new() };
        let (ink, top, text) = (self.ink, self.top, escape(&self.text));
        format!("<span class=\"{ink}{class}{from}{below}\" style=\"top:{top:.0}px{at}{most}\">{text}</span>\n")
    }
}

/// Pixels between ticks across.
const TICK_WIDTH: f64 = 66.0;

/// A count in few enough letters for the space between ticks.
fn short_count(count: u64) -> String {
    match count {
        0..1_000_000 => grouped(count),
        _ => format!("{}M", format!("{:.2}", count as f64 / 1e6).trim_end_matches('0').trim_end_matches('.')),
    }
}

/// Pixels between a label and the edge of its area.
const PADDING: f64 = 4.0;

/// Heights in the units of shapes.
pub(crate) fn fine(pixels: f64) -> i64 {
    (FINE * pixels).round() as i64
}

/// An upper bound of the width of a text in pixels, in any system font of 11 pixels.
pub(crate) fn width_of(text: &str) -> f64 {
    3.0 + text.chars().map(|c| if c.is_ascii() || c == '×' { 7.0 } else { 11.5 }).sum::<f64>()
}

/// CSS rules: the widths of the parts of charts, and the widths at which labels are shown.
pub(super) fn rules() -> String {
    let (mut hidden, mut shown) = (String::new(), String::new());
    let least = WIDTHS[0];
    let _ = writeln!(hidden, ".chart{{grid-template-columns:{GUTTER}px minmax({least}px,1fr)}}");
    for (class, width) in WIDTHS.iter().enumerate().skip(1) {
        let _ = writeln!(hidden, "@container (max-width:{}px){{.f{class}{{display:none}}}}", width - 0.02);
        let _ = writeln!(shown, "@container (min-width:{width}px){{.b{class}{{display:none}}}}");
    }
    hidden + &shown
}

/// Panics if labels overlap or leave the chart, from the narrowest width to four times a wide screen's. Returns how
/// many labels were checked.
#[cfg(test)]
pub(crate) fn check_labels(chart: &Chart) -> usize {
    let mut count = 0;
    for plot in [200.0, 243.0, 318.0, 361.0, 402.0, 480.0, 700.0, 801.0, 1024.0, 1500.0, 2222.0, 3600.0] {
        let shown = chart.labels.iter().filter_map(|label| Some((label, label.bounds(plot)?)));
        let mut placed = shown.collect::<Vec<_>>();
        placed.sort_by(|(_, a), (_, b)| a[1].total_cmp(&b[1]));
        for (index, (label, a)) in placed.iter().enumerate() {
            let is_inside = a[0] > -GUTTER - 0.01 && a[2] < plot + 0.01 && a[1] > -0.01 && a[3] < chart.height + 0.01;
            assert!(is_inside, "at {plot} px, {label:?} leaves the chart: {a:?}");
            // Titles may be cut on the narrowest screens, but names never.
            let is_whole = a[2] - a[0] >= width_of(&label.text) - 0.01 || label.ink == "quiet";
            assert!(is_whole || label.place == Place::Gutter, "at {plot} px, {label:?} is cut: {a:?}");
            for (other, b) in placed[index + 1..].iter().take_while(|(_, b)| b[1] < a[3] - 0.01) {
                assert!(b[2] < a[0] + 0.01 || a[2] < b[0] + 0.01, "at {plot} px, {label:?} and {other:?} overlap");
            }
        }
        count += placed.len();
    }
    count
}
