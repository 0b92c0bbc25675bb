//! How much memory this process can still take: the least that any of the machine's limits leaves.
//!
//! All is read from the folders of the kernel, below a root that tests replace by one of their own. Limits of control
//! groups are in `control_groups.rs`.

use crate::control_groups;
use crate::machine::kib_field;
use plimsoll_units::Bytes;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What the process can still take, and what keeps it from more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// So much.
    pub bytes: Bytes,
    /// The limit that leaves the least.
    pub bound: Bound,
}

/// A limit on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// What the machine has free, or can free at once.
    Machine,
    /// The limit of a control group that the process is in, or of one above it.
    ControlGroup(PathBuf),
    /// What a machine that promises no more than it has may still promise.
    Commitments,
    /// The process's limit on addresses.
    AddressSpace,
    /// The process's limit on data.
    Data,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("free memory"),
            Self::ControlGroup(path) => write!(f, "free in the control group {}", path.display()),
            Self::Commitments => f.write_str("left under the machine's commit limit"),
            Self::AddressSpace => f.write_str("left under the address space limit, `ulimit -v`"),
            Self::Data => f.write_str("left under the data limit, `ulimit -d`"),
        }
    }
}

/// The least that any limit leaves; `None` where the system tells of none.
pub fn available_memory() -> Option<Available> {
    available_below(Path::new("/"))
}

/// Pages that the process can still be given: like [`available_memory`], but for limits on addresses and promises,
/// which count memory from when it is mapped and not from when it is there.
pub fn available_pages() -> Option<Available> {
    least(pages(Path::new("/")))
}

fn available_below(root: &Path) -> Option<Available> {
    least(pages(root).into_iter().chain(commitments(root)).chain(process_limits(root)))
}

fn least(all: impl IntoIterator<Item = Available>) -> Option<Available> {
    all.into_iter().min_by_key(|available| available.bytes)
}

fn pages(root: &Path) -> Vec<Available> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.and_then(|text| kib_field(&text, "MemAvailable:"));
    let groups = control_groups::rooms(root);
    let groups = groups.into_iter().map(|(path, bytes)| Available { bytes, bound: Bound::ControlGroup(path) });
    machine.map(|bytes| Available { bytes, bound: Bound::Machine }).into_iter().chain(groups).collect()
}

/// Where the machine promises no more memory than it has.
/// Source: Documentation/mm/overcommit-accounting.rst of the kernel.
fn commitments(root: &Path) -> Option<Available> {
    const NEVER_MORE_THAN_THERE_IS: &str = "2";
    let mode = fs::read_to_string(root.join("proc/sys/vm/overcommit_memory")).ok()?;
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let (limit, promised) = (kib_field(&text, "CommitLimit:")?, kib_field(&text, "Committed_AS:")?);
    let bytes = limit.saturating_sub(promised);
    (mode.trim() == NEVER_MORE_THAN_THERE_IS).then_some(Available { bytes, bound: Bound::Commitments })
}

/// RLIMIT_AS and RLIMIT_DATA, less what the process has of each. Source: proc(5), prlimit(2).
fn process_limits(root: &Path) -> Vec<Available> {
    let read = |file: &str| fs::read_to_string(root.join("proc/self").join(file)).unwrap_or_default();
    let (limits, status) = (read("limits"), read("status"));
    let left = |limit: &str, used: &str, bound: Bound| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit comes first; `unlimited` is no number.
        let limit = line.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
        Some(Available { bytes: Bytes(limit).saturating_sub(kib_field(&status, used)?), bound })
    };
    let addresses = left("Max address space", "VmSize:", Bound::AddressSpace);
    addresses.into_iter().chain(left("Max data size", "VmData:", Bound::Data)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_groups::tests::machine_with;

    const ROOMY: &[(&str, &str)] = &[
        ("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 4000 kB\nCommitLimit: 3000 kB\nCommitted_AS: 2000 kB\n"),
        ("proc/sys/vm/overcommit_memory", "0\n"),
        ("proc/self/limits", "Limit Soft Limit Hard Limit Units\nMax data size unlimited unlimited bytes\n"),
        ("proc/self/status", "Name: plimsoll\nVmSize: 300 kB\nVmData: 100 kB\n"),
    ];

    fn check(files: &[(&str, &str)], kib: u64, bound: Bound) {
        let machine = machine_with(&[ROOMY, files].concat());
        assert_eq!(available_below(machine.path()), Some(Available { bytes: Bytes(kib * 1024), bound }), "{files:?}");
    }

    #[test]
    fn the_least_of_all_limits_is_what_is_left() {
        check(&[], 4000, Bound::Machine);
        check(&[("proc/sys/vm/overcommit_memory", "2\n")], 1000, Bound::Commitments);
        let limits = "Max data size             1024000              unlimited            bytes\n";
        check(&[("proc/self/limits", limits)], 900, Bound::Data);
        let limits = "Max data size 1024000 unlimited bytes\nMax address space 1024000 unlimited bytes\n";
        check(&[("proc/self/limits", limits)], 700, Bound::AddressSpace);
        let group: &[(&str, &str)] = &[
            ("proc/self/cgroup", "0::/run\n"),
            ("sys/fs/cgroup/run/memory.max", "1048576\n"),
            ("sys/fs/cgroup/run/memory.current", "512000\n"),
        ];
        check(group, 524, Bound::ControlGroup("/run".into()));
    }

    #[test]
    fn a_limit_that_is_used_up_leaves_nothing() {
        check(&[("proc/self/limits", "Max address space 1000 unlimited bytes\n")], 0, Bound::AddressSpace);
    }

    #[test]
    fn a_system_that_says_nothing_has_no_number() {
        assert_eq!(available_below(machine_with(&[]).path()), None);
        let garbled = [("proc/meminfo", "MemAvailable: lots\n"), ("proc/self/limits", "Max address space\n")];
        assert_eq!(available_below(machine_with(&garbled).path()), None);
    }

    /// This machine's own folders.
    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some_memory() {
        let (all, pages) = (available_memory().expect("Linux says"), available_pages().expect("Linux says"));
        assert!(all.bytes > Bytes::mib(1) && all.bytes <= pages.bytes + Bytes::gib(1), "{all:?} {pages:?}");
    }
}
