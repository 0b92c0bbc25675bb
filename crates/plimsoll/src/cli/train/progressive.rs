//! `--progressive`: a run begins with a fifth of the memory that it wants, and its budget rises as steps succeed. Not here: the rise
//! (`plimsoll_plan::ElasticBudget`).

use super::hardware::Hardware;
use crate::cli::Failure;
use crate::streams::talk;
use ::plimsoll_plan::{ElasticBudget, FailureKind, Found, Misfit, Request, search};
use ::plimsoll_train::{Engine, RunFolder};
use plimsoll_graph::MemoryId;
use plimsoll_session::same_sums;
use plimsoll_units::Bytes;

/// A refused reservation is not tried again below this.
const FLOOR: Bytes = Bytes::mib(100);

/// A refused reservation is tried again with this part less.
const LESS: u64 = 10;

impl Hardware {
    /// The plan to begin with, which computes the same sums as the wanted one: within a fifth of its memory, or the smallest.
    /// Errors: those of a search.
    pub(super) fn begin_small(&mut self, wanted: Found) -> Result<Found, Failure> {
        self.first_sums = Some(same_sums(&self.request, &wanted));
        let (most, outside) = (self.held(&wanted.plan), self.budget.outside());
        let wanted_bytes = most.saturating_sub(outside);
        let mut first = outside + ElasticBudget::first_rise(wanted_bytes).max(FLOOR.min(wanted_bytes));
        let mut found = self.search_within(first)?;
        if let Err(misfit) = &found {
            first = misfit.plan.needed()[MemoryId::DEVICE] + outside;
            found = self.search_within(first)?;
        }
        let Ok(found) = found else { return Ok(wanted) };
        self.rises = true;
        self.set_vram(first)?;
        talk(format_args!("progressive: the run begins with {first} and grows to {most} as steps succeed"));
        Ok(found)
    }

    /// Loads the first plan. A budget that rises is tried again with a tenth less if the system refuses it, down to the floor.
    pub(super) fn load_first(&mut self, folder: &RunFolder, found: &mut Found) -> Result<Engine, Failure> {
        loop {
            let refused = match self.try_load(folder, found) {
                Err(failure) if self.rises && failure.kind() == Some(FailureKind::Refused) => failure,
                loaded => {
                    self.rises = false;
                    return loaded;
                }
            };
            let tried = self.held(&found.plan);
            let Some(smaller) = smaller(tried, self.budget.outside()) else { return Err(refused) };
            match self.search_within(smaller)? {
                Ok(plan) => *found = plan,
                Err(_) => return Err(refused),
            }
            self.set_vram(smaller)?;
            talk(format_args!("progressive: {tried} was refused; trying {smaller}"));
        }
    }

    fn search_within(&self, vram: Bytes) -> Result<Result<Found, Box<Misfit>>, Failure> {
        let budget = self.budget.of_vram(&self.budget_args, vram)?;
        let budget = budget.with_host(self.request.targets.device.kind(), self.host_ram)?;
        let pinned = self.first_sums.clone().unwrap_or_else(|| self.request.clone());
        Ok(search(&Request { budget, ..pinned })?)
    }
}

/// The size to try after a refused one; `None` below the floor. `outside`: the part of both that is not the plan's.
fn smaller(refused: Bytes, outside: Bytes) -> Option<Bytes> {
    let of_plan = refused.saturating_sub(outside);
    let less = Bytes(of_plan.0 - of_plan.0 / LESS);
    (less >= FLOOR).then_some(less + outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_size_goes_down_by_a_tenth_to_the_floor() {
        let outside = Bytes::mib(1000);
        let mut tries = vec![Bytes::mib(1200)];
        while let Some(next) = smaller(tries[tries.len() - 1], outside) {
            tries.push(next);
        }
        let of_plan = tries.iter().map(|size| size.0 / Bytes::mib(1).0 - 1000).collect::<Vec<_>>();
        assert_eq!(of_plan, [200, 180, 162, 145, 131, 118, 106]);
        assert_eq!(smaller(Bytes::mib(1), outside), None);
    }
}
