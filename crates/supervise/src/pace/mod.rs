//! How fast programs may go: who says so (`pacer.rs`), by turns of running and being stopped (`turns.rs`), and how processes are
//! stopped so that they go on whatever becomes of the supervisor (`held.rs`).
//!
//! ```text
//!   a thread that watches cards ─► Pacer ─► Turns ─► Held ─► SIGSTOP, SIGCONT
//!                                  orders   when     whose
//! ```
//! Not here: what is ordered (`plimsoll-heat`), and pauses that a person asks for (`pause.rs`).

mod held;
mod pacer;
mod turns;

pub use pacer::{Pacer, run_slice};

pub(crate) use held::{Held, continue_all, release_left, stop_all};
pub(crate) use pacer::Pacing;
