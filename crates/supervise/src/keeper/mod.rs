//! Keepers: small processes between a supervisor and its programs, one per attempt. A keeper starts the program, logs
//! its output, forwards it to the supervisor, and reaps the program. It outlives a killed supervisor, so that the
//! program never blocks on a full pipe and its exit code is not lost. Another supervisor reaches the keeper by a socket
//! in the run's folder.
//!
//! ```text
//!   supervisor ──socket── keeper ──pipes── program
//!       ✗                   │ output.log, end-0.json
//!   next one ───────────────┘
//! ```
//!
//! `process.rs` is the keeper's side, `link.rs` the supervisor's.

mod link;
mod process;
mod protocol;
mod socket;

pub use process::keep;

pub(crate) use link::{KeeperConnection, Link, LinkTarget, OnEnd, reading_end};
pub(crate) use protocol::Spec;
pub(crate) use socket::remove;
