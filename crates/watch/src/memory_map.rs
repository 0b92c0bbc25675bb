//! A memory as segments: used by the shown runs, planned by them, used by other processes, free, and reserved.
//!
//! ```text
//!    ours      planned    others    free        reserved
//!   |██████████|░░░░░░░░░|▒▒▒▒▒▒▒▒|            |▓▓|
//!                        ▲ planned: our use may grow to here
//! ```

use crate::run_view::{RunView, Standing};
use plimsoll_telemetry::{CardSample, SystemSample};
use plimsoll_units::Bytes;
use serde::Serialize;

/// The owner of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Used by the shown runs.
    Ours,
    /// Still free, and planned by the shown runs.
    Planned,
    /// Used by other processes.
    Others,
    /// Free and not planned.
    Free,
    /// Reserved by driver and firmware.
    Reserved,
}

/// A part of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Its owner.
    pub share: Share,
    /// Its size.
    pub bytes: Bytes,
}

/// A memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryMap {
    /// Total size, equal to the sum of the segments.
    pub total: Bytes,
    /// From left to right; no segment is empty.
    pub segments: Vec<Segment>,
    /// Where the runs' plans end, measured from the left, if there are any.
    pub planned: Option<Bytes>,
}

impl MemoryMap {
    /// The memory of a card and of the runs on it; `None` if the card does not report its memory.
    pub fn of_card(card: &CardSample, runs: &[&RunView]) -> Option<Self> {
        let (total, used) = (card.total?, card.used?);
        let runs = runs.iter().copied().filter(|run| is_on(run, card)).collect::<Vec<_>>();
        let ours = sum(runs.iter().filter_map(|run| used_on(run, card)));
        Some(Self::new(total, used, card.reserved.unwrap_or_default(), ours, planned(&runs)))
    }

    /// The machine's memory and the runs that use it; `None` if the system does not report its memory.
    pub fn of_system(system: &SystemSample, runs: &[&RunView]) -> Option<Self> {
        let total = system.memory_total?;
        let used = total.saturating_sub(system.memory_available?);
        let runs = runs.iter().copied().filter(|run| is_in_memory(run)).collect::<Vec<_>>();
        let ours = sum(runs.iter().filter_map(|run| Some(Bytes(run.last?.memory_bytes))));
        Some(Self::new(total, used, Bytes::ZERO, ours, planned(&runs)))
    }

    /// From values that may be inconsistent: no segment is larger than the space left for it.
    fn new(total: Bytes, used: Bytes, reserved: Bytes, ours: Bytes, planned: Option<Bytes>) -> Self {
        let mut left = total;
        let mut take = |wanted: Bytes| {
            let taken = wanted.min(left);
            left = left.saturating_sub(taken);
            taken
        };
        let reserved = take(reserved);
        let ours = take(ours);
        let others = take(used.saturating_sub(ours));
        let kept = take(planned.unwrap_or_default().saturating_sub(ours));
        let segments = [
            (Share::Ours, ours),
            (Share::Planned, kept),
            (Share::Others, others),
            (Share::Free, left),
            (Share::Reserved, reserved),
        ];
        let segments = segments.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        Self { total, segments: segments.map(|(share, bytes)| Segment { share, bytes }).collect(), planned }
    }

    /// The size of a share.
    pub fn bytes(&self, share: Share) -> Bytes {
        self.segments.iter().filter(|segment| segment.share == share).map(|segment| segment.bytes).sum()
    }
}

fn planned(runs: &[&RunView]) -> Option<Bytes> {
    let plans = runs.iter().filter_map(|run| run.planned_bytes).collect::<Vec<_>>();
    (!plans.is_empty()).then(|| sum(plans.into_iter().map(Bytes)))
}

/// Saturating sum: drivers and journals may report any number.
fn sum(sizes: impl Iterator<Item = Bytes>) -> Bytes {
    Bytes(sizes.fold(0, |sum, size| sum.saturating_add(size.0)))
}

/// Whether a run is on a card: one of its processes has memory on it, or, if the driver does not list them, its
/// settings name the card.
fn is_on(run: &RunView, card: &CardSample) -> bool {
    let device = run.device.as_deref().unwrap_or_default();
    let is_named = device == format!("cuda:{}", card.index) || (device == "cuda" && card.index == 0);
    run.standing == Standing::Running && (has_memory(run, card) || is_named)
}

fn has_memory(run: &RunView, card: &CardSample) -> bool {
    card.processes.iter().any(|process| run.processes.contains(&process.pid))
}

/// Memory that a run uses on a card: from the driver, or from the run's journal if the driver knows the process by
/// another ID, as in containers.
fn used_on(run: &RunView, card: &CardSample) -> Option<Bytes> {
    if has_memory(run, card) {
        let own = card.processes.iter().filter(|process| run.processes.contains(&process.pid));
        return Some(sum(own.filter_map(|process| process.used)));
    }
    run.last.map(|last| Bytes(last.memory_bytes))
}

/// Whether a run trains in the machine's memory.
fn is_in_memory(run: &RunView) -> bool {
    run.standing == Standing::Running
        && run.last.is_some()
        && run.device.as_deref().is_none_or(|device| device == "cpu")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_view::Kind;
    use plimsoll_telemetry::CardProcess;
    use proptest::prelude::*;

    fn run(pid: u32, planned: u64) -> RunView {
        let view = RunView::new(String::new(), "run".into(), "run".to_owned(), Kind::Train);
        RunView { standing: Standing::Running, processes: vec![pid], planned_bytes: Some(planned), ..view }
    }

    fn card(used: u64, processes: &[(u32, Option<u64>)]) -> CardSample {
        let process = |(pid, used): &(u32, Option<u64>)| CardProcess {
            pid: *pid,
            name: None,
            uid: None,
            used: used.map(Bytes),
            computes: true,
        };
        CardSample {
            total: Some(Bytes(1_000)),
            used: Some(Bytes(used)),
            reserved: Some(Bytes(50)),
            processes: processes.iter().map(process).collect(),
            ..CardSample::default()
        }
    }

    fn shares(map: &MemoryMap) -> Vec<(Share, u64)> {
        map.segments.iter().map(|segment| (segment.share, segment.bytes.0)).collect()
    }

    #[test]
    fn a_card_is_divided_into_ours_planned_and_others() {
        let ours = run(7, 600);
        let map = MemoryMap::of_card(&card(500, &[(7, Some(300)), (8, Some(200))]), &[&ours]).expect("readings");
        let expected = [
            (Share::Ours, 300),
            (Share::Planned, 300),
            (Share::Others, 200),
            (Share::Free, 150),
            (Share::Reserved, 50),
        ];
        assert_eq!((shares(&map), map.planned), (expected.to_vec(), Some(Bytes(600))));
        // Other processes hold memory that the plan needs: `Planned` is limited to what is left.
        let map = MemoryMap::of_card(&card(900, &[(7, Some(300)), (8, Some(600))]), &[&ours]).expect("readings");
        assert_eq!(shares(&map)[..3], [(Share::Ours, 300), (Share::Planned, 50), (Share::Others, 600)]);
        // A finished run has no plan; a card without readings has no map.
        let ended = RunView { standing: Standing::Finished, ..ours };
        let map = MemoryMap::of_card(&card(200, &[(8, Some(200))]), &[&ended]).expect("readings");
        assert_eq!((shares(&map)[0], map.planned), ((Share::Others, 200), None));
        assert_eq!(MemoryMap::of_card(&CardSample::default(), &[]), None);
    }

    proptest! {
        /// Any values from drivers and journals.
        #[test]
        fn segments_sum_up_to_the_whole(
            total in any::<u64>(), used in any::<u64>(), reserved in any::<u64>(), ours in any::<u64>(),
            planned in proptest::option::of(any::<u64>()),
        ) {
            let map = MemoryMap::new(Bytes(total), Bytes(used), Bytes(reserved), Bytes(ours), planned.map(Bytes));
            prop_assert_eq!(map.segments.iter().map(|segment| u128::from(segment.bytes.0)).sum::<u128>(), u128::from(total));
            prop_assert!(map.segments.iter().all(|segment| segment.bytes > Bytes::ZERO));
        }
    }
}
