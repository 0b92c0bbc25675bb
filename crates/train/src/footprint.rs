//! What a process holds in memory, as the system counts it, and how much of it lies outside its plan.
//! Not here: the plan's own numbers (`report.rs`).

use plimsoll_exec::Device;
use plimsoll_telemetry::peak_rss;
use serde::{Deserialize, Serialize};

/// Measured bytes of a process that carries out a plan. What the system does not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Bytes of the arenas' pages that were in memory when they were last counted: this process's alone. `None` also where a
    /// card's driver counts them with other processes' memory.
    pub arena_resident_bytes: Option<u64>,
    /// The most that were.
    pub arena_resident_peak_bytes: Option<u64>,
    /// The most that were of the process's own memory: none of a card's.
    #[serde(skip)]
    pub(crate) in_process_peak_bytes: Option<u64>,
    /// The process's peak resident size when the arenas were not there yet.
    pub peak_rss_before_load_bytes: Option<u64>,
    /// The process's peak resident size.
    pub peak_rss_bytes: Option<u64>,
    /// The most that the process held outside its plan: all that it had before the arenas were there, or its peak less
    /// theirs, which stay in memory from then on. Pages of mapped files count, the program's own among them.
    pub outside_plan_bytes: Option<u64>,
}

impl Footprint {
    /// Of a process that is about to reserve its arenas.
    pub(crate) fn before_load() -> Self {
        Self { peak_rss_before_load_bytes: peak_rss().map(|b| b.0), ..Self::default() }
    }

    /// Counts what a device has in memory for its plan, and the process's memory.
    pub(crate) fn measure_device(&mut self, device: &dyn Device) {
        self.measure(device.resident_bytes(), device.resident_in_process_bytes());
    }

    /// Counts the process's memory. So much is in memory of the arenas, and so much of that is the process's.
    fn measure(&mut self, arena_resident_bytes: Option<u64>, in_process_bytes: Option<u64>) {
        self.arena_resident_bytes = arena_resident_bytes;
        self.in_process_peak_bytes = self.in_process_peak_bytes.max(in_process_bytes);
        self.arena_resident_peak_bytes = self.arena_resident_peak_bytes.max(arena_resident_bytes);
        self.peak_rss_bytes = peak_rss().map(|b| b.0);
        self.settle();
    }

    /// Of a process that had these arenas first and then those, never both.
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
        let beside = self.peak_rss_bytes.zip(self.in_process_peak_bytes);
        let beside = beside.map(|(all, arena)| all.saturating_sub(arena));
        self.outside_plan_bytes = beside.map(|beside| beside.max(self.peak_rss_before_load_bytes.unwrap_or(0)));
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
    fn what_lies_outside_the_plan_is_the_most_before_or_beside_it() {
        assert_eq!(of(10, 100, 130).outside_plan_bytes, Some(30));
        assert_eq!(of(50, 100, 130).outside_plan_bytes, Some(50));
        // Preparing data took more than the whole run.
        assert_eq!(of(200, 100, 200).outside_plan_bytes, Some(200));
    }

    #[test]
    fn of_arenas_one_after_the_other_the_largest_is_taken_off() {
        let both = of(10, 100, 130).then(of(130, 80, 130));
        assert_eq!((both.arena_resident_bytes, both.arena_resident_peak_bytes), (Some(80), Some(100)));
        assert_eq!(both.outside_plan_bytes, Some(30));
    }

    #[test]
    fn what_lies_on_a_card_is_no_memory_of_the_process() {
        let mut footprint = Footprint { arena_resident_peak_bytes: Some(1000), ..of(10, 100, 130) };
        footprint.settle();
        assert_eq!(footprint.outside_plan_bytes, Some(30));
    }

    #[test]
    fn what_the_system_does_not_say_is_not_made_up() {
        let mut footprint = Footprint { in_process_peak_bytes: None, ..of(10, 100, 130) };
        footprint.settle();
        assert_eq!(footprint.outside_plan_bytes, None);
    }

    /// Memory that is really held beside the arenas is seen.
    #[cfg(target_os = "linux")]
    #[test]
    fn memory_beside_the_arenas_is_measured() {
        const HELD: usize = 64 << 20;
        let mut footprint = Footprint::before_load();
        footprint.measure(Some(0), Some(0));
        let before = footprint.outside_plan_bytes.expect("Linux says");
        let now = plimsoll_telemetry::anonymous_rss().expect("Linux says").0;
        let held = std::hint::black_box(vec![1u8; HELD]);
        footprint.measure(Some(0), Some(0));
        let after = footprint.outside_plan_bytes.expect("Linux says");
        // The kernel counts pages in lots.
        assert!(after + (1 << 20) >= now + held.len() as u64 && after >= before, "{before} {now} {after}");
    }
}
