//! The full screen of `plimsoll top`: cards, their memory and processes, and runs.
//!
//! ```text
//!   keys, samples, runs ─► State::handle ─► actions ─► terminal, signals, samples of a replay
//!                              │ pure                       (`terminal/`)
//!                              ▼
//!                           draw(state) ─► cells, pure too
//! ```
//! Not here: how samples are taken (`telemetry`) and folders read (`watch`). Read next: `state/mod.rs`, then `draw/mod.rs`.

mod draw;
mod palette;
mod state;
mod terminal;

pub use draw::draw;
pub use palette::Palette;
pub use state::{Action, Input, Key, Replay, State};
pub use terminal::{Options, TopError, run};
