//! Observations: events of a run, the journal that stores them, the machine's memory and its NVIDIA cards.
//!
//! Not here: presentation. Read next: `event.rs`.

mod attempts;
mod available;
mod background;
mod branches;
mod control_groups;
mod curve;
mod driver;
mod energy;
mod event;
mod gpu_use;
mod gpus;
mod history;
mod holders;
mod journal;
mod lane;
mod machine;
mod outlet;
mod place;
mod sample;
mod tail;
mod visible;

pub use attempts::Attempts;
pub use available::{Available, Bound, available_after, available_memory, available_pages};
pub use background::lower_thread_priority;
pub use branches::{BRANCHES_FILE, Branches, BranchesError, Lineage, Origin};
pub use control_groups::{memory_pressure, oom_kills};
pub use curve::{Curve, Point, Stretch};
pub use driver::{Driver, GpuError};
pub use energy::{EnergySource, EnergyUse};
pub use event::{Event, Level, Record, SCHEMA_VERSION, Sink};
pub use gpu_use::{CardUse, gpu_use};
pub use gpus::{Gpu, GpuNote, Gpus, gpus, gpus_from};
pub use history::{History, history, history_span};
pub use holders::{Holder, gpu_holders, own_gpu_memory};
pub use journal::{Journal, JournalError, for_each_record, now_s, read_journal};
pub use lane::{Counts, Lane, NextItem, Wake};
pub use machine::{anonymous_rss, peak_rss, processor_name, system_name, total_memory};
pub use outlet::{Outlet, Pieces, READER_PATIENCE};
pub use place::{CardPlace, PcieLink, card_place};
pub use sample::{
    CardLimits, CardProcess, CardSample, Sample, Sampler, SamplerOptions, SystemSample, Throttling, sample_once,
};
pub use tail::{JournalChange, Tail};
