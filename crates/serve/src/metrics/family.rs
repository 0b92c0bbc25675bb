//! A family of metrics: one name, one kind, a value for each set of labels. Families without a value are not written.

use super::Format;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What values of a family are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// They rise and fall.
    Gauge,
    /// They only rise, and are named `…_total`.
    Counter,
    /// They only rise, under a name that is not ours to change.
    Unknown,
    /// One of several states is 1.
    StateSet,
    /// Labels that say something, and 1; named `…_info`.
    Info,
}

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    kind: Kind,
    /// The last part of the name, where that is a unit.
    unit: Option<&'static str>,
    help: &'static str,
    /// Labels as they are written, and values.
    samples: Vec<(String, f64)>,
    seen: BTreeSet<String>,
}

impl Family {
    pub(super) fn new(name: &'static str, kind: Kind, unit: Option<&'static str>, help: &'static str) -> Self {
        Self { name, kind, unit, help, samples: Vec::new(), seen: BTreeSet::new() }
    }

    /// Adds a value, if there is one. Labels that are there already have the value that came first.
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
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Unknown | Kind::StateSet => "",
        };
        // The older format has no families, and fewer kinds.
        let (family, word) = match (format, kind) {
            (_, Kind::Gauge) => ((*name).to_owned(), "gauge"),
            (Format::OpenMetrics, Kind::Counter) => ((*name).to_owned(), "counter"),
            (Format::OpenMetrics, Kind::Unknown) => ((*name).to_owned(), "unknown"),
            (Format::OpenMetrics, Kind::StateSet) => ((*name).to_owned(), "stateset"),
            (Format::OpenMetrics, Kind::Info) => ((*name).to_owned(), "info"),
            (Format::Text, Kind::Counter) => (format!("{name}{suffix}"), "counter"),
            (Format::Text, Kind::Unknown) => ((*name).to_owned(), "untyped"),
            (Format::Text, Kind::StateSet | Kind::Info) => (format!("{name}{suffix}"), "gauge"),
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

/// The value of a label between its quotes.
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
