//! The fastest configuration that fits. Each candidate's real graph is built and its real arena packed before it is
//! accepted; no formula decides what fits. What can't fit or can't be faster is mostly known from an outline, and not
//! built (`outline/`).
//!
//! ```text
//!   parts of the optimizer that no chain can have     left out, by what the configurations that take the least lack; the
//!     │                                               rest are halved while they may be faster than the best so far
//!   chains, by a bound on the first rung that may fit ──►   the first rung fits: nothing in this chain is faster
//!     │                                                     it does not, but the last may: bisected for the first that
//!     │                                                     may, by what lives at once; that one is packed
//!     ▼                                                     the last can't either: nor can larger micro-batches' chains
//!   until the next chain's bound is slower than the best so far
//! ```
//!
//! More budget never gives a slower plan: the chains don't depend on budgets, what fits in less fits in more, so each
//! chain's answer only moves towards its first rung, which is its fastest; and the best answer of all is taken. Fewer
//! rows of scratch never make a step faster, so a chain with fewer begins no earlier than its sister with all of them.
//!
//! Chains are looked at on all threads, always so many at a time, and their answers are taken in order: which candidates
//! are built, and which wins, is the same on any number of threads. Not here: what comes of a chain (`fastest/climb.rs`).

mod climb;

use crate::candidates::{Candidate, Kept, least_scratch, micro_batches, rungs, scratches, sent_blocks, settings};
use crate::chains::{Chain, Group, Groups, Stage};
use crate::choice::PartBound;
use crate::layout::Layout;
use crate::least::ends;
use crate::levers::Recompute;
use crate::parts::{Detail, Span};
use crate::request::{PlanError, Request};
use crate::workshop::Workshop;
use climb::{Climbed, Outlined};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;

/// Groups of chains that are looked at together.
const TOGETHER: usize = 2;

pub(crate) const FITS: [Bytes; 2] = [Bytes::ZERO; 2];

/// A configuration that fits.
pub(crate) struct Best {
    pub(crate) candidate: Candidate,
    pub(crate) layout: Layout,
    /// Predicted.
    pub(crate) step: Seconds,
    /// Index of what is kept.
    rung: usize,
}

/// What the best so far has reached.
#[derive(Clone, Copy)]
struct Mark {
    step: Seconds,
    rung: usize,
}

/// A search for the fastest that fits, and what it comes to.
pub(crate) struct Fastest<'r> {
    pub(crate) workshop: Workshop<'r>,
    /// The fastest that fits, if any does.
    pub(crate) best: Option<Best>,
    /// Whether the budget of the device, of the host, kept a faster configuration out.
    pub(crate) kept_out: [bool; 2],
    /// Whether weights, gradients and moments alone are too much, wherever they lie.
    pub(crate) state_is_too_large: bool,
    /// What may be recomputed, ever more of it, or sent away.
    pub(crate) rungs: Vec<Kept>,
    ladder: Ladder,
    /// Groups whose first rung was found or is too slow, and of which ladder: on those that begin with as much recomputed they are no
    /// faster.
    closed: Vec<(Group, usize)>,
}

/// Which rungs are climbed.
#[derive(Clone, Copy)]
enum Ladder {
    Any,
    /// What is recomputed is chosen result by result, and nothing is sent.
    Unsent,
    /// Levels of blocks are recomputed, and nothing is sent.
    UnsentLevels,
    /// This mix of those that the workshop's ladder has is recomputed, and ever more is sent.
    OfMix(usize),
}

impl Ladder {
    /// Ascending by what their first rungs recompute.
    fn number(self) -> usize {
        match self {
            Self::Any | Self::Unsent | Self::UnsentLevels => 0,
            Self::OfMix(mix) => mix,
        }
    }

    /// The bound on its steps.
    fn of(self, PartBound { step, unsent, of_mixes }: &PartBound) -> Seconds {
        match self {
            Self::Any => *step,
            Self::Unsent | Self::UnsentLevels => *unsent,
            Self::OfMix(mix) => of_mixes.get(mix).copied().unwrap_or(*step),
        }
    }
}

impl<'r> Fastest<'r> {
    pub(crate) fn new(request: &'r Request, detail: Detail) -> Result<Self, PlanError> {
        request.check()?;
        let (workshop, rungs) = (Workshop::new(request, detail), rungs(request));
        Ok(Self {
            workshop,
            best: None,
            kept_out: [false; 2],
            state_is_too_large: false,
            rungs,
            ladder: Ladder::Any,
            closed: Vec::new(),
        })
    }

    /// Looks for the fastest that fits: with what is recomputed chosen result by result, unless that was asked for or is looked at
    /// roughly, and with levels of blocks, which take their place where they are as fast.
    pub(crate) fn search(mut self) -> Result<Self, PlanError> {
        let request = self.workshop.request;
        let (sends, of_blocks) = (sent_blocks(request), self.rungs.clone());
        let is_open = request.levers.recompute.is_none() && self.workshop.detail == Detail::Full;
        if is_open {
            let ladder = self.workshop.ladder()?.iter();
            self.rungs = ladder.map(|&recompute| Kept { recompute, sent_blocks: sends[0] }).collect();
            if sends[0] == 0 {
                self.ladder = Ladder::Unsent;
                self = self.climb_ladder()?;
                if !self.is_pressed() {
                    return Ok(self);
                }
            }
            if sends != [0] {
                self = self.send_beside_mixes()?;
            }
            self.closed.clear();
        }
        let levels = levels(&of_blocks, request);
        if sends[0] == 0 {
            self.ladder = Ladder::UnsentLevels;
            self.rungs = of_blocks;
            self = self.climb_ladder()?;
        }
        let is_asked = request.levers.recompute.is_some();
        let is_done = sends == [0] || (self.best.is_some() && !is_asked) || !self.is_pressed();
        if !is_done {
            for level in levels {
                self = self.send(level, Ladder::Any)?;
            }
        }
        Ok(self)
    }

    /// Whether a budget kept something faster out than what was found on the ladder that was climbed last.
    fn is_pressed(&self) -> bool {
        self.best.as_ref().is_none_or(|best| best.rung > 0) || self.kept_out != [false; 2]
    }

    /// With each mix recomputed, what is kept is sent to the host, of ever more blocks. Those are first that may be the fastest in the
    /// place of the best so far, so that most others need not be looked at.
    fn send_beside_mixes(mut self) -> Result<Self, PlanError> {
        let mixes = self.workshop.mixes()?;
        let mut left = (0..mixes.len()).collect::<Vec<_>>();
        while !left.is_empty() {
            let next = match &self.best {
                Some(Best { candidate: Candidate { settings, .. }, step, .. }) => {
                    let part = self.workshop.index_of_part(settings.levers.optimizer_offload)?;
                    let bound = self.workshop.part_at_least(settings.micro_batch, part, *step)?;
                    let bound = |mix: usize| Ladder::OfMix(mix).of(&bound).0;
                    left.iter().copied().min_by(|a, b| bound(*a).total_cmp(&bound(*b))).expect("there are some")
                }
                None => left[0],
            };
            left.retain(|mix| *mix != next);
            self = self.send(mixes[next], Ladder::OfMix(next))?;
        }
        Ok(self)
    }

    /// With this recomputed, what is kept is sent to the host, of ever more blocks.
    fn send(mut self, recompute: Recompute, ladder: Ladder) -> Result<Self, PlanError> {
        let request = self.workshop.request;
        self.ladder = ladder;
        let kept = |sent_blocks| Kept { recompute, sent_blocks };
        self.rungs = sent_blocks(request).into_iter().map(kept).collect();
        let all = Span { first: 0, last: self.workshop.parts()?.len() - 1 };
        for micro_batch in micro_batches(request) {
            if !self.is_too_slow(self.first_at_least(micro_batch, all)?) {
                return self.climb_ladder();
            }
        }
        Ok(self)
    }

    /// No step of this micro-batch is shorter with any of these parts of the optimizer on the host.
    fn first_at_least(&self, micro_batch: usize, parts: Span) -> Result<Seconds, PlanError> {
        if let Ladder::OfMix(mix) = self.ladder
            && let Some(plain) = &*self.workshop.plain(micro_batch)?
        {
            return Ok(plain.mix_at_least(mix, parts));
        }
        Ok(self.workshop.outline(micro_batch, self.rungs[0])?.shortest_step(parts))
    }

    /// Looks for the fastest that fits on the rungs; the best so far remains if nothing is faster.
    fn climb_ladder(mut self) -> Result<Self, PlanError> {
        if let Some(best) = &mut self.best {
            // It may stand on another ladder.
            best.rung = 0;
        }
        let request = self.workshop.request;
        if self.weights_are_too_large() {
            (self.kept_out[0], self.state_is_too_large) = (true, true);
            return Ok(self);
        }
        let mut groups = self.groups()?;
        let mut hopeless = Vec::<Chain>::new();
        let mut lacking = Vec::new();
        loop {
            let mut now = Vec::with_capacity(TOGETHER);
            while now.len() < TOGETHER
                && let Some(group) =
                    groups.next(|step| self.is_too_slow(step), |group, stage| self.bound(group, stage))?
            {
                let mut chains = group.chains(request);
                chains.retain(|chain| !hopeless.iter().any(|other| chain.takes_more(other, request.global_batch)));
                now.push(chains);
            }
            if now.is_empty() {
                for group in groups.left() {
                    lacking.extend(self.lack_at_ends(&group)?);
                }
                self.keep_out_faster(lacking)?;
                // Ladders have levels in common, and nothing that lies between them.
                let sent_blocks = sent_blocks(request)[0];
                self.workshop.forget(|kept| kept.recompute.blocks > 0 || kept.sent_blocks > sent_blocks);
                return Ok(self);
            }
            let climbed = now.par_iter().map(|chains| self.climb_all(chains)).collect::<Result<Vec<_>, _>>()?;
            let by = self.ladder.number();
            let is_closed = |(chains, (_, is_closed)): (&Vec<Chain>, &(_, bool))| {
                chains.first().filter(|_| *is_closed).map(|c| (c.group, by))
            };
            self.closed.extend(now.iter().zip(&climbed).filter_map(is_closed));
            let climbed = climbed.into_iter().flat_map(|(climbed, _)| climbed);
            for (chain, climbed) in now.into_iter().flatten().zip(climbed) {
                let lacks = match climbed {
                    Climbed::Found(found, lacks) => {
                        debug_assert!(
                            self.is_no_faster_than_bound(&chain.group, &found)?,
                            "{:?}",
                            found.candidate.settings
                        );
                        self.offer(*found);
                        lacks
                    }
                    Climbed::TooSlow(lacks) => lacks,
                    Climbed::Hopeless(lacks) => {
                        hopeless.push(chain);
                        lacks
                    }
                };
                lacking.push((chain.group, lacks));
            }
        }
    }

    /// What the first rung lacks with the first part of a group, and with the last.
    fn lack_at_ends(&self, group: &Group) -> Result<[(Group, [Bytes; 2]); 2], PlanError> {
        let of_part = |part| {
            let group = Group { parts: Span::one(part), ..*group };
            Ok::<_, PlanError>((group, self.outlined(&group.outline(self.workshop.request), 0)?))
        };
        Ok([of_part(group.parts.first)?, of_part(group.parts.last)?])
    }

    /// Whether the bound of the ladder that is climbed is one of what was found on it.
    fn is_no_faster_than_bound(&self, group: &Group, found: &Best) -> Result<bool, PlanError> {
        let without = Seconds(f64::INFINITY);
        let bound = self.workshop.part_at_least(group.micro_batch, group.parts.last, without)?;
        Ok(self.ladder.of(&bound).0 <= found.step.0 * (1.0 + 1e-9))
    }

    /// Of groups whose first rung lacks something, those are kept out that would be faster than the best.
    fn keep_out_faster(&mut self, lacking: Vec<(Group, [Bytes; 2])>) -> Result<(), PlanError> {
        for (group, lacks) in lacking {
            let is_new = self.kept_out.iter().zip(lacks).any(|(kept_out, lacks)| !kept_out && lacks > Bytes::ZERO);
            if is_new && !self.is_too_slow(self.first_step(&group)?) {
                self.keep_out(lacks);
            }
        }
        Ok(())
    }

    /// The predicted step of the fastest configuration with all the memory that it asks for, so that nothing is moved
    /// that is not asked to be.
    pub(crate) fn without_limits(&self) -> Result<Option<Seconds>, PlanError> {
        let request = self.workshop.request;
        let group = |micro_batch| Group { micro_batch, parts: Span::one(0) };
        let step = |&micro_batch: &usize| self.step_of(&group(micro_batch), rungs(request)[0]);
        let steps = micro_batches(request).par_iter().map(step).collect::<Result<Vec<_>, _>>()?;
        Ok(steps.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)))
    }

    /// All groups of chains but those that can't fit, each of all parts that are left.
    fn groups(&mut self) -> Result<Groups, PlanError> {
        let request = self.workshop.request;
        let ends = ends(request);
        let least = self.least();
        let parts = ends.par_iter().map(|&end| self.parts(end, &least)).collect::<Result<Vec<_>, _>>()?;
        parts.iter().for_each(|parts| self.keep_out(parts.left_out));
        self.state_is_too_large = parts.iter().all(|parts| parts.state_is_too_large);
        let mut open = Vec::new();
        for (&end, parts) in ends.iter().zip(&parts) {
            let Some(parts) = parts.span else { continue };
            let (may_fit, lacks) = self.micro_batches_that_may_fit(end, parts, &least)?;
            lacks.into_iter().for_each(|lacks| self.keep_out(lacks));
            open.extend(may_fit.into_iter().map(|micro_batch| Group { micro_batch, parts }));
        }
        open.sort_by_key(|group| group.micro_batch);
        let bound = |group: Group| Ok((group, self.first_at_least(group.micro_batch, group.parts)?));
        let groups = open.into_par_iter().map(bound).collect::<Result<Vec<_>, PlanError>>()?;
        Ok(Groups::new(groups.into_iter()))
    }

    /// Of the micro-batches that keep as many gradients as one of the ends, which may fit with some of these parts moved, those
    /// that may too; and what the first that can't lacks without recomputation. Larger ones take more.
    fn micro_batches_that_may_fit(
        &self,
        end: usize,
        parts: Span,
        least: &[Kept],
    ) -> Result<(Vec<usize>, Option<[Bytes; 2]>), PlanError> {
        let request = self.workshop.request;
        let mut alike = micro_batches(request);
        alike.retain(|&micro_batch| (micro_batch == request.global_batch) == (end == request.global_batch));
        let (mut fitting, mut too_large) = (0, alike.len());
        while too_large - fitting > 1 {
            let middle = fitting + (too_large - fitting) / 2;
            if self.may_fit(alike[middle], parts, least)? { fitting = middle } else { too_large = middle }
        }
        let lacks = match alike.get(too_large) {
            Some(&micro_batch) => {
                let scratch = least_scratch(request, micro_batch);
                Some(self.lacks_by_outline(micro_batch, self.rungs[0], scratch, parts)?)
            }
            None => None,
        };
        alike.truncate(too_large);
        Ok((alike, lacks))
    }

    /// The step without recomputation and with all scratch.
    fn first_step(&self, group: &Group) -> Result<Seconds, PlanError> {
        self.step_of(group, self.rungs[0])
    }

    /// The step of a group that keeps this, with all scratch.
    fn step_of(&self, &Group { micro_batch, parts }: &Group, kept: Kept) -> Result<Seconds, PlanError> {
        let request = self.workshop.request;
        let (scratch, offload) = (scratches(request, micro_batch)[0], self.workshop.parts()?[parts.last]);
        self.workshop.step_of(settings(request, micro_batch, offload, scratch, kept))
    }

    /// A bound on the steps of a group that fit.
    fn bound(&self, group: &Group, stage: Stage) -> Result<Seconds, PlanError> {
        let best = self.mark();
        let is_closed = |(closed, by): &(Group, usize)| closed == group && *by <= self.ladder.number();
        if stage < Stage::Rung && self.closed.iter().any(is_closed) {
            return Ok(Seconds(f64::INFINITY));
        }
        if stage < Stage::Rung {
            // The closest bounds take the longest, where there is nothing yet that they need not be beyond.
            let (Some(Mark { step, .. }), Some(part)) = (best, group.parts.single()) else {
                return self.workshop.span_at_least(group.micro_batch, group.parts);
            };
            let bound = self.workshop.part_at_least(group.micro_batch, part, step)?;
            return Ok(self.ladder.of(&bound));
        }
        // The least scratch fits first, and none is faster than all of it.
        let chain = group.outline(self.workshop.request);
        let rung = match self.outlined(&chain, 0)? {
            FITS => 0,
            _ => match self.first_outlined(&chain, best)? {
                Outlined::Fits(first) => first,
                Outlined::TooSlow | Outlined::Hopeless => return Ok(Seconds(f64::INFINITY)),
            },
        };
        Ok(self.workshop.outline(group.micro_batch, self.rungs[rung])?.shortest_step(group.parts))
    }

    /// What others have to be faster than, or as fast as if they are of levels.
    fn mark(&self) -> Option<Mark> {
        let best = self.best.as_ref()?;
        let is_of_levels = matches!(self.ladder, Ladder::Any | Ladder::UnsentLevels);
        let step = if is_of_levels { Seconds(best.step.0.next_up()) } else { best.step };
        Some(Mark { step, rung: best.rung })
    }

    fn is_too_slow(&self, step: Seconds) -> bool {
        is_too_slow(self.mark(), step)
    }

    fn offer(&mut self, found: Best) {
        if !self.is_too_slow(found.step) {
            self.best = Some(found);
        }
    }

    fn keep_out(&mut self, lacks: [Bytes; 2]) {
        for (kept_out, lacks) in self.kept_out.iter_mut().zip(lacks) {
            *kept_out |= lacks > Bytes::ZERO;
        }
    }
}

/// What rungs recompute that treat all blocks alike, or what was asked for.
fn levels(rungs: &[Kept], request: &Request) -> Vec<Recompute> {
    if let Some(asked) = request.levers.recompute {
        return vec![asked];
    }
    rungs.iter().map(|kept| kept.recompute).filter(|recompute| recompute.blocks == 0).collect()
}

fn is_too_slow(best: Option<Mark>, step: Seconds) -> bool {
    best.is_some_and(|best| best.step <= step)
}
