//! Metrics of cards, under DCGM's names. DCGM's counters lack OpenMetrics's `_total` suffix, so their kind is
//! `Unknown`.

use super::family::{Family, Labels, MetricKind};
use plimsoll_telemetry::CardSample;
use plimsoll_units::Bytes;
use plimsoll_watch::{CardView, MachineView};

/// A field: name, kind, help, and its value for a card.
type Field = (&'static str, MetricKind, &'static str, fn(&CardSample) -> Option<f64>);

/// DCGM's name for the last Xid error.
const XID: &str = "DCGM_FI_DEV_XID_ERRORS";

const MIB: f64 = 1_048_576.0;

fn mib(bytes: Option<Bytes>) -> Option<f64> {
    bytes.map(|bytes| bytes.0 as f64 / MIB)
}

const FIELDS: &[Field] =
    &[
        ("DCGM_FI_DEV_SM_CLOCK", MetricKind::Gauge, "SM clock frequency (in MHz).", |card| {
            card.sm_clock_mhz.map(f64::from)
        }),
        ("DCGM_FI_DEV_MEM_CLOCK", MetricKind::Gauge, "Memory clock frequency (in MHz).", |card| {
            card.memory_clock_mhz.map(f64::from)
        }),
        ("DCGM_FI_DEV_GPU_TEMP", MetricKind::Gauge, "GPU temperature (in C).", |card| card.temperature_c),
        ("DCGM_FI_DEV_MEMORY_TEMP", MetricKind::Gauge, "Memory temperature (in C).", |card| card.memory_temperature_c),
        ("DCGM_FI_DEV_SLOWDOWN_TEMP", MetricKind::Gauge, "Slowdown temperature (in C).", |card| card.limits.slowdown_c),
        ("DCGM_FI_DEV_SHUTDOWN_TEMP", MetricKind::Gauge, "Shutdown temperature (in C).", |card| card.limits.shutdown_c),
        ("DCGM_FI_DEV_POWER_USAGE", MetricKind::Gauge, "Power draw (in W).", |card| card.power_w),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", MetricKind::Gauge, "Power limit (in W).", |card| card.power_limit_w),
        (
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            MetricKind::Unknown,
            "Energy used since the driver was loaded (in mJ).",
            |card| card.energy_j.map(|joules| joules * 1e3),
        ),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", MetricKind::Unknown, "PCIe packets sent again.", |card| {
            card.pcie_replays.map(|count| count as f64)
        }),
        ("DCGM_FI_DEV_PCIE_LINK_GEN", MetricKind::Gauge, "Current PCIe generation of the link.", |card| {
            card.pcie_generation.map(f64::from)
        }),
        ("DCGM_FI_DEV_PCIE_LINK_WIDTH", MetricKind::Gauge, "Current PCIe lanes of the link.", |card| {
            card.pcie_lanes.map(f64::from)
        }),
        ("DCGM_FI_DEV_GPU_UTIL", MetricKind::Gauge, "GPU utilization (in %).", |card| card.busy_percent.map(f64::from)),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", MetricKind::Gauge, "Memory utilization (in %).", |card| {
            card.memory_busy_percent.map(f64::from)
        }),
        ("DCGM_FI_DEV_ENC_UTIL", MetricKind::Gauge, "Encoder utilization (in %).", |card| {
            card.encoder_percent.map(f64::from)
        }),
        ("DCGM_FI_DEV_DEC_UTIL", MetricKind::Gauge, "Decoder utilization (in %).", |card| {
            card.decoder_percent.map(f64::from)
        }),
        ("DCGM_FI_DEV_FAN_SPEED", MetricKind::Gauge, "Fan speed (in %).", |card| card.fan_percent.map(f64::from)),
        ("DCGM_FI_DEV_PSTATE", MetricKind::Gauge, "Performance state; 0 is the fastest.", |card| {
            card.performance_state.map(f64::from)
        }),
        ("DCGM_FI_DEV_FB_TOTAL", MetricKind::Gauge, "Memory of the GPU (in MiB).", |card| mib(card.total)),
        ("DCGM_FI_DEV_FB_USED", MetricKind::Gauge, "Memory used (in MiB).", |card| mib(card.used)),
        ("DCGM_FI_DEV_FB_FREE", MetricKind::Gauge, "Memory free (in MiB).", |card| mib(card.free)),
        ("DCGM_FI_DEV_FB_RESERVED", MetricKind::Gauge, "Memory reserved by the driver (in MiB).", |card| {
            mib(card.reserved)
        }),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", MetricKind::Unknown, "Corrected memory errors.", |card| {
            card.ecc_corrected.map(|count| count as f64)
        }),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", MetricKind::Unknown, "Uncorrected memory errors.", |card| {
            card.ecc_uncorrected.map(|count| count as f64)
        }),
    ];

pub(super) fn families(machine: &MachineView, host: &str) -> Vec<Family> {
    let cards = machine.cards.iter().map(|card| (labels(&card.sample, host), card)).collect::<Vec<_>>();
    let is_there = |card: &CardView| card.is_there && card.sample.lost.is_none();
    let mut there = Family::new("plimsoll_gpu_up", MetricKind::Gauge, None, "Whether the GPU answers.");
    for (labels, card) in &cards {
        there.push(&identity(labels), Some(f64::from(u8::from(is_there(card)))));
    }
    let mut throttled =
        Family::new("plimsoll_gpu_thermal_slowdown", MetricKind::Gauge, None, "Whether heat lowers the GPU's clocks.");
    let mut xids = Family::new(XID, MetricKind::Gauge, None, "The last Xid error.");
    let fields = FIELDS.iter().map(|(name, kind, help, value)| {
        let mut family = Family::new(name, *kind, None, help);
        // Readings of a card that is gone are stale.
        for (labels, card) in cards.iter().filter(|(_, card)| is_there(card)) {
            family.push(labels, value(&card.sample));
        }
        family
    });
    let mut families = fields.collect::<Vec<_>>();
    for (labels, card) in cards.iter().filter(|(_, card)| is_there(card)) {
        xids.push(labels, card.last_xid.map(|xid| xid as f64));
        throttled
            .push(&identity(labels), card.sample.throttling.map(|reasons| f64::from(u8::from(reasons.is_thermal()))));
    }
    families.extend([xids, there, throttled]);
    families
}

/// Labels of our own metrics: only those that identify the card. DCGM's other labels break Prometheus's naming rules.
fn identity(labels: &Labels) -> Labels {
    labels.iter().filter(|(name, _)| ["gpu", "UUID", "Hostname"].contains(name)).cloned().collect()
}

/// The labels of DCGM's exporter.
fn labels(card: &CardSample, host: &str) -> Labels {
    let mut labels = vec![
        ("gpu", card.index.to_string()),
        ("UUID", card.uuid.clone()),
        ("device", format!("nvidia{}", card.index)),
        ("modelName", card.name.clone()),
        ("Hostname", host.to_owned()),
    ];
    // Omit the label if the driver does not report the address.
    labels.extend(card.pci_bus_id.clone().map(|address| ("pci_bus_id", address)));
    labels
}
