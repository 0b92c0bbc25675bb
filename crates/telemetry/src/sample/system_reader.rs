//! Reads the system's current state: processors, memory, pressure, control groups, the disk.
//! Sources: proc(5); Documentation/accounting/psi.rst of the kernel. All files are read below a root that tests
//! replace.

use super::SystemSample;
use crate::control_groups;
use crate::machine::{kib_field, waiting_percent};
use plimsoll_files::disk_space;
use std::fs;
use std::path::{Path, PathBuf};

/// A machine that is read repeatedly.
pub(super) struct SystemReader {
    root: PathBuf,
    /// The folder whose disk is sampled.
    folder: Option<PathBuf>,
    /// Total and busy ticks of all cores at the last sample.
    before: Option<[u64; 2]>,
}

impl SystemReader {
    pub fn new(root: &Path, folder: Option<PathBuf>) -> Self {
        Self { root: root.to_owned(), folder, before: None }
    }

    pub fn read(&mut self) -> SystemSample {
        let text = |file: &str| fs::read_to_string(self.root.join(file)).unwrap_or_default();
        let (stat, memory, own) = (text("proc/stat"), text("proc/meminfo"), text("proc/self/status"));
        let pressure = |of: &str| waiting_percent(&text(&format!("proc/pressure/{of}")));
        let [cpu_pressure_percent, memory_pressure_percent, io_pressure_percent] =
            ["cpu", "memory", "io"].map(pressure);
        let group = control_groups::tightest(&self.root);
        let disk = self.folder.as_deref().and_then(|folder| disk_space(folder).ok());
        let swap = |name| kib_field(&memory, name);
        let now = ticks(&stat);
        let cpu_percent = match (self.before, now) {
            (Some([all, busy]), Some([all_now, busy_now])) if all_now > all => {
                Some(100.0 * busy_now.saturating_sub(busy) as f64 / (all_now - all) as f64)
            }
            _ => None,
        };
        self.before = now.or(self.before);
        SystemSample {
            cpu_percent: cpu_percent.map(|percent| percent.min(100.0)),
            cores: u32::try_from(stat.lines().filter(|line| is_core(line)).count()).ok().filter(|count| *count > 0),
            memory_total: kib_field(&memory, "MemTotal:"),
            memory_available: kib_field(&memory, "MemAvailable:"),
            swap_used: swap("SwapTotal:").zip(swap("SwapFree:")).map(|(all, free)| all.saturating_sub(free)),
            process: kib_field(&own, "VmRSS:"),
            cpu_pressure_percent,
            memory_pressure_percent,
            io_pressure_percent,
            group_limit: group.map(|[limit, _]| limit),
            group_used: group.map(|[_, used]| used),
            disk_total: disk.map(|disk| disk.total),
            disk_free: disk.map(|disk| disk.free),
        }
    }
}

/// A line of `/proc/stat` for one core: `cpu0 …`.
fn is_core(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// Total and busy ticks of all cores. Waiting for a disk is not busy.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; guest ticks are already part of user.
    let counts =
        line.split_ascii_whitespace().take(8).map(|count| count.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let all = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?;
    let idle = counts.iter().skip(3).take(2).sum::<u64>();
    (counts.len() >= 4).then_some([all, all.saturating_sub(idle)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_groups::tests::machine_with;
    use plimsoll_units::Bytes;

    #[test]
    fn the_machine_is_read_and_processor_use_is_between_samples() {
        let files: &[(&str, &str)] = &[
            (
                "proc/stat",
                "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 50 0 50 350 50 0 0 0\ncpu1 50 0 50 350 50 0 0 0\nctxt 9\n",
            ),
            ("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 4000 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"),
            ("proc/self/status", "Name: plimsoll\nVmRSS: 300 kB\n"),
            ("proc/pressure/memory", "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=3.00 total=1\n"),
        ];
        let machine = machine_with(files);
        let mut reader = SystemReader::new(machine.path(), None);
        let first = reader.read();
        assert_eq!((first.cpu_percent, first.cores), (None, Some(2)));
        assert_eq!(first.memory_total, Some(Bytes(8_192_000)));
        assert_eq!(first.swap_used, Some(Bytes(60 * 1024)));
        assert_eq!(first.process, Some(Bytes(300 * 1024)));
        assert_eq!((first.memory_pressure_percent, first.io_pressure_percent), (Some(12.5), None));
        // 400 ticks later, 300 of them busy.
        std::fs::write(machine.path().join("proc/stat"), "cpu  300 0 200 750 150 0 0 0\n").unwrap();
        assert_eq!(reader.read().cpu_percent, Some(75.0));
        // A counter that decreases yields no reading.
        std::fs::write(machine.path().join("proc/stat"), "cpu  1 0 1 1 1 0 0 0\n").unwrap();
        assert_eq!(reader.read().cpu_percent, None);
    }

    #[test]
    fn a_machine_without_readings_has_no_numbers() {
        let machine =
            machine_with(&[("proc/stat", "cpu  99999999999999999999 x\n"), ("proc/pressure/cpu", "some avg10=NaN")]);
        assert_eq!(SystemReader::new(machine.path(), None).read(), SystemSample::default());
    }
}
