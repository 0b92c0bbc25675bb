//! Duplicate models: allocations with the same sizes in the same order, made at two lines of the program.
//!
//! ```text
//!   load (train.py:10)   | 98 MiB | 3 MiB | 12 KiB | 12 MiB | ...      fp32
//!   main (train.py:14)   | 49 MiB | 1.5 MiB | 6 KiB | 6 MiB | ...      the same in bf16
//! ```
//!
//! Tensors of a forward pass, a backward pass or an optimizer step also have the sizes of weights, but are not copies.

use super::owners::{Owners, backward};
use crate::replay::Replay;
use crate::snapshot::{StackId, Stacks};
use std::collections::BTreeMap;

/// Fewest tensors of a model.
const FEWEST: usize = 4;

/// Smaller models are not reported.
const LEAST_BYTES: u64 = 1 << 20;

/// A model that exists more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Its copies, oldest first.
    pub copies: Vec<Copy>,
    /// Number of tensors in each.
    pub tensors: usize,
    /// Total size of all copies except the newest.
    pub wasted: u64,
}

/// A copy of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Index of its owner.
    pub owner: usize,
    /// Its size as requested.
    pub bytes: u64,
    /// The event that allocated its first tensor.
    pub from: usize,
}

/// Models that exist more than once at a moment, numbered like [`super::peak_event`]; the largest waste first. Skips
/// allocations from before the recording, since they have no stack.
pub fn copies(replay: &Replay, stacks: &Stacks, owners: &Owners, moment: usize) -> Vec<Copies> {
    let is_weight = (0..stacks.count()).map(|stack| may_be_weight(stacks, StackId(stack as u32))).collect::<Vec<_>>();
    let mut made: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
    for life in replay.lives.iter().filter(|life| life.is_there(moment) && is_weight[life.stack.0 as usize]) {
        if let Some(from) = life.from {
            made.entry(owners.index(life.stack)).or_default().push((from, life.requested));
        }
    }
    // Lifetimes are in event order.
    let mut groups: Vec<(Vec<u64>, Vec<Copy>)> = vec![];
    for (owner, tensors) in made {
        let sizes = tensors.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
        let bytes = sizes.iter().sum();
        let distinct = sizes.iter().any(|size| *size != sizes[0]);
        if sizes.len() < FEWEST || bytes < LEAST_BYTES || !distinct {
            continue;
        }
        let copy = Copy { owner, bytes, from: tensors[0].0 };
        match groups.iter_mut().find(|(known, _)| are_alike(known, &sizes)) {
            Some((_, copies)) => copies.push(copy),
            None => groups.push((sizes, vec![copy])),
        }
    }
    let twice = groups.into_iter().filter(|(_, copies)| copies.len() > 1);
    let twice = twice.map(|(sizes, mut copies)| {
        copies.sort_by_key(|copy| copy.from);
        let wasted = copies[..copies.len() - 1].iter().map(|copy| copy.bytes).sum();
        Copies { copies, tensors: sizes.len(), wasted }
    });
    let mut twice = twice.collect::<Vec<_>>();
    twice.sort_by_key(|copies| (std::cmp::Reverse(copies.wasted), copies.copies[0].from));
    twice
}

/// Whether the sizes are equal in order, or all in the ratio of two precisions: 1 to 2, or 1 to 4.
fn are_alike(a: &[u64], b: &[u64]) -> bool {
    let in_ratio = |a: &[u64], b: &[u64], ratio: u64| a.iter().zip(b).all(|(a, b)| a * ratio == *b);
    a.len() == b.len() && [1, 2, 4].iter().any(|ratio| in_ratio(a, b, *ratio) || in_ratio(b, a, *ratio))
}

/// Whether a stack belongs to no forward pass, backward pass or optimizer.
fn may_be_weight(stacks: &Stacks, stack: StackId) -> bool {
    let mut frames = stacks.frames(stack).peekable();
    let is_known = frames.peek().is_some();
    let passes = ["forward", "_call_impl", "backward", "step", "_init_group", "_init_state"];
    is_known && !frames.any(|frame| passes.contains(&frame.name.as_str()) || backward(&frame.name).is_some())
}
