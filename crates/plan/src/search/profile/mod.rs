//! What is known of a micro-batch's points before any of their graphs is built: lower bounds on their bytes and on their
//! step, read off one graph that recomputes, offloads and moves nothing.
//!
//! ```text
//!   bytes at a tick = kept and working       `live.rs`
//!                   + moved gradients        `live.rs`, by share
//!                   + weights on their way   `live.rs`, by share
//!                   - activations            `activations.rs`, by recompute step and offloaded blocks
//!                   + rows of scratch        `live.rs`
//!   seconds         = the busiest queue      `times.rs`
//! ```
//!
//! Few ticks matter: those at which a block's backward pass is fullest, and those of the head.

mod activations;
mod live;
mod moved;
#[cfg(test)]
mod tests;
mod times;

use super::build::Builder;
use super::choices::recompute_steps;
use super::space::{Fineness, Point, Space, scratches};
use crate::base_graph::Programs;
use crate::candidate::{Candidate, settings};
use crate::cost::KnownTimes;
use crate::layout::{scalars_in, tight};
use crate::levers::{in_order, may_update_later};
use crate::request::{PlanError, Request};
use crate::settings::{HostShare, Kept, Level, Recompute, Settings};
use activations::{Absence, Activations, OfBlock, slot};
use live::{Transients, gathered, gathered_on_host, micro_step};
use moved::{Moved, Owners, kept_over_the_run};
use plimsoll_graph::{ALIGNMENT, Graph, MemoryId, Node, Pass, PerMemory};
use plimsoll_units::Seconds;
use std::collections::BTreeSet;
use times::{Activity, OfQueues, StepTimes};

/// What is known of a point: it takes at least as much.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AtLeast {
    /// Time of a step.
    pub(crate) step: Seconds,
    /// The size of each arena.
    pub(crate) bytes: PerMemory<u64>,
}

/// Bounds of all points of a micro-batch.
pub(crate) struct Profile {
    index: u8,
    micro_batch: usize,
    scratches: Vec<(usize, usize)>,
    ladder: Vec<Recompute>,
    offloads: Vec<usize>,
    shares: Vec<OfShare>,
    times: StepTimes,
    scalars: u64,
    updates_in_parallel: bool,
    /// For each recompute step and each number of offloaded blocks, one after another.
    activations: Vec<OfActivations>,
    /// For each scratch, bytes that kernels work with at a tick, by the index of the tick.
    working: Vec<Vec<(usize, i64)>>,
}

/// What is known of a share of the state that is on the host.
struct OfShare {
    share: HostShare,
    /// Bytes of each memory that are kept over the run.
    state: PerMemory<u64>,
    /// Bytes of gradients on the host at once, in addition to those that are kept.
    gathered: u64,
    busy: Vec<OfQueues>,
    /// Bytes that it adds to each of the ticks that matter.
    added: Vec<i64>,
}

/// What is known of a recompute step with a number of offloaded blocks.
struct OfActivations {
    activity: Activity,
    host_bytes: u64,
    /// Bytes at each of the ticks that matter, with nothing moved and no scratch.
    live: Vec<i64>,
}

impl Profile {
    /// Of the micro-batch with this index. Errors: those of building its graph.
    pub(crate) fn new(builder: &Builder, space: &Space, fineness: Fineness, index: usize) -> Result<Self, PlanError> {
        let (request, micro_batch) = (builder.request, space.micro_batches[index]);
        let Candidate { graph, settings } = builder.candidate(builder.plain(micro_batch), Programs::OfStep)?;
        let scratches = scratches(request, micro_batch);
        let ladder = recompute_steps(request, &graph, fineness.recompute);
        let (owners, kept) = (Owners::of(&graph), kept_over_the_run(&graph));
        let host_updates_later = !settings.levers.update_in_backward && may_update_later(&graph);
        let times = StepTimes::new(request, micro_batch, &graph, &owners, &scratches, host_updates_later);
        let transients = Transients::of(&graph, &request.targets, &owners);
        let nodes = micro_step(&graph).map_or(&[][..], |program| &graph.programs[program].nodes);
        let curves = Curves::new(request, &graph, nodes, transients.as_ref(), &ladder, &space.offloads);
        let at_work = |&scratch: &(usize, usize)| {
            let Some(transients) = &transients else { return Vec::new() };
            let rows = transients.at_work(&graph, &request.targets, scratch);
            let all = transients.working.iter().copied().chain(rows);
            all.filter_map(|(tick, bytes)| Some((curves.index_of(tick)?, bytes as i64))).collect()
        };
        let working = scratches.iter().map(at_work).collect();
        let gathered = gathered(&graph, &owners);
        let of_share = |&share: &HostShare| {
            let moved = Moved::new(&graph, share, kept.clone());
            let added = transients.as_ref().map_or_else(Vec::new, |transients| transients.added_by(&moved));
            OfShare {
                share,
                gathered: gathered_on_host(&gathered, &moved),
                busy: times.busy(&moved),
                state: moved.state,
                added: curves.ticks.iter().map(|&tick| added[tick]).collect(),
            }
        };
        Ok(Self {
            index: index as u8,
            micro_batch,
            scratches,
            shares: space.shares.iter().map(of_share).collect(),
            offloads: space.offloads.clone(),
            times,
            scalars: scalars_in(MemoryId::DEVICE, &request.targets),
            updates_in_parallel: settings.levers.update_in_backward || host_updates_later,
            activations: curves.of_activations,
            working,
            ladder,
        })
    }

    /// Whether a point has this micro-batch.
    pub(crate) fn has(&self, point: Point) -> bool {
        point.micro_batch == self.index
    }

    /// Points that do less: a point never costs less than these, the cheapest to build first. None offloads the same blocks
    /// and recomputes less, since that sends more; none has a smaller share where the host updates while the device
    /// computes.
    pub(crate) fn points_that_do_less(&self, point: Point) -> impl Iterator<Item = Point> {
        let Point { offload, share, recompute, .. } = point;
        let plain = Point { offload: 0, share: 0, recompute: 0, scratch: 0, ..point };
        let less = [
            Point { share, ..plain },
            Point { share, recompute, ..plain },
            Point { offload, recompute, ..plain },
            Point { scratch: 0, ..point },
        ];
        let (parallel, least_offload) = (self.updates_in_parallel, self.offloads[0]);
        less.into_iter().filter(move |less| {
            let sends_more = less.recompute != recompute && least_offload > 0;
            *less != point && !sends_more && (less.share == share || !parallel)
        })
    }

    /// Bytes that a point takes of the host's memory at least if the host updates while the next step begins: gradients and
    /// activations are there at the same time.
    pub(crate) fn host_bytes_if_updated_later(&self, point: Point) -> u64 {
        let activations = &self.activations[point.recompute as usize * self.offloads.len() + point.offload as usize];
        let OfShare { state, gathered, .. } = &self.shares[point.share as usize];
        tight(state[MemoryId::HOST] + activations.host_bytes + gathered, ALIGNMENT)
    }

    /// How many uses of the host a point makes.
    pub(crate) fn uses_of_host(&self, point: Point) -> usize {
        let HostShare { optimizer, weights } = self.shares[point.share as usize].share;
        let uses = [optimizer > 0.0, weights > 0.0, self.offloads[point.offload as usize] > 0];
        uses.into_iter().filter(|uses| *uses).count()
    }

    /// All its points, in the order of their indices.
    pub(crate) fn points(&self) -> impl Iterator<Item = Point> {
        let axes = [self.ladder.len(), self.offloads.len(), self.shares.len(), self.scratches.len()];
        let micro_batch = self.index;
        (0..axes.into_iter().product::<usize>()).map(move |index| {
            let mut rest = index;
            let [recompute, offload, share, scratch] = {
                let mut of_axes = [0; 4];
                for (of_axis, axis) in of_axes.iter_mut().zip(axes).rev() {
                    *of_axis = (rest % axis) as u8;
                    rest /= axis;
                }
                of_axes
            };
            Point { micro_batch, offload, share, recompute, scratch }
        })
    }

    /// The index of one of its points; `None` if it is beyond the end of an axis.
    pub(crate) fn index_of(&self, point: Point) -> Option<usize> {
        let axes = [
            (point.recompute, self.ladder.len()),
            (point.offload, self.offloads.len()),
            (point.share, self.shares.len()),
            (point.scratch, self.scratches.len()),
        ];
        axes.into_iter().try_fold(0, |index, (of_axis, axis)| {
            ((of_axis as usize) < axis).then_some(index * axis + of_axis as usize)
        })
    }

    /// What one of its points stands for.
    pub(crate) fn settings(&self, request: &Request, point: Point) -> Settings {
        let kept = Kept {
            recompute: self.ladder[point.recompute as usize],
            sent_blocks: self.offloads[point.offload as usize],
        };
        let share = self.shares[point.share as usize].share;
        settings(request, self.micro_batch, share, self.scratches[point.scratch as usize], kept)
    }

    /// Bytes of weights, gradients and moments in each memory, for each share.
    pub(crate) fn states(&self) -> impl Iterator<Item = PerMemory<u64>> {
        self.shares.iter().map(|share| {
            let mut state = share.state.clone();
            state[MemoryId::DEVICE] += self.scalars;
            state
        })
    }

    /// Shows each point with its bounds, in the order of their indices.
    pub(crate) fn visit(&self, mut show: impl FnMut(Point, AtLeast)) {
        let mut points = self.points();
        let mut live = Vec::new();
        for activations in &self.activations {
            for share in &self.shares {
                live.clear();
                live.extend(activations.live.iter().zip(&share.added).map(|(live, added)| live + added));
                let at_rest = live.iter().copied().max().unwrap_or(0);
                let host = share.state[MemoryId::HOST] + activations.host_bytes.max(share.gathered);
                for (scratch, working) in self.working.iter().enumerate() {
                    let most = working.iter().map(|&(tick, bytes)| live[tick] + bytes).fold(at_rest, i64::max);
                    let mut bytes = share.state.clone();
                    let device = bytes[MemoryId::DEVICE] + self.scalars + most.max(0) as u64;
                    bytes[MemoryId::DEVICE] = tight(device, ALIGNMENT);
                    bytes[MemoryId::HOST] = tight(host, ALIGNMENT);
                    let step = self.times.at_least(&share.busy, activations.activity, scratch);
                    let point = points.next().expect("as many points as bounds");
                    show(point, AtLeast { step, bytes });
                }
            }
        }
    }
}

/// Live bytes over time for each recompute step and number of offloaded blocks, at the ticks that matter.
struct Curves {
    /// Ascending.
    ticks: Vec<usize>,
    of_activations: Vec<OfActivations>,
}

impl Curves {
    fn new(
        request: &Request,
        graph: &Graph,
        nodes: &[Node],
        transients: Option<&Transients>,
        ladder: &[Recompute],
        offloads: &[usize],
    ) -> Self {
        let at_rest = transients.map_or_else(Vec::new, Transients::at_rest);
        let activations = Activations::new(request, graph, nodes);
        let mut known = KnownTimes::default();
        let levels = ladder.iter().flat_map(|step| [step.first, step.rest]).collect::<BTreeSet<_>>();
        let levels = levels.into_iter().map(|level| (level, activations.at_level(Recompute::all(level), &mut known)));
        let levels = levels.collect::<Vec<_>>();
        let order = in_order(nodes).collect::<Vec<_>>();
        // The forward pass of blocks is left out: buffers that take the place of others there would count twice.
        let begin = nodes.iter().rposition(|n| n.pass == Pass::Forward && n.block.is_some()).map_or(1, |last| last + 2);
        let mut curves = Vec::with_capacity(ladder.len() * offloads.len());
        for &step in ladder {
            let blocks = blocks_at(step, &levels);
            let mut change = Change::new(&at_rest);
            let mut activity = Activity::default();
            for of_block in &blocks {
                change.take(&of_block.recomputed);
                activity.recompute += of_block.recompute_s;
            }
            let (mut host_bytes, mut offloaded) = (0, 0);
            for &offload in offloads {
                for &block in &order[offloaded.min(order.len())..offload.min(order.len())] {
                    let of_block = blocks[block + 1];
                    change.take(&of_block.offloaded);
                    activity.offload += of_block.offload_s;
                    host_bytes += of_block.host_bytes;
                }
                offloaded = offload;
                curves.push((activity, host_bytes, change.live(&at_rest)));
            }
        }
        let ticks = ticks_that_matter(nodes, begin, curves.iter().map(|(.., live)| &**live));
        let of_activations = curves.into_iter().map(|(activity, host_bytes, live)| OfActivations {
            activity,
            host_bytes,
            live: ticks.iter().map(|&tick| live[tick]).collect(),
        });
        Self { of_activations: of_activations.collect(), ticks }
    }

    fn index_of(&self, tick: usize) -> Option<usize> {
        self.ticks.binary_search(&tick).ok()
    }
}

/// Each block at the level that a recompute step says.
fn blocks_at(step: Recompute, levels: &[(Level, Vec<OfBlock>)]) -> Vec<&OfBlock> {
    let at = |level: Level| &levels.iter().find(|(known, _)| *known == level).expect("a level of the ladder").1;
    let (first, rest) = (at(step.first), at(step.rest));
    (0..rest.len()).map(|slot| if (1..=step.blocks).contains(&slot) { &first[slot] } else { &rest[slot] }).collect()
}

/// By how many bytes each tick differs more from a curve than the tick before it does.
struct Change(Vec<i64>);

impl Change {
    fn new(curve: &[i64]) -> Self {
        Self(vec![0; curve.len() + 1])
    }

    fn take(&mut self, absences: &[Absence]) {
        for &Absence { from, until, bytes } in absences {
            self.0[from as usize] -= bytes;
            self.0[until as usize] += bytes;
        }
    }

    fn live(&self, curve: &[i64]) -> Vec<i64> {
        let mut change = 0;
        let changed = curve.iter().zip(&self.0).map(|(live, by)| {
            change += by;
            live + change
        });
        changed.collect()
    }
}

/// From `begin` on, the fullest tick of each block by any of the curves, and all ticks outside blocks.
fn ticks_that_matter<'a>(nodes: &[Node], begin: usize, curves: impl Iterator<Item = &'a [i64]>) -> Vec<usize> {
    let mut runs = Vec::<(usize, usize)>::new();
    let mut ticks = BTreeSet::new();
    for tick in begin..nodes.len() + 1 {
        let block = slot(&nodes[tick - 1]);
        match runs.last_mut() {
            _ if block == 0 => drop(ticks.insert(tick)),
            Some((_, end)) if *end == tick && slot(&nodes[tick - 2]) == block => *end = tick + 1,
            _ => runs.push((tick, tick + 1)),
        }
    }
    for curve in curves {
        for &(first, end) in &runs {
            ticks.extend((first..end).max_by_key(|&tick| curve[tick]));
        }
    }
    ticks.into_iter().collect()
}
