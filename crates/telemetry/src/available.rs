//! How much more memory this process can use: the minimum over all limits of the machine.
//!
//! All values are read from the kernel's file systems, below a root that tests replace. `control_groups.rs` reads the
//! limits of control groups.

use crate::control_groups;
use crate::machine::kib_field;
use plimsoll_units::Bytes;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the process can still use, and the limit that determines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// The number of bytes.
    pub bytes: Bytes,
    /// The tightest limit.
    pub bound: Bound,
}

/// A limit on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// Free memory of the machine, including what it can reclaim at once.
    Machine,
    /// The limit of a control group of the process, or of an ancestor group.
    ControlGroup(PathBuf),
    /// The commit limit of a machine that does not overcommit.
    Commitments,
    /// The process's limit on address space.
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

/// The minimum over all limits; `None` if the system reports none.
pub fn available_memory() -> Option<Available> {
    available_after(Bytes::ZERO)
}

/// The same, once this process has returned `held` bytes. A limit that was lowered below its use leaves less than `held`.
pub fn available_after(held: Bytes) -> Option<Available> {
    available_below(Path::new("/"), held)
}

/// The pages that the process can still receive: like [`available_memory`], without the limits on address space and
/// commitments, which count memory when it is mapped and not when it is used.
pub fn available_pages() -> Option<Available> {
    least(pages(Path::new("/")), Bytes::ZERO)
}

fn available_below(root: &Path, held: Bytes) -> Option<Available> {
    least(pages(root).into_iter().chain(commitments(root)).chain(process_limits(root)), held)
}

/// A limit, and the use that counts toward it.
struct Limit {
    bytes: Bytes,
    used: Bytes,
    bound: Bound,
}

fn least(all: impl IntoIterator<Item = Limit>, held: Bytes) -> Option<Available> {
    let left = |Limit { bytes, used, bound }| Available {
        bytes: Bytes(bytes.0.saturating_add(held.0)).saturating_sub(used),
        bound,
    };
    all.into_iter().map(left).min_by_key(|available| available.bytes)
}

fn pages(root: &Path) -> Vec<Limit> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.and_then(|text| kib_field(&text, "MemAvailable:"));
    let machine = machine.map(|bytes| Limit { bytes, used: Bytes::ZERO, bound: Bound::Machine });
    let groups = control_groups::limits(root).into_iter();
    let groups = groups.map(|(path, [bytes, used])| Limit { bytes, used, bound: Bound::ControlGroup(path) });
    machine.into_iter().chain(groups).collect()
}

/// The commit limit, if the machine does not overcommit memory.
/// Source: Documentation/mm/overcommit-accounting.rst of the kernel.
fn commitments(root: &Path) -> Option<Limit> {
    const NEVER_OVERCOMMIT: &str = "2";
    let mode = fs::read_to_string(root.join("proc/sys/vm/overcommit_memory")).ok()?;
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let (bytes, used) = (kib_field(&text, "CommitLimit:")?, kib_field(&text, "Committed_AS:")?);
    (mode.trim() == NEVER_OVERCOMMIT).then_some(Limit { bytes, used, bound: Bound::Commitments })
}

/// RLIMIT_AS and RLIMIT_DATA. Source: proc(5), prlimit(2).
fn process_limits(root: &Path) -> Vec<Limit> {
    let read = |file: &str| fs::read_to_string(root.join("proc/self").join(file)).unwrap_or_default();
    let (limits, status) = (read("limits"), read("status"));
    let limit = |limit: &str, used: &str, bound: Bound| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        // The soft limit comes first; `unlimited` is not a number.
        let bytes = Bytes(line.split_ascii_whitespace().next()?.parse().ok()?);
        Some(Limit { bytes, used: kib_field(&status, used)?, bound })
    };
    let addresses = limit("Max address space", "VmSize:", Bound::AddressSpace);
    addresses.into_iter().chain(limit("Max data size", "VmData:", Bound::Data)).collect()
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
        assert_eq!(
            available_below(machine.path(), Bytes::ZERO),
            Some(Available { bytes: Bytes(kib * 1024), bound }),
            "{files:?}"
        );
    }

    #[test]
    fn the_tightest_limit_wins() {
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
    fn what_the_process_holds_counts_and_a_lowered_limit_leaves_less_than_that() {
        let group: &[(&str, &str)] = &[
            ("proc/self/cgroup", "0::/run\n"),
            ("sys/fs/cgroup/run/memory.max", "max\n"),
            ("sys/fs/cgroup/run/memory.high", "400\n"),
            ("sys/fs/cgroup/run/memory.current", "1000\n"),
        ];
        let machine = machine_with(&[ROOMY, group].concat());
        let after = |held| available_below(machine.path(), Bytes(held)).map(|available| available.bytes.0);
        assert_eq!([after(0), after(500), after(700), after(u64::MAX)], [0, 0, 100, u64::MAX - 1000].map(Some));
    }

    #[test]
    fn a_limit_that_is_used_up_leaves_nothing() {
        check(&[("proc/self/limits", "Max address space 1000 unlimited bytes\n")], 0, Bound::AddressSpace);
    }

    #[test]
    fn a_system_without_readings_has_no_number() {
        assert_eq!(available_below(machine_with(&[]).path(), Bytes::ZERO), None);
        let garbled = [("proc/meminfo", "MemAvailable: lots\n"), ("proc/self/limits", "Max address space\n")];
        assert_eq!(available_below(machine_with(&garbled).path(), Bytes::ZERO), None);
    }

    /// This machine's own files.
    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some_memory() {
        let (all, pages) =
            (available_memory().expect("Linux reports it"), available_pages().expect("Linux reports it"));
        assert!(all.bytes > Bytes::mib(1) && all.bytes <= pages.bytes + Bytes::gib(1), "{all:?} {pages:?}");
    }
}
