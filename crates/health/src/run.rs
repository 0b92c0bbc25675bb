//! What a caller knows of a run: its options and its counters.

use plimsoll_units::Bytes;

/// Options of a watcher.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// UUIDs of the watched cards; `None` for all cards.
    pub cards: Option<Vec<String>>,
    /// Whether the heat guard (`plimsoll-heat`) reports heat, so that the watcher does not.
    pub is_guarded: bool,
    /// Process ID of the run, to distinguish it from other processes on the card.
    pub own_pid: Option<u32>,
    /// Whether the run offloads work to the host.
    pub offloads: bool,
    /// Whether the run's plan uses the machine's memory, as a run on the CPU does. Then only waiting for memory counts.
    pub takes_memory: bool,
}

/// The run's counters since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Facts {
    /// Completed steps.
    pub steps: u64,
    /// Time spent waiting for the next batch, s.
    pub waited_for_data_s: f64,
    /// Time spent waiting for a card to cool, s.
    pub held_back_s: f64,
    /// Size of its next checkpoint.
    pub checkpoint: Option<Bytes>,
}
