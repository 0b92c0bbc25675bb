//! What is known of candidates before they are built: bounds on their bytes and on their step, read off the graph that
//! those share which differ in the part of the optimizer that is moved, and in rows of scratch.
//!
//! ```text
//!   trunk, its tensors on the device        without what is moved        and so the least that is live
//!     ▁▃▅█▅▃▁  activations                    ▁▃▅█▅▃▁                      with any part on the host
//!     ▁▁▂▂▃▃▄  gradients                      ▁▁▁▁▂▂▂
//! ```
//!
//! Moving a part of the optimizer takes what belongs to it out of the device, adds transfers and room for them, and
//! leaves the order of what the device computes as it is. So the rest lives as long as before, and queues work as long
//! as the nodes that are certain to be on them.

mod live;
mod moved;
#[cfg(test)]
mod tests;
mod times;

use crate::layout::{scalars_in, tight};
use crate::parts::Span;
use crate::request::Request;
pub(crate) use live::keep_what_is_outlined;
use live::{Gathered, Transients, gathered, gathered_on_host, live_at_work, waiting_on_host};
pub(crate) use moved::state_when_moved;
use moved::{Moved, Owners, kept_over_the_run};
use plimsoll_graph::{Graph, Place};
use plimsoll_units::Seconds;
use std::sync::{Arc, OnceLock};
pub(crate) use times::Busy;
use times::CommonTimes;

/// Bounds for the candidates that share a graph.
pub(crate) struct Outline {
    common: Arc<Common>,
    /// What it recomputes and sends, for each program of a step.
    beside: Vec<Busy>,
    /// Bytes of activations that wait on the host.
    waiting: u64,
    transients: Option<Transients>,
    /// For each scratch, that of nodes at their ticks.
    at_work: Vec<Vec<(usize, u64)>>,
    /// For each scratch, bytes that are live at once on the device: of spans that end with a part, and of that part alone.
    live: Vec<[OnceLock<Vec<u64>>; 2]>,
}

/// What the outlines of a micro-batch have in common.
pub(crate) struct Common {
    scratches: Vec<(usize, usize)>,
    parts: Vec<OfPart>,
    times: CommonTimes,
    scalars: u64,
}

/// What is known of a part of the optimizer, whatever is recomputed and sent.
struct OfPart {
    moved: Moved,
    /// Bytes of gradients that lie on the host at once beside those that are kept.
    gathered: u64,
    /// What is done of all that is common, for each program of a step.
    busy: Vec<Busy>,
}

impl Common {
    /// Of a graph with the first of these scratches, which is all of it, that recomputes and sends nothing.
    pub(crate) fn new(
        request: &Request,
        micro_batch: usize,
        graph: &Graph,
        parts: &[f64],
        scratches: &[(usize, usize)],
    ) -> Self {
        let (owners, kept) = (Owners::of(graph), kept_over_the_run(graph));
        let times = CommonTimes::new(request, micro_batch, graph, &owners, scratches);
        let gathered: Vec<Gathered> = gathered(graph, &owners);
        let of_part = |&part: &f64| {
            let moved = Moved::new(graph, part, kept);
            OfPart { gathered: gathered_on_host(&gathered, &moved), busy: times.busy(&moved), moved }
        };
        let parts = parts.iter().map(of_part).collect();
        let scalars = scalars_in(Place::Device, &request.targets);
        Self { scratches: scratches.to_vec(), parts, times, scalars }
    }

    /// No step is shorter with any part of a span moved, that does this beside what is common in each program.
    fn step(&self, span: Span, beside: &[Busy], scratch: usize) -> Seconds {
        let of_part =
            |of: &OfPart| self.times.step(of.busy.iter().zip(beside).map(|(busy, beside)| busy.and(*beside)), scratch);
        let steps = self.parts[span.first..=span.last].iter().map(of_part);
        steps.fold(Seconds(f64::INFINITY), |least, step| if step < least { step } else { least })
    }
}

impl Outline {
    /// Of the candidates that make of `trunk`, whose other levers are pulled, one with any part moved and any rows of scratch.
    pub(crate) fn new(request: &Request, common: Arc<Common>, trunk: &Graph) -> Self {
        let transients = Transients::of(trunk, &request.targets, &Owners::of(trunk));
        let at_work = match &transients {
            Some(transients) => {
                let with = |&scratch: &(usize, usize)| transients.at_work(trunk, &request.targets, scratch);
                common.scratches.iter().map(with).collect()
            }
            None => vec![Vec::new(); common.scratches.len()],
        };
        let beside = common.times.beside(request, trunk);
        let live = common.parts.iter().map(|_| Default::default()).collect();
        Self { beside, waiting: waiting_on_host(trunk), transients, at_work, live, common }
    }

    /// The bytes that the arenas of device and host have at the least with any part of a span moved.
    pub(crate) fn least(&self, span: Span, scratch: (usize, usize)) -> [u64; 2] {
        let Common { parts, scalars, .. } = &*self.common;
        let [first, last] = [&parts[span.first], &parts[span.last]];
        let is_single = span.single().is_some();
        let of_span = &self.live[span.last][usize::from(is_single)];
        let live = of_span.get_or_init(|| match &self.transients {
            Some(transients) => live_at_work(transients, &last.moved, is_single, &self.at_work),
            None => vec![0; self.at_work.len()],
        });
        let device = scalars + last.moved.state[Place::Device as usize] + tight(live[self.index_of_scratch(scratch)]);
        [device, first.moved.state[Place::Host as usize] + tight(self.waiting.max(first.gathered))]
    }

    /// The time that a step takes at the least with any part of a span moved.
    pub(crate) fn step(&self, span: Span, scratch: (usize, usize)) -> Seconds {
        self.common.step(span, &self.beside, self.index_of_scratch(scratch))
    }

    /// The same whatever the scratch, of which less never makes a step faster.
    pub(crate) fn shortest_step(&self, span: Span) -> Seconds {
        self.common.step(span, &self.beside, 0)
    }

    /// The same, with more beside it in each micro-step.
    pub(crate) fn step_beside(&self, span: Span, more: Busy) -> Seconds {
        let beside = self.common.times.in_micro_steps(more);
        let beside = self.beside.iter().zip(beside).map(|(beside, more)| beside.and(more)).collect::<Vec<_>>();
        self.common.step(span, &beside, 0)
    }

    /// The bytes of the device that are certain to be live at each tick of the micro-step's lifetimes, state and scalars among
    /// them, with any part of a span moved.
    pub(crate) fn over_time(&self, span: Span, scratch: (usize, usize)) -> Vec<u64> {
        let Some(transients) = &self.transients else { return Vec::new() };
        let (Common { parts, scalars, .. }, at_work) = (&*self.common, &self.at_work[self.index_of_scratch(scratch)]);
        let moved = &parts[span.last].moved;
        let mut live = transients.at_rest(moved, span.single().is_some());
        let state = scalars + moved.state[Place::Device as usize];
        live.iter_mut().for_each(|live| *live += state);
        transients.working.iter().chain(at_work).for_each(|&(time, bytes)| live[time] += bytes);
        live
    }

    fn index_of_scratch(&self, scratch: (usize, usize)) -> usize {
        self.common.scratches.iter().position(|known| *known == scratch).expect("an outline's scratch")
    }
}
