//! A metric family: one name, one kind, a value per set of labels. Families without values are not written.

use super::Format;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricKind {
    /// Rises and falls.
    Gauge,
    /// Only rises; named `…_total`.
    Counter,
    /// Only rises, but DCGM fixed a name without `_total`.
    Unknown,
    /// The current one of several states is 1.
    StateSet,
    /// Always 1; its labels carry the information. Named `…_info`.
    Info,
}

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    kind: MetricKind,
    /// The unit, if the name ends in one.
    unit: Option<&'static str>,
    help: &'static str,
    /// Labels as written, and values.
    samples: Vec<(String, f64)>,
    seen: BTreeSet<String>,
}

impl Family {
    pub(super) fn new(name: &'static str, kind: MetricKind, unit: Option<&'static str>, help: &'static str) -> Self {
        Self { name, kind, unit, help, samples: Vec::new(), seen: BTreeSet::new() }
    }

    /// Adds a value, if there is one. The first value of a set of labels wins.
    pub(super) fn push(&mut self, labels: &Labels, value: Option<f64>) {
        let Some(value) = value else { return };
        let pairs = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = pairs.collect::<Vec<_>>().join(",");
        if self.seen.insert(labels.clone()) {
            self.samples.push((labels, value));
        }
    }

    pub(super) fn write(&self, text: &mut String, format: Format) {
        let Self { name, kind, unit, help, samples, .. } = self;
        if samples.is_empty() {
            return;
        }
        let suffix = match kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Unknown | MetricKind::StateSet => "",
        };
        // The text format has no families and fewer kinds.
        let (family, word) = match (format, kind) {
            (_, MetricKind::Gauge) => ((*name).to_owned(), "gauge"),
            (Format::OpenMetrics, MetricKind::Counter) => ((*name).to_owned(), "counter"),
            (Format::OpenMetrics, MetricKind::Unknown) => ((*name).to_owned(), "unknown"),
            (Format::OpenMetrics, MetricKind::StateSet) => ((*name).to_owned(), "stateset"),
            (Format::OpenMetrics, MetricKind::Info) => ((*name).to_owned(), "info"),
            (Format::Text, MetricKind::Counter) => (format!("{name}{suffix}"), "counter"),
            (Format::Text, MetricKind::Unknown) => ((*name).to_owned(), "untyped"),
            (Format::Text, MetricKind::StateSet | MetricKind::Info) => (format!("{name}{suffix}"), "gauge"),
        };
        let _ = writeln!(text, "# TYPE {family} {word}");
        if let (Format::OpenMetrics, Some(unit)) = (format, unit) {
            let _ = writeln!(text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(text, "# HELP {family} {help}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{suffix}{{{labels}}} {}", number(*value));
        }
    }
}

/// A label's value, escaped for its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => format!("{value:?}"),
    }
}
