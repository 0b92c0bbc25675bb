//! Reads a card's current state through NVML. Each call may fail on its own: its reading is then `None`.
//! Not here: listing the machine's cards (`gpus.rs`), and when they are read (`sampler.rs`).

use super::{CardLimits, CardProcess, CardSample, Throttling};
use crate::gpus::memory;
use crate::holders::{owner, program_name};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_UNC, NVML_FI_DEV_RETIRED_DBE,
    NVML_FI_DEV_RETIRED_SBE,
};
use nvml_wrapper::{Device, EventSet, Nvml};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// Samples between two readings of values that rarely change.
const LIMITS_EVERY: u64 = 60;

/// A card that is read repeatedly.
pub(super) struct CardReader<'nvml> {
    nvml: &'nvml Nvml,
    index: u32,
    uuid: String,
    name: String,
    pci_bus_id: Option<String>,
    limits: CardLimits,
    /// The driver's reports of card errors; `None` if it does not support them.
    errors: Option<EventSet<'nvml>>,
    samples: u64,
}

/// The reading, or `None` if the call failed.
fn reading<T>(answer: Result<T, NvmlError>) -> Option<T> {
    answer.ok()
}

fn watts(milliwatts: Result<u32, NvmlError>) -> Option<f64> {
    reading(milliwatts).map(|milliwatts| f64::from(milliwatts) / 1000.0)
}

impl<'nvml> CardReader<'nvml> {
    /// The card with this NVML number. Errors: it can't be identified.
    pub fn new(nvml: &'nvml Nvml, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let (uuid, name) = (device.uuid()?, device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned()));
        let pci_bus_id = reading(device.pci_info()).map(|info| info.bus_id);
        let errors = nvml.create_event_set();
        let errors = errors.ok().and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
        Ok(Self { nvml, index, uuid, name, pci_bus_id, limits: CardLimits::default(), errors, samples: 0 })
    }

    /// Whether NVML's number still refers to this card.
    fn device(&self) -> Result<Device<'nvml>, NvmlError> {
        self.nvml.device_by_uuid(self.uuid.as_str()).or_else(|_| self.nvml.device_by_index(self.index))
    }

    /// The current state of the card. A card that does not respond only has the reason.
    pub fn read(&mut self) -> CardSample {
        let (index, uuid, name) = (self.index, self.uuid.clone(), self.name.clone());
        let known = CardSample { index, uuid, name, pci_bus_id: self.pci_bus_id.clone(), ..CardSample::default() };
        match self.device().and_then(|device| device.uuid().map(|uuid| (uuid, device))) {
            Err(error) => CardSample { lost: Some(error.to_string()), limits: self.limits.clone(), ..known },
            Ok((uuid, _)) if uuid != self.uuid => {
                CardSample { lost: Some("another GPU now has its number".to_owned()), ..known }
            }
            Ok((_, device)) => {
                if self.samples.is_multiple_of(LIMITS_EVERY) {
                    self.limits = limits(&device);
                }
                self.samples += 1;
                let limits = self.limits.clone();
                CardSample { limits, xids: self.errors(), ..sensors(&device, memory_of(&device, known)) }
            }
        }
    }

    /// Errors reported since the last call.
    fn errors(&self) -> Vec<u64> {
        /// More than this at once are repetitions of the same error.
        const MOST: usize = 16;
        let Some(set) = &self.errors else { return vec![] };
        let events = std::iter::from_fn(|| set.wait(0).ok()).take(MOST);
        let number = |error| match error {
            XidError::Value(number) => number,
            XidError::Unknown => 0,
        };
        events.filter_map(|event| event.event_data.map(number)).collect()
    }
}

fn memory_of(device: &Device, card: CardSample) -> CardSample {
    let memory = reading(memory(device));
    CardSample {
        total: memory.as_ref().map(|memory| memory.total),
        used: memory.as_ref().map(|memory| memory.used),
        free: memory.as_ref().map(|memory| memory.free),
        reserved: memory.as_ref().and_then(|memory| memory.reserved),
        processes: processes(device),
        ..card
    }
}

fn sensors(device: &Device, card: CardSample) -> CardSample {
    let use_of = reading(device.utilization_rates());
    let fields = fields(device);
    let field = |id: u32| fields.get(&id).copied();
    let sum = |ids: [u32; 2]| match ids.map(field) {
        [None, None] => None,
        counts => Some(counts.into_iter().flatten().sum::<f64>() as u64),
    };
    let ecc = |kind| reading(device.total_ecc_errors(kind, EccCounter::Volatile));
    let traffic = |counter| reading(device.pcie_throughput(counter)).map(|kib| f64::from(kib) * 1024.0);
    CardSample {
        temperature_c: reading(device.temperature(TemperatureSensor::Gpu)).map(f64::from),
        memory_temperature_c: field(NVML_FI_DEV_MEMORY_TEMP).filter(|celsius| *celsius > 0.0),
        power_w: watts(device.power_usage()),
        power_limit_w: watts(device.enforced_power_limit()),
        energy_j: reading(device.total_energy_consumption()).map(|millijoules| millijoules as f64 / 1000.0),
        sm_clock_mhz: reading(device.clock_info(Clock::SM)),
        memory_clock_mhz: reading(device.clock_info(Clock::Memory)),
        throttling: reading(device.current_throttle_reasons()).map(|reasons| Throttling(reasons.bits())),
        performance_state: reading(device.performance_state()).map(|state| state.as_c()),
        fan_percent: fan(device),
        busy_percent: use_of.as_ref().map(|part| part.gpu),
        memory_busy_percent: use_of.as_ref().map(|part| part.memory),
        encoder_percent: reading(device.encoder_utilization()).map(|part| part.utilization),
        decoder_percent: reading(device.decoder_utilization()).map(|part| part.utilization),
        pcie_generation: reading(device.current_pcie_link_gen()),
        pcie_lanes: reading(device.current_pcie_link_width()),
        pcie_received_bytes_per_s: traffic(PcieUtilCounter::Receive),
        pcie_sent_bytes_per_s: traffic(PcieUtilCounter::Send),
        pcie_replays: reading(device.pcie_replay_counter()).map(u64::from),
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        retired_pages: sum([NVML_FI_DEV_RETIRED_SBE, NVML_FI_DEV_RETIRED_DBE]),
        remapped_rows: sum([NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_UNC]),
        mig: reading(device.mig_mode()).map(|mode| mode.current == 1),
        compute_mode: reading(device.compute_mode()).map(compute_mode),
        ..card
    }
}

/// Speed of the fastest fan.
fn fan(device: &Device) -> Option<u32> {
    let count = reading(device.num_fans()).unwrap_or(1);
    (0..count).filter_map(|fan| reading(device.fan_speed(fan))).max()
}

/// Readings that NVML identifies by number.
fn fields(device: &Device) -> BTreeMap<u32, f64> {
    const IDS: [u32; 5] = [
        NVML_FI_DEV_MEMORY_TEMP,
        NVML_FI_DEV_RETIRED_SBE,
        NVML_FI_DEV_RETIRED_DBE,
        NVML_FI_DEV_REMAPPED_COR,
        NVML_FI_DEV_REMAPPED_UNC,
    ];
    let answers = reading(device.field_values_for(&IDS.map(FieldId))).unwrap_or_default();
    let number = |value| match value {
        SampleValue::F64(value) => value,
        SampleValue::U32(value) => f64::from(value),
        SampleValue::U64(value) => value as f64,
        SampleValue::I64(value) => value as f64,
    };
    let pairs = IDS.into_iter().zip(answers);
    pairs.filter_map(|(id, answer)| Some((id, number(answer.ok()?.value.ok()?)))).collect()
}

fn compute_mode(mode: ComputeMode) -> String {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive process",
    }
    .to_owned()
}

fn limits(device: &Device) -> CardLimits {
    let threshold = |which| reading(device.temperature_threshold(which)).map(f64::from);
    let power = reading(device.power_management_limit_constraints());
    CardLimits {
        slowdown_c: threshold(TemperatureThreshold::Slowdown),
        shutdown_c: threshold(TemperatureThreshold::Shutdown),
        operating_c: threshold(TemperatureThreshold::GpuMax),
        memory_slowdown_c: threshold(TemperatureThreshold::MemoryMax),
        power_default_w: watts(device.power_management_limit_default()),
        power_min_w: power.as_ref().map(|power| f64::from(power.min_limit) / 1000.0),
        power_max_w: power.as_ref().map(|power| f64::from(power.max_limit) / 1000.0),
        sm_clock_max_mhz: reading(device.max_clock_info(Clock::SM)),
        memory_clock_max_mhz: reading(device.max_clock_info(Clock::Memory)),
        pcie_generation_max: reading(device.max_pcie_link_gen()),
        pcie_lanes_max: reading(device.max_pcie_link_width()),
    }
}

/// Processes that hold memory of a card, largest first.
fn processes(device: &Device) -> Vec<CardProcess> {
    let lists = [(device.running_compute_processes(), true), (device.running_graphics_processes(), false)];
    let mut processes: Vec<CardProcess> = vec![];
    for (list, computes) in lists {
        for process in list.unwrap_or_default() {
            // A process that both computes and draws is in both lists.
            if processes.iter().any(|known| known.pid == process.pid) {
                continue;
            }
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                UsedGpuMemory::Unavailable => None,
            };
            let pid = process.pid;
            processes.push(CardProcess { pid, name: program_name(pid), uid: owner(pid), used, computes });
        }
    }
    processes.sort_by_key(|process| (std::cmp::Reverse(process.used), process.pid));
    processes
}
