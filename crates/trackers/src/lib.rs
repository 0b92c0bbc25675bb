//! Writes what a run measures as other tools read it: TensorBoard's event files, W&B's offline runs, MLflow's file store or
//! server, lines of JSON, and CSV.
//! Not here: what is measured (`telemetry`), which flags choose a tracker (`plimsoll`), messages to people (`notify`).
//!
//!     events, samples ─► rows ─► a bounded queue ─► a thread ─► a writer
//!                                └───────── one for each tracker ─────┘
//!
//! Whoever logs never waits: rows for which a queue has no room are dropped and counted, and a writer that hangs or fails keeps
//! its own thread busy and nothing else. A run that is resumed replaces the steps that it makes again, whatever a crash left.
//! Read next: `trackers.rs`, `row.rs`, then one writer (`jsonl.rs` is the shortest).

mod appender;
mod calendar;
mod csv;
mod jsonl;
mod lines;
mod mlflow;
mod place;
mod protobuf;
mod queue;
mod row;
mod tensorboard;
mod tracker;
mod trackers;
mod wandb;
mod worker;
mod writer;

pub use tracker::{Tracker, UnknownTracker};
pub use trackers::{MachineTap, TrackError, TrackSettings, TrackerReport, Trackers};
pub use wandb::{SyncError, Synced, sync_in_background};
