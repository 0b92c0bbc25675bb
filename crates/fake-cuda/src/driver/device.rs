//! The machine: version, cards, contexts, names of errors.

use super::codes::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, describe};
use super::devices::Device;
use super::state::Driver;
use super::{CURRENT, entries, give};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Handle of a card's primary context.
fn context(device: c_int) -> usize {
    0x7700 + device as usize
}

entries! {
    /// `cuInit`.
    fn cuInit(driver, _flags: c_uint) Nothing {
        if driver.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        driver.initialized = true;
        Ok(())
    }

    /// `cuDriverGetVersion`.
    fn cuDriverGetVersion(driver, version: *mut c_int) Nothing {
        give(version, driver.card.driver)
    }

    /// `cuDeviceGetCount`.
    fn cuDeviceGetCount(driver, count: *mut c_int) Init {
        give(count, driver.devices.len() as c_int)
    }

    /// `cuDeviceGet`.
    fn cuDeviceGet(driver, device: *mut c_int, ordinal: c_int) Init {
        driver.device(ordinal)?;
        give(device, ordinal)
    }

    /// `cuDeviceGetName`.
    fn cuDeviceGetName(driver, name: *mut c_char, size: c_int, device: c_int) Init {
        let bytes = driver.device(device)?.name.as_bytes();
        if name.is_null() || size < 1 {
            return Err(INVALID_VALUE);
        }
        let fits = bytes.len().min(size as usize - 1);
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), name, fits);
        name.add(fits).write(0);
        Ok(())
    }

    /// `cuDeviceGetUuid_v2`. A slice has a UUID of its own.
    fn cuDeviceGetUuid_v2(driver, uuid: *mut [u8; 16], device: c_int) Init {
        give(uuid, driver.device(device)?.uuid)
    }

    /// `cuDeviceGetPCIBusId`.
    fn cuDeviceGetPCIBusId(driver, id: *mut c_char, size: c_int, device: c_int) Init {
        driver.device(device)?;
        let text = format!("0000:{:02x}:00.0\0", device + 1);
        if id.is_null() || (size as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), id, text.len());
        Ok(())
    }

    /// `cuDeviceGetAttribute`. An unsupported attribute is an invalid value, not 0.
    fn cuDeviceGetAttribute(driver, value: *mut c_int, attribute: c_uint, device: c_int) Init {
        driver.device(device)?;
        give(value, driver.card.attribute(attribute).ok_or(INVALID_VALUE)?)
    }

    /// `cuDeviceTotalMem`.
    fn cuDeviceTotalMem_v2(driver, bytes: *mut usize, device: c_int) Init {
        give(bytes, driver.device(device)?.memory as usize)
    }

    /// `cuDevicePrimaryCtxRetain`. The first call allocates the context's memory.
    fn cuDevicePrimaryCtxRetain(driver, to: *mut *mut c_void, device: c_int) Init {
        driver.device(device)?;
        if driver.retained == 0 {
            driver.take(driver.card.context)?;
        }
        driver.retained += 1;
        give(to, context(device) as *mut c_void)
    }

    /// `cuDevicePrimaryCtxRelease`. The last call frees it and writes the trace, if one was requested.
    fn cuDevicePrimaryCtxRelease_v2(driver, device: c_int) Init {
        driver.device(device)?;
        if driver.retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        driver.retained -= 1;
        if driver.retained == 0 {
            driver.wait(|engine, machine| engine.synchronize_all(machine))?;
            driver.used -= driver.card.context;
            driver.write_trace()?;
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxGetState`.
    fn cuDevicePrimaryCtxGetState(driver, device: c_int, flags: *mut c_uint, active: *mut c_int) Init {
        driver.device(device)?;
        give(flags, 0)?;
        give(active, c_int::from(driver.retained > 0))
    }

    /// `cuDevicePrimaryCtxSetFlags`.
    fn cuDevicePrimaryCtxSetFlags_v2(driver, device: c_int, _flags: c_uint) Init {
        driver.device(device).map(|_| ())
    }

    /// `cuCtxGetCurrent`.
    fn cuCtxGetCurrent(driver, to: *mut *mut c_void) Init {
        give(to, CURRENT.get() as *mut c_void)
    }

    /// `cuCtxSetCurrent`.
    fn cuCtxSetCurrent(driver, handle: *mut c_void) Init {
        let known = (0..driver.devices.len() as c_int).map(context).any(|known| known == handle as usize);
        if !handle.is_null() && (!known || driver.retained == 0) {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(handle as usize);
        Ok(())
    }

    /// `cuCtxGetDevice`.
    fn cuCtxGetDevice(driver, device: *mut c_int) Context {
        give(device, (CURRENT.get() - context(0)) as c_int)
    }

    /// `cuCtxSynchronize`.
    fn cuCtxSynchronize(driver) Context {
        driver.wait(|engine, machine| engine.synchronize_all(machine))
    }

    /// `cuCtxGetStreamPriorityRange`.
    fn cuCtxGetStreamPriorityRange(driver, least: *mut c_int, greatest: *mut c_int) Context {
        give(least, 0)?;
        give(greatest, -5)
    }

    /// `cuCtxSetFlags`.
    fn cuCtxSetFlags(driver, _flags: c_uint) Context {
        Ok(())
    }

    /// `cuCtxGetLimit`. Supports only the stack's and the heap's size.
    fn cuCtxGetLimit(driver, value: *mut usize, limit: c_uint) Context {
        match limit {
            0 => give(value, 1024),
            2 => give(value, 8 << 20),
            _ => Err(INVALID_VALUE),
        }
    }

    /// `cuCtxSetLimit`.
    fn cuCtxSetLimit(driver, _limit: c_uint, _value: usize) Context {
        Ok(())
    }

    /// `cuGetErrorName`.
    fn cuGetErrorName(driver, error: Code, to: *mut *const c_char) Nothing {
        give(to, describe(error).ok_or(INVALID_VALUE)?.0.as_ptr())
    }

    /// `cuGetErrorString`.
    fn cuGetErrorString(driver, error: Code, to: *mut *const c_char) Nothing {
        give(to, describe(error).ok_or(INVALID_VALUE)?.1.as_ptr())
    }
}

impl Driver {
    /// The device with this number. Errors: it does not exist.
    pub(super) fn device(&self, number: c_int) -> Result<&Device, Code> {
        usize::try_from(number).ok().and_then(|number| self.devices.get(number)).ok_or(INVALID_DEVICE)
    }
}
