//! Cards as `nvidia-smi --query-gpu=… --format=csv` writes them, so that scripts keep working.
//! Source of names and units: `nvidia-smi --help-query-gpu`.

use plimsoll_telemetry::{CardSample, Sample};
use plimsoll_units::{Bytes, CivilDate, civil_from_days};

/// Gets a reading from a card.
type Reading = fn(&Sample, &CardSample) -> Option<String>;

/// A column: its names, the unit, the reading.
struct Column(&'static [&'static str], &'static str, Reading);

/// The text for a missing reading.
const UNKNOWN: &str = "[N/A]";

fn whole<T: ToString>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn hundredths(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.2}"))
}

fn celsius(value: Option<f64>) -> Option<String> {
    value.map(|value| format!("{value:.0}"))
}

fn mib(value: Option<Bytes>) -> Option<String> {
    value.map(|bytes| (bytes.0 >> 20).to_string())
}

const COLUMNS: &[Column] = &[
    Column(&["timestamp"], "", |sample, _| Some(timestamp(sample.time_s))),
    Column(&["index"], "", |_, card| Some(card.index.to_string())),
    Column(&["name", "gpu_name"], "", |_, card| Some(card.name.clone())),
    Column(&["uuid", "gpu_uuid"], "", |_, card| Some(card.uuid.clone())),
    Column(&["count"], "", |sample, _| Some(sample.cards.len().to_string())),
    Column(&["temperature.gpu"], "", |_, card| celsius(card.temperature_c)),
    Column(&["temperature.memory"], "", |_, card| celsius(card.memory_temperature_c)),
    Column(&["utilization.gpu"], "%", |_, card| whole(card.busy_percent)),
    Column(&["utilization.memory"], "%", |_, card| whole(card.memory_busy_percent)),
    Column(&["utilization.encoder"], "%", |_, card| whole(card.encoder_percent)),
    Column(&["utilization.decoder"], "%", |_, card| whole(card.decoder_percent)),
    Column(&["memory.total"], "MiB", |_, card| mib(card.total)),
    Column(&["memory.reserved"], "MiB", |_, card| mib(card.reserved)),
    Column(&["memory.used"], "MiB", |_, card| mib(card.used)),
    Column(&["memory.free"], "MiB", |_, card| mib(card.free)),
    Column(&["power.draw", "power.draw.instant", "power.draw.average"], "W", |_, card| hundredths(card.power_w)),
    Column(&["power.limit", "enforced.power.limit"], "W", |_, card| hundredths(card.power_limit_w)),
    Column(&["power.default_limit"], "W", |_, card| hundredths(card.limits.power_default_w)),
    Column(&["power.min_limit"], "W", |_, card| hundredths(card.limits.power_min_w)),
    Column(&["power.max_limit"], "W", |_, card| hundredths(card.limits.power_max_w)),
    Column(&["clocks.current.sm", "clocks.sm", "clocks.gr", "clocks.current.graphics"], "MHz", |_, card| {
        whole(card.sm_clock_mhz)
    }),
    Column(&["clocks.current.memory", "clocks.mem"], "MHz", |_, card| whole(card.memory_clock_mhz)),
    Column(&["clocks.max.sm", "clocks.max.gr", "clocks.max.graphics"], "MHz", |_, card| {
        whole(card.limits.sm_clock_max_mhz)
    }),
    Column(&["clocks.max.memory", "clocks.max.mem"], "MHz", |_, card| whole(card.limits.memory_clock_max_mhz)),
    Column(&["clocks_event_reasons.active", "clocks_throttle_reasons.active"], "", |_, card| {
        card.throttling.map(|reasons| format!("0x{:016X}", reasons.0))
    }),
    Column(&["fan.speed"], "%", |_, card| whole(card.fan_percent)),
    Column(&["pstate"], "", |_, card| card.performance_state.map(|state| format!("P{state}"))),
    Column(&["pcie.link.gen.current", "pcie.link.gen.gpucurrent"], "", |_, card| whole(card.pcie_generation)),
    Column(&["pcie.link.gen.max", "pcie.link.gen.gpumax"], "", |_, card| whole(card.limits.pcie_generation_max)),
    Column(&["pcie.link.width.current"], "", |_, card| whole(card.pcie_lanes)),
    Column(&["pcie.link.width.max"], "", |_, card| whole(card.limits.pcie_lanes_max)),
    Column(&["ecc.errors.corrected.volatile.total"], "", |_, card| whole(card.ecc_corrected)),
    Column(&["ecc.errors.uncorrected.volatile.total"], "", |_, card| whole(card.ecc_uncorrected)),
    Column(&["mig.mode.current"], "", |_, card| {
        card.mig.map(|is_on| if is_on { "Enabled" } else { "Disabled" }.to_owned())
    }),
    Column(&["compute_mode"], "", |_, card| card.compute_mode.as_deref().map(compute_mode)),
];

/// The default columns.
const USUAL: &[&str] = &[
    "timestamp",
    "index",
    "name",
    "temperature.gpu",
    "temperature.memory",
    "utilization.gpu",
    "utilization.memory",
    "memory.total",
    "memory.used",
    "memory.free",
    "power.draw",
    "power.limit",
    "clocks.current.sm",
    "clocks.current.memory",
    "clocks_event_reasons.active",
    "fan.speed",
    "pstate",
];

/// `Exclusive_Process`, as `nvidia-smi` writes it.
fn compute_mode(mode: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    mode.split(' ').map(capital).collect::<Vec<_>>().join("_")
}

/// `2026/11/23 15:49:01.123` in UTC.
pub(super) fn timestamp(time_s: f64) -> String {
    let milliseconds = (time_s * 1000.0).round().max(0.0) as u64;
    let (days, of_day) = (milliseconds / 86_400_000, milliseconds % 86_400_000);
    let CivilDate { year, month, day } = civil_from_days(days as i64);
    let (hours, minutes, seconds) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year}/{month:02}/{day:02} {hours:02}:{minutes:02}:{seconds:02}.{:03}", of_day % 1000)
}

/// Columns of a table of cards.
pub struct GpusCsv {
    columns: Vec<(String, &'static Column)>,
    has_units: bool,
}

impl GpusCsv {
    /// The columns with these names; the default columns if there are no names. Errors: an unknown name.
    pub fn new(names: &[String], has_units: bool) -> Result<Self, String> {
        let names =
            if names.is_empty() { USUAL.iter().map(|name| (*name).to_owned()).collect() } else { names.to_vec() };
        let found = names.into_iter().map(|name| {
            let name = name.trim().to_lowercase();
            match COLUMNS.iter().find(|column| column.0.contains(&name.as_str())) {
                Some(column) => Ok((name, column)),
                None => Err(name),
            }
        });
        Ok(Self { columns: found.collect::<Result<_, _>>()?, has_units })
    }

    /// The first line.
    pub fn header(&self) -> String {
        let title = |(name, Column(_, unit, _)): &(String, &Column)| match unit.is_empty() {
            true => name.clone(),
            false => format!("{name} [{unit}]"),
        };
        self.columns.iter().map(title).collect::<Vec<_>>().join(", ")
    }

    /// A line for each card.
    pub fn lines(&self, sample: &Sample) -> Vec<String> {
        let field = |card: &CardSample, Column(_, unit, reading): &Column| match reading(sample, card) {
            None => UNKNOWN.to_owned(),
            Some(value) if unit.is_empty() || !self.has_units => value,
            Some(value) => format!("{value} {unit}"),
        };
        let line = |card: &CardSample| {
            self.columns.iter().map(|(_, column)| field(card, column)).collect::<Vec<_>>().join(", ")
        };
        sample.cards.iter().map(line).collect()
    }

    /// All names of columns.
    pub fn names() -> impl Iterator<Item = &'static str> {
        COLUMNS.iter().flat_map(|column| column.0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_of_the_calendar() {
        assert_eq!(timestamp(0.0), "1970/01/01 00:00:00.000");
        assert_eq!(timestamp(951_782_400.5), "2000/02/29 00:00:00.500");
        assert_eq!(timestamp(1_795_447_741.123), "2026/11/23 15:29:01.123");
        assert_eq!(timestamp(4_107_542_399.999), "2100/02/28 23:59:59.999");
        assert_eq!(timestamp(4_107_542_400.0), "2100/03/01 00:00:00.000");
    }
}
