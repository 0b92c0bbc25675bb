//! The machine's NVIDIA cards, as the driver's own library (NVML) tells of them. The library is looked for when asked;
//! nothing of NVIDIA's is needed to build. Not here: using the cards. Read next: `visible.rs`, how CUDA numbers them.

use crate::driver::Driver;
use crate::visible::{BadEntry, visible};
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use plimsoll_files::library_problem;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;

/// The library's name, by which the wrapper looks for it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// More cards than any machine has: a library that counts more is wrong.
const MOST_CARDS: u32 = 1024;

/// What a machine has of NVIDIA's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpus {
    /// The driver's version, `580.95.05`.
    pub driver: Option<String>,
    /// The cards that could be read, in NVML's order, which is that of the PCI bus; maybe none.
    pub cards: Vec<Gpu>,
    /// What a reader should know beside the numbers.
    pub notes: Vec<GpuNote>,
}

impl Gpus {
    /// The card that CUDA gives this number; number 0 is the one that programs take unless told otherwise.
    pub fn by_cuda_index(&self, cuda_index: usize) -> Option<&Gpu> {
        self.cards.iter().find(|card| card.cuda_index == Some(cuda_index))
    }
}

/// A card. What is free and used holds for the moment at which it was read, over all processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's number, which `nvidia-smi` shows too.
    pub index: u32,
    /// What CUDA calls this number under `CUDA_VISIBLE_DEVICES`; `None` where that variable hides the card.
    pub cuda_index: Option<usize>,
    /// The product: `NVIDIA GeForce RTX 3060`.
    pub name: String,
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: String,
    /// Everything on the card, what the driver keeps for itself included.
    #[serde(rename = "total_bytes")]
    pub total: Bytes,
    /// What driver and firmware keep, which no process can have. `None` where the driver only has NVML's first reading
    /// of memory (before version 510, and on some Windows hosts of Linux): `used` then counts it.
    #[serde(rename = "reserved_bytes")]
    pub reserved: Option<Bytes>,
    /// What processes have taken: `total` = `reserved` + `used` + `free`.
    #[serde(rename = "used_bytes")]
    pub used: Bytes,
    /// What processes can still take.
    #[serde(rename = "free_bytes")]
    pub free: Bytes,
    /// In °C.
    pub temperature_c: Option<u32>,
    /// The power that the card may draw, in watts.
    pub power_limit_w: Option<f64>,
}

/// Something about a machine's cards that numbers do not show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum GpuNote {
    /// A card is left out, because NVML does not tell of it.
    Unreadable {
        /// NVML's number.
        index: u32,
        /// What was asked for.
        what: String,
        /// The answer.
        reason: String,
    },
    /// Cards differ, and CUDA orders them by speed: `cuda_index` may be another's.
    OrderUnknown,
    /// `CUDA_VISIBLE_DEVICES` has an entry that matches no card of this machine.
    InvalidEntry {
        /// As written.
        entry: String,
    },
    /// A card is in MIG mode: CUDA shows a slice of it in its place.
    MigMode {
        /// NVML's number.
        index: u32,
    },
    /// `CUDA_VISIBLE_DEVICES` names a part of a card.
    MigEntry {
        /// As written.
        entry: String,
    },
    /// `CUDA_VISIBLE_DEVICES` names a card twice.
    RepeatedEntry {
        /// As written, the second time.
        entry: String,
    },
}

impl fmt::Display for GpuNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { index, what, reason } => {
                write!(
                    f,
                    "card {index} is skipped, its {what} can't be read: {reason}; CUDA may number the others differently"
                )
            }
            Self::OrderUnknown => f.write_str(
                "CUDA numbers different cards by speed, so its numbers may differ from these; \
                 `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes them match",
            ),
            Self::InvalidEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` matches no card, or several, and hides the cards after it")
            }
            Self::MigMode { index } => {
                write!(f, "card {index} is in MIG mode; CUDA shows an instance of it, which is not listed here")
            }
            Self::MigEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` is a MIG instance, which is not listed here")
            }
            Self::RepeatedEntry { entry } => {
                write!(f, "CUDA_VISIBLE_DEVICES: `{entry}` repeats a card, which hides all cards")
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

/// Why nothing is known of a machine's cards.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The library is missing or is none, or the driver behind it is not running.
    #[error("no NVIDIA driver ({reason})")]
    NoDriver {
        /// What the system or NVML said.
        reason: String,
    },
    /// The library is newer than the driver that runs, as after an update.
    #[error("the NVIDIA driver was updated, but the old one is still loaded; restart the machine")]
    Outdated,
    /// NVML could not do something without which there is no answer.
    #[error("NVML failed at {what}: {source}")]
    Failed {
        /// What was attempted.
        what: &'static str,
        /// What NVML said.
        #[source]
        source: NvmlError,
    },
    /// A count that cannot be true.
    #[error("NVML reports {count} cards, more than a machine can have")]
    TooMany {
        /// The count.
        count: u32,
    },
}

/// The machine's NVIDIA cards, by the driver's library or the one that the environment variable `PLIMSOLL_NVML` names.
/// No card is not an error; a card that cannot be read is left out with a note.
/// Errors: `NoDriver` where there is no driver; `Outdated`, `Failed` and `TooMany` where it does not answer.
pub fn gpus() -> Result<Gpus, GpuError> {
    Driver::open().and_then(|driver| read(&driver))
}

/// As [`gpus`], by the library in this file.
pub fn gpus_from(library: &Path) -> Result<Gpus, GpuError> {
    Driver::open_library(Some(library.as_os_str())).and_then(|driver| read(&driver))
}

/// Starts NVML, from this library or the driver's.
pub(crate) fn start(library: Option<&OsStr>) -> Result<Nvml, GpuError> {
    let mut builder = Nvml::builder();
    if let Some(library) = library {
        builder.lib_path(library);
    }
    if let Some(reason) = library_problem(library.unwrap_or(OsStr::new(LIBRARY))) {
        return Err(GpuError::NoDriver { reason });
    }
    builder.init().map_err(|source| match source {
        NvmlError::LibloadingError(error) => GpuError::NoDriver { reason: error.to_string() },
        NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => GpuError::NoDriver { reason: source.to_string() },
        NvmlError::LibRmVersionMismatch => GpuError::Outdated,
        source => GpuError::Failed { what: "starting", source },
    })
}

fn read(nvml: &Nvml) -> Result<Gpus, GpuError> {
    let count = nvml.device_count().map_err(|source| GpuError::Failed { what: "counting cards", source })?;
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
    notes.extend(hide_divided(nvml, &mut cards));
    Ok(Gpus { driver: nvml.sys_driver_version().ok(), cards, notes })
}

/// A card without its number under CUDA, or which reading failed and how.
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

/// Gives cards their numbers under this process's environment, and says what is doubtful about them.
fn number_cards(cards: &mut [Gpu]) -> Vec<GpuNote> {
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let uuids = cards.iter().map(|card| card.uuid.as_str()).collect::<Vec<_>>();
    let seen = visible(&uuids, variable("CUDA_VISIBLE_DEVICES").as_deref());
    let is_by_bus = variable("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
    let are_alike = cards.windows(2).all(|pair| pair[0].name == pair[1].name);
    let mut notes = seen.stopped_at.map(GpuNote::from).into_iter().collect::<Vec<_>>();
    if seen.supposes_order && !is_by_bus && !are_alike {
        notes.push(GpuNote::OrderUnknown);
    }
    for (card, cuda_index) in cards.iter_mut().zip(seen.cuda_indices) {
        card.cuda_index = cuda_index;
    }
    notes
}

/// Takes the numbers from cards in MIG mode, which no program can have as a whole.
fn hide_divided(nvml: &Nvml, cards: &mut [Gpu]) -> Vec<GpuNote> {
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

/// A card's memory by NVML's second reading, which tells reserved from used, or by its first where that fails.
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

/// NVML's first reading of memory, which the wrapper loads but does not wrap.
fn first_memory(device: &Device) -> Result<Memory, NvmlError> {
    let get_memory_info = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = MaybeUninit::zeroed();
    // SAFETY: `nvml_sym` checked that the library, which `device` borrows, has the function; the handle is from the same
    // library; `info` has the type that the function fills, three integers, for which zeros are values.
    let info = unsafe {
        nvml_try(get_memory_info(device.handle(), info.as_mut_ptr()))?;
        info.assume_init()
    };
    Ok(Memory { total: Bytes(info.total), reserved: None, used: Bytes(info.used), free: Bytes(info.free) })
}
