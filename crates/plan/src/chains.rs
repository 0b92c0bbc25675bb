//! Chains of configurations in the order in which a search looks at them: by the step of their first rung.
//!
//! ```text
//!   group    micro-batch, part of the optimizer that is moved      a bound on its first step, then the step itself
//!   chain    rows of scratch                                       the same step, or a slower one
//!   rung     what is recomputed                                    slower from rung to rung
//! ```
//!
//! A group's first step is predicted when no other's bound is lower, so most are never predicted.

use crate::candidates::scratches;
use crate::request::{PlanError, Request};
use plimsoll_units::Seconds;
use rayon::prelude::*;

/// Groups whose first steps are predicted together.
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
        scratches.map(|scratch| Chain { group: self, scratch }).collect()
    }
}

/// Configurations that differ only in what is recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chain {
    pub(crate) group: Group,
    /// Index of the scratch, and its sizes.
    pub(crate) scratch: (usize, (usize, usize)),
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
    /// Of its first rung with all scratch.
    step: Seconds,
    /// Whether that is its step, and not a bound.
    is_predicted: bool,
}

/// Groups that were not handed out yet, equals in the order in which they are.
pub(crate) struct Groups(Vec<Waiting>);

impl Groups {
    /// Groups with a bound on their first step.
    pub(crate) fn new(groups: impl Iterator<Item = (Group, Seconds)>) -> Self {
        Self(groups.map(|(group, step)| Waiting { group, step, is_predicted: false }).collect())
    }

    /// The next group and its first step; none if all that are left are too slow.
    pub(crate) fn next(
        &mut self,
        is_too_slow: impl Fn(Seconds) -> bool,
        predict: impl Fn(&Group) -> Result<Seconds, PlanError> + Sync,
    ) -> Result<Option<(Group, Seconds)>, PlanError> {
        loop {
            // Bounds come before steps of the same length, which may turn out longer.
            self.0.sort_by(|a, b| a.step.0.total_cmp(&b.step.0).then(a.is_predicted.cmp(&b.is_predicted)));
            match self.0.first() {
                None => return Ok(None),
                Some(fastest) if is_too_slow(fastest.step) => return Ok(None),
                Some(fastest) if fastest.is_predicted => {
                    let Waiting { group, step, .. } = self.0.remove(0);
                    return Ok(Some((group, step)));
                }
                Some(_) => {
                    let bounded = self.0.iter_mut().take_while(|waiting| !waiting.is_predicted);
                    let bounded = bounded.take(TOGETHER).collect::<Vec<_>>();
                    let predicted = bounded.into_par_iter().map(|waiting| {
                        waiting.step = predict(&waiting.group)?;
                        waiting.is_predicted = true;
                        Ok(())
                    });
                    predicted.collect::<Result<(), PlanError>>()?;
                }
            }
        }
    }
}
