//! Growth from step to step: memory that remains after each step, and increases each time.

use super::owners::Owners;
use crate::replay::Replay;
use crate::snapshot::{Action, Annotation, CardRecord, StackId};
use rustc_hash::FxHashMap;

/// Minimum number of step ends for a finding; the first step allocates lasting memory, such as moments.
const FEWEST: usize = 3;

/// The ends of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// Moments, numbered like [`super::peak_event`].
    pub ends: Vec<usize>,
    /// Whether the program annotated them; otherwise they are inferred from a recurring allocation.
    pub annotated: bool,
}

/// An owner whose memory increases with each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Index of the owner.
    pub owner: usize,
    /// Requested bytes that it gained from the end of the first counted step to the end of the last.
    pub bytes: u64,
    /// Number of steps in between.
    pub steps: usize,
}

impl Steps {
    /// Finds the ends of steps: the ends of optimizer steps, or an allocation with the same stack and size that recurs
    /// after the same number of others each time.
    pub fn of(record: &CardRecord, replay: &Replay, annotations: &[Annotation]) -> Self {
        let of_optimizer =
            |note: &&Annotation| !note.starts && note.card == record.card && note.name.starts_with("Optimizer.step");
        let annotated = annotations
            .iter()
            .filter(of_optimizer)
            .map(|note| record.events.partition_point(|event| event.time_us <= note.time_us));
        let mut annotated = annotated.collect::<Vec<_>>();
        annotated.sort_unstable();
        if !annotated.is_empty() {
            return Self { ends: annotated, annotated: true };
        }
        Self { ends: regular(record, replay), annotated: false }
    }

    /// Whether there are enough steps for a finding.
    pub fn are_enough(&self) -> bool {
        self.ends.len() >= FEWEST
    }
}

/// Moments between the most regularly recurring allocations: always after the same number of others, throughout the
/// recording. Layers recur as regularly, but keep most of what they allocate; steps do not.
fn regular(record: &CardRecord, replay: &Replay) -> Vec<usize> {
    let allocations = record.events.iter().enumerate().filter(|(_, event)| event.action == Action::Alloc);
    let mut places: FxHashMap<(StackId, u64), Vec<(usize, usize)>> = FxHashMap::default();
    let mut all = 0;
    for (count, (index, event)) in allocations.enumerate() {
        places.entry((event.stack, event.bytes)).or_default().push((count, index));
        all = count + 1;
    }
    let distance = |places: &[(usize, usize)]| {
        let distance = places.get(1)?.0 - places[0].0;
        let is_regular = places.windows(2).all(|pair| pair[1].0 - pair[0].0 == distance);
        let is_everywhere = places.len() * distance * 10 >= all * 7;
        let is_step = places.len() > FEWEST && is_regular && is_everywhere;
        (is_step && leaves_little(record, replay, places)).then_some(distance)
    };
    let regular = places.values().filter_map(|places| Some((distance(places)?, places)));
    let longest = regular.max_by_key(|(distance, places)| (*distance, places.len(), std::cmp::Reverse(places[0].1)));
    // Between two of them, the moment of lowest use is after one step and before the next.
    let least = |pair: &[(usize, usize)]| {
        let memory = &replay.memory[pair[0].1 + 1..=pair[1].1];
        let least = memory.iter().enumerate().min_by_key(|(_, moment)| moment.in_use);
        least.map(|(after, _)| pair[0].1 + 1 + after)
    };
    longest.map_or_else(Vec::new, |(_, places)| places.windows(2).filter_map(least).collect())
}

/// Whether the net growth of each stretch but the first is a small part of its allocations.
fn leaves_little(record: &CardRecord, replay: &Replay, places: &[(usize, usize)]) -> bool {
    places.windows(2).skip(1).all(|pair| {
        let (from, to) = (pair[0].1, pair[1].1);
        let allocated = record.events[from..to].iter().filter(|event| event.action == Action::Alloc);
        let allocated = allocated.map(|event| event.bytes).sum::<u64>();
        let more = replay.memory[to].in_use.abs_diff(replay.memory[from].in_use);
        more.saturating_mul(4) <= allocated
    })
}

/// Owners whose memory increases with each step, except the first; the largest growth first.
pub fn growth(replay: &Replay, owners: &Owners, steps: &Steps) -> Vec<Growth> {
    if !steps.are_enough() {
        return vec![];
    }
    let ends = &steps.ends[1..];
    let mut bytes = vec![vec![0u64; ends.len()]; owners.count()];
    for life in &replay.lives {
        let owned = &mut bytes[owners.index(life.stack)];
        for (place, _) in ends.iter().enumerate().filter(|(_, end)| life.is_there(**end)) {
            owned[place] += life.requested;
        }
    }
    let grows = |bytes: &[u64]| bytes.windows(2).all(|pair| pair[0] < pair[1]);
    let growing = bytes.iter().enumerate().filter(|(_, bytes)| grows(bytes));
    let mut growing = growing
        .map(|(owner, bytes)| Growth { owner, bytes: bytes[bytes.len() - 1] - bytes[0], steps: bytes.len() - 1 })
        .collect::<Vec<_>>();
    growing.sort_by_key(|growth| (std::cmp::Reverse(growth.bytes), growth.owner));
    growing
}
