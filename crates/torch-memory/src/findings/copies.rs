//! Models that are there twice: allocations of equal sizes in equal order, made at two places of the program.
//!
//! ```text
//!   load (train.py:10)   | 98 MiB | 3 MiB | 12 KiB | 12 MiB | ...      fp32
//!   main (train.py:14)   | 49 MiB | 1.5 MiB | 6 KiB | 6 MiB | ...      the same in bf16
//! ```
//!
//! What a forward pass, a backward pass or an optimizer's step makes is equal in size to weights as well, and no copy.

use super::owners::{Owners, backward};
use crate::replay::Replay;
use crate::snapshot::{StackId, Stacks};
use std::collections::BTreeMap;

/// Fewer tensors are no model.
const FEWEST: usize = 4;

/// Smaller models are not worth a word.
const LEAST_BYTES: u64 = 1 << 20;

/// A model that is there more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Its copies, the first made first.
    pub copies: Vec<Copy>,
    /// How many tensors each has.
    pub tensors: usize,
    /// Bytes of all but the one made last.
    pub wasted: u64,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Who made it, by number.
    pub owner: usize,
    /// Its bytes, as they were asked for.
    pub bytes: u64,
    /// The event that made its first tensor.
    pub from: usize,
}

/// Models that are there more than once at a moment, as [`super::peak_event`] counts them; what wastes the most first.
/// What was allocated before the recording has no stack, and is left out.
pub fn copies(replay: &Replay, stacks: &Stacks, owners: &Owners, moment: usize) -> Vec<Copies> {
    let is_weight = (0..stacks.count()).map(|stack| may_be_weight(stacks, StackId(stack as u32))).collect::<Vec<_>>();
    let mut made: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
    for life in replay.lives.iter().filter(|life| life.is_there(moment) && is_weight[life.stack.0 as usize]) {
        if let Some(from) = life.from {
            made.entry(owners.index(life.stack)).or_default().push((from, life.requested));
        }
    }
    // Lives are in the order of their events.
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

/// The same sizes in the same order, or all in the same ratio of two precisions: 1 to 2, or 1 to 4.
fn are_alike(a: &[u64], b: &[u64]) -> bool {
    let in_ratio = |a: &[u64], b: &[u64], ratio: u64| a.iter().zip(b).all(|(a, b)| a * ratio == *b);
    a.len() == b.len() && [1, 2, 4].iter().any(|ratio| in_ratio(a, b, *ratio) || in_ratio(b, a, *ratio))
}

/// Whether a stack is none of a forward pass, a backward pass, or an optimizer's.
fn may_be_weight(stacks: &Stacks, stack: StackId) -> bool {
    let mut frames = stacks.frames(stack).peekable();
    let is_known = frames.peek().is_some();
    let passes = ["forward", "_call_impl", "backward", "step", "_init_group", "_init_state"];
    is_known && !frames.any(|frame| passes.contains(&frame.name.as_str()) || backward(&frame.name).is_some())
}
