//! Streams that are captured: operations become nodes of a graph instead of running.

use super::clock::Lane;
use super::engine::Work;
use std::collections::{BTreeMap, BTreeSet};

/// An operation of a graph.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it does.
    pub work: Work,
    /// The stream it was captured from.
    pub lane: Lane,
    /// Nodes before it.
    pub after: Vec<usize>,
}

/// A graph, finished or being captured.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Its nodes, each behind those that it waits for.
    pub nodes: Vec<Node>,
    /// The stream whose capture was begun.
    origin: Lane,
    /// What the next node of each captured stream waits for.
    tails: BTreeMap<Lane, Vec<usize>>,
}

/// Why a capture cannot end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureError {
    /// This stream did not begin it.
    Unmatched,
    /// Another stream took part, and the first one never waited for it.
    Unjoined,
}

impl Graph {
    /// A capture that a stream begins.
    pub fn begin(origin: Lane) -> Self {
        Self { nodes: Vec::new(), origin, tails: BTreeMap::from([(origin, Vec::new())]) }
    }

    /// Whether a stream takes part.
    pub fn captures(&self, lane: Lane) -> bool {
        self.tails.contains_key(&lane)
    }

    /// Adds what a captured stream does.
    pub fn push(&mut self, lane: Lane, work: Work) {
        let after = self.tails.insert(lane, vec![self.nodes.len()]).unwrap_or_default();
        self.nodes.push(Node { work, lane, after });
    }

    /// What a stream has done so far, for an event.
    pub fn tail(&self, lane: Lane) -> Vec<usize> {
        self.tails.get(&lane).cloned().unwrap_or_default()
    }

    /// A stream waits for what an event stands for, and takes part from now on.
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
