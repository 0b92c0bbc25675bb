//! The process table, read from `/proc` on Linux. Empty elsewhere, where only process groups are known.

use rustix::process::Pid;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// A process in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its process ID.
    pub pid: u32,
    /// Its name, cut to 15 bytes by the kernel.
    pub name: String,
    /// Whether it has ended and was not reaped.
    pub is_zombie: bool,
    /// Whether a signal stopped it, such as Ctrl-Z.
    pub is_stopped: bool,
    /// The process ID of its parent, or of the process that adopted it.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// The user ID that it runs as; root's for a process that may not be inspected.
    pub uid: u32,
    /// Its start time, in ticks since boot.
    pub started: u64,
    /// CPU time of it and of its reaped children, in ticks of 10 ms.
    pub cpu_ticks: u64,
}

/// All visible processes.
pub fn rows() -> Vec<Row> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| row(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// One process.
pub fn row(pid: u32) -> Option<Row> {
    use std::os::unix::fs::MetadataExt;
    // A process's name may be any bytes.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    parse(&String::from_utf8_lossy(&stat), uid)
}

/// The process IDs of all descendants of a process.
pub fn descendants(rows: &[Row], ancestor: u32) -> HashSet<u32> {
    let mut found = HashSet::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        let children = rows.iter().filter(|row| row.parent == parent).map(|row| row.pid);
        parents.extend(children.filter(|&child| child != ancestor && found.insert(child)));
    }
    found
}

/// Whether a process has this file open. Always false for a process that this user may not inspect.
pub fn has_open(pid: u32, file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(file) = fs::metadata(file) else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // The descriptor's link leads to the open file, even if the file was renamed.
    let mut open = open.filter_map(|descriptor| fs::metadata(descriptor.path()).ok());
    open.any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

/// Whether a process was started with this environment variable, `NAME=value`. Children inherit it unless they get
/// another environment. Always false for other users' processes.
pub fn has_variable(pid: u32, variable: &str) -> bool {
    environment(pid).split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes())
}

/// Like [`has_variable`], for a prefix of the variable. Its end is a zero byte.
pub fn has_variable_beginning(pid: u32, prefix: &str) -> bool {
    environment(pid).split_inclusive(|&byte| byte == 0).any(|entry| entry.starts_with(prefix.as_bytes()))
}

fn environment(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// A process ID as system calls take it.
pub fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Bit mask of the signals that a process ignores; 0 if the system does not report it.
pub fn ignored_signals(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Parses `/proc/PID/stat`. The name is in parentheses and may contain any characters.
/// Source: proc_pid_stat(5).
fn parse(stat: &str, uid: u32) -> Option<Row> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let fields = rest.split_ascii_whitespace().collect::<Vec<_>>();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let cpu_ticks = (11..=14).map(number).collect::<Option<Vec<_>>>()?.into_iter().sum();
    Some(Row {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        is_stopped: matches!(*fields.first()?, "T" | "t"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        uid,
        started: number(19)?,
        cpu_ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str =
        "123 (a) b (c) S 1 120 120 0 -1 4194560 9 0 0 0 7 3 20 1 20 0 4 0 4711 1000 90 18446744073709551615";

    #[test]
    fn names_may_contain_parentheses_and_spaces() {
        let row = parse(STAT, 5).expect("a row");
        assert_eq!((row.pid, row.name.as_str(), row.parent, row.group), (123, "a) b (c", 1, 120));
        assert_eq!((row.started, row.cpu_ticks, row.uid), (4711, 31, 5));
        assert!(!row.is_zombie && !row.is_stopped);
        assert!(parse(&STAT.replace(") S", ") Z"), 5).expect("a row").is_zombie);
        assert!(parse(&STAT.replace(") S", ") T"), 5).expect("a row").is_stopped);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}", cut in 0..STAT.len()) {
            let _ = (parse(&text, 0), parse(&STAT[..cut], 0));
        }
    }

    #[test]
    fn descendants_of_all_generations_are_found_and_cycles_end() {
        let row = |pid, parent| Row { pid, parent, ..parse(STAT, 0).expect("a row") };
        // Rows are read one after the other, so a reused process ID may form a cycle.
        let rows = [row(5, 4), row(2, 1), row(4, 3), row(3, 2), row(8, 7), row(7, 8), row(1, 4)];
        assert_eq!(descendants(&rows, 2), HashSet::from([1, 3, 4, 5]));
        assert_eq!(descendants(&rows, 5), HashSet::new());
        assert_eq!(descendants(&rows, 7), HashSet::from([8]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_in_the_table() {
        let own = std::process::id();
        assert!(rows().iter().any(|row| row.pid == own && row.started > 0));
        let path = std::env::var("PATH").expect("tests have a path");
        assert!(has_variable(own, &format!("PATH={path}")) && !has_variable(own, "PATH="));
        assert_eq!(row(own).expect("a row").uid, rustix::process::geteuid().as_raw());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_open_file_is_found_after_it_is_renamed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [path, other] = ["lock", "other"].map(|name| folder.path().join(name));
        let file = fs::File::create(&path).expect("made");
        let own = std::process::id();
        assert!(has_open(own, &path) && !has_open(own, &other));
        fs::rename(&path, &other).expect("it is there");
        fs::write(&path, "").expect("made");
        assert!(!has_open(own, &path) && has_open(own, &other));
        drop(file);
        assert!(!has_open(own, &other));
    }
}
