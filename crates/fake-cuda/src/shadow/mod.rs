//! What is known of every byte of device and shared memory: whether anything wrote it, whether an asynchronous copy is
//! still to write it, and who touched it last. Reads of unwritten bytes and races are found from this, in whatever
//! order the threads happened to run.
//!
//! `stamp` names accesses and orders them, `pages` keeps them, `memory` is the device's address space, `rights` what a
//! launch may touch of it.

mod memory;
mod pages;
mod rights;
mod stamp;

pub use memory::{BASE, Memory, Outside, Region, Touched};
pub use pages::{MOST_BYTES, PAGE, Pages, Problem, copy};
pub use rights::{Mode, Rights};
pub use stamp::{Access, Stamp};
