//! Keepers: small processes between a supervisor and its programs, one for each attempt. A keeper starts the program,
//! writes what it prints into the log, passes it on to the supervisor, and learns how the program ends. It outlives a
//! supervisor that is killed: the program then neither waits for somebody to read nor is its end lost, and another
//! supervisor reaches the keeper by a socket in the run's folder.
//!
//!     supervisor ──socket── keeper ──pipes── program
//!         ✗                   │ output.log, end-0.json
//!     next one ──────────────┘
//!
//! `process.rs` is the keeper's side, `link.rs` the supervisor's.

mod link;
mod place;
mod process;
mod protocol;

pub use process::keep;

pub(crate) use link::{Link, Started, Take, Taking, reading_end};
pub(crate) use place::{End, remove};
pub(crate) use protocol::{Spec, Status};
