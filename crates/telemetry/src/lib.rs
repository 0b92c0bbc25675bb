//! What is observed: events of a run, the journal that keeps them, the machine's memory and its NVIDIA cards.
//!
//! Not here: how anything is shown. Read next: `event.rs`.

mod event;
mod gpus;
mod journal;
mod machine;
mod visible;

pub use event::{Event, Record, SCHEMA_VERSION, Sink};
pub use gpus::{Gpu, GpuError, GpuNote, Gpus, gpus, gpus_from};
pub use journal::{Journal, JournalError, read_journal};
pub use machine::{available_memory, peak_rss, processor_name};
