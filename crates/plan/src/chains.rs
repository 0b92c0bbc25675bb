//! Chains of configurations in the order in which a search looks at them: by a bound on their steps.
//!
//! ```text
//!   group    micro-batch, parts of the optimizer to move      bounds on its steps, each closer than the one before: of its
//!   chain    rows of scratch                                  first rung, of all that fits with its parts, of the first rung
//!   rung     what is recomputed, or sent                      that may fit; slower from rung to rung
//! ```
//!
//! A closer bound is asked for when no other's is lower, so of most groups it is never asked. A group of several parts is
//! halved then, until one is left.

use crate::candidates::scratches;
use crate::parts::Span;
use crate::request::{PlanError, Request};
use plimsoll_units::Seconds;
use rayon::prelude::*;

/// Groups that are asked together which of their rungs may fit.
const TOGETHER: usize = 2;

/// Configurations that differ in what is recomputed and in rows of scratch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Group {
    pub(crate) micro_batch: usize,
    /// Parts of the optimizer of which one is moved.
    pub(crate) parts: Span,
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
        self.group.parts == smaller.group.parts
            && accumulates(self)
            && accumulates(smaller)
            && self.group.micro_batch >= smaller.group.micro_batch
            && self.scratch.0 <= smaller.scratch.0
    }
}

/// A group that was not handed out yet.
struct Waiting {
    group: Group,
    /// None of its steps that fit is shorter.
    bound: Seconds,
    /// What that is a bound of.
    stage: Stage,
}

/// What a group's bound is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Its first rung, or all of a larger group that it is a half of.
    First,
    /// All that fits.
    Parts,
    /// The first rung that may fit.
    Rung,
}

/// Groups that were not handed out yet, equals in the order in which they are.
pub(crate) struct Groups(Vec<Waiting>);

impl Groups {
    /// Groups with bounds on the steps of their first rungs.
    pub(crate) fn new(groups: impl Iterator<Item = (Group, Seconds)>) -> Self {
        Self(groups.map(|(group, bound)| Waiting { group, bound, stage: Stage::First }).collect())
    }

    /// The next group, of a single part; none if all that are left are too slow. `bound` is the bound of a stage.
    pub(crate) fn next(
        &mut self,
        is_too_slow: impl Fn(Seconds) -> bool,
        bound: impl Fn(&Group, Stage) -> Result<Seconds, PlanError> + Sync,
    ) -> Result<Option<Group>, PlanError> {
        loop {
            // Bounds that may become larger come before others that are equal.
            let by_step = |a: &Waiting, b: &Waiting| a.bound.0.total_cmp(&b.bound.0);
            self.0.sort_by(|a, b| by_step(a, b).then(a.stage.cmp(&b.stage)));
            let Some(Waiting { group, bound: step, stage }) = self.0.first() else { return Ok(None) };
            if step.0.is_infinite() || is_too_slow(*step) {
                return Ok(None);
            }
            match (stage, group.parts.halves()) {
                (Stage::Rung, _) => return Ok(Some(self.0.remove(0).group)),
                (Stage::Parts, Some(halves)) => {
                    let Waiting { group, bound, .. } = self.0.remove(0);
                    let half = |parts| Waiting { group: Group { parts, ..group }, bound, stage: Stage::First };
                    self.0.extend(halves.map(half));
                }
                (Stage::First, _) | (Stage::Parts, None) => {
                    let may_be_closer = |waiting: &&mut Waiting| match waiting.stage {
                        Stage::First => true,
                        Stage::Parts => waiting.group.parts.single().is_some(),
                        Stage::Rung => false,
                    };
                    let first = self.0.iter_mut().take_while(may_be_closer).take(TOGETHER).collect::<Vec<_>>();
                    let closer = first.into_par_iter().map(|waiting| {
                        waiting.stage = if waiting.stage == Stage::First { Stage::Parts } else { Stage::Rung };
                        let step = bound(&waiting.group, waiting.stage)?;
                        if waiting.bound < step {
                            waiting.bound = step;
                        }
                        Ok(())
                    });
                    closer.collect::<Result<(), PlanError>>()?;
                }
            }
        }
    }

    /// Those that are left.
    pub(crate) fn left(self) -> impl Iterator<Item = Group> {
        self.0.into_iter().map(|waiting| waiting.group)
    }
}
