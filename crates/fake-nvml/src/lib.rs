//! For tests: libraries that stand in for NVIDIA's NVML on machines without a card or driver. Set `PLIMSOLL_NVML` to
//! one of them in a child process. Read next: `nvml.rs`, the stand-in itself.

use std::path::Path;

// Compiled into this crate only for unit tests and lints.
#[cfg(test)]
mod nvml;

/// Environment variable that describes the machine of [`library`]; unset, it has no cards.
///
/// Entries are separated by `;`. A card is `name,uuid,total,reserved,used` with sizes in MiB, optionally followed by:
/// - `error=CODE`: every call about the card fails with this NVML code
/// - `memory_v2=CODE`: the newer function that reads memory fails
/// - `sensors=CODE`: temperature and power limit fail
/// - `holder=PID/MIB`: a process holds memory of the card; pid 0 is the calling process
/// - `mig=1`: the card is in MIG mode
/// - `busy=PERCENT`: its utilization
///
/// The entry `init=CODE` makes NVML fail to start; `count=N` makes it report N cards. A card's temperature is 50 °C and its
/// power limit 170 W, unless a script ([`SCRIPT`]) sets them.
pub const MACHINE: &str = "PLIMSOLL_FAKE_GPUS";

/// Environment variable with the path of a script: readings over time, and calls that fail. `script.rs` has the format.
/// Readings that are not in the script come from [`MACHINE`], or are not supported.
pub const SCRIPT: &str = "PLIMSOLL_FAKE_NVML_SCRIPT";

/// Environment variable with the path of the file of card settings, which outlives a process as a real card's settings
/// do. A line is a card, a name as in scripts, and a value: `0 power_limit 150`. The last line for a name wins, no matter which process
/// wrote it.
pub const STATE: &str = "PLIMSOLL_FAKE_NVML_STATE";

/// A library with every NVML function that Plimsoll calls.
pub fn library() -> &'static Path {
    Path::new(env!("FAKE_NVML"))
}

/// A library with only the functions to start and stop it.
pub fn bare_library() -> &'static Path {
    Path::new(env!("BARE_NVML"))
}
