//! What a stand-in for the driver has and a driver has not: it is told what the operations that follow may touch, and
//! tells what went wrong. Looked up by name; a real driver has none of it, and nothing is done.

use libloading::Library;
use std::ffi::{CStr, c_char, c_uint};

type Allow = unsafe extern "C" fn(u64, usize, c_uint) -> u32;
type Failure = unsafe extern "C" fn(*mut c_char, usize) -> u32;

/// What may be done to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// They are read.
    Read = 1,
    /// They are all written; what was there is gone.
    Write = 2,
    /// They are read and written.
    Update = 3,
    /// They are written and read, and nobody cares for them afterwards.
    Scratch = 4,
}

/// Bytes that an operation may touch, of the device or of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowed {
    /// First address.
    pub(super) address: u64,
    /// How many.
    pub(super) bytes: u64,
    /// What for.
    pub(super) mode: Use,
}

/// The hook's first call, which allows nothing, and the one that allows everything.
const NOTHING: c_uint = 0;
const EVERYTHING: c_uint = 5;

/// The hooks of a library.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    allow: Option<Allow>,
    failure: Option<Failure>,
}

impl Hooks {
    /// Those that the library has. It must stay loaded while they are used.
    pub(super) fn of(library: &Library) -> Self {
        // SAFETY: a library that has functions of these names is the stand-in, whose functions have these types.
        unsafe {
            Self {
                allow: library.get::<Allow>(b"fake_cuda_allow").ok().map(|symbol| *symbol),
                failure: library.get::<Failure>(b"fake_cuda_failure").ok().map(|symbol| *symbol),
            }
        }
    }

    /// Whether anybody wants to know what may be touched.
    pub(super) fn listens(&self) -> bool {
        self.allow.is_some()
    }

    /// The operations that follow may touch this and nothing else. Errors: a region that two uses contradict each
    /// other on.
    pub(super) fn allow(&self, regions: &[Allowed]) -> Result<(), Allowed> {
        let Some(allow) = self.allow else { return Ok(()) };
        // SAFETY: the stand-in takes any numbers.
        unsafe { allow(0, 0, NOTHING) };
        for region in regions {
            // SAFETY: as above.
            if unsafe { allow(region.address, region.bytes as usize, region.mode as c_uint) } != 0 {
                return Err(*region);
            }
        }
        Ok(())
    }

    /// The operations that follow may touch anything.
    pub(super) fn allow_everything(&self) {
        if let Some(allow) = self.allow {
            // SAFETY: the stand-in takes any numbers.
            unsafe { allow(0, 0, EVERYTHING) };
        }
    }

    /// What happened last.
    pub(super) fn failure(&self) -> Option<String> {
        let mut text = [0u8; 512];
        // SAFETY: the stand-in writes no more than so many bytes, the last of them zero.
        unsafe { self.failure?(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}
