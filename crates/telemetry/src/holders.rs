//! The processes that hold a card's memory, according to NVML. On Windows, NVML does not report how much each holds.

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
    /// The process number.
    pub pid: u32,
    /// The program's name, if the system reports it.
    pub name: Option<String>,
    /// The user that runs it, by name or otherwise by number, if the system reports it.
    pub owner: Option<String>,
    /// The memory that it holds, if the driver reports it.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
}

/// The processes, except this one, that hold memory of the machine's cards. Empty if NVML does not report them.
pub fn gpu_holders() -> Vec<Holder> {
    Driver::open().map_or_else(|_| Vec::new(), |driver| read(&driver))
}

/// The memory that this process holds on the card with this UUID. `None` if NVML does not report it, as on Windows, or
/// knows the process by another number, as in containers.
pub fn own_gpu_memory(card: &str) -> Option<Bytes> {
    let driver = Driver::open().ok()?;
    let devices = (0..driver.device_count().ok()?).filter_map(|index| driver.device_by_index(index).ok());
    let device = devices.into_iter().find(|device| device.uuid().is_ok_and(|uuid| uuid == card))?;
    let processes = device.running_compute_processes().ok()?;
    match processes.into_iter().find(|process| process.pid == std::process::id())?.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
        UsedGpuMemory::Unavailable => None,
    }
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
            let (pid, name) = (process.pid, program_name(process.pid));
            holders.push(Holder { card: card.clone(), pid, name, owner: owner_name(pid), used });
        }
    }
    // A process that both computes and draws is in both lists.
    holders.sort_by(|a, b| (&a.card, b.used, a.pid).cmp(&(&b.card, a.used, b.pid)));
    holders.dedup_by(|a, b| (&a.card, a.pid) == (&b.card, b.pid));
    holders
}

/// The name of a process's program, if the system reports it.
pub(crate) fn program_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The user number of a process.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(format!("/proc/{pid}")).ok().map(|folder| folder.uid())
    }
    #[cfg(not(unix))]
    {
        let _ = pid;
        None
    }
}

/// The user name of a process, if this machine has one.
fn owner_name(pid: u32) -> Option<String> {
    /// Larger than any machine's file of local users.
    const USERS: Bytes = Bytes::mib(1);
    let uid = owner(pid)?.to_string();
    let users = plimsoll_files::read_any_text(std::path::Path::new("/etc/passwd"), USERS).unwrap_or_default();
    // name:password:number:…
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    Some(name.unwrap_or(uid))
}
