//! What the system says about the machine and this process. A reading that the system does not give is `None`.
//! Not here: how much memory is free (`available.rs`).

use plimsoll_units::Bytes;
use std::fs;

/// The largest resident size that this process has had.
pub fn peak_rss() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// What this process has in memory now that no file backs.
pub fn anonymous_rss() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// The memory that the machine has.
pub fn total_memory() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The processor's name, as the system gives it.
pub fn processor_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

/// The system with its version, as far as it tells it, and the kind of processor: `linux 6.8.0-45-generic, x86_64`.
pub fn system_name() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let space = if release.is_empty() { "" } else { " " };
    format!("{}{space}{release}, {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// `name   123 kB` in a table of the kernel's.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_missing_ones_are_none() {
        let text = "MemTotal:       24616232 kB\nMemAvailable:   23456789 kB\n";
        assert_eq!(kib_field(text, "MemAvailable:"), Some(Bytes(23_456_789 * 1024)));
        assert_eq!(kib_field(text, "MemFree:"), None);
        assert_eq!(kib_field("MemFree: lots", "MemFree:"), None);
    }
}
