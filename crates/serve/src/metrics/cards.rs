//! Cards, by DCGM's names. Its counters keep their names, which are no names of counters in OpenMetrics.

use super::family::{Family, Kind, Labels};
use plimsoll_telemetry::CardSample;
use plimsoll_units::Bytes;
use plimsoll_watch::{CardView, MachineView};

/// A field: its name, its kind, what it is, and its value of a card.
type Field = (&'static str, Kind, &'static str, fn(&CardSample) -> Option<f64>);

/// DCGM's field of errors, which keeps the last one.
const XID: &str = "DCGM_FI_DEV_XID_ERRORS";

const MIB: f64 = 1_048_576.0;

fn mib(bytes: Option<Bytes>) -> Option<f64> {
    bytes.map(|bytes| bytes.0 as f64 / MIB)
}

const FIELDS: &[Field] = &[
    ("DCGM_FI_DEV_SM_CLOCK", Kind::Gauge, "SM clock frequency (in MHz).", |card| card.sm_clock_mhz.map(f64::from)),
    ("DCGM_FI_DEV_MEM_CLOCK", Kind::Gauge, "Memory clock frequency (in MHz).", |card| {
        card.memory_clock_mhz.map(f64::from)
    }),
    ("DCGM_FI_DEV_GPU_TEMP", Kind::Gauge, "GPU temperature (in C).", |card| card.temperature_c),
    ("DCGM_FI_DEV_MEMORY_TEMP", Kind::Gauge, "Memory temperature (in C).", |card| card.memory_temperature_c),
    ("DCGM_FI_DEV_SLOWDOWN_TEMP", Kind::Gauge, "Slowdown temperature (in C).", |card| card.limits.slowdown_c),
    ("DCGM_FI_DEV_SHUTDOWN_TEMP", Kind::Gauge, "Shutdown temperature (in C).", |card| card.limits.shutdown_c),
    ("DCGM_FI_DEV_POWER_USAGE", Kind::Gauge, "Power draw (in W).", |card| card.power_w),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Kind::Gauge, "Power limit (in W).", |card| card.power_limit_w),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Kind::Unknown,
        "Energy used since the driver was loaded (in mJ).",
        |card| card.energy_j.map(|joules| joules * 1e3),
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Kind::Unknown, "PCIe packets that were sent again.", |card| {
        card.pcie_replays.map(|count| count as f64)
    }),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", Kind::Gauge, "PCIe generation of the link now.", |card| {
        card.pcie_generation.map(f64::from)
    }),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", Kind::Gauge, "PCIe lanes of the link now.", |card| card.pcie_lanes.map(f64::from)),
    ("DCGM_FI_DEV_GPU_UTIL", Kind::Gauge, "GPU utilization (in %).", |card| card.busy_percent.map(f64::from)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Kind::Gauge, "Memory utilization (in %).", |card| {
        card.memory_busy_percent.map(f64::from)
    }),
    ("DCGM_FI_DEV_ENC_UTIL", Kind::Gauge, "Encoder utilization (in %).", |card| card.encoder_percent.map(f64::from)),
    ("DCGM_FI_DEV_DEC_UTIL", Kind::Gauge, "Decoder utilization (in %).", |card| card.decoder_percent.map(f64::from)),
    ("DCGM_FI_DEV_FAN_SPEED", Kind::Gauge, "Fan speed (in %).", |card| card.fan_percent.map(f64::from)),
    ("DCGM_FI_DEV_PSTATE", Kind::Gauge, "Performance state; 0 is the fastest.", |card| {
        card.performance_state.map(f64::from)
    }),
    ("DCGM_FI_DEV_FB_TOTAL", Kind::Gauge, "Memory of the card (in MiB).", |card| mib(card.total)),
    ("DCGM_FI_DEV_FB_USED", Kind::Gauge, "Memory used (in MiB).", |card| mib(card.used)),
    ("DCGM_FI_DEV_FB_FREE", Kind::Gauge, "Memory free (in MiB).", |card| mib(card.free)),
    ("DCGM_FI_DEV_FB_RESERVED", Kind::Gauge, "Memory reserved by the driver (in MiB).", |card| mib(card.reserved)),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Kind::Unknown, "Memory errors that were corrected.", |card| {
        card.ecc_corrected.map(|count| count as f64)
    }),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Kind::Unknown, "Memory errors that were not corrected.", |card| {
        card.ecc_uncorrected.map(|count| count as f64)
    }),
];

pub(super) fn families(machine: &MachineView, host: &str) -> Vec<Family> {
    let cards = machine.cards.iter().map(|card| (labels(&card.sample, host), card)).collect::<Vec<_>>();
    let is_there = |card: &CardView| card.is_there && card.sample.lost.is_none();
    let mut there = Family::new("plimsoll_gpu_up", Kind::Gauge, None, "Whether the card answers.");
    for (labels, card) in &cards {
        there.push(&own(labels), Some(f64::from(u8::from(is_there(card)))));
    }
    let mut throttled =
        Family::new("plimsoll_gpu_thermal_slowdown", Kind::Gauge, None, "Whether heat lowers the card's clocks.");
    let mut xids = Family::new(XID, Kind::Gauge, None, "The last Xid error, if there was one.");
    let fields = FIELDS.iter().map(|(name, kind, help, value)| {
        let mut family = Family::new(name, *kind, None, help);
        // What a card said before it fell off is not what it says.
        for (labels, card) in cards.iter().filter(|(_, card)| is_there(card)) {
            family.push(labels, value(&card.sample));
        }
        family
    });
    let mut families = fields.collect::<Vec<_>>();
    for (labels, card) in cards.iter().filter(|(_, card)| is_there(card)) {
        xids.push(labels, card.last_xid.map(|xid| xid as f64));
        throttled.push(&own(labels), card.sample.throttling.map(|reasons| f64::from(u8::from(reasons.is_thermal()))));
    }
    families.extend([xids, there, throttled]);
    families
}

/// The labels of what has a name of our own: those that tell cards apart, which are not written as Prometheus would have it.
fn own(labels: &Labels) -> Labels {
    labels.iter().filter(|(name, _)| ["gpu", "UUID", "Hostname"].contains(name)).cloned().collect()
}

/// The labels that DCGM's exporter has.
fn labels(card: &CardSample, host: &str) -> Labels {
    let mut labels = vec![
        ("gpu", card.index.to_string()),
        ("UUID", card.uuid.clone()),
        ("device", format!("nvidia{}", card.index)),
        ("modelName", card.name.clone()),
        ("Hostname", host.to_owned()),
    ];
    // Where the driver does not tell, a label would only be empty.
    labels.extend(card.pci_bus_id.clone().map(|address| ("pci_bus_id", address)));
    labels
}
