//! The processor as the device that commands run plans on, inside the memory that is there and leaving some of it for
//! the process itself. Not here: budgets (`budget.rs`).

use ::plimsoll_plan::Rates;
use plimsoll_exec::{CpuDevice, Device, FreeMemory, instructions};
use plimsoll_telemetry::{anonymous_rss, available_pages};
use plimsoll_units::Bytes;

/// What a process takes beside its plan: code, heap, stacks, batches made ahead, and a tokenizer of 50,000 ids.
/// `tests/memory.rs` holds each command to it.
pub(super) const PROCESS: Bytes = Bytes::mib(64);

/// What it may come to take yet, however much it has taken already.
const STILL: Bytes = Bytes::mib(24);

/// What must be left free for the process itself from now on.
pub(super) fn process_margin() -> Bytes {
    PROCESS.saturating_sub(anonymous_rss().unwrap_or(Bytes::ZERO)).max(STILL)
}

/// What the tables take in which the system notes where so many bytes lie: an entry of eight bytes for each page.
pub(super) fn page_tables(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.div_ceil(512))
}

/// What is free of the host's memory, less what is kept for the process: so much, or [`process_margin`].
pub(super) fn free_memory(kept: Option<Bytes>) -> FreeMemory {
    FreeMemory { read: || available_pages().map(|pages| pages.bytes), kept: kept.unwrap_or_else(process_margin) }
}

/// What this processor does in a second, where nothing was measured.
pub(super) fn guessed_rates(threads: usize) -> Rates {
    let rates = Rates::guess(threads);
    instructions().bf16_speedup().map_or(rates, |times| rates.with_bf16_products(times))
}

/// A device that takes no more than is free.
pub(super) fn processor(kept: Option<Bytes>) -> Box<dyn Device> {
    Box::new(CpuDevice::within(free_memory(kept)))
}
