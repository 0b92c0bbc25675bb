//! Hooks of the stand-in driver: they receive what the following operations may access, and report what went wrong.
//! Looked up by name; a real driver does not have them, and then nothing happens.

use libloading::Library;
use std::ffi::{CStr, c_char, c_uint};

type Allow = unsafe extern "C" fn(u64, usize, c_uint) -> u32;
type Failure = unsafe extern "C" fn(*mut c_char, usize) -> u32;

/// The allowed access to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// They are read.
    Read = 1,
    /// They are all overwritten.
    Write = 2,
    /// They are read and written.
    Update = 3,
    /// They are written and read, and not used afterwards.
    Scratch = 4,
}

/// Bytes that an operation may access, on the device or on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowed {
    /// First address.
    pub(super) address: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
    /// The access.
    pub(super) mode: Use,
}

/// Arguments of the hook's first call, which allows nothing, and of the one that allows everything.
const NOTHING: c_uint = 0;
const EVERYTHING: c_uint = 5;

/// The hooks of a library.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    allow: Option<Allow>,
    failure: Option<Failure>,
}

impl Hooks {
    /// The hooks of a library, which must stay loaded while they are used.
    pub(super) fn of(library: &Library) -> Self {
        // SAFETY: only the stand-in has functions of these names, with these types.
        unsafe {
            Self {
                allow: library.get::<Allow>(b"fake_cuda_allow").ok().map(|symbol| *symbol),
                failure: library.get::<Failure>(b"fake_cuda_failure").ok().map(|symbol| *symbol),
            }
        }
    }

    /// Whether there is a hook for accesses.
    pub(super) fn listens(&self) -> bool {
        self.allow.is_some()
    }

    /// Allows the following operations to access these regions and nothing else. Errors: a region with contradictory
    /// accesses.
    pub(super) fn allow(&self, regions: &[Allowed]) -> Result<(), Allowed> {
        let Some(allow) = self.allow else { return Ok(()) };
        // SAFETY: the stand-in accepts any numbers.
        unsafe { allow(0, 0, NOTHING) };
        for region in regions {
            // SAFETY: as above.
            if unsafe { allow(region.address, region.bytes as usize, region.mode as c_uint) } != 0 {
                return Err(*region);
            }
        }
        Ok(())
    }

    /// Allows the following operations to access anything.
    pub(super) fn allow_everything(&self) {
        if let Some(allow) = self.allow {
            // SAFETY: the stand-in accepts any numbers.
            unsafe { allow(0, 0, EVERYTHING) };
        }
    }

    /// The description of the last failure.
    pub(super) fn failure(&self) -> Option<String> {
        let mut text = [0u8; 512];
        // SAFETY: the stand-in writes at most the buffer's length, zero-terminated.
        unsafe { self.failure?(text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}
