//! Who holds a card's memory: the processes that NVML knows. Windows does not tell it how much each has.

use crate::driver::Driver;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use plimsoll_units::Bytes;
use serde::Serialize;

/// A process that holds memory of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The card's UUID.
    pub card: String,
    /// The process.
    pub pid: u32,
    /// Its name, where the system tells it.
    pub name: Option<String>,
    /// What it holds, where the driver tells it.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
}

/// The processes that hold memory of the machine's cards, this one left out. Nobody where NVML does not tell.
pub fn gpu_holders() -> Vec<Holder> {
    Driver::open().map_or_else(|_| Vec::new(), |driver| read(&driver))
}

fn read(nvml: &Nvml) -> Vec<Holder> {
    let devices = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok());
    let mut holders = Vec::new();
    for device in devices {
        let Ok(card) = device.uuid() else { continue };
        let lists = [device.running_compute_processes(), device.running_graphics_processes()];
        for process in lists.into_iter().flatten().flatten().filter(|process| process.pid != std::process::id()) {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                UsedGpuMemory::Unavailable => None,
            };
            holders.push(Holder { card: card.clone(), pid: process.pid, name: program_name(process.pid), used });
        }
    }
    // A process that computes and draws is in both lists.
    holders.sort_by(|a, b| (&a.card, b.used, a.pid).cmp(&(&b.card, a.used, b.pid)));
    holders.dedup_by(|a, b| (&a.card, a.pid) == (&b.card, b.pid));
    holders
}

/// The name of a process's program, where the system tells it.
pub(crate) fn program_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
