//! NVML, opened for as long as somebody reads it.

use crate::gpus::{GpuError, start};
use nvml_wrapper::Nvml;
use std::env;
use std::ffi::OsStr;
use std::mem;
use std::ops::Deref;

/// NVML, which is ended when this is dropped.
#[derive(Debug)]
pub struct Driver(Option<Nvml>);

impl Driver {
    /// Opens the driver's library, or the one that the environment variable `PLIMSOLL_NVML` names.
    /// Errors: no driver, or one that does not answer.
    pub fn open() -> Result<Self, GpuError> {
        let named = env::var_os("PLIMSOLL_NVML").filter(|name| !name.is_empty());
        Self::open_library(named.as_deref())
    }

    /// Opens this library; none is the driver's.
    pub(crate) fn open_library(library: Option<&OsStr>) -> Result<Self, GpuError> {
        start(library).map(|nvml| Self(Some(nvml)))
    }
}

impl Deref for Driver {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        self.0.as_ref().expect("it is taken where it is dropped alone")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The wrapper would panic where a library has no function that ends NVML. It stays loaded then.
        if let Some(nvml) = self.0.take().filter(|nvml| nvml.lib().nvmlShutdown.is_err()) {
            mem::forget(nvml);
        }
    }
}
