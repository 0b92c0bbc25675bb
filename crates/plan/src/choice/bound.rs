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
//! All plans are meant that recompute any result at most once but for what blocks hand to each other, send anything, and are
//! else what a request leaves open.

use super::{Choices, Kind, Rise, of_block};
use crate::candidates::{Kept, Settings, micro_batches, offloads, scratches, sent_blocks, settings};
use crate::cost::{Beside, KnownTimes, TimedStep, Work};
use crate::layout::ALIGNMENT;
use crate::levers::{Levers, Places, Uses};
use crate::request::{PlanError, Request};
use crate::workshop::{LiveOverTime, Workshop};
use plimsoll_graph::ops::Transfer;
use plimsoll_graph::{Graph, Io, Node, Op, Pass, Place, Role, Storage, Tensor};
use plimsoll_units::Seconds;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Groups whose bounds are asked for together.
const TOGETHER: usize = 2;

/// No plan that fits has a shorter step than this, as far as those are concerned that are shorter than one that was found.
pub(crate) fn step_at_least(workshop: &Workshop, settings: &Settings, found: Seconds) -> Result<Seconds, PlanError> {
    let request = workshop.request;
    if cfg!(debug_assertions) {
        // The one that was found is a plan that fits, so the bound of its like is below it.
        let Settings { micro_batch, levers: Levers { optimizer_offload: part, .. }, .. } = *settings;
        let bound = group_at_least(workshop, micro_batch, part, Seconds(f64::INFINITY))?;
        debug_assert!(bound.0 <= found.0 * (1.0 + 1e-9), "{bound:?} is no bound of {found:?}: {settings:?}");
    }
    let mut groups = Vec::new();
    for micro_batch in micro_batches(request) {
        let outline = workshop.outline(micro_batch, Kept::ALL)?;
        groups.extend(offloads(request).into_iter().map(|part| (outline.shortest_step(part), micro_batch, part)));
    }
    // Those are first whose bounds may be the least, so that others need not be asked.
    groups.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    let mut least = found;
    for together in groups.chunks(TOGETHER) {
        if together[0].0 >= least {
            break;
        }
        let of_group =
            |&(_, micro_batch, part): &(Seconds, usize, f64)| group_at_least(workshop, micro_batch, part, found);
        let bounds = together.par_iter().map(of_group).collect::<Result<Vec<_>, PlanError>>()?;
        least = bounds.into_iter().fold(least, |least, step| if step < least { step } else { least });
    }
    Ok(least)
}

/// No plan that fits with this micro-batch and this part of the optimizer on the host has a shorter step than this, or than one
/// that was found.
fn group_at_least(workshop: &Workshop, micro_batch: usize, part: f64, found: Seconds) -> Result<Seconds, PlanError> {
    let request = workshop.request;
    let Some(LiveOverTime { graph, by_scratch }) = workshop.live_over_time(micro_batch, part)? else {
        return Ok(Seconds(0.0));
    };
    let choices = workshop.choices(micro_batch)?;
    let scratches = scratches(request, micro_batch);
    let mut nothing = workshop.candidate_of_step(settings(request, micro_batch, part, scratches[0], Kept::ALL))?;
    let mut least = found;
    for (scratch, live) in scratches.into_iter().zip(by_scratch) {
        nothing = nothing.with_scratch(scratch);
        let accumulation = request.global_batch / micro_batch;
        let timed = request.machine.timed(&nothing.graph, accumulation, &request.targets);
        // Less scratch makes no step faster.
        if least <= timed.seconds(|_| Beside::default()) {
            break;
        }
        let Some(worst) = choices.worst(&graph, &live, request.budget.device().0) else { continue };
        let alike = Alike {
            request,
            choices: &choices,
            graph: &nothing.graph,
            timed,
            accumulation,
            seconds_to_send_a_byte: seconds_to_send_a_byte(request, &graph),
        };
        let bounds = worst.iter().map(|worst| alike.at_least(worst, least));
        let bound = bounds.fold(Seconds(0.0), |most, bound| if most < bound { bound } else { most });
        least = if bound < least { bound } else { least };
    }
    Ok(least)
}

/// Plans of a micro-batch with a part of the optimizer on the host and the same scratch, whatever they recompute and send.
struct Alike<'a> {
    request: &'a Request,
    choices: &'a Choices,
    /// The one that recomputes and sends nothing: what is recomputed comes between nodes whose order stays.
    graph: &'a Graph,
    timed: TimedStep<'a>,
    accumulation: usize,
    seconds_to_send_a_byte: f64,
}

impl Alike<'_> {
    /// No step is shorter that makes room at this tick, or than one that was found.
    fn at_least(&self, worst: &Worst, found: Seconds) -> Seconds {
        let Self { request, choices, graph, timed, accumulation, seconds_to_send_a_byte } = self;
        let ends = graph.programs.iter().map(|program| (&*program.name, choices.ends(graph, &program.nodes, worst)));
        let ends = ends.collect::<BTreeMap<_, _>>();
        // No less is recomputed, and no less sent.
        let with = |recomputed: u64, sent: u64| {
            let beside = |program: &str| {
                let ends = &ends[program];
                let seconds = seconds_to_send_a_byte * sent as f64;
                let away = ends.worst.filter(|_| sent > 0).map(|node| (node, seconds));
                Beside { before: choices.seconds_before(ends, recomputed, worst), away }
            };
            timed.seconds(beside)
        };
        let most = choices.most_bytes(&count(&worst.untouched));
        if sent_blocks(request).ends_with(&[0]) {
            return if worst.lacking > most { found } else { with(worst.lacking, 0) };
        }
        // What is not there when it is lacking was sent before, and comes back after, on the queues of what an optimizer on the
        // host is sent and sends back.
        let [to_device, to_host] = request.machine.transfers(graph, *accumulation, &request.targets);
        let of_parts = |[least, most]: [u64; 2]| {
            let on_the_way = *accumulation as f64 * seconds_to_send_a_byte * least as f64;
            let transfers = Seconds(on_the_way + on_the_way.max(to_device).max(to_host));
            let step = with(worst.lacking - most, least);
            if step < transfers { transfers } else { step }
        };
        least_of_parts([worst.lacking.saturating_sub(most), worst.lacking], found, of_parts)
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
fn least_of_parts(all: [u64; 2], enough: Seconds, bound: impl Fn([u64; 2]) -> Seconds) -> Seconds {
    /// Parts that are not told apart.
    const PARTS: u64 = 1 << 8;
    let narrow = (all[1] - all[0]) / PARTS + 1;
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

/// The indices of the nodes of the device that belong to the forward or the backward pass, of which all graphs of a micro-batch
/// have the same that recompute and send nothing.
fn passes<'a>(graph: &'a Graph, nodes: &'a [Node]) -> impl Iterator<Item = usize> + 'a {
    let is_one = |node: &Node| {
        matches!(node.pass, Pass::Forward | Pass::Backward)
            && !matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_))
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

/// When blocks are done in a program: the first tick behind all that recomputes some of them, with their kind, ascending.
struct Ends {
    nodes: usize,
    /// The node of the device that runs at the worst tick.
    worst: Option<usize>,
    of_blocks: Vec<(usize, usize)>,
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
    fn worst(&self, graph: &Graph, live: &[u64], budget: u64) -> Option<Vec<Worst>> {
        let program = graph.program("micro_step_add").or_else(|| graph.program("micro_step"))?;
        let firsts = first_uses(graph, &program.nodes, self);
        let begin = program.nodes.iter().position(|node| node.pass == Pass::Backward)?;
        let rises = self.rises();
        // What blocks that were reached may still have recomputed later, and what those that were not have in all.
        let (mut free, mut left) = (0, self.of_blocks(0));
        firsts.iter().for_each(|first| left[first.kind][first.block] += first.bytes);
        let mut untouched = self.of_blocks(true);
        let nothing = Worst { done: 0, lacking: 0, untouched: untouched.clone() };
        let (mut worst, mut largest) = (nothing.clone(), nothing);
        let (mut most, mut firsts) = (0.0, firsts.iter().peekable());
        let saved = saved_over_time(graph, &program.nodes);
        for (time, (&live, saved)) in live.iter().zip(saved).enumerate().skip(begin + 1) {
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
                let done = passes(graph, &program.nodes[..time - 1]).count();
                let here = Worst { done, lacking, untouched: untouched.clone() };
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

    /// When the blocks that can give bytes at the worst tick are done in a program.
    fn ends(&self, graph: &Graph, nodes: &[Node], worst: &Worst) -> Ends {
        let mut last = self.of_blocks(0);
        first_uses(graph, nodes, self).iter().for_each(|first| last[first.kind][first.block] = first.time);
        let mut ends = Vec::new();
        for (kind, of) in worst.untouched.iter().enumerate() {
            // The update has no blocks.
            let blocks = of.iter().zip(&last[kind]).filter(|(untouched, last)| **untouched && **last > 0);
            ends.extend(blocks.map(|(_, &last)| (last, kind)));
        }
        ends.sort_unstable();
        Ends { nodes: nodes.len(), worst: passes(graph, nodes).nth(worst.done), of_blocks: ends }
    }

    /// For each node the seconds of recomputation that come before it at the least: for those of the lacking bytes that blocks
    /// which may still be recomputed after it could not give.
    fn seconds_before(&self, ends: &Ends, lacking: u64, worst: &Worst) -> Vec<f64> {
        let rises = self.rises();
        let (mut later, mut before) = (count(&worst.untouched), vec![0; self.kinds.len()]);
        let mut blocks = ends.of_blocks.iter().peekable();
        let mut seconds = 0.0;
        let of_node = (1..=ends.nodes).map(|time| {
            let mut is_new = false;
            while let Some((_, kind)) = blocks.next_if(|(end, _)| *end <= time) {
                (later[*kind], before[*kind], is_new) = (later[*kind] - 1, before[*kind] + 1, true);
            }
            if is_new {
                let lacking = lacking.saturating_sub(self.most_bytes(&later));
                seconds = self.seconds_for(&rises, lacking, &before).expect("all blocks have as much");
            }
            seconds
        });
        of_node.collect()
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
