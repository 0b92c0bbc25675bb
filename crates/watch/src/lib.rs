//! View data of runs and of the machine, read from run folders as they grow, and from samples. Folders are not trusted
//! and never written to, and memory use is bounded, however long a run is.
//!
//! ```text
//!   RUN/journal.jsonl ─► RunFollower ─► RunView ─┐
//!       config.yaml …                            ├─► top, serve, report
//!   Sampler, RUN/samples ─► MachineView ─► MemoryMap
//! ```
//! Not here: terminals, HTML, HTTP. Text in a view is safe to show on one line (`text.rs`). Read next: `run_view.rs`.

mod activity;
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
