//! A card's settings by NVML. The driver is opened for each call: settings are few, and a driver may come and go.
//! Offsets have two sets of functions. The newer one (driver 555) is tried first, since the older is deprecated and newer cards
//! do without.

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
    /// The card of this UUID. Errors: there is no such card, or it does not answer.
    pub fn new(uuid: &str) -> Result<Self, KnobError> {
        let card = Self { uuid: uuid.to_owned() };
        card.with(|_| Ok(()))?;
        Ok(card)
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Device) -> Result<T, NvmlError>) -> Result<T, KnobError> {
        let driver = Driver::open()?;
        let mut device = driver.device_by_uuid(self.uuid.as_str())?;
        Ok(ask(&mut device)?)
    }
}

/// The clock that an offset is of.
fn clock_of(knob: Knob) -> Clock {
    if knob == Knob::MemoryClockOffset { Clock::Memory } else { Clock::Graphics }
}

/// By the newer functions or, where they fail for what is no matter of rights, by the older ones.
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
                let usual = device.power_management_limit_default().ok().map(i64::from);
                return Ok(Range { least: bounds.min_limit.into(), most: bounds.max_limit.into(), usual });
            }
            let newer = device.clock_offset(clock_of(knob), PerformanceState::Zero);
            let newer = newer.map(|offset| (offset.min_clock_offset_mhz, offset.max_clock_offset_mhz));
            let (least, most) = newer_or(newer, || older_bounds(device, knob))?;
            Ok(Range { least: least.into(), most: most.into(), usual: Some(0) })
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
        let beyond = |_| KnobError::Failed { reason: format!("{value} is beyond what a driver takes") };
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

/// Bounds by the older functions, which the wrapper loads but does not wrap.
fn older_bounds(device: &Device, knob: Knob) -> Result<(c_int, c_int), NvmlError> {
    let library = device.nvml().lib();
    let bounds = match knob {
        Knob::MemoryClockOffset => nvml_sym(library.nvmlDeviceGetMemClkMinMaxVfOffset.as_ref())?,
        _ => nvml_sym(library.nvmlDeviceGetGpcClkMinMaxVfOffset.as_ref())?,
    };
    let (mut least, mut most) = (0, 0);
    // SAFETY: `nvml_sym` checked that the library, which `device` borrows, has the function; the handle is from the same
    // library, and both places are numbers of the type that it fills.
    unsafe { nvml_try(bounds(device.handle(), &mut least, &mut most))? };
    Ok((least, most))
}
