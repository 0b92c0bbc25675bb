//! The driver's library: finds it, and checks that it has all required functions.
//!
//! A process has one driver.

use super::error::CudaError;
use super::functions::{Address, FUNCTIONS};
use super::hooks::Hooks;
use libloading::Library;
use plimsoll_files::library_problem;
use std::ffi::{OsStr, OsString, c_int};
use std::sync::OnceLock;

/// The environment variable that names the driver's library.
pub const LIBRARY: &str = "PLIMSOLL_CUDA";

/// Names and paths to try, in this order. On Windows' Linux (WSL) the driver is in a folder of its own.
#[cfg(windows)]
const PLACES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const PLACES: &[&str] = &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// The oldest driver that has all functions and accepts the kernels' PTX (version 7.0, of CUDA 11.0).
const OLDEST: (u32, u32) = (11, 4);

/// An NVIDIA driver with all needed functions.
#[derive(Debug)]
pub struct Driver {
    path: String,
    version: (u32, u32),
    /// The functions of [`FUNCTIONS`], in their order.
    addresses: Vec<Address>,
    hooks: Hooks,
    /// Keeps the library loaded.
    _library: Library,
}

static FOUND: OnceLock<Result<Driver, CudaError>> = OnceLock::new();

impl Driver {
    /// The driver of this machine, or the one that the environment variable [`LIBRARY`] names. Searched once. Errors:
    /// `NoDriver`, `DriverTooOld`.
    pub fn find() -> Result<&'static Self, CudaError> {
        let named = || std::env::var_os(LIBRARY).filter(|name| !name.is_empty());
        FOUND.get_or_init(|| Self::open(named())).as_ref().map_err(CudaError::clone)
    }

    /// The driver, if it was opened already.
    pub(super) fn opened() -> Option<&'static Self> {
        FOUND.get()?.as_ref().ok()
    }

    /// Path or name of its library.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The newest version of CUDA that it supports, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Whether it is a stand-in for a driver.
    pub fn is_stand_in(&self) -> bool {
        self.hooks.listens()
    }

    /// The function at this index of [`FUNCTIONS`].
    pub(super) fn address(&self, place: usize) -> Address {
        self.addresses[place]
    }

    pub(super) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    fn open(named: Option<OsString>) -> Result<Self, CudaError> {
        let places = named.map_or_else(|| PLACES.iter().map(OsString::from).collect(), |name| vec![name]);
        let mut tried = Vec::new();
        for place in places {
            if let Some(problem) = library_problem(&place) {
                tried.push(problem);
                continue;
            }
            // SAFETY: the driver's library only initializes itself when it is opened; a user who names another one is
            // responsible for it.
            match unsafe { Library::new(&place) } {
                Ok(library) => return Self::of(library, &place),
                Err(error) => {
                    // The loader's message usually contains the path.
                    let (place, problem) = (place.display().to_string(), error.to_string());
                    tried.push(if problem.starts_with(&place) { problem } else { format!("{place}: {problem}") });
                }
            }
        }
        Err(CudaError::NoDriver { tried })
    }

    fn of(library: Library, place: &OsStr) -> Result<Self, CudaError> {
        let path = place.to_string_lossy().into_owned();
        let too_old = |lacks: String| CudaError::DriverTooOld { library: path.clone(), lacks, needed: OLDEST };
        let addresses =
            FUNCTIONS.iter().map(|name| address_of(&library, name).ok_or_else(|| too_old(format!("it has no {name}"))));
        let addresses = addresses.collect::<Result<_, _>>()?;
        let version = version_of(&library).ok_or_else(|| too_old("it does not report its version".to_owned()))?;
        if version < OLDEST {
            return Err(too_old(format!("it supports CUDA {}.{}", version.0, version.1)));
        }
        Ok(Self { path, version, addresses, hooks: Hooks::of(&library), _library: library })
    }
}

fn address_of(library: &Library, function: &str) -> Option<Address> {
    // SAFETY: the symbol is looked up, not called.
    unsafe { library.get::<Address>(function.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// The newest version of CUDA that a driver supports; 12.8 is encoded as 12080.
fn version_of(library: &Library) -> Option<(u32, u32)> {
    let mut version: c_int = 0;
    // SAFETY: the function has this type in all drivers, and the destination is on this stack.
    let code = unsafe {
        let get = library.get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"cuDriverGetVersion").ok()?;
        get(&mut version)
    };
    let version = u32::try_from(version).ok().filter(|_| code == 0)?;
    Some((version / 1000, version % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(place: &str) -> CudaError {
        Driver::open(Some(place.into())).expect_err("there is no such driver")
    }

    #[test]
    fn files_that_are_not_a_driver_are_refused() {
        assert!(matches!(missing("/nowhere/libcuda.so.1"), CudaError::NoDriver { tried } if tried.len() == 1));
        let file = std::env::temp_dir().join(format!("no-library-{}", std::process::id()));
        std::fs::write(&file, "text").expect("a small file");
        assert!(matches!(missing(&file.display().to_string()), CudaError::NoDriver { .. }));
        std::fs::remove_file(file).expect("was written");
    }

    /// The loader would map it, and a signal would kill this process.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_truncated_driver_is_refused() {
        let whole = std::fs::read(plimsoll_fake_cuda::library()).expect("the stand-in");
        let file = std::env::temp_dir().join(format!("cut-off-driver-{}.so", std::process::id()));
        for kept in [64, 4096, 100_000] {
            std::fs::write(&file, &whole[..kept]).expect("written");
            let error = missing(&file.display().to_string());
            assert!(matches!(&error, CudaError::NoDriver { tried } if tried[0].contains("is cut off")), "{error}");
        }
        std::fs::remove_file(file).expect("was written");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_that_lacks_a_function_is_too_old() {
        for (index, function) in FUNCTIONS.iter().enumerate().step_by(7) {
            let path = std::env::temp_dir().join(format!("old-driver-{}-{index}.so", std::process::id()));
            plimsoll_fake_cuda::library_without(function, &path).expect("a copy");
            let error = missing(&path.display().to_string());
            std::fs::remove_file(&path).expect("was written");
            assert!(
                matches!(&error, CudaError::DriverTooOld { lacks, .. } if lacks.ends_with(function)),
                "{function}: {error}"
            );
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_library_is_not_a_driver() {
        let error = missing("libc.so.6");
        assert!(
            matches!(&error, CudaError::DriverTooOld { lacks, .. } if lacks.contains("cuCtxSetCurrent")),
            "{error}"
        );
    }
}
