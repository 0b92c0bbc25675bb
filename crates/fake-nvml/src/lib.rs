//! For tests: libraries that stand in for the one of NVIDIA's driver, on machines without card or driver. Point
//! `PLIMSOLL_NVML` at one of them, in a child process. Read next: `nvml.rs`, the stand-in itself.

use std::path::Path;

// Compiled as part of this crate only to be tested and linted with it.
#[cfg(test)]
mod nvml;

/// The environment variable that describes the machine for which [`library`] answers; unset, it has no cards.
///
/// Entries are separated by `;`. A card is `name,uuid,total,reserved,used` with sizes in MiB, and may add faults:
/// `error=CODE` makes every call about the card fail with that NVML code, `memory_v2=CODE` the newer reading of memory,
/// `sensors=CODE` temperature and power limit; `holder=PID/MIB` is a process that holds memory of it, the calling one with a PID of 0, `mig=1` puts it in MIG mode,
/// `busy=PERCENT` is how much it computes.
/// The entry `init=CODE` makes NVML fail to start; `count=N` makes it claim N cards. A card's temperature is 50 °C and its power limit 170 W, unless a script ([`SCRIPT`]) says otherwise.
pub const MACHINE: &str = "PLIMSOLL_FAKE_GPUS";

/// The environment variable that names a file with a script: what cards say over time, and which calls fail with what. Its
/// form stands in `script.rs`. What it does not tell is as [`MACHINE`] has it, or not supported.
pub const SCRIPT: &str = "PLIMSOLL_FAKE_NVML_SCRIPT";

/// The environment variable that names a file of what cards were told, which outlives a process as a card's settings do. A line
/// is a card, a name as in scripts, and a value: `0 power_limit 150`; the last one counts, whoever wrote it.
pub const STATE: &str = "PLIMSOLL_FAKE_NVML_STATE";

/// A library with every function of NVML that Plimsoll calls.
pub fn library() -> &'static Path {
    Path::new(env!("FAKE_NVML"))
}

/// A library that can be started and has no other function.
pub fn bare_library() -> &'static Path {
    Path::new(env!("BARE_NVML"))
}
