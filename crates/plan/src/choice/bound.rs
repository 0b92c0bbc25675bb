//! How fast any plan can be that fits: a proof that the one which was found is not far from the best.
//!
//! At each tick of a micro-step that recomputes nothing certain bytes are live. Recomputing a result takes its bytes away from
//! all ticks before its first use in the backward pass, and costs seconds. What a budget lacks at a tick has to be taken away
//! there. If any part of a block's choice could be taken, the hulls of all blocks that the backward pass has not reached
//! would be climbed in the order of their prices; no whole choice is cheaper than that. Blocks that it has reached give what
//! is not yet used for nothing. The worst tick counts.
//!
//! ```text
//!   seconds │        ╱‾
//!           │     ╱‾         the least for bytes that are lacking: a line, bent upwards
//!           │ __╱
//!           └────────────
//!              bytes lacking
//! ```
//!
//! What is sent to the host takes its bytes away as well, for the time of two transfers. The device does not come to the worst
//! tick before they are on the host, and they come back after it, when what is recomputed is recomputed too. Of all parts that
//! may be sent the best is a bound.
//!
//! Of spans of parts of the optimizer there is a bound that needs no graph: what queues are certain to do, with the time for the
//! bytes that the span's last part lacks. While it is lower than the least bound of all, the span is halved.
//!
//! All plans are meant that recompute any result at most once but for what blocks hand to each other, send anything, and are
//! else what a request leaves open.

use super::{Choices, Kind, Mix, Rise, of_block};
use crate::candidates::{Kept, Programs, Settings, micro_batches, scratches, sent_blocks, settings};
use crate::cost::{Beside, KnownTimes, TimedStep, Work};
use crate::layout::ALIGNMENT;
use crate::levers::{Levers, Places, Uses};
use crate::outline::{Busy, Outline};
use crate::parts::Span;
use crate::request::{PlanError, Request};
use crate::workshop::{Trunk, Workshop};
use plimsoll_graph::ops::{Home, Transfer};
use plimsoll_graph::{Graph, Io, Node, Op, Pass, Place, Program, Role, Storage, Tensor};
use plimsoll_units::Seconds;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Spans whose bounds are asked for together.
const TOGETHER: usize = 2;

/// No plan that fits has a shorter step than this, as far as those are concerned that are shorter than one that was found.
pub(crate) fn step_at_least(workshop: &Workshop, settings: &Settings, found: Seconds) -> Result<Seconds, PlanError> {
    let all = Span { first: 0, last: workshop.parts()?.len() - 1 };
    if cfg!(debug_assertions) {
        // The one that was found is a plan that fits, so the bounds of its like are below it.
        let Settings { micro_batch, levers: Levers { optimizer_offload, .. }, .. } = *settings;
        let part = workshop.index_of_part(optimizer_offload)?;
        if let Some(like) = &*workshop.plain(micro_batch)? {
            let without = Seconds(f64::INFINITY);
            let spans = [Span::one(part), all].map(|span| like.span_at_least(workshop, span, without));
            let of_part = like.part_at_least(workshop, part, Closeness::Proof, without)?.step;
            let bounds = [of_part, spans[0], spans[1]];
            let is_bound = |bound: Seconds| bound.0 <= found.0 * (1.0 + 1e-9);
            debug_assert!(bounds.into_iter().all(is_bound), "{bounds:?} are no bounds of {found:?}: {settings:?}");
        }
    }
    let open = micro_batches(workshop.request).into_iter().map(|micro_batch| Open {
        bound: Seconds(0.0),
        micro_batch,
        span: all,
        is_known: false,
    });
    let (mut open, mut least) = (open.collect::<Vec<_>>(), found);
    // Those are first whose bounds may be the least, so that others need not be asked.
    loop {
        open.retain(|of| of.bound < least);
        open.sort_by(|a, b| a.bound.0.total_cmp(&b.bound.0));
        if open.is_empty() {
            return Ok(least);
        }
        let now = open.drain(..TOGETHER.min(open.len())).collect::<Vec<_>>();
        let looked_at = now.into_par_iter().map(|of| of.looked_at(workshop, least));
        for looked_at in looked_at.collect::<Result<Vec<_>, PlanError>>()? {
            match looked_at {
                LookedAt::Open(closer) => open.extend(closer),
                LookedAt::Least(bound) => least = least_of(least, bound),
            }
        }
    }
}

/// A span of parts whose bound may be the least.
struct Open {
    bound: Seconds,
    micro_batch: usize,
    span: Span,
    /// Whether it is a single part whose bound is known as closely as a search needs it.
    is_known: bool,
}

/// What comes of it.
enum LookedAt {
    Open(Vec<Open>),
    /// The closest bound of a single part.
    Least(Seconds),
}

impl Open {
    fn looked_at(self, workshop: &Workshop, least: Seconds) -> Result<LookedAt, PlanError> {
        let Self { bound: of_wider, micro_batch, span, is_known } = self;
        let open = |bound: Seconds, span, is_known| {
            let bound = if bound < of_wider { of_wider } else { bound };
            Self { bound, micro_batch, span, is_known }
        };
        Ok(match (span.halves(), &*workshop.plain(micro_batch)?) {
            (_, None) => LookedAt::Least(Seconds(0.0)),
            (None, Some(plain)) if is_known => {
                LookedAt::Least(plain.part_at_least(workshop, span.last, Closeness::Proof, least)?.step)
            }
            (None, Some(_)) => {
                let bound = workshop.part_at_least(micro_batch, span.last, least)?.step;
                LookedAt::Open(vec![open(bound, span, true)])
            }
            (Some(halves), Some(_)) => {
                let bound = workshop.span_at_least(micro_batch, span)?;
                LookedAt::Open(halves.map(|half| open(bound, half, false)).into())
            }
        })
    }
}

/// How close a bound is to the least that it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closeness {
    /// Of each ladder too.
    Search,
    Proof,
}

impl Closeness {
    /// Numbers of bytes that are told apart.
    const fn parts(self) -> u64 {
        match self {
            Self::Search => 1 << 5,
            Self::Proof => 1 << 8,
        }
    }
}

/// Bounds on the steps with a part of the optimizer on the host.
#[derive(Default)]
pub(crate) struct PartBound {
    /// Of all plans that fit.
    pub(crate) step: Seconds,
    /// Of those that send nothing.
    pub(crate) unsent: Seconds,
    /// Of those that recompute one of the mixes of the workshop's ladder.
    pub(crate) of_mixes: Vec<Seconds>,
}

/// A micro-batch's step that recomputes and sends nothing.
pub(crate) struct Plain {
    micro_batch: usize,
    trunk: Trunk,
    choices: Choices,
    /// What is recomputed along which ever more is sent.
    mixes: Vec<Mix>,
    outline: Arc<Outline>,
    ticks: Ticks,
    ends: Ends,
    seconds_to_send_a_byte: f64,
}

impl Plain {
    /// None if nothing is trained.
    pub(crate) fn new(workshop: &Workshop, micro_batch: usize) -> Result<Option<Self>, PlanError> {
        let request = workshop.request;
        let scratch = scratches(request, micro_batch)[0];
        let trunk = workshop.trunk(settings(request, micro_batch, 0.0, scratch, Kept::ALL), Programs::OfStep)?;
        let graph = &trunk.graph;
        let choices = workshop.choices(micro_batch)?;
        let Some(ticks) = Ticks::of(graph, &choices) else { return Ok(None) };
        let mixes = workshop.mixes()?.into_iter().map(|recompute| choices.mix(recompute)).collect();
        let (ends, outline) = (Ends::of(graph, &choices), workshop.outline(micro_batch, Kept::ALL)?);
        let seconds_to_send_a_byte = seconds_to_send_a_byte(request, graph);
        Ok(Some(Self { micro_batch, trunk, choices, mixes, outline, ticks, ends, seconds_to_send_a_byte }))
    }

    /// No plan that fits with any of these parts of the optimizer on the host has a shorter step than this, or than one that was
    /// found: for all of them at once, without a graph.
    pub(crate) fn span_at_least(&self, Workshop { request, .. }: &Workshop, span: Span, found: Seconds) -> Seconds {
        let Self { choices, outline, .. } = self;
        if found <= outline.shortest_step(span) {
            return found;
        }
        let live = outline.over_time(span, *scratches(request, self.micro_batch).last().expect("there is always some"));
        let Some(worst) = choices.worst(&self.ticks, &live, request.budget.device().0) else { return found };
        let rises = choices.rises();
        let at_least = |worst: &Worst| {
            let (blocks, most) = (count(&worst.untouched), choices.most_bytes(&count(&worst.untouched)));
            let with = |recomputed: u64, sent: u64| {
                let seconds = choices.seconds_for(&rises, recomputed, &blocks).expect("no more than there are");
                let sent = self.seconds_to_send_a_byte * sent as f64;
                outline.step_beside(span, Busy { device: seconds, to_device: sent, to_host: sent, host: 0.0 })
            };
            if sent_blocks(request).ends_with(&[0]) {
                return if worst.lacking > most { found } else { with(worst.lacking, 0) };
            }
            let of_parts = |[least, most]: [u64; 2]| with(worst.lacking - most, least);
            least_of_parts([worst.lacking.saturating_sub(most), worst.lacking], Closeness::Search, found, of_parts)
        };
        most_of(worst.iter().map(at_least))
    }

    /// No plan that recomputes a mix has a shorter step than this with any of these parts of the optimizer on the host, by what is
    /// recomputed alone.
    pub(crate) fn mix_at_least(&self, mix: usize, span: Span) -> Seconds {
        let device = self.choices.seconds_of(&self.mixes[mix]);
        self.outline.step_beside(span, Busy { device, ..Busy::default() })
    }

    /// For a single part: no plan that fits has a shorter step than this, or than one that was found.
    pub(crate) fn part_at_least(
        &self,
        workshop: &Workshop,
        part: usize,
        closeness: Closeness,
        found: Seconds,
    ) -> Result<PartBound, PlanError> {
        let Self { micro_batch, trunk, choices, mixes, outline, ends, seconds_to_send_a_byte, .. } = self;
        let request = workshop.request;
        let scratches = scratches(request, *micro_batch);
        let accumulation = request.global_batch / micro_batch;
        let nothing = workshop.moved(trunk.copy(), workshop.parts()?[part]);
        let graph = &nothing.graph;
        let passes = graph.programs.iter().map(|of| (&*of.name, passes(graph, &of.nodes).collect())).collect();
        let mut timed = request.machine.timed(graph, accumulation, &request.targets);
        let mut transfers = None;
        let mut least = PartBound { step: found, unsent: found, of_mixes: vec![found; mixes.len()] };
        for scratch in scratches {
            request.machine.time_scratch(&mut timed, graph, scratch, &request.targets);
            // Less scratch makes no step faster.
            let without = timed.at_least(|_| Beside::default());
            if found <= without {
                break;
            }
            let live = outline.over_time(Span::one(part), scratch);
            let Some(worst) = choices.worst(&self.ticks, &live, request.budget.device().0) else { continue };
            let seconds_to_send_a_byte = *seconds_to_send_a_byte;
            let transfers =
                *transfers.get_or_insert_with(|| request.machine.transfers(graph, accumulation, &request.targets));
            let (timed, passes) = (&timed, &passes);
            let alike =
                Alike { request, choices, ends, passes, timed, accumulation, transfers, seconds_to_send_a_byte };
            let at = worst.iter().map(|worst| alike.at(worst)).collect::<Vec<_>>();
            least.step = least_of(least.step, most_of(at.iter().map(|at| at.at_least(closeness, least.step))));
            if least.step >= found || closeness == Closeness::Proof {
                continue;
            }
            least.unsent = least_of(least.unsent, most_of(at.iter().map(|at| at.unsent(least.unsent))));
            for (mix, least) in least.of_mixes.iter_mut().enumerate() {
                if self.mix_at_least(mix, Span::one(part)) < *least {
                    *least = least_of(*least, most_of(at.iter().map(|at| at.with_mix(&mixes[mix], *least))));
                }
            }
        }
        Ok(least)
    }
}

/// The largest of bounds, which all hold.
fn most_of(bounds: impl Iterator<Item = Seconds>) -> Seconds {
    bounds.fold(Seconds(0.0), |most, bound| if most < bound { bound } else { most })
}

fn least_of(a: Seconds, b: Seconds) -> Seconds {
    if b < a { b } else { a }
}

/// Plans of a micro-batch with a part of the optimizer on the host and the same scratch, whatever they recompute and send.
struct Alike<'a> {
    request: &'a Request,
    choices: &'a Choices,
    ends: &'a Ends,
    /// For each program, its nodes of both passes.
    passes: &'a BTreeMap<&'a str, Vec<usize>>,
    /// Of the one that recomputes and sends nothing: what is recomputed comes between nodes whose order stays.
    timed: &'a TimedStep<'a>,
    accumulation: usize,
    /// Seconds that an optimizer on the host is sent what it needs and sends back.
    transfers: [f64; 2],
    seconds_to_send_a_byte: f64,
}

/// Those of them that make room at a tick.
struct AlikeAt<'a> {
    alike: &'a Alike<'a>,
    worst: &'a Worst,
    rises: Vec<Rise>,
    /// As many bytes as can be recomputed.
    most: u64,
}

impl<'a> Alike<'a> {
    fn at(&'a self, worst: &'a Worst) -> AlikeAt<'a> {
        let most = self.choices.most_bytes(&count(&worst.untouched));
        AlikeAt { alike: self, worst, rises: self.choices.rises(), most }
    }
}

impl AlikeAt<'_> {
    /// No step is shorter with so many seconds before each node of both passes, and so many bytes sent that are not there when
    /// they are lacking: on the queues of what an optimizer on the host is sent and sends back.
    fn with(&self, before: impl Fn(&str, &[usize]) -> Vec<f64>, sent: u64) -> Seconds {
        let Alike { timed, passes, seconds_to_send_a_byte, .. } = self.alike;
        let away = seconds_to_send_a_byte * sent as f64;
        let step = timed.at_least(|program| {
            let passes = &passes[program];
            let worst = passes.get(self.worst.done).filter(|_| sent > 0);
            Beside { before: before(program, passes), away: worst.map(|&node| (node, away)) }
        });
        if sent == 0 {
            return step;
        }
        let transfers = self.transfers(sent);
        if step < transfers { transfers } else { step }
    }

    /// The time for which the link is busy that sends so many bytes in each micro-step.
    fn transfers(&self, sent: u64) -> Seconds {
        let Alike { accumulation, transfers: [to_device, to_host], seconds_to_send_a_byte, .. } = self.alike;
        let on_the_way = *accumulation as f64 * seconds_to_send_a_byte * sent as f64;
        Seconds(if sent == 0 { 0.0 } else { on_the_way + on_the_way.max(*to_device).max(*to_host) })
    }

    /// No step is shorter that recomputes so many bytes of blocks that the backward pass has not reached, and sends so many.
    fn recomputing(&self, recomputed: u64, sent: u64) -> Seconds {
        let Alike { choices, ends, .. } = self.alike;
        let before = |program: &str, passes: &[usize]| {
            ends.of_program(program)
                .map_or_else(Vec::new, |ends| choices.seconds_before(ends, passes, &self.rises, recomputed, self.worst))
        };
        self.with(before, sent)
    }

    /// No step is shorter than this, or than one that was found.
    fn at_least(&self, closeness: Closeness, found: Seconds) -> Seconds {
        let Self { alike: Alike { request, .. }, worst: Worst { lacking, .. }, most, .. } = self;
        if sent_blocks(request).ends_with(&[0]) {
            return self.unsent(found);
        }
        // No less is recomputed, and no less sent.
        let of_parts = |[least, most]: [u64; 2]| self.recomputing(lacking - most, least);
        least_of_parts([lacking.saturating_sub(*most), *lacking], closeness, found, of_parts)
    }

    /// No step is shorter that sends nothing, or than one that was found.
    fn unsent(&self, found: Seconds) -> Seconds {
        let lacking = self.worst.lacking;
        if lacking > self.most { found } else { self.recomputing(lacking, 0) }
    }

    /// No step is shorter with this recomputed, or than one that was found.
    fn with_mix(&self, mix: &Mix, found: Seconds) -> Seconds {
        let kinds = &self.alike.choices.kinds;
        let saved = self.worst.untouched.iter().enumerate().flat_map(|(kind, untouched)| {
            let untouched = untouched.iter().zip(&kinds[kind].blocks).filter(|(is, _)| **is);
            untouched.map(move |(_, &block)| mix.of(kind, block).saved)
        });
        let sent = (self.worst.lacking as i64 - saved.sum::<i64>()).max(0) as u64;
        if found <= self.transfers(sent) {
            return found;
        }
        let before = |program: &str, passes: &[usize]| {
            self.alike.ends.of_program(program).map_or_else(Vec::new, |ends| {
                // What others recompute comes before what is sent is away, and not after it.
                let mut ends = ends.iter().filter(|end| self.worst.untouched[end.kind][end.block]).peekable();
                let (mut before, mut seconds) = (Vec::new(), 0.0);
                for (done, &node) in passes.iter().enumerate() {
                    while let Some(end) = ends.next_if(|end| end.done <= done) {
                        seconds += mix.of(end.kind, kinds[end.kind].blocks[end.block]).seconds;
                    }
                    before.resize(node, before.last().copied().unwrap_or(0.0));
                    before.push(seconds);
                }
                before
            })
        };
        self.with(before, sent)
    }
}

/// Bytes at each tick that the forward pass made before it and something reads after it.
fn saved_over_time(graph: &Graph, nodes: &[Node]) -> Vec<u64> {
    let mut made = vec![None; graph.tensors.len()];
    let mut read = vec![0; graph.tensors.len()];
    for (node, time) in nodes.iter().zip(1_usize..) {
        let is_forward = node.pass == Pass::Forward;
        node.inputs.iter().filter(|_| !is_forward).for_each(|id| read[id.index()] = time);
        node.outputs.iter().filter(|_| is_forward).for_each(|id| made[id.index()] = Some(time));
    }
    // Changes from tick to tick, which are summed up.
    let mut saved = vec![0_i64; nodes.len() + 3];
    for (tensor, (made, read)) in graph.tensors.iter().zip(made.into_iter().zip(read)) {
        if let Some(made) = made.filter(|made| tensor.storage == Storage::Transient && read > made + 1) {
            let bytes = tensor.ty.bytes().0.next_multiple_of(ALIGNMENT) as i64;
            saved[made + 1] += bytes;
            saved[read] -= bytes;
        }
    }
    let sums = saved.into_iter().scan(0, |sum, change| {
        *sum += change;
        Some(*sum as u64)
    });
    sums.collect()
}

/// A bound below all numbers of bytes from the first to the last, or `enough` if it is no smaller. `bound` is one for a part of
/// them, the closer the narrower it is.
fn least_of_parts(
    all: [u64; 2],
    closeness: Closeness,
    enough: Seconds,
    bound: impl Fn([u64; 2]) -> Seconds,
) -> Seconds {
    let narrow = (all[1] - all[0]) / closeness.parts() + 1;
    let mut open = vec![(bound(all), all)];
    loop {
        let least = open.iter().enumerate().min_by(|a, b| a.1.0.0.total_cmp(&b.1.0.0)).expect("parts of something").0;
        let (step, [first, last]) = open.swap_remove(least);
        if step >= enough || last - first <= narrow {
            return if step < enough { step } else { enough };
        }
        let middle = first + (last - first) / 2;
        open.extend([[first, middle], [middle, last]].map(|part| (bound(part), part)));
    }
}

/// The indices of the nodes that belong to the forward or the backward pass and are the device's whatever lies elsewhere, of which
/// all graphs of a micro-batch have the same that recompute and send nothing.
fn passes<'a>(graph: &'a Graph, nodes: &'a [Node]) -> impl Iterator<Item = usize> + 'a {
    let is_one = |node: &Node| {
        matches!(node.pass, Pass::Forward | Pass::Backward)
            && !matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_))
            && node.op.home() == Home::Device
            && node.place(graph) == Place::Device
    };
    nodes.iter().enumerate().filter(move |(_, node)| is_one(node)).map(|(index, _)| index)
}

/// The least time that a byte of an activation takes from one memory to the other.
fn seconds_to_send_a_byte(request: &Request, graph: &Graph) -> f64 {
    let mut known = KnownTimes::default();
    let of_tensor = |tensor: &Tensor| {
        let io = Io::new([&tensor.ty], [&tensor.ty]);
        let op = Op::from(Transfer);
        let seconds = request.machine.known(&op, Work::of(&op, &io, &request.targets.device), &mut known);
        seconds / tensor.ty.bytes().0.max(1) as f64
    };
    let activations = graph.tensors.iter().filter(|t| t.role == Role::Activation && t.storage == Storage::Transient);
    activations.map(of_tensor).min_by(f64::total_cmp).unwrap_or(0.0)
}

/// When a result is first used in the backward pass.
struct FirstUse {
    time: usize,
    bytes: u64,
    /// Of its kind's blocks.
    block: usize,
    kind: usize,
}

/// When all is recomputed of a block that may be: after so many nodes of both passes.
struct End {
    done: usize,
    kind: usize,
    block: usize,
}

/// When blocks are done in each program, ascending.
struct Ends(BTreeMap<String, Vec<End>>);

impl Ends {
    fn of(graph: &Graph, choices: &Choices) -> Self {
        let of_program = |program: &Program| {
            let mut last = choices.of_blocks(0);
            let firsts = first_uses(graph, &program.nodes, choices);
            firsts.iter().for_each(|first| last[first.kind][first.block] = first.time);
            let mut ends = Vec::new();
            for (kind, of) in last.iter().enumerate() {
                // The update has no blocks.
                for (block, &last) in of.iter().enumerate().filter(|(_, last)| **last > 0) {
                    let done = passes(graph, &program.nodes).take_while(|&index| index + 1 < last).count();
                    ends.push(End { done, kind, block });
                }
            }
            ends.sort_unstable_by_key(|end| (end.done, end.kind, end.block));
            (program.name.to_string(), ends)
        };
        Self(graph.programs.iter().map(of_program).collect())
    }

    fn of_program(&self, name: &str) -> Option<&[End]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

/// What happens when in a micro-step that recomputes and sends nothing.
struct Ticks {
    /// Ascending.
    firsts: Vec<FirstUse>,
    /// Bytes at each tick that the forward pass made before it and something reads after it.
    saved: Vec<u64>,
    /// The index of the backward pass's first node.
    backward: usize,
    /// Nodes of the forward and the backward pass that are done before each tick but the first.
    done: Vec<usize>,
}

impl Ticks {
    /// None without a backward pass.
    fn of(graph: &Graph, choices: &Choices) -> Option<Self> {
        let program = graph.program("micro_step_add").or_else(|| graph.program("micro_step"))?;
        let nodes = &program.nodes;
        let backward = nodes.iter().position(|node| node.pass == Pass::Backward)?;
        let mut done = vec![0; nodes.len() + 3];
        passes(graph, nodes).for_each(|index| done[index + 1] = 1);
        let mut sum = 0;
        for done in &mut done {
            sum += std::mem::replace(done, sum);
        }
        Some(Self { firsts: first_uses(graph, nodes, choices), saved: saved_over_time(graph, nodes), backward, done })
    }
}

/// A tick at which bytes are lacking.
#[derive(Clone)]
struct Worst {
    /// Nodes of the forward and the backward pass that are done before it.
    done: usize,
    lacking: u64,
    /// The blocks of each kind that can give some: which the backward pass has not reached.
    untouched: Vec<Vec<bool>>,
}

impl Choices {
    /// The tick whose bytes cost the most time within so many bytes of the device, where recomputation can't make room for all of
    /// them the one of these that lacks the most; and the tick that lacks the most of all, if it is another. None if nothing fits
    /// even without all that the forward pass makes for later.
    fn worst(&self, ticks: &Ticks, live: &[u64], budget: u64) -> Option<Vec<Worst>> {
        let Ticks { firsts, saved, backward, done } = ticks;
        let rises = self.rises();
        // What blocks that were reached may still have recomputed later, and what those that were not have in all.
        let (mut free, mut left) = (0, self.of_blocks(0));
        firsts.iter().for_each(|first| left[first.kind][first.block] += first.bytes);
        let mut untouched = self.of_blocks(true);
        let nothing = Worst { done: 0, lacking: 0, untouched: untouched.clone() };
        let (mut worst, mut largest) = (nothing.clone(), nothing);
        let (mut most, mut firsts) = (0.0, firsts.iter().peekable());
        for (time, (&live, &saved)) in live.iter().zip(saved).enumerate().skip(backward + 1) {
            if live.saturating_sub(saved) > budget {
                return None;
            }
            while let Some(first) = firsts.next_if(|first| first.time <= time) {
                free += std::mem::take(&mut left[first.kind][first.block]);
                free -= first.bytes;
                untouched[first.kind][first.block] = false;
            }
            let lacking = live.saturating_sub(free).saturating_sub(budget);
            let seconds = self.seconds_for(&rises, lacking, &count(&untouched)).unwrap_or(f64::INFINITY);
            let is_worst = seconds > most || (seconds.is_infinite() && lacking > worst.lacking);
            if is_worst || lacking > largest.lacking {
                let here = Worst { done: done[time], lacking, untouched: untouched.clone() };
                if lacking > largest.lacking {
                    largest = here.clone();
                }
                if is_worst {
                    (most, worst) = (seconds, here);
                }
            }
        }
        let other = (largest.done != worst.done).then_some(largest);
        Some([worst].into_iter().chain(other).collect())
    }

    /// For each node the seconds of recomputation that come before it at the least: for those of the lacking bytes that blocks
    /// which may still be recomputed after it could not give.
    fn seconds_before(&self, ends: &[End], passes: &[usize], rises: &[Rise], lacking: u64, worst: &Worst) -> Vec<f64> {
        let (mut later, mut before) = (count(&worst.untouched), vec![0; self.kinds.len()]);
        let mut ends = ends.iter().filter(|end| worst.untouched[end.kind][end.block]).peekable();
        let (mut of_nodes, mut seconds) = (Vec::new(), 0.0);
        for (done, &node) in passes.iter().enumerate() {
            let mut is_new = false;
            while let Some(End { kind, .. }) = ends.next_if(|end| end.done <= done) {
                (later[*kind], before[*kind], is_new) = (later[*kind] - 1, before[*kind] + 1, true);
            }
            // What is recomputed of a block is done before the node that uses the last of it.
            of_nodes.resize(node, of_nodes.last().copied().unwrap_or(0.0));
            if is_new {
                let lacking = lacking.saturating_sub(self.most_bytes(&later));
                seconds = self.seconds_for(rises, lacking, &before).expect("all blocks have as much");
            }
            of_nodes.push(seconds);
        }
        of_nodes
    }

    /// Seconds of recomputation in a micro-step.
    fn seconds_of(&self, mix: &Mix) -> f64 {
        let of_kind =
            |(kind, of): (usize, &Kind)| of.blocks.iter().map(|&block| mix.of(kind, block).seconds).sum::<f64>();
        self.kinds.iter().enumerate().map(of_kind).sum()
    }

    /// A value for each block of each kind.
    fn of_blocks<T: Clone>(&self, value: T) -> Vec<Vec<T>> {
        self.kinds.iter().map(|kind| vec![value.clone(); kind.blocks.len()]).collect()
    }

    /// As much as blocks can save, so many of each kind.
    fn most_bytes(&self, blocks: &[usize]) -> u64 {
        let of_kind = |(kind, blocks): (&Kind, &usize)| {
            let hull = &kind.hull;
            (hull[0].bytes - hull[hull.len() - 1].bytes) * *blocks as u64
        };
        self.kinds.iter().zip(blocks).map(of_kind).sum()
    }

    /// The least time for so many bytes out of these blocks of each kind, if parts of choices could be taken; none if that is
    /// more than there are.
    fn seconds_for(&self, rises: &[Rise], mut lacking: u64, blocks: &[usize]) -> Option<f64> {
        let mut seconds = 0.0;
        for Rise { kind, point, price } in rises {
            let hull = &self.kinds[*kind].hull;
            let bytes = (hull[point - 1].bytes - hull[*point].bytes) * blocks[*kind] as u64;
            let taken = bytes.min(lacking);
            seconds += taken as f64 * price;
            lacking -= taken;
        }
        (lacking == 0).then_some(seconds)
    }
}

/// How many of each kind.
fn count(blocks: &[Vec<bool>]) -> Vec<usize> {
    blocks.iter().map(|of| of.iter().filter(|is| **is).count()).collect()
}

/// When results that may be recomputed are first used in the backward pass, ascending.
fn first_uses(graph: &Graph, nodes: &[Node], choices: &Choices) -> Vec<FirstUse> {
    let uses = Uses::new(graph, nodes);
    let places = Places::new(nodes);
    let mut of_tensor = vec![None; graph.tensors.len()];
    for (kind, of) in choices.kinds.iter().enumerate() {
        for (block, &number) in of.blocks.iter().enumerate() {
            for (index, node) in of_block(nodes, number) {
                let is_kept = node.outputs.iter().any(|id| uses.is_kept(graph, *id));
                if places.of(index).is_some() && !is_kept {
                    node.outputs.iter().for_each(|id| of_tensor[id.index()] = Some((kind, block)));
                }
            }
        }
    }
    let mut firsts = Vec::new();
    for (node, time) in nodes.iter().zip(1..).filter(|(node, _)| node.pass != Pass::Forward) {
        for id in &node.inputs {
            if let Some((kind, block)) = of_tensor[id.index()].take() {
                let bytes = graph[*id].ty.bytes().0.next_multiple_of(ALIGNMENT);
                firsts.push(FirstUse { time, bytes, block, kind });
            }
        }
    }
    firsts
}
