//! The same program under other settings, and its minimum memory.
//! Not here: recommending settings in words (the binary).
//!
//! Each setting starts with an empty allocator: blocks from before the recording are allocated first, in address order,
//! since the order of their allocation is not recorded. So all settings, including the recorded one, are compared on
//! equal terms.

use crate::allocator::{Allocator, BlockId, Card, Request};
use crate::replay::{Lifetime, Replay};
use crate::snapshot::{Action, AllocatorSettings, CardRecord, Stacks};
use plimsoll_arena::{Buffer, Problem, lower_bound, pack};

/// More than any card's memory.
const NO_LIMIT: u64 = 1 << 60;

/// Largest number of blocks to pack, which takes about a second.
const MOST_PACKED: usize = 15_000;

/// The outcome of a program under a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The setting.
    pub settings: AllocatorSettings,
    /// Peak of the reserved bytes.
    pub peak_reserved: u64,
    /// Number of slow driver calls that allocate or free memory.
    pub driver_calls: usize,
    /// Number of refused requests, with the card's memory as the limit.
    pub refused: usize,
}

/// A program's sequence of allocator calls.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    steps: Vec<Step>,
    lives: &'a [Lifetime],
    /// The memory available to the allocator; known only if a request was refused.
    pub capacity: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate(usize),
    Free(usize),
    EmptyCache,
    /// A request that was refused.
    Refused(Request),
}

impl<'a> Program<'a> {
    /// The calls of the recorded program.
    pub fn of(record: &CardRecord, replay: &'a Replay, stacks: &Stacks) -> Self {
        let events = &record.events;
        let mut steps = Vec::with_capacity(events.len());
        let mut by_event = vec![None; events.len()];
        for (life, Lifetime { from, to, .. }) in replay.lives.iter().enumerate() {
            match from {
                None => steps.push(Step::Allocate(life)),
                Some(event) => by_event[*event] = Some(Step::Allocate(life)),
            }
            if let Some(event) = to {
                by_event[*event] = Some(Step::Free(life));
            }
        }
        for (index, event) in events.iter().enumerate() {
            let is_release = matches!(event.action, Action::SegmentFree | Action::SegmentUnmap);
            let is_first =
                index == 0 || !matches!(events[index - 1].action, Action::SegmentFree | Action::SegmentUnmap);
            if is_release && is_first && is_emptied(&events[index..], stacks) {
                steps.push(Step::EmptyCache);
            }
            if event.action == Action::OutOfMemory {
                steps.push(Step::Refused(Request { bytes: event.bytes, stream: event.stream, pool: (0, 0) }));
            }
            steps.extend(by_event[index]);
        }
        let at_refusals =
            replay.out_of_memory.iter().map(|(event, free)| replay.memory[event + 1].reserved.saturating_add(*free));
        Self { steps, lives: &replay.lives, capacity: at_refusals.min() }
    }

    /// Runs the program under a setting.
    pub fn run(&self, settings: &AllocatorSettings) -> Outcome {
        let capacity = self.capacity.unwrap_or(NO_LIMIT);
        let mut card = Card::new(capacity);
        let allowed = (settings.garbage_collection_threshold > 0.0).then_some(capacity);
        let mut allocator = Allocator::new(settings.clone(), allowed);
        let mut blocks: Vec<Option<BlockId>> = vec![None; self.lives.len()];
        let mut outcome = Outcome { settings: settings.clone(), peak_reserved: 0, driver_calls: 0, refused: 0 };
        for step in &self.steps {
            match step {
                Step::Allocate(life) => {
                    let Lifetime { requested: bytes, stream, pool, .. } = self.lives[*life];
                    blocks[*life] = allocator.allocate(Request { bytes, stream, pool }, &mut card).ok();
                    outcome.refused += usize::from(blocks[*life].is_none());
                }
                Step::Free(life) => {
                    if let Some(block) = blocks[*life].take() {
                        allocator.free(block);
                    }
                }
                Step::EmptyCache => allocator.release_cached(&mut card),
                Step::Refused(request) => match allocator.allocate(*request, &mut card) {
                    Ok(block) => allocator.free(block),
                    Err(_) => outcome.refused += 1,
                },
            }
            outcome.peak_reserved = outcome.peak_reserved.max(allocator.reserved());
            outcome.driver_calls += allocator.take_driver_events().len();
        }
        outcome
    }

    /// Settings to compare: the recorded one first, then the requested one, then common ones, each once.
    pub fn candidates(
        &self,
        recorded: &AllocatorSettings,
        asked: Option<&AllocatorSettings>,
    ) -> Vec<AllocatorSettings> {
        let mut confs = vec![
            "",
            "expandable_segments:True",
            "max_split_size_mb:64",
            "max_split_size_mb:128",
            "max_split_size_mb:256",
            "max_split_size_mb:512",
            "roundup_power2_divisions:2",
            "roundup_power2_divisions:4",
            "roundup_power2_divisions:8",
            "roundup_power2_divisions:16",
            "expandable_segments:True,roundup_power2_divisions:8",
        ];
        if self.capacity.is_some() {
            // These have an effect only with a limit.
            confs.extend(["garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8"]);
        }
        let usual = confs.into_iter().map(|conf| {
            let mut settings = AllocatorSettings::default();
            settings.set(conf);
            settings
        });
        let mut all = vec![recorded.clone()];
        for settings in asked.cloned().into_iter().chain(usual) {
            if !all.contains(&settings) {
                all.push(settings);
            }
        }
        all
    }

    /// The program's minimum memory: the peak of the bytes in use, and the peak of a packing that knows all lifetimes.
    /// `None` if the sum of sizes overflows 64 bits.
    pub fn least(&self, events: usize) -> Option<MinimumMemory> {
        let at = |event: Option<usize>, otherwise: usize| event.map_or(otherwise, |event| event + 1) as u64;
        let buffer = |life: &Lifetime| Buffer::new(at(life.from, 0), at(life.to, events + 1), life.requested);
        let problem = Problem { buffers: self.lives.iter().map(buffer).collect(), alignment: crate::allocator::UNIT };
        problem.total_bytes()?;
        let bound = lower_bound(&problem).bytes;
        let is_small = problem.buffers.len() <= MOST_PACKED;
        Some(MinimumMemory { bound, packed: is_small.then(|| pack(&problem, bound, bound).peak) })
    }
}

/// A program's minimum memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinimumMemory {
    /// Peak of the bytes in use: a lower bound for every allocator.
    pub bound: u64,
    /// Size of an arena planned before the run; `None` if there are too many blocks to compute it quickly.
    pub packed: Option<u64>,
}

/// The best outcome, given the recorded setting's first: the fewest refusals, then the lowest peak. An outcome that
/// saves less than a hundredth of the recorded peak is not worth a change.
pub fn best(outcomes: &[Outcome]) -> Option<&Outcome> {
    let recorded = outcomes.first()?;
    let best = outcomes.iter().min_by_key(|outcome| (outcome.refused, outcome.peak_reserved))?;
    let saved = recorded.peak_reserved.saturating_sub(best.peak_reserved);
    let is_worth_it = best.refused < recorded.refused || saved > recorded.peak_reserved / 100;
    Some(if is_worth_it { best } else { recorded })
}

/// Whether the program emptied the cache, rather than the allocator for lack of memory: its stack shows it, or no
/// request that needs the driver follows.
fn is_emptied(events: &[crate::snapshot::TraceEvent], stacks: &Stacks) -> bool {
    let Some(first) = events.first() else { return false };
    let names_it = |name: &str| name.contains("empty_cache") || name.contains("emptyCache");
    if stacks.frames(first.stack).any(|frame| names_it(&frame.name)) {
        return true;
    }
    let next = events.iter().find(|event| !matches!(event.action, Action::SegmentFree | Action::SegmentUnmap));
    !next.is_some_and(|event| {
        matches!(event.action, Action::SegmentAlloc | Action::SegmentMap | Action::Alloc | Action::OutOfMemory)
    })
}
