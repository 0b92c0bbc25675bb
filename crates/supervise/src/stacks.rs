//! Dumps the stacks of a hung program's Python processes with py-spy, if it is installed.

use plimsoll_registry::Group;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit per process.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limit on the number of processes to dump.
const MOST: usize = 16;

/// Writes the stacks of a worker's processes to a file. Returns whether any were written; if not, there is no file.
pub(crate) fn dump(group: &Group, into: &Path) -> bool {
    let mut any = false;
    for member in group.members().iter().take(MOST) {
        any |= dump_one(member.row.pid, into);
    }
    any
}

fn dump_one(pid: u32, into: &Path) -> bool {
    let Ok(file) = File::options().create(true).append(true).open(into) else { return false };
    let mut command = Command::new("py-spy");
    command.args(["dump", "--nonblocking", "--pid", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        remove_if_empty(into);
        return false;
    };
    let start = Instant::now();
    let succeeded = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill().and_then(|()| child.wait());
                break false;
            }
        }
    };
    remove_if_empty(into);
    succeeded
}

fn remove_if_empty(path: &Path) {
    if path.metadata().is_ok_and(|found| found.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
}
