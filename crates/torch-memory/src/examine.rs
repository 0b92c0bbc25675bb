//! The full analysis of a card's snapshot.
//! Not here: the analyses themselves (`replay/`, `findings/`, `what_if.rs`), and their presentation (the binary).

use crate::findings::{Copies, Growth, OwnedAtPeak, Owners, Steps, at_event, copies, growth, peak_event};
use crate::replay::{Moment, Replay, replay};
use crate::snapshot::{Action, AllocatorSettings, CardRecord, Snapshot};
use crate::what_if::{MinimumMemory, Outcome, Program, best};

/// The analysis of a card's recording.
#[derive(Debug)]
pub struct Examined<'a> {
    /// The recording.
    pub record: &'a CardRecord,
    /// The replay.
    pub replay: Replay,
    /// The moment of peak use, as a number of events.
    pub peak: usize,
    /// Memory by owner at that moment, largest first.
    pub at_peak: Vec<OwnedAtPeak>,
    /// Outcomes by setting, the recorded one first; empty without a history.
    pub outcomes: Vec<Outcome>,
    /// Index of the recommended outcome.
    pub best: usize,
    /// The minimum memory that the program needs.
    pub least: Option<MinimumMemory>,
    /// The memory available to the allocator, known if a request was refused.
    pub capacity: Option<u64>,
    /// Where steps end.
    pub steps: Steps,
    /// Growth from step to step.
    pub growth: Vec<Growth>,
    /// Duplicate models.
    pub copies: Vec<Copies>,
}

impl Examined<'_> {
    /// Whether allocations were recorded, and not only the memory at the end.
    pub fn has_history(&self) -> bool {
        has_history(self.record)
    }

    /// Memory at the moment of peak use.
    pub fn at_its_peak(&self) -> Moment {
        self.replay.memory[self.peak]
    }

    /// Peak of the reserved bytes.
    pub fn peak_reserved(&self) -> u64 {
        self.replay.memory.iter().map(|moment| moment.reserved).max().unwrap_or(0)
    }
}

fn has_history(record: &CardRecord) -> bool {
    record.events.iter().any(|event| !matches!(event.action, Action::Snapshot | Action::OutOfMemory | Action::Other))
}

/// Analyzes a card's recording. `asked`: a setting to try in addition to the standard ones.
pub fn examine<'a>(
    snapshot: &Snapshot,
    owners: &Owners,
    record: &'a CardRecord,
    asked: Option<&AllocatorSettings>,
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
