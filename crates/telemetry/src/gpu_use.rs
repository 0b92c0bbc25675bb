//! Whether the machine's NVIDIA cards compute right now, and for whom.

use crate::driver::Driver;
use crate::visible::visible;
use nvml_wrapper::Nvml;
use std::env;

/// What a card does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUse {
    /// Its UUID.
    pub card: String,
    /// The part of the last moment, a sixth of a second to a second, in which a kernel ran; in percent.
    pub busy_percent: u32,
    /// Processes that compute on it, as far as the driver tells. Inside a container their numbers are those outside.
    pub pids: Vec<u32>,
}

/// What the cards do that programs started by this process see. `None` where nobody tells: no driver, or one that does not
/// know.
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
