//! NVML, opened while it is in use.

use crate::gpus::{GpuError, start};
use nvml_wrapper::Nvml;
use std::env;
use std::ffi::OsStr;
use std::mem;
use std::ops::Deref;

/// NVML, shut down on drop.
#[derive(Debug)]
pub struct Driver(Option<Nvml>);

impl Driver {
    /// Opens the driver's library, or the one that the environment variable `PLIMSOLL_NVML` names.
    /// Errors: there is no driver, or it does not respond.
    pub fn open() -> Result<Self, GpuError> {
        let named = env::var_os("PLIMSOLL_NVML").filter(|name| !name.is_empty());
        Self::open_library(named.as_deref())
    }

    /// Opens this library; `None` is the driver's own.
    pub(crate) fn open_library(library: Option<&OsStr>) -> Result<Self, GpuError> {
        start(library).map(|nvml| Self(Some(nvml)))
    }
}

impl Deref for Driver {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        self.0.as_ref().expect("it is only taken on drop")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The wrapper would panic if the library lacks the shutdown function. In that case, the library stays loaded.
        if let Some(nvml) = self.0.take().filter(|nvml| nvml.lib().nvmlShutdown.is_err()) {
            mem::forget(nvml);
        }
    }
}
