//! What is observed at a moment: the cards and the system. One type for views, histories, alerts and the guard against heat.
//! A reading that nobody gives is `None`, never zero. Not here: how it is read (`card_reader.rs`, `system_reader.rs`), when
//! (`sampler.rs`).

mod card_reader;
mod sampler;
mod system_reader;
mod throttling;

pub use sampler::{Sampler, SamplerOptions, sample_once};
pub use throttling::Throttling;

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The machine at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was begun: seconds since 1970, by the system's clock.
    pub time_s: f64,
    /// The cards, in NVML's order; none without a driver.
    pub cards: Vec<CardSample>,
    /// The rest of the machine.
    pub system: SystemSample,
}

/// A card at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CardSample {
    /// NVML's number.
    pub index: u32,
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Where it is plugged in: `00000000:01:00.0`.
    pub pci_bus_id: Option<String>,
    /// Why nothing is known of it: it fell off the bus, or the driver does not answer for it.
    pub lost: Option<String>,
    /// Of the core.
    pub temperature_c: Option<f64>,
    /// Of the memory chips; few cards tell.
    pub memory_temperature_c: Option<f64>,
    /// Of the hottest place of the chip. NVML has no call for it; other drivers may.
    pub hotspot_temperature_c: Option<f64>,
    /// What the card is made of, which changes rarely.
    pub limits: CardLimits,
    /// What it draws.
    pub power_w: Option<f64>,
    /// What it may draw now.
    pub power_limit_w: Option<f64>,
    /// What it has used since the driver was loaded.
    pub energy_j: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory.
    pub memory_clock_mhz: Option<u32>,
    /// Why clocks are below what they could be.
    pub throttling: Option<Throttling>,
    /// P0 is the fastest.
    pub performance_state: Option<u32>,
    /// The fastest of its fans, of its largest speed.
    pub fan_percent: Option<u32>,
    /// The part of the last moment in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// The part of the last moment in which its memory was read or written.
    pub memory_busy_percent: Option<u32>,
    /// Of the video encoder.
    pub encoder_percent: Option<u32>,
    /// Of the video decoder.
    pub decoder_percent: Option<u32>,
    /// All memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// What processes have taken.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// What they can still take.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// What driver and firmware keep.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// Who has it, the largest first.
    pub processes: Vec<CardProcess>,
    /// Generation of the link to the machine now; it falls when the card idles.
    pub pcie_generation: Option<u32>,
    /// Its lanes now.
    pub pcie_lanes: Option<u32>,
    /// From the machine to the card.
    pub pcie_received_bytes_per_s: Option<f64>,
    /// From the card to the machine.
    pub pcie_sent_bytes_per_s: Option<f64>,
    /// Packets that were sent again, since the driver was loaded.
    pub pcie_replays: Option<u64>,
    /// Errors of memory that were corrected, since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Errors of memory that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Pages of memory that are no longer used, for errors.
    pub retired_pages: Option<u64>,
    /// Rows of memory that were replaced, for errors.
    pub remapped_rows: Option<u64>,
    /// Errors that the driver reported since the last sample, by NVIDIA's numbers.
    pub xids: Vec<u64>,
    /// Whether it is divided.
    pub mig: Option<bool>,
    /// Who may compute on it: `default`, `exclusive process`, `prohibited`.
    pub compute_mode: Option<String>,
}

/// What a card is made of, and what it was told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CardLimits {
    /// From this core temperature the card slows itself down.
    pub slowdown_c: Option<f64>,
    /// At this one it turns itself off.
    pub shutdown_c: Option<f64>,
    /// The most that its maker lets the core have in operation.
    pub operating_c: Option<f64>,
    /// From this temperature of its memory it slows itself down.
    pub memory_slowdown_c: Option<f64>,
    /// The power limit that it comes with.
    pub power_default_w: Option<f64>,
    /// The least power limit that can be set.
    pub power_min_w: Option<f64>,
    /// The most.
    pub power_max_w: Option<f64>,
    /// The most that the multiprocessors are clocked with.
    pub sm_clock_max_mhz: Option<u32>,
    /// The most that the memory is clocked with.
    pub memory_clock_max_mhz: Option<u32>,
    /// Generation of the link that card and machine can have.
    pub pcie_generation_max: Option<u32>,
    /// Lanes that they can have.
    pub pcie_lanes_max: Option<u32>,
}

/// A process that has memory of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardProcess {
    /// Its number. Inside a container it is that outside.
    pub pid: u32,
    /// Its program's name.
    pub name: Option<String>,
    /// The user that it runs as, by number.
    pub uid: Option<u32>,
    /// What it has; Windows does not tell.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Whether it computes, and does not only draw.
    pub computes: bool,
}

/// The machine without its cards.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemSample {
    /// The part of all cores' time that was used since the last sample; none at the first.
    pub cpu_percent: Option<f64>,
    /// Cores that are counted.
    pub cores: Option<u32>,
    /// Memory of the machine.
    #[serde(rename = "memory_total_bytes")]
    pub memory_total: Option<Bytes>,
    /// What a program could take of it without swapping.
    #[serde(rename = "memory_available_bytes")]
    pub memory_available: Option<Bytes>,
    /// What is swapped out.
    #[serde(rename = "swap_used_bytes")]
    pub swap_used: Option<Bytes>,
    /// What the process that samples has in memory.
    #[serde(rename = "process_bytes")]
    pub process: Option<Bytes>,
    /// The part of the last ten seconds in which somebody waited for a core. Source: the kernel's pressure stall information.
    pub cpu_pressure_percent: Option<f64>,
    /// The same for memory.
    pub memory_pressure_percent: Option<f64>,
    /// The same for disks.
    pub io_pressure_percent: Option<f64>,
    /// What the control group may have that limits this process the most.
    #[serde(rename = "group_limit_bytes")]
    pub group_limit: Option<Bytes>,
    /// What that group has.
    #[serde(rename = "group_used_bytes")]
    pub group_used: Option<Bytes>,
    /// Size of the disk that the run's folder is on.
    #[serde(rename = "disk_total_bytes")]
    pub disk_total: Option<Bytes>,
    /// What is free of it for this user.
    #[serde(rename = "disk_free_bytes")]
    pub disk_free: Option<Bytes>,
}
