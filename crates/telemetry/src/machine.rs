//! What the system says about memory. A reading that the system does not give is `None`.

use std::fs;
use units::Bytes;

/// Bytes that processes can still take: the smaller of what the system and the control group leave.
pub fn available_memory() -> Option<Bytes> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib_field(&text, "MemAvailable:"));
    let group = control_group_room();
    match (system, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The largest resident size that this process has had.
pub fn peak_rss() -> Option<Bytes> {
    kib_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The processor's name, as the system gives it.
pub fn processor_name() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
}

/// `name   123 kB` in a table of the kernel's.
fn kib_field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib * 1024))
}

/// What the process's control group (version 2) has left, if it has a limit.
fn control_group_room() -> Option<Bytes> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup{}/{file}", path.trim_end_matches('/'))).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    Some(Bytes(limit.saturating_sub(used)))
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
