//! Functions of the stand-in that the driver does not have. Tests and the device look them up by name and work without
//! them.
//! `lib.rs` lists them.

use super::codes::{Code, INVALID_VALUE, UNKNOWN};
use super::state::Driver;
use super::{entries, give};
use crate::shadow::{Mode, Rights};
use crate::streams::Announcement;
use crate::trace::csv;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::Arc;

/// Modes that begin an announcement, and that allow everything again.
const BEGIN: c_uint = 0;
const EVERYTHING: c_uint = 5;

entries! {
    /// Announces what operations enqueued from now on may access. Mode 0 begins an announcement that allows nothing; 1
    /// (read), 2 (write), 3 (update) and 4 (scratch) add a region; 5 allows everything again.
    fn fake_cuda_allow(driver, address: u64, bytes: usize, mode: c_uint) Nothing {
        let number = driver.announcement.number;
        driver.announcement = Arc::new(match mode {
            BEGIN => Announcement { number: number + 1, rights: Rights::none() },
            EVERYTHING => Announcement { number: number + 1, rights: Rights::default() },
            _ => {
                let mode = Mode::of(mode).ok_or(INVALID_VALUE)?;
                let mut announcement = (*driver.announcement).clone();
                if let Err((start, end, other)) = announcement.rights.allow(address, bytes as u64, mode) {
                    driver.last_failure =
                        format!("{mode:?} of {address:#x}+{bytes} overlaps {other:?} of {start:#x} to {end:#x}");
                    return Err(INVALID_VALUE);
                }
                announcement
            }
        });
        Ok(())
    }

    /// Number of calls of a function.
    fn fake_cuda_calls(driver, name: *const c_char, count: *mut u64) Nothing {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        let name = CStr::from_ptr(name).to_string_lossy();
        give(count, driver.calls.get(&*name).copied().unwrap_or(0))
    }

    /// Message of the last failure, truncated to fit, with a final NUL.
    fn fake_cuda_failure(driver, to: *mut c_char, size: usize) Nothing {
        if to.is_null() || size == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = driver.last_failure.as_bytes();
        let fits = bytes.len().min(size - 1);
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, fits);
        to.add(fits).write(0);
        Ok(())
    }

    /// Bytes of the card that this process holds, and their maximum so far.
    fn fake_cuda_used(driver, now: *mut u64, most: *mut u64) Nothing {
        give(now, driver.used)?;
        give(most, driver.most_used)
    }

    /// Number of objects not released: allocations, reservations, mapped memory, pinned memory, modules, streams,
    /// events, graphs, and cuBLASLt's objects.
    fn fake_cuda_leaks(driver, count: *mut u64) Nothing {
        give(count, driver.open_objects())
    }

    /// Writes counters per kernel to a CSV file.
    fn fake_cuda_trace(driver, path: *const c_char) Nothing {
        if path.is_null() {
            return Err(INVALID_VALUE);
        }
        let path = CStr::from_ptr(path).to_string_lossy();
        driver.trace_into(&path)
    }

    /// Resets the state to a new machine for the next test of a process, which sees all its cards. With a null pointer
    /// the environment describes it: `FAKE_CUDA` the machine, `CUDA_VISIBLE_DEVICES` the visible cards.
    fn fake_cuda_reset(driver, description: *const c_char) Nothing {
        let (description, variable) = match description.is_null() {
            true => (std::env::var("FAKE_CUDA").unwrap_or_default(), super::visible_devices()),
            false => (CStr::from_ptr(description).to_string_lossy().into_owned(), None),
        };
        let card = super::Card::parse(&description).map_err(|error| {
            eprintln!("{error}");
            INVALID_VALUE
        })?;
        *driver = Driver::new(card, variable.as_deref());
        Ok(())
    }
}

impl Driver {
    /// Writes the trace if the description has a path for it.
    pub(super) fn write_trace(&self) -> Result<(), Code> {
        self.card.trace.as_ref().map_or(Ok(()), |path| self.trace_into(path))
    }

    fn trace_into(&self, path: &str) -> Result<(), Code> {
        std::fs::write(path, csv(&self.machinery.counters)).map_err(|error| {
            eprintln!("fake CUDA: {path}: {error}");
            UNKNOWN
        })
    }

    fn open_objects(&self) -> u64 {
        let memory = self.allocations.len() + self.reservations.len() + self.physical.len() + self.pinned.len();
        let rest = self.modules.len() + self.executables.len() + self.engine.open_objects() + self.lt.open_objects();
        (memory + rest) as u64
    }
}
