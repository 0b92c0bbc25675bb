//! The same program under other settings, and what it needs at the least.
//! Not here: which settings are worth it in words (the binary).
//!
//! Each setting begins with an empty allocator: what was there before the recording is allocated first, in the order of its
//! addresses, since when it was allocated is not recorded. All settings are compared on the same ground so, the recorded
//! one too.

use crate::allocator::{Allocator, BlockId, Card, Request};
use crate::replay::{Life, Replay};
use crate::snapshot::{Action, CardRecord, Settings, Stacks};
use plimsoll_arena::{Buffer, Problem, lower_bound, pack};

/// More than any card has.
const NO_LIMIT: u64 = 1 << 60;

/// Blocks that are packed in a second or so.
const MOST_PACKED: usize = 15_000;

/// What a setting makes of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The setting.
    pub settings: Settings,
    /// The most bytes that it has from the driver at once.
    pub peak_reserved: u64,
    /// How often it asks the driver for memory, or gives some back: each time takes a while.
    pub driver_calls: usize,
    /// How many requests find no memory, in as much as the card had.
    pub refused: usize,
}

/// What a program does with its allocator.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    steps: Vec<Step>,
    lives: &'a [Life],
    /// The bytes that the allocator could have, where a request was refused: only then is it known.
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
    /// What the recorded program did.
    pub fn of(record: &CardRecord, replay: &'a Replay, stacks: &Stacks) -> Self {
        let events = &record.events;
        let mut steps = Vec::with_capacity(events.len());
        let mut by_event = vec![None; events.len()];
        for (life, Life { from, to, .. }) in replay.lives.iter().enumerate() {
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
    pub fn run(&self, settings: &Settings) -> Outcome {
        let capacity = self.capacity.unwrap_or(NO_LIMIT);
        let mut card = Card::new(capacity);
        let allowed = (settings.garbage_collection_threshold > 0.0).then_some(capacity);
        let mut allocator = Allocator::new(settings.clone(), allowed);
        let mut blocks: Vec<Option<BlockId>> = vec![None; self.lives.len()];
        let mut outcome = Outcome { settings: settings.clone(), peak_reserved: 0, driver_calls: 0, refused: 0 };
        for step in &self.steps {
            match step {
                Step::Allocate(life) => {
                    let Life { requested: bytes, stream, pool, .. } = self.lives[*life];
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

    /// Settings that people set: the recorded one first, then those that are asked for, then PyTorch's own, each once.
    pub fn candidates(&self, recorded: &Settings, asked: Option<&Settings>) -> Vec<Settings> {
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
            // They count only where there is a limit.
            confs.extend(["garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8"]);
        }
        let usual = confs.into_iter().map(|conf| {
            let mut settings = Settings::default();
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

    /// What the program needs at the least: the most that is in use at once, and the peak of a packing that knows when
    /// each block comes and goes. None where sizes add up to more than 64 bits.
    pub fn least(&self, events: usize) -> Option<Least> {
        let at = |event: Option<usize>, otherwise: usize| event.map_or(otherwise, |event| event + 1) as u64;
        let buffer = |life: &Life| Buffer::new(at(life.from, 0), at(life.to, events + 1), life.requested);
        let problem = Problem { buffers: self.lives.iter().map(buffer).collect(), alignment: crate::allocator::UNIT };
        problem.total_bytes()?;
        let bound = lower_bound(&problem).bytes;
        let is_small = problem.buffers.len() <= MOST_PACKED;
        Some(Least { bound, packed: is_small.then(|| pack(&problem, bound, bound).peak) })
    }
}

/// What a program needs at the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Least {
    /// The most bytes in use at once: no allocator can do with less.
    pub bound: u64,
    /// What an arena takes that is planned before the run. None: with so many blocks, to find out takes too long.
    pub packed: Option<u64>,
}

/// The best of some outcomes, of which the first is the recorded setting's: the fewest refused, then the lowest peak. One
/// that saves less than a hundredth of the recorded peak is not worth a change.
pub fn best(outcomes: &[Outcome]) -> Option<&Outcome> {
    let recorded = outcomes.first()?;
    let best = outcomes.iter().min_by_key(|outcome| (outcome.refused, outcome.peak_reserved))?;
    let saved = recorded.peak_reserved.saturating_sub(best.peak_reserved);
    let is_worth_it = best.refused < recorded.refused || saved > recorded.peak_reserved / 100;
    Some(if is_worth_it { best } else { recorded })
}

/// Whether the program emptied the cache, rather than the allocator for want of memory: its stack says so, or no request
/// follows that asks the driver.
fn is_emptied(events: &[crate::snapshot::Event], stacks: &Stacks) -> bool {
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
