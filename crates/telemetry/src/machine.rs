//! The system's readings of the machine and this process. A missing reading is `None`.
//! Not here: free memory (`available.rs`).

use plimsoll_units::Bytes;
use std::fs;

/// The peak resident size of this process.
pub fn peak_rss() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The resident memory of this process that no file backs.
pub fn anonymous_rss() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// The machine's memory.
pub fn total_memory() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// The processor's name, as reported by the system.
pub fn processor_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

/// The system with its version, if reported, and the processor architecture: `linux 6.8.0-45-generic, x86_64`.
pub fn system_name() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let space = if release.is_empty() { "" } else { " " };
    format!("{}{space}{release}, {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Parses `name   123 kB` from a kernel table.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// Parses `some avg10=1.23 …`: percent of the last ten seconds in which at least one task waited.
pub(crate) fn waiting_percent(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix("avg10=")?.parse().ok())
        .filter(|part: &f64| part.is_finite())
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
