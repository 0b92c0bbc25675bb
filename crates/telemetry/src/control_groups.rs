//! The memory left by this process's control groups, versions 1 and 2: its own group and all its ancestors.
//!
//! A group is charged for the page cache of files that its processes read. The kernel reclaims these pages before it
//! refuses an allocation, so they count as free.

use crate::machine::waiting_percent;
use plimsoll_units::Bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// The file names of a version.
struct Version {
    /// Type of the file system, and the option that its mount must have.
    filesystem: &'static str,
    option: Option<&'static str>,
    /// The mount point if the system does not list its mounts.
    usual_mount: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat`, including descendants, that the kernel reclaims before it refuses an allocation.
    reclaimable: &'static [&'static str],
    /// The file with the line `oom_kill`.
    kills: &'static str,
    /// The line of `memory.stat` with the tightest limit of the group and its ancestors, including invisible ones.
    inherited_limit: Option<&'static str>,
}

/// Source: Documentation/admin-guide/cgroup-v1/memory.rst of the kernel.
const V1: Version = Version {
    filesystem: "cgroup",
    option: Some("memory"),
    usual_mount: "/sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
    kills: "memory.oom_control",
    inherited_limit: Some("hierarchical_memory_limit"),
};

/// Source: Documentation/admin-guide/cgroup-v2.rst of the kernel. Above `memory.high` a process is not killed but
/// throttled until it hardly runs.
const V2: Version = Version {
    filesystem: "cgroup2",
    option: None,
    usual_mount: "/sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
    kills: "memory.events",
    inherited_limit: None,
};

/// The groups of this process that have limits, from its own upward, with limit and use of each. Groups are identified by
/// their path below the mount.
pub(crate) fn limits(root: &Path) -> Vec<(PathBuf, [Bytes; 2])> {
    let limit = |(version, folder, group): &(&Version, PathBuf, PathBuf)| {
        Some((Path::new("/").join(group), version.limit(&folder.join(group))?))
    };
    groups(root).iter().filter_map(limit).collect()
}

/// Limit and use of the group that leaves the least memory to this process. `None` if no group limits it.
pub(crate) fn tightest(root: &Path) -> Option<[Bytes; 2]> {
    let limits = limits(root).into_iter().map(|(_, limit)| limit);
    limits.min_by_key(|[limit, used]| limit.saturating_sub(*used))
}

/// Number of processes in this process's control group that the kernel has killed for lack of memory, whether the limit
/// was the group's, an ancestor's, or the machine's. `None` if the system does not report it.
pub fn oom_kills() -> Option<u64> {
    oom_kills_below(Path::new("/"))
}

fn oom_kills_below(root: &Path) -> Option<u64> {
    // If memory is not controlled for the group itself, the nearest ancestor with memory control counts for both.
    groups(root).iter().find_map(|(version, folder, group)| {
        let text = fs::read_to_string(folder.join(group).join(version.kills)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    })
}

/// Percent of the last ten seconds in which a task of this process's control group waited for memory. `None` if the system does not
/// report it for the group. Source: the kernel's pressure stall information, Documentation/accounting/psi.rst.
pub fn memory_pressure() -> Option<f64> {
    memory_pressure_below(Path::new("/"))
}

fn memory_pressure_below(root: &Path) -> Option<f64> {
    let (_, folder, group) = groups(root).into_iter().find(|(version, ..)| version.option.is_none())?;
    // The root group is the machine, of which other groups are part.
    let own = Some(group).filter(|group| !group.as_os_str().is_empty())?;
    waiting_percent(&fs::read_to_string(folder.join(own).join("memory.pressure")).ok()?)
}

/// The memory control groups of this process, from its own upward: the version, the mount folder, and the group's path
/// below it. A machine may have groups of both versions; only one version controls memory.
fn groups(root: &Path) -> Vec<(&'static Version, PathBuf, PathBuf)> {
    let read = |file: &str| fs::read_to_string(root.join("proc/self").join(file)).unwrap_or_default();
    let (groups, mounts) = (read("cgroup"), read("mountinfo"));
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version: &'static Version = match (number, controllers) {
            ("0", "") => &V2,
            (_, controllers) if controllers.split(',').any(|controller| controller == "memory") => &V1,
            _ => continue,
        };
        let (mount, below) = version.place(&mounts, Path::new(path));
        let folder = root.join(mount.strip_prefix("/").unwrap_or(&mount));
        found.extend(below.ancestors().map(|group| (version, folder.clone(), group.to_owned())));
    }
    found
}

impl Version {
    /// The mount point, and the path of the group below it. A container may see its own group as the root, or see a
    /// path outside the mount; then the mount itself is the best approximation.
    fn place(&self, mounts: &str, group: &Path) -> (PathBuf, PathBuf) {
        let mounted = mounts.lines().filter_map(|line| {
            let (mount, filesystem) = line.split_once(" - ")?;
            let (mut mount, mut filesystem) = (mount.split(' ').skip(3), filesystem.split(' '));
            let (top, point) = (mount.next()?, mount.next()?);
            let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
            let fits = kind == self.filesystem && self.option.is_none_or(|o| options.split(',').any(|x| x == o));
            fits.then(|| (PathBuf::from(point), PathBuf::from(top)))
        });
        let mounted = mounted.collect::<Vec<_>>();
        let below = |top: &Path| {
            let below = group.strip_prefix(top).ok()?;
            below.components().all(|part| matches!(part, std::path::Component::Normal(_))).then(|| below.to_owned())
        };
        let known = mounted.iter().find_map(|(point, top)| Some((point.clone(), below(top)?)));
        let outside = || mounted.first().map(|(point, _)| (point.clone(), PathBuf::new()));
        let usual = || (PathBuf::from(self.usual_mount), below(Path::new("/")).unwrap_or_default());
        known.or_else(outside).unwrap_or_else(usual)
    }

    /// A group's limit, and its use without reclaimable pages; `None` without a limit.
    fn limit(&self, group: &Path) -> Option<[Bytes; 2]> {
        let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let line = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            value.trim().parse::<u64>().ok()
        };
        let inherited = self.inherited_limit.and_then(line);
        let limit = self.limits.iter().filter_map(|file| number(file)).chain(inherited).min()?;
        let reclaimable = self.reclaimable.iter().filter_map(|name| line(name)).sum::<u64>();
        let used = number(self.used)?.saturating_sub(reclaimable);
        Some([Bytes(limit), Bytes(used)])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A folder with these files; if a name occurs more than once, the last wins.
    pub(crate) fn machine_with(files: &[(&str, &str)]) -> TempDir {
        let machine = tempfile::tempdir().expect("a temporary folder");
        for (path, contents) in files {
            let path = machine.path().join(path);
            fs::create_dir_all(path.parent().expect("a file's path has a parent")).expect("folders");
            fs::write(path, contents).expect("written");
        }
        machine
    }

    fn check(files: &[(&str, &str)], expected: &[(&str, u64)]) {
        let machine = machine_with(files);
        let expected = expected.iter().map(|(group, bytes)| (PathBuf::from(group), Bytes(*bytes))).collect::<Vec<_>>();
        let left = |(group, [limit, used]): (PathBuf, [Bytes; 2])| (group, limit.saturating_sub(used));
        assert_eq!(limits(machine.path()).into_iter().map(left).collect::<Vec<_>>(), expected, "{files:?}");
    }

    #[test]
    fn version_2_with_all_groups_above() {
        check(
            &[
                ("proc/self/cgroup", "0::/user/run/own\n"),
                ("sys/fs/cgroup/user/run/own/memory.max", "max\n"),
                ("sys/fs/cgroup/user/run/own/memory.current", "100\n"),
                ("sys/fs/cgroup/user/run/memory.max", "5000\n"),
                ("sys/fs/cgroup/user/run/memory.high", "4000\n"),
                ("sys/fs/cgroup/user/run/memory.current", "1000\n"),
                ("sys/fs/cgroup/user/memory.max", "3000\n"),
                ("sys/fs/cgroup/user/memory.high", "max\n"),
                ("sys/fs/cgroup/user/memory.current", "2500\n"),
            ],
            &[("/user/run", 3000), ("/user", 500)],
        );
    }

    /// A group of 8 GiB that has read 7.8 GiB of files is nearly empty.
    #[test]
    fn page_cache_counts_as_free() {
        let stat = "anon 500\nfile 7500\ninactive_file 5000\nactive_file 2000\nslab_reclaimable 300\nshmem 400\n";
        let version_2: &[(&str, &str)] = &[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "8000\n"),
            ("sys/fs/cgroup/memory.current", "7900\n"),
            ("sys/fs/cgroup/memory.stat", stat),
        ];
        check(version_2, &[("/", 8000 - (7900 - 7300))]);
        let stat = "inactive_file 1\ntotal_inactive_file 5000\ntotal_active_file 2000\n";
        let version_1: &[(&str, &str)] = &[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "7900\n"),
            ("sys/fs/cgroup/memory/memory.stat", stat),
        ];
        check(version_1, &[("/", 8000 - (7900 - 7000))]);
    }

    #[test]
    fn version_1_next_to_version_2_with_all_groups_above() {
        check(
            &[
                ("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/lxc/own\n3:cpuset:/\n0::/\n"),
                ("sys/fs/cgroup/memory/lxc/own/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/lxc/own/memory.usage_in_bytes", "100\n"),
                ("sys/fs/cgroup/memory/lxc/memory.limit_in_bytes", "1000\n"),
                ("sys/fs/cgroup/memory/lxc/memory.usage_in_bytes", "400\n"),
            ],
            &[("/lxc/own", 9_223_372_036_854_771_612), ("/lxc", 600)],
        );
    }

    #[test]
    fn a_limit_of_a_group_that_cannot_be_seen_counts() {
        check(
            &[
                ("proc/self/cgroup", "4:memory:/docker/abc\n"),
                (
                    "proc/self/mountinfo",
                    "30 25 0:26 /docker/abc /groups/memory rw shared:9 - cgroup cgroup rw,memory\n",
                ),
                ("groups/memory/memory.limit_in_bytes", "9000\n"),
                ("groups/memory/memory.usage_in_bytes", "400\n"),
                ("groups/memory/memory.stat", "hierarchical_memory_limit 2000\n"),
            ],
            &[("/", 1600)],
        );
    }

    #[test]
    fn mounts_are_found_at_any_path() {
        let mounts = "24 1 8:1 / / rw - ext4 /dev/sda rw\n\
                      30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let files: &[(&str, &str)] = &[
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/unified/own/memory.max", "7000\n"),
            ("sys/fs/cgroup/unified/own/memory.current", "3000\n"),
            ("sys/fs/cgroup/unified/memory.max", "5000\n"),
            ("sys/fs/cgroup/unified/memory.current", "3500\n"),
        ];
        check(&[files, &[("proc/self/cgroup", "0::/own\n")]].concat(), &[("/own", 4000), ("/", 1500)]);
        // From inside a container, the path may be outside the visible mount.
        check(&[files, &[("proc/self/cgroup", "0::/../../elsewhere\n")]].concat(), &[("/", 1500)]);
    }

    #[test]
    fn kills_are_counted_in_the_nearest_group_with_memory_control() {
        let check = |files: &[(&str, &str)], expected| {
            assert_eq!(oom_kills_below(machine_with(files).path()), expected, "{files:?}");
        };
        let events = "low 0\nhigh 9\nmax 8\noom 5\noom_kill 2\noom_group_kill 1\n";
        let above = ("sys/fs/cgroup/run/memory.events", events);
        check(&[("proc/self/cgroup", "0::/run/own\n"), above], Some(2));
        check(
            &[("proc/self/cgroup", "0::/run/own\n"), above, ("sys/fs/cgroup/run/own/memory.events", "oom_kill 7\n")],
            Some(7),
        );
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let own = ("sys/fs/cgroup/memory/lxc/own/memory.oom_control", control);
        check(&[("proc/self/cgroup", "5:cpu,memory:/lxc/own\n0::/\n"), own], Some(3));
        check(&[("proc/self/cgroup", "0::/\n")], None);
    }

    #[test]
    fn pressure_is_that_of_the_own_group_and_never_of_the_machine() {
        let check = |files: &[(&str, &str)], expected| {
            assert_eq!(memory_pressure_below(machine_with(files).path()), expected, "{files:?}");
        };
        let machine = ("sys/fs/cgroup/memory.pressure", "some avg10=70.00 avg60=0.00 avg300=0.00 total=9\n");
        let own = ("sys/fs/cgroup/run/own/memory.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n");
        check(&[("proc/self/cgroup", "0::/run/own\n"), machine, own], Some(1.5));
        check(&[("proc/self/cgroup", "4:memory:/run/own\n0::/\n"), machine, own], None);
        check(&[("proc/self/cgroup", "0::/run/own\n"), machine], None);
    }

    #[test]
    fn unreadable_limits_are_ignored() {
        check(&[], &[]);
        check(&[("proc/self/cgroup", "nonsense\n0::/own\n4:memory\n")], &[]);
        let only_limit: &[(&str, &str)] =
            &[("proc/self/cgroup", "0::/own\n"), ("sys/fs/cgroup/own/memory.max", "7000\n")];
        check(only_limit, &[]);
    }
}
