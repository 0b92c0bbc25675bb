//! Chains of configurations in the order in which a search looks at them: by a bound on their steps.
//!
//! ```text
//!   group    micro-batch, part of the optimizer that is moved      a bound on its steps: first that of its first rung, then
//!   chain    rows of scratch                                       that of the first that may fit
//!   rung     what is recomputed, or sent                           slower from rung to rung
//! ```
//!
//! Which rung of a group may fit is asked when no other's bound is lower, so of most it is never asked.

use crate::candidates::scratches;
use crate::fastest::FITS;
use crate::request::{PlanError, Request};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;

/// Groups that are asked together which of their rungs may fit.
const TOGETHER: usize = 2;

/// Configurations that differ in what is recomputed and in rows of scratch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Group {
    pub(crate) micro_batch: usize,
    /// Part of the optimizer that is moved.
    pub(crate) offload: f64,
}

impl Group {
    /// A chain for each scratch, from all of it to the least.
    pub(crate) fn chains(self, request: &Request) -> Vec<Chain> {
        let scratches = scratches(request, self.micro_batch).into_iter().enumerate();
        scratches.map(|scratch| Chain { group: self, scratch, timed_with: scratch.1 }).collect()
    }

    /// What none of its chains is faster than, nor takes less.
    pub(crate) fn outline(self, request: &Request) -> Chain {
        let chains = self.chains(request);
        Chain { timed_with: chains[0].scratch.1, ..chains[chains.len() - 1] }
    }
}

/// Configurations that differ only in what is recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chain {
    pub(crate) group: Group,
    /// Index of the scratch, and its sizes.
    pub(crate) scratch: (usize, (usize, usize)),
    /// The sizes of the scratch that steps are bounded with: its own, but for what stands for all chains of a group.
    pub(crate) timed_with: (usize, usize),
}

impl Chain {
    /// Whether it takes more at the least than another, which differs in nothing else.
    pub(crate) fn takes_more(&self, smaller: &Self, global_batch: usize) -> bool {
        let accumulates = |chain: &Self| chain.group.micro_batch < global_batch;
        self.group.offload == smaller.group.offload
            && accumulates(self)
            && accumulates(smaller)
            && self.group.micro_batch >= smaller.group.micro_batch
            && self.scratch.0 <= smaller.scratch.0
    }
}

/// A group that was not handed out yet.
struct Waiting {
    group: Group,
    bound: Bounded,
    /// Whether the bound is that of the first rung that may fit.
    is_narrowed: bool,
}

/// What is known of a group before anything of it is built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounded {
    /// None of its steps that fit is shorter.
    pub(crate) step: Seconds,
    /// What its first rung lacks at the least.
    pub(crate) lacks: [Bytes; 2],
}

/// Groups that were not handed out yet, equals in the order in which they are.
pub(crate) struct Groups(Vec<Waiting>);

impl Groups {
    /// Groups with bounds on the steps of their first rungs.
    pub(crate) fn new(groups: impl Iterator<Item = (Group, Seconds)>) -> Self {
        let waiting = |(group, step)| Waiting { group, bound: Bounded { step, lacks: FITS }, is_narrowed: false };
        Self(groups.map(waiting).collect())
    }

    /// The next group and its bound; none if all that are left are too slow.
    pub(crate) fn next(
        &mut self,
        is_too_slow: impl Fn(Seconds) -> bool,
        narrow: impl Fn(&Group) -> Result<Bounded, PlanError> + Sync,
    ) -> Result<Option<(Group, Bounded)>, PlanError> {
        loop {
            // The bounds of first rungs come before others that are equal, for they may become larger.
            let by_step = |a: &Waiting, b: &Waiting| a.bound.step.0.total_cmp(&b.bound.step.0);
            self.0.sort_by(|a, b| by_step(a, b).then(a.is_narrowed.cmp(&b.is_narrowed)));
            match self.0.first() {
                None => return Ok(None),
                Some(fastest) if is_too_slow(fastest.bound.step) => return Ok(None),
                Some(fastest) if fastest.is_narrowed => {
                    let Waiting { group, bound, .. } = self.0.remove(0);
                    return Ok(Some((group, bound)));
                }
                Some(_) => {
                    let first = self.0.iter_mut().take_while(|waiting| !waiting.is_narrowed);
                    let first = first.take(TOGETHER).collect::<Vec<_>>();
                    let narrowed = first.into_par_iter().map(|waiting| {
                        waiting.bound = narrow(&waiting.group)?;
                        waiting.is_narrowed = true;
                        Ok(())
                    });
                    narrowed.collect::<Result<(), PlanError>>()?;
                }
            }
        }
    }

    /// Those that are left, whose first rung is known to lack something, with what it lacks.
    pub(crate) fn lacking(self) -> impl Iterator<Item = (Group, [Bytes; 2])> {
        self.0.into_iter().map(|waiting| (waiting.group, waiting.bound.lacks)).filter(|(_, lacks)| *lacks != FITS)
    }
}
