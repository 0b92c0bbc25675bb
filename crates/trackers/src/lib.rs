//! Writes a run's metrics in the formats of other tools: TensorBoard's event files, W&B's offline runs, MLflow's file
//! store or server, JSON lines, and CSV.
//! Not here: the measurements (`telemetry`), the flags that select trackers (`plimsoll`), messages to people
//! (`notify`).
//!
//! ```text
//!   events, samples ─► rows ─► a bounded queue ─► a thread ─► a writer
//!                              └───────── one for each tracker ─────┘
//! ```
//!
//! Logging never blocks: rows that do not fit in a queue are dropped and counted, and a writer that hangs or fails
//! blocks only its own thread. A resumed run replaces the steps that it repeats, in any state that a crash left.
//! Read next: `trackers.rs`, `row.rs`, then one writer (`jsonl.rs` is the shortest).

mod appender;
mod calendar;
mod csv;
mod jsonl;
mod lines;
mod mlflow;
mod protobuf;
mod queue;
mod row;
mod run_logs;
mod tensorboard;
mod tracker;
mod trackers;
mod wandb;
mod worker;
mod writer;

pub use tracker::{Tracker, UnknownTracker};
pub use trackers::{MachineTap, TrackError, TrackSettings, TrackerReport, Trackers};
pub use wandb::{SyncError, Synced, sync_in_background};
