//! The cheapest set of things in which some imply others: a minimum cut.
//!
//! ```text
//!   source ──► what is worth having ──► what it implies ──► what costs ──► sink
//!              capacity: its worth      cannot be cut        capacity: its cost
//! ```
//!
//! Source: Picard 1976, "Maximal Closure of a Graph and Applications to Combinatorial Problems"; Dinic 1970.

use std::collections::VecDeque;

/// Of all sets that have with each thing what it implies, the one of the least cost, and the smallest of those.
/// `costs`: of each thing, negative if it is worth having. `implies`: pairs of a thing and one that it implies.
pub(super) fn cheapest_closure(costs: &[f64], implies: &[(usize, usize)]) -> Vec<bool> {
    /// Whole numbers are added up without rounding, so that the same choice is made everywhere.
    const LARGEST: f64 = (1_u64 << 52) as f64;
    let all = costs.iter().map(|cost| cost.abs()).sum::<f64>();
    let whole = |cost: f64| if all > 0.0 { (cost.abs() / all * LARGEST) as u64 } else { 0 };
    let (source, sink) = (costs.len(), costs.len() + 1);
    let mut flow = Flow::new(costs.len() + 2);
    for (thing, &cost) in costs.iter().enumerate() {
        let (from, into) = if cost < 0.0 { (source, thing) } else { (thing, sink) };
        flow.add(from, into, whole(cost));
    }
    for &(thing, implied) in implies {
        flow.add(thing, implied, u64::MAX / 4);
    }
    while flow.level(source, sink) {
        flow.next.fill(0);
        while flow.push(source, sink, u64::MAX) > 0 {}
    }
    // What the source still reaches is on its side of the cut.
    flow.levels[..costs.len()].iter().map(Option::is_some).collect()
}

/// An edge and its remaining capacity. Its reverse is next to it.
struct Edge {
    into: usize,
    room: u64,
}

/// A network.
struct Flow {
    edges: Vec<Edge>,
    /// The edges of each vertex, by index.
    of: Vec<Vec<usize>>,
    /// Distance from the source along edges with room.
    levels: Vec<Option<u32>>,
    /// The next edge of each vertex to try.
    next: Vec<usize>,
}

impl Flow {
    fn new(vertices: usize) -> Self {
        Self { edges: vec![], of: vec![vec![]; vertices], levels: vec![None; vertices], next: vec![0; vertices] }
    }

    fn add(&mut self, from: usize, into: usize, room: u64) {
        for (from, into, room) in [(from, into, room), (into, from, 0)] {
            self.of[from].push(self.edges.len());
            self.edges.push(Edge { into, room });
        }
    }

    /// Whether the sink is reached.
    fn level(&mut self, source: usize, sink: usize) -> bool {
        self.levels.fill(None);
        self.levels[source] = Some(0);
        let mut waiting = VecDeque::from([source]);
        while let Some(vertex) = waiting.pop_front() {
            for &edge in &self.of[vertex] {
                let Edge { into, room } = self.edges[edge];
                if room > 0 && self.levels[into].is_none() {
                    self.levels[into] = self.levels[vertex].map(|level| level + 1);
                    waiting.push_back(into);
                }
            }
        }
        self.levels[sink].is_some()
    }

    /// Sends as much along one path, at the most `limit`. Returns how much.
    fn push(&mut self, vertex: usize, sink: usize, limit: u64) -> u64 {
        if vertex == sink {
            return limit;
        }
        while self.next[vertex] < self.of[vertex].len() {
            let edge = self.of[vertex][self.next[vertex]];
            let Edge { into, room } = self.edges[edge];
            if room > 0 && self.levels[into] == self.levels[vertex].map(|level| level + 1) {
                let pushed = self.push(into, sink, limit.min(room));
                if pushed > 0 {
                    self.edges[edge].room -= pushed;
                    self.edges[edge ^ 1].room += pushed;
                    return pushed;
                }
            }
            self.next[vertex] += 1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// All sets are tried.
        #[test]
        fn the_cheapest_closed_set_is_found(
            costs in prop::collection::vec(-50_i32..50, 1..9),
            implies in prop::collection::vec((0_usize..9, 0_usize..9), 0..14),
        ) {
            let costs = costs.into_iter().map(f64::from).collect::<Vec<_>>();
            let implies = implies.into_iter().filter(|(a, b)| *a < costs.len() && *b < costs.len()).collect::<Vec<_>>();
            let is_closed = |set: u32| implies.iter().all(|(a, b)| set >> a & 1 == 0 || set >> b & 1 == 1);
            let cost = |set: u32| (0..costs.len()).filter(|i| set >> i & 1 == 1).map(|i| costs[i]).sum::<f64>();
            let least = (0..1 << costs.len()).filter(|set| is_closed(*set)).map(cost).fold(f64::MAX, f64::min);
            let found = cheapest_closure(&costs, &implies);
            let found = found.iter().enumerate().fold(0, |set, (i, is_in)| set | u32::from(*is_in) << i);
            prop_assert!(is_closed(found));
            prop_assert!((cost(found) - least).abs() < 1e-6, "{} is not {least}", cost(found));
        }
    }
}
