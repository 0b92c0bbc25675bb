//! Vector clocks. Source: Fidge 1988, Mattern 1989.

use std::collections::BTreeMap;

/// A sequence of operations: a stream, or a stream's part of a graph.
pub type Lane = u64;

/// For each lane, the number of operations known to have happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<Lane, u64>);

impl Clock {
    /// Merges another clock.
    pub fn join(&mut self, other: &Self) {
        for (lane, tick) in &other.0 {
            let mine = self.0.entry(*lane).or_default();
            *mine = (*mine).max(*tick);
        }
    }

    /// Records that operation `tick` of a lane, and all before it, happened.
    pub fn learn(&mut self, lane: Lane, tick: u64) {
        let mine = self.0.entry(lane).or_default();
        *mine = (*mine).max(tick);
    }

    /// Whether an operation is known to have happened.
    pub fn knows(&self, lane: Lane, tick: u64) -> bool {
        self.0.get(&lane).is_some_and(|known| *known >= tick)
    }
}
