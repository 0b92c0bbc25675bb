//! Limits the speed of programs: orders from the heat control (`pacer.rs`), alternating slices of running and being
//! stopped (`turns.rs`), and stopping processes so that they continue even if the supervisor is killed (`held.rs`).
//!
//! ```text
//!   a thread that watches cards ─► Pacer ─► Turns ─► Held ─► SIGSTOP, SIGCONT
//!                                  orders   when     whose
//! ```
//! Not here: choosing the orders (`plimsoll-heat`), and pauses by the user (`pause.rs`).

mod held;
mod pacer;
mod turns;

pub use pacer::{Pacer, run_slice};

pub(crate) use held::{Held, continue_all, release_left, stop_all};
pub(crate) use pacer::Pacing;
