//! What views show of runs and of the machine: read from runs' folders as they grow, and from samples. Nothing in a folder is
//! trusted, nothing is written there, and what is kept is bounded, however long a run is.
//!
//! ```text
//!   RUN/journal.jsonl ─► RunFollower ─► RunView ─┐
//!       config.yaml …                            ├─► top, serve, report
//!   Sampler, RUN/samples ─► MachineView ─► MemoryMap
//! ```
//! Not here: terminals, HTML, HTTP. Texts in a view have been made safe to show in one line (`text.rs`).
//! Read next: `run_view.rs`.

mod alive;
mod events;
mod follower;
mod machine;
mod memory_map;
mod process;
mod reader;
mod run_view;
mod runs;
#[cfg(unix)]
mod supervised;
mod text;

pub use events::{EventLine, words};
pub use follower::{RunFollower, WatchError};
pub use machine::{CardView, MachineView, Trace};
pub use memory_map::{MemoryMap, Segment, Share};
pub use process::{ProcessInfo, has_own_numbers};
pub use run_view::{HeatAction, Kind, LastStep, Noted, RunView, Sample, SavedCheckpoint, Standing};
pub use runs::{Found, Places, Runs, RunsFollower};
pub use text::clean;
