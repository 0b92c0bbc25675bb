//! The processor as the device of a plan: limited to the free memory, of which some stays free for the process itself.
//! Not here: budgets (`budget.rs`).

use ::plimsoll_plan::Rates;
use plimsoll_exec::{CpuDevice, Device, FreeMemory, instructions};
use plimsoll_telemetry::{Available, anonymous_rss, available_memory, available_pages};
use plimsoll_units::Bytes;

/// A process's memory in addition to its plan: code, heap, stacks, prefetched batches, and a tokenizer of 50,000 IDs.
/// `tests/memory.rs` tests each command against it.
pub(super) const PROCESS: Bytes = Bytes::mib(64);

/// The least memory to leave free for the process's growth, however much it already uses.
const STILL: Bytes = Bytes::mib(24);

/// Blocks of at least this many bytes are mapped by themselves, and returned to the system when they are freed. By default
/// the C library keeps freed blocks once a program has freed a few, so that tokenizing, which frees many, would leave less
/// for the plan.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BLOCK: i32 = 256 << 10;

/// The memory to leave free for the process itself from now on.
pub(super) fn process_margin() -> Bytes {
    PROCESS.saturating_sub(anonymous_rss().unwrap_or(Bytes::ZERO)).max(STILL)
}

/// The size of the page tables for this many bytes: eight bytes per page.
pub(super) fn page_tables(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.div_ceil(512))
}

/// Makes the heap return freed memory to the system at once. With a limit on addresses, all threads share one heap: each
/// further heap takes 64 MiB of addresses (glibc's `HEAP_MAX_SIZE`), which the plan and the stacks of threads would lack.
pub(super) fn configure_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use rustix::process::{Resource, getrlimit};
        let has_limit = getrlimit(Resource::As).current.is_some();
        // SAFETY: `mallopt` takes two numbers and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
            if has_limit {
                libc::mallopt(libc::M_ARENA_MAX, 1);
            }
        }
    }
}

/// Runs a command that plans and does not train. A search copies graphs of megabytes hundreds of times, and a third of its
/// time would be page faults if the heap returned each copy to the system. Before training, memory that the heap keeps
/// would be missing for the plan.
pub(super) fn planning<T>(command: impl FnOnce() -> T) -> T {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes two numbers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
    command()
}

/// Returns the heap's unused pages to the system, so that they count as free.
fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` touches only pages that no allocation uses, and locks the heap meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The memory that this process can still get, after returning its heap's unused pages; `None` if the system does not
/// report it.
pub(super) fn available() -> Option<Available> {
    trim_heap();
    available_memory()
}

/// The number of threads, at most `threads`, for which the free memory is enough if each needs `each` bytes.
pub(super) fn threads_within_memory(threads: usize, each: Bytes) -> usize {
    let Some(free) = available() else { return threads };
    let room = free.bytes.saturating_sub(STILL);
    threads.min(usize::try_from(room.0 / each.0.max(1)).unwrap_or(threads)).max(1)
}

/// The host's free memory, less `kept` or [`process_margin`] for the process itself.
pub(super) fn free_memory(kept: Option<Bytes>) -> FreeMemory {
    trim_heap();
    FreeMemory { read: || available_pages().map(|pages| pages.bytes), kept: kept.unwrap_or_else(process_margin) }
}

/// Estimates of this processor's rates, for use without measurements.
pub(super) fn guessed_rates(threads: usize) -> Rates {
    let rates = Rates::guess(threads);
    instructions().bf16_speedup().map_or(rates, |times| rates.with_bf16_products(times))
}

/// The processor as a device that uses no more than the free memory.
pub(super) fn processor(kept: Option<Bytes>) -> Box<dyn Device> {
    Box::new(CpuDevice::within(free_memory(kept)))
}
