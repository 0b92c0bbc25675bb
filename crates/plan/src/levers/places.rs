//! Positions of nodes in the forward pass: blocks with the same ops in the same order are of one kind, and a node has a
//! position in its block. So a choice for a kind applies to each of its blocks, in every program.

use plimsoll_graph::{Node, Pass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kinds of blocks that are distinguished; the nodes outside all blocks are one of them.
pub(crate) const MOST_KINDS: usize = 6;

/// Nodes of a block that are distinguished.
const MOST_PLACES: usize = 64;

/// Nodes of blocks, by kind and place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeSet([u64; MOST_KINDS]);

impl NodeSet {
    /// The nodes at these places of each block of any kind: a bit a place, the first node's the lowest.
    pub const fn of_places(places: u64) -> Self {
        Self([places; MOST_KINDS])
    }

    /// With another one.
    pub(crate) fn with(mut self, place: Place) -> Self {
        self.0[place.kind] |= 1 << place.index;
        self
    }

    /// With all of another set.
    pub(crate) fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind] | other.0[kind]))
    }

    pub(crate) fn has(self, place: Place) -> bool {
        self.0[place.kind] >> place.index & 1 == 1
    }

    /// How many there are, each counted once for its kind.
    pub fn len(self) -> u32 {
        self.0.iter().map(|set| set.count_ones()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The position of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) kind: usize,
    pub(crate) index: usize,
}

/// The positions of a program's nodes.
pub(crate) struct Places {
    of_node: Vec<Option<Place>>,
    /// The blocks of each kind, ascending. Nodes outside all blocks are in `None`.
    pub(crate) blocks: Vec<Vec<Option<u32>>>,
}

impl Places {
    pub(crate) fn new(nodes: &[Node]) -> Self {
        let mut by_block = BTreeMap::<Option<u32>, Vec<usize>>::new();
        for (index, node) in nodes.iter().enumerate().filter(|(_, node)| node.pass == Pass::Forward) {
            by_block.entry(node.block).or_default().push(index);
        }
        let mut kinds = Vec::<Vec<&str>>::new();
        let (mut of_node, mut blocks) = (vec![None; nodes.len()], Vec::<Vec<Option<u32>>>::new());
        for (block, members) in by_block {
            let ops = members.iter().map(|&index| nodes[index].op.name()).collect::<Vec<_>>();
            // A block is never of one kind with the nodes outside all blocks.
            let known =
                kinds.iter().zip(&blocks).position(|(kind, of)| *kind == ops && of[0].is_some() == block.is_some());
            let kind = known.unwrap_or_else(|| {
                kinds.push(ops);
                blocks.push(Vec::new());
                kinds.len() - 1
            });
            blocks[kind].push(block);
            if kind < MOST_KINDS {
                for (index, member) in members.into_iter().enumerate().take(MOST_PLACES) {
                    of_node[member] = Some(Place { kind, index });
                }
            }
        }
        blocks.truncate(MOST_KINDS);
        Self { of_node, blocks }
    }

    /// `None` if the node is not distinguished: it is of another pass, or beyond the limits above.
    pub(crate) fn of(&self, node: usize) -> Option<Place> {
        self.of_node[node]
    }
}
