//! The machine's NVIDIA cards, as reported by the driver's library (NVML). The library is loaded at run time; building
//! needs nothing from NVIDIA. Not here: using the cards. Read next: `visible.rs`, on CUDA's numbers for them.

use crate::driver::{Driver, GpuError};
use crate::visible::{BadEntry, visible};
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::env;
use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;

/// More than any machine has: a larger count is an error of the library.
const MOST_CARDS: u32 = 1024;

/// The NVIDIA driver and cards of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// The driver's version, `580.95.05`.
    pub driver: Option<String>,
    /// The readable cards, in NVML's order, which is that of the PCI bus; may be empty.
    pub cards: Vec<Gpu>,
    /// Notes that a reader of the numbers should see.
    pub notes: Vec<GpuNote>,
}

impl Gpus {
    /// The card with this number in CUDA; programs use number 0 by default.
    pub fn by_cuda_index(&self, cuda_index: usize) -> Option<&Gpu> {
        self.cards.iter().find(|card| card.cuda_index == Some(cuda_index))
    }
}

/// A card. Free and used memory are as of the time of reading, over all processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's number, which `nvidia-smi` also shows.
    pub index: u32,
    /// CUDA's number under `CUDA_VISIBLE_DEVICES`; `None` if that variable hides the card.
    pub cuda_index: Option<usize>,
    /// The product: `NVIDIA GeForce RTX 3060`.
    pub name: String,
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: String,
    /// All memory of the card, including memory reserved by the driver.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// Memory reserved by driver and firmware, which is not available to processes. `None` if the driver only has
    /// NVML's first memory call (before version 510, and on some Windows hosts of Linux): then `used` includes it.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// Memory used by processes: `total` = `reserved` + `used` + `free`.
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// Memory available to processes.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
    /// Core temperature in °C.
    pub temperature_c: Option<u32>,
    /// The current power limit, in watts.
    pub power_limit_w: Option<f64>,
}

/// A note about the machine's cards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum GpuNote {
    /// A card is skipped because NVML can't read it.
    Unreadable {
        /// NVML's number.
        index: u32,
        /// The reading that failed.
        what: String,
        /// NVML's error.
        reason: String,
    },
    /// The cards are of different models, and CUDA orders them by speed: `cuda_index` may be wrong.
    OrderUnknown,
    /// `CUDA_VISIBLE_DEVICES` has an entry that matches no card of this machine.
    InvalidEntry {
        /// The entry as written.
        entry: String,
    },
    /// A card is in MIG mode: CUDA shows one of its instances instead.
    MigMode {
        /// NVML's number.
        index: u32,
    },
    /// `CUDA_VISIBLE_DEVICES` names a MIG instance.
    MigEntry {
        /// The entry as written.
        entry: String,
    },
    /// `CUDA_VISIBLE_DEVICES` names a card twice.
    RepeatedEntry {
        /// The second entry as written.
        entry: String,
    },
}

impl fmt::Display for GpuNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { index, what, reason } => {
                write!(
                    f,
                    "GPU {index} is skipped, its {what} can't be read: {reason}; CUDA may number the others differently"
                )
            }
            Self::OrderUnknown => f.write_str(
                "CUDA numbers different GPUs by speed, so its numbers may differ from these; \
                 `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes them match",
            ),
            Self::InvalidEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` matches no GPU, or several, and hides the GPUs after it")
            }
            Self::MigMode { index } => {
                write!(f, "GPU {index} is in MIG mode; CUDA shows an instance of it, which is not listed here")
            }
            Self::MigEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` is a MIG instance, which is not listed here")
            }
            Self::RepeatedEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` repeats a GPU, which hides all GPUs")
            }
        }
    }
}

impl From<BadEntry> for GpuNote {
    fn from(bad: BadEntry) -> Self {
        match bad {
            BadEntry::Invalid(entry) => Self::InvalidEntry { entry },
            BadEntry::Mig(entry) => Self::MigEntry { entry },
            BadEntry::Repeated(entry) => Self::RepeatedEntry { entry },
        }
    }
}

/// The machine's NVIDIA cards, read through the driver's library, or the one named by the environment variable
/// `PLIMSOLL_NVML`. Having no card is not an error; an unreadable card is skipped with a note.
/// Errors: `NoDriver` without a driver; `Outdated`, `Failed` and `TooMany` if it does not respond.
pub fn gpus() -> Result<Gpus, GpuError> {
    Driver::open().and_then(|driver| read(&driver))
}

/// Like [`gpus`], with the library in this file.
pub fn gpus_from(library: &Path) -> Result<Gpus, GpuError> {
    Driver::open_library(Some(library.as_os_str())).and_then(|driver| read(&driver))
}

fn read(nvml: &Nvml) -> Result<Gpus, GpuError> {
    let count = nvml.device_count().map_err(|source| GpuError::Failed { what: "counting GPUs", source })?;
    if count > MOST_CARDS {
        return Err(GpuError::TooMany { count });
    }
    let (mut cards, mut notes) = (vec![], vec![]);
    for index in 0..count {
        match read_card(nvml, index) {
            Ok(card) => cards.push(card),
            Err((what, reason)) => notes.push(GpuNote::Unreadable { index, what: what.to_owned(), reason }),
        }
    }
    notes.extend(number_cards(&mut cards));
    notes.extend(hide_mig_cards(nvml, &mut cards));
    Ok(Gpus { driver: nvml.sys_driver_version().ok(), cards, notes })
}

/// Reads a card without its number in CUDA. Errors: the reading that failed, and its error.
fn read_card(nvml: &Nvml, index: u32) -> Result<Gpu, (&'static str, String)> {
    let failed = |what| move |error: NvmlError| (what, error.to_string());
    let device = nvml.device_by_index(index).map_err(failed("handle"))?;
    let name = device.name().map_err(failed("name"))?;
    let uuid = device.uuid().map_err(failed("UUID"))?;
    let Memory { total, reserved, used, free } = memory(&device).map_err(failed("memory"))?;
    if total == Bytes::ZERO || [used, free, reserved.unwrap_or_default()].iter().any(|&part| part > total) {
        return Err(("memory", format!("a total of {total} with {used} used and {free} free is inconsistent")));
    }
    let temperature_c = device.temperature(TemperatureSensor::Gpu).ok();
    let power_limit_w = device.enforced_power_limit().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0);
    Ok(Gpu { index, cuda_index: None, name, uuid, total, reserved, used, free, temperature_c, power_limit_w })
}

/// Numbers the cards as CUDA does in this process's environment, and returns notes on doubtful numbers.
fn number_cards(cards: &mut [Gpu]) -> Vec<GpuNote> {
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let uuids = cards.iter().map(|card| card.uuid.as_str()).collect::<Vec<_>>();
    let seen = visible(&uuids, variable("CUDA_VISIBLE_DEVICES").as_deref());
    let is_by_bus = variable("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    let are_alike = cards.windows(2).all(|pair| pair[0].name == pair[1].name);
    let mut notes = seen.stopped_at.map(GpuNote::from).into_iter().collect::<Vec<_>>();
    if seen.assumes_order && !is_by_bus && !are_alike {
        notes.push(GpuNote::OrderUnknown);
    }
    for (card, cuda_index) in cards.iter_mut().zip(seen.cuda_indices) {
        card.cuda_index = cuda_index;
    }
    notes
}

/// Removes the numbers of cards in MIG mode, since no program can use them as a whole.
fn hide_mig_cards(nvml: &Nvml, cards: &mut [Gpu]) -> Vec<GpuNote> {
    /// `NVML_DEVICE_MIG_ENABLE`
    const ENABLED: u32 = 1;
    let mode = |index| nvml.device_by_index(index).and_then(|device| device.mig_mode());
    let divided = cards.iter_mut().filter(|card| mode(card.index).is_ok_and(|mode| mode.current == ENABLED));
    let hidden = divided.map(|card| {
        card.cuda_index = None;
        GpuNote::MigMode { index: card.index }
    });
    hidden.collect()
}

pub(crate) struct Memory {
    pub total: Bytes,
    pub reserved: Option<Bytes>,
    pub used: Bytes,
    pub free: Bytes,
}

/// A card's memory from NVML's second call, which separates reserved from used, or from its first if that fails.
pub(crate) fn memory(device: &Device) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(m) => Ok(Memory {
            total: Bytes(m.total),
            reserved: Some(Bytes(m.reserved)),
            used: Bytes(m.used),
            free: Bytes(m.free),
        }),
        Err(error) => first_memory(device).map_err(|_| error),
    }
}

/// NVML's first memory call, which the wrapper loads but does not wrap.
fn first_memory(device: &Device) -> Result<Memory, NvmlError> {
    let get_memory_info = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = MaybeUninit::zeroed();
    // SAFETY: `nvml_sym` checked that the library, which `device` borrows, has the function; the handle comes from the
    // same library; `info` has the type that the function fills: three integers, for which zeros are valid.
    let info = unsafe {
        nvml_try(get_memory_info(device.handle(), info.as_mut_ptr()))?;
        info.assume_init()
    };
    Ok(Memory { total: Bytes(info.total), reserved: None, used: Bytes(info.used), free: Bytes(info.free) })
}
