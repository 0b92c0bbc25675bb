//! A snapshot of the cards and the system. One type for views, histories, alerts and the heat guard. A missing reading
//! is `None`, never zero. Not here: how it is read (`card_reader.rs`, `system_reader.rs`) and when (`sampler.rs`).

mod card_reader;
mod sampler;
mod system_reader;
mod throttling;

pub use sampler::{Sampler, SamplerOptions, sample_once};
pub use throttling::Throttling;

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The state of the machine at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The start of the reading: seconds since 1970, by the system's clock.
    pub time_s: f64,
    /// The cards, in NVML's order; empty without a driver.
    pub cards: Vec<CardSample>,
    /// The rest of the machine.
    pub system: SystemSample,
}

/// The state of a card at a time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CardSample {
    /// NVML's number.
    pub index: u32,
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Its PCI bus address: `00000000:01:00.0`.
    pub pci_bus_id: Option<String>,
    /// Why the card has no readings: it fell off the bus, or the driver does not respond.
    pub lost: Option<String>,
    /// Temperature of the core.
    pub temperature_c: Option<f64>,
    /// Temperature of the memory chips; few cards report it.
    pub memory_temperature_c: Option<f64>,
    /// Temperature of the hottest point of the chip. NVML has no call for it; other drivers may.
    pub hotspot_temperature_c: Option<f64>,
    /// Properties and limits of the card, which rarely change.
    pub limits: CardLimits,
    /// Power draw.
    pub power_w: Option<f64>,
    /// Current power limit.
    pub power_limit_w: Option<f64>,
    /// Energy used since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory.
    pub memory_clock_mhz: Option<u32>,
    /// Why clocks are below their maximum.
    pub throttling: Option<Throttling>,
    /// Performance state; P0 is the fastest.
    pub performance_state: Option<u32>,
    /// Speed of its fastest fan, in percent of the maximum.
    pub fan_percent: Option<u32>,
    /// Percent of the driver's last sample period in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Percent of the driver's last sample period in which its memory was read or written.
    pub memory_busy_percent: Option<u32>,
    /// Use of the video encoder.
    pub encoder_percent: Option<u32>,
    /// Use of the video decoder.
    pub decoder_percent: Option<u32>,
    /// Total memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// Memory used by processes.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Memory available to processes.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// Memory reserved by driver and firmware.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// Processes that hold its memory, largest first.
    pub processes: Vec<CardProcess>,
    /// Current PCIe generation of the link; it falls when the card is idle.
    pub pcie_generation: Option<u32>,
    /// Current number of PCIe lanes.
    pub pcie_lanes: Option<u32>,
    /// From the machine to the card.
    pub pcie_received_bytes_per_s: Option<f64>,
    /// From the card to the machine.
    pub pcie_sent_bytes_per_s: Option<f64>,
    /// Retransmitted packets since the driver was loaded.
    pub pcie_replays: Option<u64>,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Memory pages retired because of errors.
    pub retired_pages: Option<u64>,
    /// Memory rows remapped because of errors.
    pub remapped_rows: Option<u64>,
    /// Errors that the driver reported since the last sample, as NVIDIA's Xid numbers.
    pub xids: Vec<u64>,
    /// Whether MIG mode is on.
    pub mig: Option<bool>,
    /// Which processes may compute on it: `default`, `exclusive process`, `prohibited`.
    pub compute_mode: Option<String>,
}

/// Properties and settings of a card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CardLimits {
    /// The core temperature at which the card throttles.
    pub slowdown_c: Option<f64>,
    /// The core temperature at which it shuts down.
    pub shutdown_c: Option<f64>,
    /// The maker's maximum core temperature in operation.
    pub operating_c: Option<f64>,
    /// The memory temperature at which it throttles.
    pub memory_slowdown_c: Option<f64>,
    /// The default power limit.
    pub power_default_w: Option<f64>,
    /// The lowest power limit that can be set.
    pub power_min_w: Option<f64>,
    /// The highest power limit that can be set.
    pub power_max_w: Option<f64>,
    /// The maximum clock of the multiprocessors.
    pub sm_clock_max_mhz: Option<u32>,
    /// The maximum clock of the memory.
    pub memory_clock_max_mhz: Option<u32>,
    /// The highest PCIe generation that card and machine both support.
    pub pcie_generation_max: Option<u32>,
    /// The largest number of lanes that card and machine both support.
    pub pcie_lanes_max: Option<u32>,
}

/// A process that holds memory of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardProcess {
    /// The process number. Inside a container, this is the number outside.
    pub pid: u32,
    /// The program's name.
    pub name: Option<String>,
    /// The number of the user that runs it.
    pub uid: Option<u32>,
    /// Memory held; not reported on Windows.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Whether it computes rather than only draws.
    pub computes: bool,
}

/// The state of the machine without its cards.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemSample {
    /// Use of all cores since the last sample; `None` for the first sample.
    pub cpu_percent: Option<f64>,
    /// Number of cores.
    pub cores: Option<u32>,
    /// Total memory of the machine.
    #[serde(rename = "memory_total_bytes")]
    pub memory_total: Option<Bytes>,
    /// Memory that a program could use without swapping.
    #[serde(rename = "memory_available_bytes")]
    pub memory_available: Option<Bytes>,
    /// Used swap space.
    #[serde(rename = "swap_used_bytes")]
    pub swap_used: Option<Bytes>,
    /// Resident memory of the sampling process.
    #[serde(rename = "process_bytes")]
    pub process: Option<Bytes>,
    /// Percent of the last ten seconds in which a task waited for a core. Source: the kernel's pressure stall
    /// information.
    pub cpu_pressure_percent: Option<f64>,
    /// The same for memory.
    pub memory_pressure_percent: Option<f64>,
    /// The same for disks.
    pub io_pressure_percent: Option<f64>,
    /// Limit of the control group that restricts this process the most.
    #[serde(rename = "group_limit_bytes")]
    pub group_limit: Option<Bytes>,
    /// Memory used by that group.
    #[serde(rename = "group_used_bytes")]
    pub group_used: Option<Bytes>,
    /// Size of the disk with the run's folder.
    #[serde(rename = "disk_total_bytes")]
    pub disk_total: Option<Bytes>,
    /// Space on it that is free for this user.
    #[serde(rename = "disk_free_bytes")]
    pub disk_free: Option<Bytes>,
}
