//! Whether the machine's NVIDIA cards are computing right now, and for which processes.

use crate::driver::Driver;
use crate::visible::visible;
use nvml_wrapper::Nvml;
use std::env;

/// The current use of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUse {
    /// Its UUID.
    pub card: String,
    /// Percent of the driver's last sample period, a sixth of a second to a second, in which a kernel ran.
    pub busy_percent: u32,
    /// Processes that compute on it, as reported by the driver. Inside a container, these are the process numbers
    /// outside.
    pub pids: Vec<u32>,
}

/// The use of the cards that are visible to programs started by this process. `None` without a driver, or if the driver
/// does not report it.
pub fn gpu_use() -> Option<Vec<CardUse>> {
    read(&*Driver::open().ok()?)
}

fn read(nvml: &Nvml) -> Option<Vec<CardUse>> {
    let devices = (0..nvml.device_count().ok()?).filter_map(|index| nvml.device_by_index(index).ok());
    let devices = devices.filter_map(|device| Some((device.uuid().ok()?, device))).collect::<Vec<_>>();
    let uuids = devices.iter().map(|(uuid, _)| uuid.as_str()).collect::<Vec<_>>();
    let variable = env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
    let seen = visible(&uuids, variable.as_deref()).cuda_indices;
    let mut cards = Vec::new();
    for ((uuid, device), _) in devices.iter().zip(seen).filter(|(_, index)| index.is_some()) {
        let busy_percent = device.utilization_rates().ok()?.gpu;
        let pids = device.running_compute_processes().unwrap_or_default().into_iter().map(|process| process.pid);
        cards.push(CardUse { card: uuid.clone(), busy_percent, pids: pids.collect() });
    }
    Some(cards).filter(|cards| !cards.is_empty())
}
