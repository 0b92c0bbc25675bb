//! Metrics of the machine, without its cards.

use super::family::{Family, MetricKind};
use plimsoll_telemetry::SystemSample;
use plimsoll_units::Bytes;
use plimsoll_watch::MachineView;

/// A metric: name, unit, help, and its value.
type Field = (&'static str, &'static str, &'static str, fn(&SystemSample) -> Option<f64>);

fn bytes(bytes: Option<Bytes>) -> Option<f64> {
    bytes.map(|bytes| bytes.0 as f64)
}

const FIELDS: &[Field] = &[
    ("plimsoll_system_cpu_ratio", "ratio", "Share of all cores' time in use.", |s| s.cpu_percent.map(|p| p / 100.0)),
    ("plimsoll_system_memory_size_bytes", "bytes", "Memory of the machine.", |s| bytes(s.memory_total)),
    ("plimsoll_system_memory_available_bytes", "bytes", "Memory available to programs.", |s| bytes(s.memory_available)),
    ("plimsoll_system_swap_used_bytes", "bytes", "Swapped-out memory.", |s| bytes(s.swap_used)),
    ("plimsoll_system_group_limit_bytes", "bytes", "Memory limit of the control group.", |s| bytes(s.group_limit)),
    ("plimsoll_system_group_used_bytes", "bytes", "Memory used by the control group.", |s| bytes(s.group_used)),
    ("plimsoll_system_disk_size_bytes", "bytes", "Size of the disk with the runs.", |s| bytes(s.disk_total)),
    ("plimsoll_system_disk_free_bytes", "bytes", "Free space on the disk with the runs.", |s| bytes(s.disk_free)),
];

pub(super) fn families(machine: &MachineView) -> Vec<Family> {
    let Some(system) = machine.latest.as_ref().map(|sample| &sample.system) else { return Vec::new() };
    let fields = FIELDS.iter().map(|(name, unit, help, value)| {
        let mut family = Family::new(name, MetricKind::Gauge, Some(unit), help);
        family.push(&Vec::new(), value(system));
        family
    });
    let mut families = fields.collect::<Vec<_>>();
    let help = "Share of the last ten seconds in which a process waited for the resource.";
    let mut pressure = Family::new("plimsoll_system_pressure_ratio", MetricKind::Gauge, Some("ratio"), help);
    let of = [
        ("cpu", system.cpu_pressure_percent),
        ("memory", system.memory_pressure_percent),
        ("io", system.io_pressure_percent),
    ];
    for (resource, percent) in of {
        pressure.push(&vec![("resource", resource.to_owned())], percent.map(|percent| percent / 100.0));
    }
    families.push(pressure);
    families
}
