//! NVML, opened while it is in use.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use plimsoll_files::library_problem;
use std::env;
use std::ffi::OsStr;
use std::mem;
use std::ops::Deref;

/// The name under which the wrapper loads the library.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Why the machine's cards can't be read.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The library is missing or invalid, or its driver is not running.
    #[error("no NVIDIA driver ({reason})")]
    NoDriver {
        /// The error of the system or of NVML.
        reason: String,
    },
    /// The library is newer than the loaded driver, as after an update.
    #[error("the NVIDIA driver was updated, but the old one is still loaded; restart the machine")]
    Outdated,
    /// A required NVML call failed.
    #[error("NVML failed at {what}: {source}")]
    Failed {
        /// The failed action.
        what: &'static str,
        /// NVML's error.
        #[source]
        source: NvmlError,
    },
    /// An impossible count.
    #[error("NVML reports {count} GPUs, more than a machine can have")]
    TooMany {
        /// The count.
        count: u32,
    },
}

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

/// Starts NVML from this library; `None` is the driver's own.
fn start(library: Option<&OsStr>) -> Result<Nvml, GpuError> {
    let mut builder = Nvml::builder();
    if let Some(library) = library {
        builder.lib_path(library);
    }
    if let Some(reason) = library_problem(library.unwrap_or(OsStr::new(LIBRARY))) {
        return Err(GpuError::NoDriver { reason });
    }
    builder.init().map_err(|source| match source {
        NvmlError::LibloadingError(error) => GpuError::NoDriver { reason: error.to_string() },
        NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => GpuError::NoDriver { reason: source.to_string() },
        NvmlError::LibRmVersionMismatch => GpuError::Outdated,
        source => GpuError::Failed { what: "starting", source },
    })
}
