//! All that a snapshot tells of a card.
//! Not here: how it is found (`replay/`, `findings/`, `what_if.rs`), how it is said (the binary).

use crate::findings::{Copies, Growth, OwnedAtPeak, Owners, Steps, at_event, copies, growth, peak_event};
use crate::replay::{Moment, Replay, replay};
use crate::snapshot::{Action, CardRecord, Settings, Snapshot};
use crate::what_if::{Least, Outcome, Program, best};

/// What a card's recording tells.
#[derive(Debug)]
pub struct Examined<'a> {
    /// The recording.
    pub record: &'a CardRecord,
    /// Replayed.
    pub replay: Replay,
    /// The moment at which the most is in use: after so many events.
    pub peak: usize,
    /// Who has it then, the most first.
    pub at_peak: Vec<OwnedAtPeak>,
    /// Settings, the recorded one first; empty without a history.
    pub outcomes: Vec<Outcome>,
    /// Which of them is recommended.
    pub best: usize,
    /// What the program needs at the least.
    pub least: Option<Least>,
    /// The bytes that the allocator could have, where a request was refused.
    pub capacity: Option<u64>,
    /// Where steps end.
    pub steps: Steps,
    /// What grows from step to step.
    pub growth: Vec<Growth>,
    /// What is there twice.
    pub copies: Vec<Copies>,
}

impl Examined<'_> {
    /// Whether allocations were recorded, not only the memory at the end.
    pub fn has_history(&self) -> bool {
        has_history(self.record)
    }

    /// Memory at the moment at which the most is in use.
    pub fn at_its_peak(&self) -> Moment {
        self.replay.memory[self.peak]
    }

    /// The most bytes that were reserved at once.
    pub fn peak_reserved(&self) -> u64 {
        self.replay.memory.iter().map(|moment| moment.reserved).max().unwrap_or(0)
    }
}

fn has_history(record: &CardRecord) -> bool {
    record.events.iter().any(|event| !matches!(event.action, Action::Snapshot | Action::OutOfMemory | Action::Other))
}

/// Examines a card's recording. `asked`: a setting to try in addition to the usual ones.
pub fn examine<'a>(
    snapshot: &Snapshot,
    owners: &Owners,
    record: &'a CardRecord,
    asked: Option<&Settings>,
) -> Examined<'a> {
    let replay = replay(record, &snapshot.settings);
    let peak = peak_event(&replay);
    let program = Program::of(record, &replay, &snapshot.stacks);
    let is_program = has_history(record);
    let outcomes = if is_program { program.candidates(&snapshot.settings, asked) } else { vec![] };
    let outcomes = outcomes.iter().map(|settings| program.run(settings)).collect::<Vec<_>>();
    let best = best(&outcomes).and_then(|best| outcomes.iter().position(|outcome| outcome == best)).unwrap_or(0);
    let least = if is_program { program.least(record.events.len()) } else { None };
    let capacity = program.capacity;
    let steps = Steps::of(record, &replay, &snapshot.annotations);
    Examined {
        record,
        peak,
        at_peak: at_event(&replay, owners, peak),
        outcomes,
        best,
        least,
        capacity,
        growth: growth(&replay, owners, &steps),
        copies: copies(&replay, &snapshot.stacks, owners, peak),
        steps,
        replay,
    }
}
