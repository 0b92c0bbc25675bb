//! Stream capture: operations become nodes of a graph instead of running.

use super::clock::Lane;
use super::operation::Work;
use std::collections::{BTreeMap, BTreeSet};

/// An operation of a graph.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its operation.
    pub work: Work,
    /// The stream from which it was captured.
    pub lane: Lane,
    /// Nodes that it depends on.
    pub after: Vec<usize>,
}

/// A graph, complete or during capture.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Its nodes, each after those that it depends on.
    pub nodes: Vec<Node>,
    /// The stream on which the capture began.
    origin: Lane,
    /// Dependencies of the next node of each captured stream.
    tails: BTreeMap<Lane, Vec<usize>>,
}

/// Why a capture cannot end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureError {
    /// It began on another stream.
    Unmatched,
    /// Another stream took part, and the origin does not wait for it.
    Unjoined,
}

impl Graph {
    /// A capture that begins on a stream.
    pub fn begin(origin: Lane) -> Self {
        Self { nodes: Vec::new(), origin, tails: BTreeMap::from([(origin, Vec::new())]) }
    }

    /// Whether a stream takes part.
    pub fn captures(&self, lane: Lane) -> bool {
        self.tails.contains_key(&lane)
    }

    /// Adds an operation of a captured stream.
    pub fn push(&mut self, lane: Lane, work: Work) {
        let after = self.tails.insert(lane, vec![self.nodes.len()]).unwrap_or_default();
        self.nodes.push(Node { work, lane, after });
    }

    /// The nodes of a stream so far, for an event.
    pub fn tail(&self, lane: Lane) -> Vec<usize> {
        self.tails.get(&lane).cloned().unwrap_or_default()
    }

    /// Makes a stream wait for an event's nodes; the stream takes part from now on.
    pub fn wait(&mut self, lane: Lane, nodes: &[usize]) {
        let tail = self.tails.entry(lane).or_default();
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
    }

    /// Ends the capture.
    pub fn end(&self, lane: Lane) -> Result<(), CaptureError> {
        if lane != self.origin {
            return Err(CaptureError::Unmatched);
        }
        let mut joined = BTreeSet::new();
        let mut open = self.tail(lane);
        while let Some(node) = open.pop() {
            if joined.insert(node) {
                open.extend(&self.nodes[node].after);
            }
        }
        let all = self.tails.values().flatten().all(|node| joined.contains(node));
        if all { Ok(()) } else { Err(CaptureError::Unjoined) }
    }
}
