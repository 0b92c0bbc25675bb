//! Shadow state of every byte of device and shared memory: whether it was written, whether an asynchronous copy will
//! write it, and its last accesses. It reveals reads of unwritten bytes and races, independent of the order in which
//! threads ran.
//!
//! `stamp` packs and orders accesses, `pages` stores them, `memory` is the device's address space, `rights` the access
//! rights of a launch.

mod memory;
mod pages;
mod rights;
mod stamp;

pub use memory::{BASE, Memory, Outside, Region, Touched};
pub use pages::{MOST_BYTES, PAGE, Pages, Problem, copy};
pub use rights::{Mode, Rights};
pub use stamp::{Access, Stamp};
