//! What comes of a chain: the first of its rungs that fits, if it is faster than the best so far.
//!
//! ```text
//!   outlines     rungs that can't fit or can't be faster, bisected
//!   live bytes   of graphs, from there on
//!   packing      the first that lives within the budget is mostly packed into it
//! ```

use super::{Best, FITS, Fastest, Mark, is_too_slow};
use crate::budget::Budget;
use crate::candidates::{Candidate, FEW_RUNGS, settings};
use crate::chains::{Chain, Group};
use crate::layout::{Layout, at_least, lacks_at_least};
use crate::least::first_that;
use crate::request::PlanError;
use plimsoll_units::Bytes;

/// What came of a chain.
pub(super) enum Climbed {
    /// A rung that fits, and what the first lacks.
    Found(Box<Best>, [Bytes; 2]),
    /// What fits is slower than the best so far; what the first rung lacks.
    TooSlow([Bytes; 2]),
    /// Nothing of it fits; what the first rung lacks.
    Hopeless([Bytes; 2]),
}

/// What comes of a rung.
enum Tried {
    Found(Box<Best>),
    TooSlow,
    DoesNotFit,
}

/// What outlines say of a chain whose first rung does not fit.
pub(super) enum Outlined {
    /// The first rung that may.
    Fits(usize),
    /// What may is slower than the best so far.
    TooSlow,
    /// None may.
    Hopeless,
}

/// The rungs of a chain among which the first is that fits.
struct Range {
    /// Its outline fits, and that of none before it.
    first: usize,
    /// The first of those that were looked for whose outline fits.
    last: usize,
}

/// Rungs of a group that were built and did not fit, by their index: its chains differ in scratch alone, and have their first
/// rung that fits close together. A few, since graphs are large.
#[derive(Default)]
struct Built {
    candidates: Vec<(usize, Candidate)>,
    /// What lives at once in those that could not be packed, and what they lacked.
    failed: Vec<([u64; 2], [Bytes; 2])>,
    /// From this rung on all lack what the host has, whatever the scratch, which is the device's.
    host_lacks_from: usize,
    /// From this rung on all are too slow: one of a chain with more scratch is, and less of it makes none faster.
    below: usize,
}

impl Built {
    const MOST: usize = 3;

    fn take(&mut self, rung: usize) -> Option<Candidate> {
        let index = self.candidates.iter().position(|(built, _)| *built == rung)?;
        Some(self.candidates.swap_remove(index).1)
    }

    fn keep(&mut self, rung: usize, candidate: Candidate) {
        if self.candidates.len() == Self::MOST {
            let farthest = self.candidates.iter().enumerate().max_by_key(|(_, (built, _))| built.abs_diff(rung));
            let (farthest, _) = farthest.expect("there are some");
            self.candidates.swap_remove(farthest);
        }
        self.candidates.push((rung, candidate));
    }
}

impl Fastest<'_> {
    /// What is known by outlines of the rungs above the first.
    pub(super) fn first_outlined(&self, chain: &Chain, best: Option<Mark>) -> Result<Outlined, PlanError> {
        if self.rungs.len() <= FEW_RUNGS {
            for rung in 1..self.rungs.len() {
                if self.is_outlined_too_slow(chain, rung, best)? {
                    return Ok(Outlined::TooSlow);
                }
                if self.outlined(chain, rung)? == FITS {
                    return Ok(Outlined::Fits(rung));
                }
            }
            return Ok(Outlined::Hopeless);
        }
        for last in self.most_on_host(chain)?.into_iter().chain(self.milestones()) {
            if self.outlined(chain, last)? == FITS {
                let range = self.range(chain, last, best)?;
                return Ok(range.map_or(Outlined::TooSlow, |range| Outlined::Fits(range.first)));
            }
        }
        Ok(Outlined::Hopeless)
    }

    /// The last rung that the host has room for, if that is not the last of all: milestones may lie on both sides of it.
    fn most_on_host(&self, chain: &Chain) -> Result<Option<usize>, PlanError> {
        let lacks = |rung: usize| Ok(self.outlined(chain, rung)?[1] > Bytes::ZERO);
        let last = self.rungs.len() - 1;
        if self.rungs[last].sent_blocks == self.rungs[0].sent_blocks || !lacks(last)? {
            return Ok(None);
        }
        Ok(first_that(1..last, lacks)?.checked_sub(1).filter(|&rung| rung > 0))
    }

    /// What comes of the chains of a group, one after the other, for they have their outlines in common; and whether no rung is
    /// left that may be faster.
    pub(super) fn climb_all(&self, chains: &[Chain]) -> Result<(Vec<Climbed>, bool), PlanError> {
        let mut best = self.mark();
        let rungs = self.rungs.len();
        let mut built = Built { host_lacks_from: rungs, below: rungs, ..Built::default() };
        let (mut climbed, mut is_closed) = (Vec::with_capacity(chains.len()), false);
        for chain in chains {
            let of_chain = self.climb(chain, best, &mut built)?;
            if let Climbed::Found(found, _) = &of_chain {
                best = Some(Mark { step: found.step, rung: found.rung });
            }
            // No first rung is faster than that with all scratch.
            is_closed |= chain.scratch.0 == 0 && built.below == 0;
            climbed.push(of_chain);
        }
        Ok((climbed, is_closed))
    }

    /// The first rung of a chain that fits, if it is faster than the best so far.
    fn climb(&self, chain: &Chain, best: Option<Mark>, built: &mut Built) -> Result<Climbed, PlanError> {
        let mut lacks = self.outlined(chain, 0)?;
        if built.below == 0 {
            return Ok(Climbed::TooSlow(lacks));
        }
        if lacks == FITS {
            let first = self.rung(chain, 0, built)?;
            let step = self.workshop.step(&first);
            if is_too_slow(best, step) {
                built.below = 0;
                return Ok(Climbed::TooSlow(FITS));
            }
            lacks = match self.pack(&first, built) {
                Ok(layout) => {
                    built.below = 0;
                    let found = Best { candidate: first, layout, step, rung: 0 };
                    return Ok(Climbed::Found(Box::new(found), FITS));
                }
                Err(lacks) => lacks,
            };
            built.keep(0, first);
        }
        if (2..=FEW_RUNGS).contains(&self.rungs.len()) {
            return self.packed(chain, 1, built, best, lacks);
        }
        // Chains are much alike, so the best one's rung tells the most.
        let alike = best.map(|best| best.rung).filter(|&rung| rung > 0);
        for guess in alike.into_iter().chain(self.most_on_host(chain)?).chain(self.milestones()) {
            if self.outlined(chain, guess)? != FITS {
                if Some(guess) == alike && self.is_outlined_too_slow(chain, guess, best)? {
                    return Ok(Climbed::TooSlow(lacks));
                }
                continue;
            }
            let Some(range) = self.range(chain, guess, best)? else { return Ok(Climbed::TooSlow(lacks)) };
            if range.first >= built.below {
                return Ok(Climbed::TooSlow(lacks));
            }
            let until = Range { last: range.last.min(built.below - 1), ..range };
            if let Some(rung) = self.first_that_lives(chain, until, built)? {
                return self.packed(chain, rung, built, best, lacks);
            }
            if range.last >= built.below {
                return Ok(Climbed::TooSlow(lacks));
            }
        }
        Ok(Climbed::Hopeless(lacks))
    }

    /// Looked for by outlines, up to one that fits; none where a rung that can't fit is too slow, since what does fit is further
    /// on, and slower still. Bytes fall nearly evenly, so the first looks are where they would meet the budget.
    fn range(&self, chain: &Chain, last: usize, best: Option<Mark>) -> Result<Option<Range>, PlanError> {
        /// Behind them what is left is bisected.
        const GUESSES: usize = 4;
        let budget = self.workshop.request.budget;
        let bytes = |rung: usize| -> Result<u64, PlanError> {
            let outline = self.workshop.outline(chain.group.micro_batch, self.rungs[rung])?;
            let arenas = outline.least(chain.group.parts, chain.scratch.1);
            Ok(Budget::needed(arenas, budget.host().is_none())[0].0)
        };
        let (mut too_few, mut first) = ((0, bytes(0)?), (last, bytes(last)?));
        let mut looks = 0;
        while first.0 - too_few.0 > 1 {
            let rung = match looks < GUESSES {
                true => where_met(too_few, first, budget.device().0),
                false => too_few.0 + (first.0 - too_few.0) / 2,
            };
            looks += 1;
            if self.outlined(chain, rung)? == FITS {
                first = (rung, bytes(rung)?);
            } else if self.is_outlined_too_slow(chain, rung, best)? {
                return Ok(None);
            } else {
                too_few = (rung, bytes(rung)?);
            }
        }
        let first = first.0;
        Ok((!self.is_outlined_too_slow(chain, first, best)?).then_some(Range { first, last }))
    }

    /// The first rung of the range that fits by what lives at once in its graph: mostly the first of all, so those
    /// behind it are tried in growing strides, and what is between them bisected. None if the last does not fit either.
    fn first_that_lives(
        &self,
        chain: &Chain,
        Range { first, last }: Range,
        built: &mut Built,
    ) -> Result<Option<usize>, PlanError> {
        if first >= built.host_lacks_from {
            return Ok(None);
        }
        let lacks = |rung: usize, built: &mut Built| {
            let candidate = self.rung(chain, rung, built)?;
            let lacks = lacks_at_least(self.workshop.request, &candidate.graph);
            built.keep(rung, candidate);
            Ok::<_, PlanError>(lacks)
        };
        let (mut too_few, mut tried, mut stride) = (first, first, 1);
        loop {
            let of_tried = lacks(tried, built)?;
            if of_tried == FITS {
                break;
            }
            if tried == last {
                return Ok(None);
            }
            // What the optimizer lacks on the host is not made up for by what the device recomputes.
            if tried == first && of_tried[1] > Bytes::ZERO && lacks(last, built)?[1] > Bytes::ZERO {
                built.host_lacks_from = first;
                return Ok(None);
            }
            (too_few, tried, stride) = (tried, last.min(tried + stride), 2 * stride);
        }
        let mut enough = tried;
        while enough > too_few + 1 {
            let middle = too_few + (enough - too_few) / 2;
            if lacks(middle, built)? == FITS { enough = middle } else { too_few = middle }
        }
        Ok(Some(enough))
    }

    /// The first rung from this one on that is really packed into the budget: mostly this one.
    fn packed(
        &self,
        chain: &Chain,
        from: usize,
        built: &mut Built,
        best: Option<Mark>,
        lacks: [Bytes; 2],
    ) -> Result<Climbed, PlanError> {
        for rung in from..self.rungs.len() {
            match self.tried(chain, rung, built, best)? {
                Tried::DoesNotFit => {}
                Tried::TooSlow => return Ok(Climbed::TooSlow(lacks)),
                Tried::Found(best) => return Ok(Climbed::Found(best, lacks)),
            }
        }
        Ok(Climbed::Hopeless(lacks))
    }

    /// Whether a rung fits, if it is faster than the best so far.
    fn tried(&self, chain: &Chain, rung: usize, built: &mut Built, best: Option<Mark>) -> Result<Tried, PlanError> {
        if rung >= built.below || self.is_outlined_too_slow(chain, rung, best)? {
            built.below = built.below.min(rung);
            return Ok(Tried::TooSlow);
        }
        if self.outlined(chain, rung)? != FITS {
            return Ok(Tried::DoesNotFit);
        }
        let candidate = self.rung(chain, rung, built)?;
        let step = self.workshop.step(&candidate);
        if is_too_slow(best, step) {
            built.below = rung;
            built.keep(rung, candidate);
            return Ok(Tried::TooSlow);
        }
        if let Ok(layout) = self.pack(&candidate, built) {
            built.below = rung;
            return Ok(Tried::Found(Box::new(Best { candidate, layout, step, rung })));
        }
        built.keep(rung, candidate);
        Ok(Tried::DoesNotFit)
    }

    /// Packs a candidate that fits, else says what budgets lack. One with no less that lives at once than another of its group that
    /// could not be packed is not tried.
    fn pack(&self, candidate: &Candidate, built: &mut Built) -> Result<Layout, [Bytes; 2]> {
        let request = self.workshop.request;
        let least = at_least(&candidate.graph, &request.targets);
        let lacks = request.budget.lacking(least);
        if lacks != FITS {
            return Err(lacks);
        }
        let is_as_large =
            |(failed, _): &&([u64; 2], _)| least.iter().zip(failed).all(|(bytes, failed)| bytes >= failed);
        if let Some((_, lacks)) = built.failed.iter().find(is_as_large) {
            return Err(*lacks);
        }
        Layout::packed_within(request, &candidate.graph).inspect_err(|lacks| built.failed.push((least, *lacks)))
    }

    fn rung(&self, chain: &Chain, rung: usize, built: &mut Built) -> Result<Candidate, PlanError> {
        let Chain { group: Group { micro_batch, parts }, scratch: (_, scratch), .. } = *chain;
        match built.take(rung) {
            Some(candidate) => Ok(candidate.with_scratch(scratch)),
            None => {
                let offload = self.workshop.parts()?[parts.last];
                let settings = settings(self.workshop.request, micro_batch, offload, scratch, self.rungs[rung]);
                self.workshop.candidate(settings)
            }
        }
    }

    /// What budgets lack for a rung by its outline.
    pub(super) fn outlined(&self, chain: &Chain, rung: usize) -> Result<[Bytes; 2], PlanError> {
        self.lacks_by_outline(chain.group.micro_batch, self.rungs[rung], chain.scratch.1, chain.group.parts)
    }

    fn is_outlined_too_slow(&self, chain: &Chain, rung: usize, best: Option<Mark>) -> Result<bool, PlanError> {
        let outline = self.workshop.outline(chain.group.micro_batch, self.rungs[rung])?;
        Ok(is_too_slow(best, outline.step(chain.group.parts, chain.timed_with)))
    }
}

/// The rung between two at which bytes would come down to the budget if they fell evenly; the middle if they don't pass it.
fn where_met((a, bytes_of_a): (usize, u64), (b, bytes_of_b): (usize, u64), budget: u64) -> usize {
    if !(bytes_of_b..bytes_of_a).contains(&budget) {
        return a + (b - a) / 2;
    }
    let part = (bytes_of_a - budget) as f64 / (bytes_of_a - bytes_of_b) as f64;
    a + ((part * (b - a) as f64).ceil() as usize).clamp(1, b - a - 1)
}
