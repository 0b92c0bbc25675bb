//! A card's settings through NVML. Opens the driver for each call: calls are few, and the driver may be unloaded.
//! Clock offsets have two sets of functions. Tries the newer one (driver 555) first, since the older one is deprecated
//! and missing on newer cards.

use crate::knob::{Knob, KnobError, Knobs, Range};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, PerformanceState};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use plimsoll_telemetry::{Driver, GpuError};
use std::ffi::c_int;

/// A card of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmlCard {
    uuid: String,
}

impl From<NvmlError> for KnobError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => {
                Self::NotSupported
            }
            other => Self::Failed { reason: other.to_string() },
        }
    }
}

impl From<GpuError> for KnobError {
    fn from(error: GpuError) -> Self {
        Self::Failed { reason: error.to_string() }
    }
}

impl NvmlCard {
    /// The card with this UUID. Errors: there is no such card, or it does not answer.
    pub fn new(uuid: &str) -> Result<Self, KnobError> {
        let card = Self { uuid: uuid.to_owned() };
        card.with(|_| Ok(()))?;
        Ok(card)
    }

    fn with<T>(&self, call: impl FnOnce(&mut Device) -> Result<T, NvmlError>) -> Result<T, KnobError> {
        let driver = Driver::open()?;
        let mut device = driver.device_by_uuid(self.uuid.as_str())?;
        Ok(call(&mut device)?)
    }
}

/// The clock of an offset.
fn clock_of(knob: Knob) -> Clock {
    if knob == Knob::MemoryClockOffset { Clock::Memory } else { Clock::Graphics }
}

/// The result of the newer function or, if it failed for a reason other than missing rights or a lost card, of the
/// older one.
fn newer_or<T>(newer: Result<T, NvmlError>, older: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    match newer {
        Err(NvmlError::NoPermission | NvmlError::GpuLost) | Ok(_) => newer,
        Err(_) => older().or(newer),
    }
}

impl Knobs for NvmlCard {
    fn range(&self, knob: Knob) -> Result<Range, KnobError> {
        self.with(|device| {
            if knob == Knob::PowerLimit {
                let bounds = device.power_management_limit_constraints()?;
                let default = device.power_management_limit_default().ok().map(i64::from);
                return Ok(Range { min: bounds.min_limit.into(), max: bounds.max_limit.into(), default });
            }
            let newer = device.clock_offset(clock_of(knob), PerformanceState::Zero);
            let newer = newer.map(|offset| (offset.min_clock_offset_mhz, offset.max_clock_offset_mhz));
            let (min, max) = newer_or(newer, || older_bounds(device, knob))?;
            Ok(Range { min: min.into(), max: max.into(), default: Some(0) })
        })
    }

    fn get(&self, knob: Knob) -> Result<i64, KnobError> {
        self.with(|device| {
            if knob == Knob::PowerLimit {
                return device.power_management_limit().map(i64::from);
            }
            let newer = device.clock_offset(clock_of(knob), PerformanceState::Zero);
            let older = || match knob {
                Knob::MemoryClockOffset => device.mem_clock_vf_offset(),
                _ => device.gpc_clock_vf_offset(),
            };
            newer_or(newer.map(|offset| offset.clock_offset_mhz), older).map(i64::from)
        })
    }

    fn set(&self, knob: Knob, value: i64) -> Result<(), KnobError> {
        let beyond = |_| KnobError::Failed { reason: format!("{value} is out of range for the driver") };
        if knob == Knob::PowerLimit {
            let milliwatts = u32::try_from(value).map_err(beyond)?;
            return self.with(|device| device.set_power_management_limit(milliwatts));
        }
        let mhz = i32::try_from(value).map_err(beyond)?;
        self.with(|device| {
            let newer = device.set_clock_offset(clock_of(knob), PerformanceState::Zero, mhz);
            newer_or(newer, || match knob {
                Knob::MemoryClockOffset => device.set_mem_clock_vf_offset(mhz),
                _ => device.set_gpc_clock_vf_offset(mhz),
            })
        })
    }
}

/// Bounds from the older functions, which the wrapper loads but does not wrap.
fn older_bounds(device: &Device, knob: Knob) -> Result<(c_int, c_int), NvmlError> {
    let library = device.nvml().lib();
    let bounds = match knob {
        Knob::MemoryClockOffset => nvml_sym(library.nvmlDeviceGetMemClkMinMaxVfOffset.as_ref())?,
        _ => nvml_sym(library.nvmlDeviceGetGpcClkMinMaxVfOffset.as_ref())?,
    };
    let (mut min, mut max) = (0, 0);
    // SAFETY: `nvml_sym` checked that the library, which `device` borrows, has the function; the handle is from the same
    // library, and both pointers are to integers of the type that it writes.
    unsafe { nvml_try(bounds(device.handle(), &mut min, &mut max))? };
    Ok((min, max))
}
