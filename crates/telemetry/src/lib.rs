//! What is observed: events of a run, the journal that keeps them, and the machine's memory.
//!
//! Not here: how anything is shown. Read next: `event.rs`.

mod event;
mod journal;
mod machine;

pub use event::{Event, Record, SCHEMA_VERSION, Sink};
pub use journal::{Journal, JournalError, read_journal};
pub use machine::{available_memory, peak_rss, processor_name};
