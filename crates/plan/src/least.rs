//! What needs the least memory of all that a request leaves open: whether anything of it can fit, and the smallest plan
//! of a run that does not.
//!
//! ```text
//!   state       weights, gradients and moments, wherever they lie     from the parameters
//!   outline     and what is certain to be live at once                from a graph that all parts and scratches share
//!   lifetimes   and all that is                                       from the candidate's graph
//!   arena       how high it is packed                                 from the plan
//! ```
//!
//! Each is at least what stands above it and costs more to know, so it is asked for where that one fits.

use crate::candidates::{
    FEW_RUNGS, Kept, Programs, extremes, least_scratch, micro_batches, milestones_of, plan_candidate, settings, weights,
};
use crate::fastest::{FITS, Fastest};
use crate::layout::{Layout, lacks_at_least};
use crate::parts::{Detail, Span};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use crate::workshop::Trunk;
use plimsoll_units::Bytes;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Range, RangeInclusive};

/// Whether anything that the request leaves open makes it fit.
pub(crate) fn can_fit(request: &Request) -> Result<bool, PlanError> {
    Fastest::new(request, Detail::Rough)?.can_fit()
}

/// The smallest and the largest micro-batch, which take the least: a whole batch at once keeps no gradients from one
/// micro-batch to the next.
pub(crate) fn ends(request: &Request) -> Vec<usize> {
    let micro_batches = micro_batches(request);
    let mut ends = vec![micro_batches[0], micro_batches[micro_batches.len() - 1]];
    ends.dedup();
    ends
}

/// The parts of the optimizer that may be moved for something to fit.
pub(crate) struct Parts {
    pub(crate) span: Option<Span>,
    /// The most that those which can't lack.
    pub(crate) left_out: [Bytes; 2],
    /// Whether all of them lack it for weights, gradients and moments alone.
    pub(crate) state_is_too_large: bool,
}

impl Parts {
    fn leave_out(&mut self, lacks: [Bytes; 2]) {
        for (most, lacks) in self.left_out.iter_mut().zip(lacks) {
            *most = lacks.max(*most);
        }
    }
}

impl Fastest<'_> {
    pub(crate) fn weights_are_too_large(&self) -> bool {
        let request = self.workshop.request;
        weights(request) > request.budget.device()
    }

    /// Whether anything fits. Tries only what may take the least.
    pub(crate) fn can_fit(&self) -> Result<bool, PlanError> {
        if self.weights_are_too_large() {
            return Ok(false);
        }
        let request = self.workshop.request;
        for micro_batch in ends(request) {
            let extremes = extremes(request);
            let Some(Span { first, last }) = self.parts(micro_batch, &extremes)?.span else { continue };
            let mut lacking = Vec::new();
            let tried = evenly(first..=last).rev().collect::<Vec<_>>();
            for &kept in &extremes {
                let mut trunk = None;
                for &part in &tried {
                    if self.may_lack(micro_batch, kept, Span::one(part), &mut lacking)? {
                        continue;
                    }
                    let trunk = match &trunk {
                        Some(trunk) => trunk,
                        None => trunk.insert(self.trunk_of(micro_batch, kept)?),
                    };
                    let offload = self.workshop.parts()?[part];
                    if Layout::within(request, &self.workshop.moved(trunk.copy(), offload).graph).is_ok() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// The configuration that lacks the least of all that take the least, packed: the smallest plan of a run that does
    /// not fit. Of those that lack alike, the one that takes less of the host.
    pub(crate) fn smallest(&self) -> Result<Plan, PlanError> {
        let request = self.workshop.request;
        // As much as may be recomputed, with what is kept on the host or none.
        let extremes = extremes(request);
        let most = extremes.iter().filter(|kept| kept.recompute == extremes[0].recompute).collect::<Vec<_>>();
        let of_end = |&micro_batch: &usize| {
            let scratch = least_scratch(request, micro_batch);
            let parts = self.workshop.parts()?;
            let bound = |(part, kept): (usize, Kept)| {
                let lacks = self.lacks_by_outline(micro_batch, kept, scratch, Span::one(part))?;
                Ok((lacks_in_all(lacks), settings(request, micro_batch, parts[part], scratch, kept)))
            };
            let of_part = |part| most.iter().map(move |kept| (part, **kept));
            evenly(0..=parts.len() - 1).flat_map(of_part).map(bound).collect::<Result<Vec<_>, PlanError>>()
        };
        let bounds = ends(request).par_iter().map(of_end).collect::<Result<Vec<_>, _>>()?;
        let mut bounds = bounds.into_iter().flatten().collect::<Vec<_>>();
        bounds.sort_by_key(|(lacks, _)| *lacks);
        let mut smallest: Option<(Bytes, Plan)> = None;
        let mut trunks = BTreeMap::new();
        for (by_outline, settings) in bounds {
            let is_beaten = |bound: Bytes| smallest.as_ref().is_some_and(|(lacks, _)| *lacks < bound);
            if is_beaten(by_outline) {
                break;
            }
            let kept = settings.kept();
            let trunk = match trunks.entry((settings.micro_batch, kept.sent_blocks)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => free.insert(self.trunk_of(settings.micro_batch, kept)?),
            };
            let candidate = self.workshop.moved(trunk.copy(), settings.levers.optimizer_offload);
            if is_beaten(lacks_in_all(lacks_at_least(request, &candidate.graph))) {
                continue;
            }
            let plan = plan_candidate(request, &candidate);
            let lacks = lacks_in_all(request.budget.lacking(plan.arenas()));
            if smallest.as_ref().is_none_or(|(least, s)| (lacks, plan.host_bytes) < (*least, s.host_bytes)) {
                smallest = Some((lacks, plan));
            }
        }
        Ok(smallest.expect("a request has at least one configuration").1)
    }

    /// The parts of the optimizer with which a micro-batch may fit, if one of `least` does, of which the first is likely to
    /// take the least. Each has less on the device than the one before it, and more on the host.
    pub(crate) fn parts(&self, micro_batch: usize, least: &[Kept]) -> Result<Parts, PlanError> {
        let mut parts = Parts { span: None, left_out: FITS, state_is_too_large: true };
        let all = self.workshop.parts()?;
        let state = |part: usize| self.workshop.lacks_for_state(micro_batch, all[part]);
        let mut fits_host = first_that(0..all.len(), |part| Ok(state(part)?[1] > Bytes::ZERO))?;
        let fits_device = first_that(0..fits_host, |part| Ok(state(part)?[0] == Bytes::ZERO))?;
        for left_out in [fits_host..all.len(), 0..fits_device].into_iter().filter(|left_out| !left_out.is_empty()) {
            parts.leave_out(state(left_out.start)?);
            parts.leave_out(state(left_out.end - 1)?);
        }
        if fits_device == fits_host {
            return Ok(parts);
        }
        parts.state_is_too_large = false;
        let scratch = least_scratch(self.workshop.request, micro_batch);
        let may_fit = |memory: usize, part: usize| {
            for &kept in least {
                let lacks = self.lacks_by_outline(micro_batch, kept, scratch, Span::one(part))?;
                if lacks[memory] == Bytes::ZERO {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let first = first_that(fits_device..fits_host, |part| may_fit(0, part))?;
        if first > fits_device {
            parts.leave_out(self.lacks_by_outline(micro_batch, least[0], scratch, Span::one(first - 1))?);
        }
        let end = first_that(first..fits_host, |part| Ok(!may_fit(1, part)?))?;
        if end < fits_host {
            parts.leave_out(self.lacks_by_outline(micro_batch, least[0], scratch, Span::one(end))?);
            fits_host = end;
        }
        parts.span = (first < fits_host).then(|| Span { first, last: fits_host - 1 });
        Ok(parts)
    }

    /// Whether any of those fits by its outline that may take the least with some of these parts moved.
    pub(crate) fn may_fit(&self, micro_batch: usize, parts: Span, least: &[Kept]) -> Result<bool, PlanError> {
        let mut lacking = Vec::new();
        for &kept in least {
            if !self.may_lack(micro_batch, kept, parts, &mut lacking)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this lacks something by its outline, with the least scratch. It is not asked where the device lacks bytes even with
    /// more of it sent, which `lacking` remembers.
    fn may_lack(
        &self,
        micro_batch: usize,
        kept: Kept,
        parts: Span,
        lacking: &mut Vec<(Kept, Span)>,
    ) -> Result<bool, PlanError> {
        let sends_more = |(more, of): &(Kept, Span)| {
            *of == parts && more.recompute == kept.recompute && more.sent_blocks > kept.sent_blocks
        };
        // A block or two on their way may take more than none.
        if kept.sent_blocks > 0 && lacking.iter().any(sends_more) {
            return Ok(true);
        }
        let scratch = least_scratch(self.workshop.request, micro_batch);
        let lacks = self.lacks_by_outline(micro_batch, kept, scratch, parts)?;
        if lacks[0] > Bytes::ZERO {
            lacking.push((kept, parts));
        }
        Ok(lacks != FITS)
    }

    /// What candidates share that keep the same, with the least scratch.
    fn trunk_of(&self, micro_batch: usize, kept: Kept) -> Result<Trunk, PlanError> {
        let request = self.workshop.request;
        let settings = settings(request, micro_batch, 0.0, least_scratch(request, micro_batch), kept);
        self.workshop.trunk(settings, Programs::All)
    }

    /// What budgets lack for a candidate by its outline: no more than for itself.
    pub(crate) fn lacks_by_outline(
        &self,
        micro_batch: usize,
        kept: Kept,
        scratch: (usize, usize),
        parts: Span,
    ) -> Result<[Bytes; 2], PlanError> {
        let outline = self.workshop.outline(micro_batch, kept)?;
        Ok(self.workshop.request.budget.lacking(outline.least(parts, scratch)))
    }

    /// The rungs above the first of which one takes the least, the last one first. Mostly that is the last; but where a
    /// block's results are small beside what making them again takes, an earlier one. All of few rungs, of many those
    /// that recompute alike in all blocks, and of those that differ in what is sent some that lie among them.
    pub(crate) fn milestones(&self) -> impl Iterator<Item = usize> + use<'_> {
        let few = self.rungs.len() <= FEW_RUNGS;
        let mut sent = self.rungs.iter().map(|kept| kept.sent_blocks).collect::<Vec<_>>();
        sent.dedup();
        let sent = milestones_of(&sent);
        let (first, last) = (self.rungs[0].recompute, self.rungs[self.rungs.len() - 1].recompute);
        let is_one =
            move |kept: Kept| (kept.recompute.blocks == 0 || first == last) && sent.contains(&kept.sent_blocks);
        (1..self.rungs.len()).rev().filter(move |&rung| few || is_one(self.rungs[rung]))
    }

    /// The rungs of which one takes the least.
    pub(crate) fn least(&self) -> Vec<Kept> {
        self.milestones().chain([0]).map(|rung| self.rungs[rung]).collect()
    }
}

/// Five numbers that lie evenly among these, or all of fewer, ascending.
fn evenly(numbers: RangeInclusive<usize>) -> impl DoubleEndedIterator<Item = usize> {
    let (first, last) = numbers.into_inner();
    let parts = (last - first).min(4);
    (0..=parts).map(move |part| first + (last - first) * part / parts.max(1))
}

/// The first number that holds, if it holds for all behind one for which it does; else the end.
pub(crate) fn first_that(
    numbers: Range<usize>,
    holds: impl Fn(usize) -> Result<bool, PlanError>,
) -> Result<usize, PlanError> {
    let Range { mut start, mut end } = numbers;
    while start < end {
        let middle = start + (end - start) / 2;
        if holds(middle)? { end = middle } else { start = middle + 1 }
    }
    Ok(end)
}

fn lacks_in_all(lacks: [Bytes; 2]) -> Bytes {
    lacks.into_iter().fold(Bytes::ZERO, |sum, lacks| Bytes(sum.0.saturating_add(lacks.0)))
}
