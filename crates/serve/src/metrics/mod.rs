//! The text of `/metrics`: cards under the names and labels of NVIDIA's DCGM exporter, so that dashboards for it work,
//! and everything else under `plimsoll_…`. Pure: a snapshot in, text out. An unknown reading has no line. `guard.rs`
//! controls access.
//! Sources: OpenMetrics 1.0; Prometheus, "Exposition formats" (text format 0.0.4); dcgm-exporter, `default-counters.csv`.

mod cards;
mod family;
mod runs;
mod system;

#[cfg(test)]
mod tests;

use plimsoll_watch::{MachineView, RunView};

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's older text format, which all other tools read.
    Text,
}

impl Format {
    /// The format for an `Accept` header: OpenMetrics if it is listed with at least the weight of plain text.
    pub(crate) fn accepted(accept: &str) -> Self {
        let weight = |kind: &str| {
            let of_kind = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_kind = parts.next()?.eq_ignore_ascii_case(kind);
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse::<f64>().ok()).unwrap_or(1.0);
                is_kind.then_some(weight)
            });
            of_kind.fold(0.0, f64::max)
        };
        let open = weight("application/openmetrics-text");
        if open > 0.0 && open >= weight("text/plain") { Self::OpenMetrics } else { Self::Text }
    }

    /// The content type of the response.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of the machine `host` and of its runs.
pub(crate) fn metrics<'a>(
    machine: &MachineView,
    runs: impl Iterator<Item = &'a RunView> + Clone,
    host: &str,
    format: Format,
) -> String {
    let mut text = String::new();
    let families =
        cards::families(machine, host).into_iter().chain(system::families(machine)).chain(runs::families(runs));
    for family in families {
        family.write(&mut text, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}
