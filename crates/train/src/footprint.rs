//! The memory of a process as measured by the system, and the part of it outside the plan.
//! Not here: the plan's own numbers (`report.rs`).
//!
//! Measured bytes are what the system counts for this process. On the CPU, the arenas' resident pages by the page table equal
//! the plan rounded up to pages. On a card, NVML's figure for this process counts, or the increase over all processes if it
//! is exactly the reservation. The bytes outside are the peak resident size minus the arenas.

use plimsoll_exec::Device;
use plimsoll_telemetry::peak_rss;
use serde::{Deserialize, Serialize};

/// Measured memory of a process that executes a plan. A missing measurement is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Resident bytes of the arenas at the last measurement: this process's alone. Also `None` if a card's driver only
    /// reports them together with other processes' memory.
    pub arena_resident_bytes: Option<u64>,
    /// The maximum of these.
    pub arena_resident_peak_bytes: Option<u64>,
    /// The maximum of the part in the process's own memory, excluding a card's.
    #[serde(skip)]
    pub(crate) in_process_peak_bytes: Option<u64>,
    /// The process's peak resident size before the arenas were reserved.
    pub peak_rss_before_load_bytes: Option<u64>,
    /// The process's peak resident size.
    pub peak_rss_bytes: Option<u64>,
    /// The maximum memory outside the plan: the peak before the arenas were reserved, or the later peak minus the
    /// arenas, which stay in memory from then on. Includes pages of mapped files, such as the program's own.
    pub outside_plan_bytes: Option<u64>,
}

impl Footprint {
    /// For a process that is about to reserve its arenas.
    pub(crate) fn before_load() -> Self {
        Self { peak_rss_before_load_bytes: peak_rss().map(|b| b.0), ..Self::default() }
    }

    /// Another plan has replaced the one that was measured, in the same process.
    pub(crate) fn exchanged(&mut self) {
        self.arena_resident_peak_bytes = None;
    }

    /// Measures the device's memory for its plan, and the process's memory.
    pub(crate) fn measure_device(&mut self, device: &dyn Device) {
        self.measure(device.resident_bytes(), device.resident_in_process_bytes());
    }

    /// Measures the process's memory, given the resident bytes of the arenas and the part of these in the process.
    fn measure(&mut self, arena_resident_bytes: Option<u64>, in_process_bytes: Option<u64>) {
        self.arena_resident_bytes = arena_resident_bytes;
        self.in_process_peak_bytes = self.in_process_peak_bytes.max(in_process_bytes);
        self.arena_resident_peak_bytes = self.arena_resident_peak_bytes.max(arena_resident_bytes);
        self.peak_rss_bytes = peak_rss().map(|b| b.0);
        self.settle();
    }

    /// For a process that had this footprint's arenas first and `later`'s afterwards, never both.
    #[must_use]
    pub fn then(self, later: Self) -> Self {
        let mut both = Self {
            arena_resident_peak_bytes: self.arena_resident_peak_bytes.max(later.arena_resident_peak_bytes),
            in_process_peak_bytes: self.in_process_peak_bytes.max(later.in_process_peak_bytes),
            peak_rss_before_load_bytes: self.peak_rss_before_load_bytes,
            ..later
        };
        both.settle();
        both
    }

    fn settle(&mut self) {
        let outside = self.peak_rss_bytes.zip(self.in_process_peak_bytes);
        let outside = outside.map(|(all, arena)| all.saturating_sub(arena));
        self.outside_plan_bytes = outside.map(|outside| outside.max(self.peak_rss_before_load_bytes.unwrap_or(0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(before: u64, arena: u64, peak: u64) -> Footprint {
        let mut footprint = Footprint {
            arena_resident_bytes: Some(arena),
            arena_resident_peak_bytes: Some(arena),
            in_process_peak_bytes: Some(arena),
            peak_rss_before_load_bytes: Some(before),
            peak_rss_bytes: Some(peak),
            outside_plan_bytes: None,
        };
        footprint.settle();
        footprint
    }

    #[test]
    fn memory_outside_the_plan_is_the_larger_of_before_and_during() {
        assert_eq!(of(10, 100, 130).outside_plan_bytes, Some(30));
        assert_eq!(of(50, 100, 130).outside_plan_bytes, Some(50));
        // Preparing data used more memory than the whole run.
        assert_eq!(of(200, 100, 200).outside_plan_bytes, Some(200));
    }

    #[test]
    fn the_largest_of_consecutive_arenas_is_subtracted() {
        let both = of(10, 100, 130).then(of(130, 80, 130));
        assert_eq!((both.arena_resident_bytes, both.arena_resident_peak_bytes), (Some(80), Some(100)));
        assert_eq!(both.outside_plan_bytes, Some(30));
    }

    #[test]
    fn memory_of_a_card_is_not_memory_of_the_process() {
        let mut footprint = Footprint { arena_resident_peak_bytes: Some(1000), ..of(10, 100, 130) };
        footprint.settle();
        assert_eq!(footprint.outside_plan_bytes, Some(30));
    }

    #[test]
    fn missing_measurements_stay_missing() {
        let mut footprint = Footprint { in_process_peak_bytes: None, ..of(10, 100, 130) };
        footprint.settle();
        assert_eq!(footprint.outside_plan_bytes, None);
    }

    /// Real memory outside the arenas is measured.
    #[cfg(target_os = "linux")]
    #[test]
    fn memory_outside_the_arenas_is_measured() {
        const HELD: usize = 64 << 20;
        let mut footprint = Footprint::before_load();
        footprint.measure(Some(0), Some(0));
        let before = footprint.outside_plan_bytes.expect("Linux says");
        let now = plimsoll_telemetry::anonymous_rss().expect("Linux says").0;
        let held = std::hint::black_box(vec![1u8; HELD]);
        footprint.measure(Some(0), Some(0));
        let after = footprint.outside_plan_bytes.expect("Linux says");
        // The kernel updates its page counts in batches.
        assert!(after + (1 << 20) >= now + held.len() as u64 && after >= before, "{before} {now} {after}");
    }
}
