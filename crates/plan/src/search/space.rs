//! The points that a search chooses from. They depend on the request and never on its budget, so what fits in a budget
//! also fits in a larger one, and a larger budget can't make a plan worse.
//!
//! ```text
//!   micro-batch × share of the state on the host × recompute step × offloaded blocks × rows of scratch
//! ```
//!
//! Trained weights rest on the host only where all of the optimizer is: they are a smaller part of the state, and cost more.
//!
//! Each axis has few steps: finer ones change a predicted step by at most a percent or two, which is less than the error
//! of a prediction: 11 to 35 % on cards that were not calibrated (`bench/results/2026-11-26-h200.md`).

use crate::levers::{ATTENTION_ROW_CHOICES, SCRATCHES, blocks_of, divisors, head_chunk_choices, moved, resting};
use crate::request::Request;
use crate::settings::{HostShare, Level, Recompute};
use plimsoll_graph::Graph;

/// How many steps the axes have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fineness {
    /// Of the share of the optimizer on the host.
    pub(super) shares: usize,
    /// Of the share of the weights on the host.
    pub(super) weights: usize,
    /// Of the number of offloaded blocks.
    pub(super) offloads: usize,
    /// Of what is recomputed, besides whole levels.
    pub(super) recompute: usize,
}

impl Fineness {
    /// For the plan of a run.
    pub(super) const PLAN: Self = Self { shares: 16, weights: 4, offloads: 16, recompute: 24 };
    /// For a hint.
    pub(super) const HINT: Self = Self { shares: 4, weights: 2, offloads: 1, recompute: 0 };
}

/// One configuration, by its index on each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Point {
    /// Index of the micro-batch in [`Space::micro_batches`].
    pub(crate) micro_batch: u8,
    /// Index of the blocks in [`Space::offloads`].
    pub(crate) offload: u8,
    /// Index of the share in [`Space::shares`].
    pub(crate) share: u8,
    /// Index of what is recomputed, in the ladder of the micro-batch's profile.
    pub(crate) recompute: u8,
    /// Index of the rows in [`scratches`].
    pub(crate) scratch: u8,
}

impl Point {
    /// Points that are no slower and take no less of any memory but the host's: with one step more of scratch, and where
    /// the optimizer is on the device, with fewer offloaded blocks.
    pub(super) fn neighbors_below(self) -> impl Iterator<Item = Self> {
        let below = |index: u8| index.checked_sub(1);
        let offload = below(self.offload).filter(|_| self.share == 0).map(|offload| Self { offload, ..self });
        let scratch = below(self.scratch).map(|scratch| Self { scratch, ..self });
        offload.into_iter().chain(scratch)
    }

    /// Points that have this one as a neighbor below; some are beyond the ends of the axes.
    pub(super) fn neighbors_above(self) -> impl Iterator<Item = Self> {
        let offload = (self.share == 0).then_some(Self { offload: self.offload + 1, ..self });
        offload.into_iter().chain([Self { scratch: self.scratch + 1, ..self }])
    }
}

/// The axes that all micro-batches have in common.
pub(crate) struct Space {
    /// Samples that pass through the model at a time, ascending.
    pub(crate) micro_batches: Vec<usize>,
    /// Shares of the state that are on the host, ascending.
    pub(crate) shares: Vec<HostShare>,
    /// Numbers of blocks whose kept activations wait on the host, ascending.
    pub(crate) offloads: Vec<usize>,
}

impl Space {
    /// Of a request and a graph of its model.
    pub(crate) fn new(request: &Request, fineness: Fineness, graph: &Graph) -> Self {
        Self {
            micro_batches: micro_batches(request),
            shares: shares(request, fineness, graph),
            offloads: offloads(request, fineness),
        }
    }
}

/// Micro-batches that are tried at most.
const MOST_MICRO_BATCHES: usize = 10;

/// The divisors of the global batch, thinned out where there are many.
pub(crate) fn micro_batches(request: &Request) -> Vec<usize> {
    if let Some(micro_batch) = request.micro_batch {
        return vec![micro_batch];
    }
    if request.model.is_encoder() {
        // All texts of a step are each other's negatives.
        return vec![request.global_batch];
    }
    let all = divisors(request.global_batch);
    let stride = all.len().div_ceil(MOST_MICRO_BATCHES);
    // From the smallest on, and the largest too.
    let last = all.len() - 1;
    all.into_iter().enumerate().filter(|(i, _)| i % stride == 0 || *i == last).map(|(_, d)| d).collect()
}

/// First more and more of the optimizer, then more and more of the weights. A request that keeps a part of the optimizer on the
/// device keeps trained weights there too, unless it says otherwise: a weight on the host is updated there.
fn shares(request: &Request, fineness: Fineness, graph: &Graph) -> Vec<HostShare> {
    let levers = &request.levers;
    // Moving a tensor within one memory frees nothing.
    let is_apart = request.budget.host().is_some();
    let of = |asked: Option<f64>, steps: usize, moves: &dyn Fn(f64) -> usize| match (asked, is_apart) {
        (Some(share), _) => vec![share],
        (None, false) => vec![0.0],
        (None, true) => parts(steps, moves),
    };
    let optimizers = of(levers.optimizer_offload, fineness.shares, &|part| moved(graph, part, |_| false).len());
    let is_mostly_frozen = 2 * graph.trained_parameter_count() < graph.parameter_count();
    let weights = match levers.weight_offload {
        None if !is_mostly_frozen && optimizers.last() != Some(&1.0) => vec![0.0],
        asked => of(asked, fineness.weights, &|part| resting(graph, part).len()),
    };
    // Frozen weights may rest on the host whatever trains.
    let with_weights = if is_mostly_frozen { optimizers.first() } else { optimizers.last() };
    let of_optimizer = optimizers.iter().map(|&optimizer| HostShare { optimizer, weights: weights[0] });
    let of_weights = with_weights
        .into_iter()
        .flat_map(|&optimizer| weights[1..].iter().map(move |&weights| HostShare { optimizer, weights }));
    of_optimizer.chain(of_weights).collect()
}

/// Parts from 0 to 1 in so many steps; of those that move as much, the largest.
fn parts(steps: usize, moves: &dyn Fn(f64) -> usize) -> Vec<f64> {
    let all = (0..=steps).map(|step| step as f64 / steps as f64).map(|part| (part, moves(part))).collect::<Vec<_>>();
    all.chunk_by(|a, b| a.1 == b.1).filter_map(|alike| alike.last()).map(|(part, _)| *part).collect()
}

fn offloads(request: &Request, fineness: Fineness) -> Vec<usize> {
    let blocks = request.model.blocks();
    match (request.levers.activation_offload, request.budget.host()) {
        (Some(share), _) => vec![blocks_of(share, blocks)],
        // Moving a tensor within one memory frees nothing.
        (None, None) => vec![0],
        (None, Some(_)) => {
            let steps = fineness.offloads.min(blocks);
            (0..=steps).map(|step| (blocks * step).checked_div(steps).unwrap_or(0)).collect()
        }
    }
}

/// Rows of logits and of scores at a time, ever fewer.
pub(crate) fn scratches(request: &Request, micro_batch: usize) -> Vec<(usize, usize)> {
    let asked = &request.levers;
    let chunks = match asked.head_chunk {
        Some(rows) => [rows; SCRATCHES],
        None => {
            let rows = request.rows(micro_batch) * request.target_len.unwrap_or(request.seq_len);
            head_chunk_choices(rows, request.model.vocab_size(), request.targets.device.kind())
        }
    };
    let rows = asked.attention_rows.map_or(ATTENTION_ROW_CHOICES, |rows| [rows; SCRATCHES]);
    let mut scratches = chunks.into_iter().zip(rows).collect::<Vec<_>>();
    scratches.dedup();
    scratches
}

/// What all blocks may recompute alike.
pub(super) const LEVELS: [Recompute; 4] = [
    Recompute::all(Level::None),
    Recompute::all(Level::Cheap),
    Recompute::all(Level::Attention),
    Recompute::all(Level::Block),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Machine, Rates};
    use crate::levers::default_head_chunk;
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_graph::{DeviceKind, Targets};

    fn request(global_batch: usize) -> Request {
        let model = ModelConfig::preset("nano").expect("a preset");
        let machine = Machine::of_rates(Rates::guess(2));
        Request { global_batch, seq_len: 64, ..Request::new(model, Targets::cpu(2), machine) }
    }

    #[test]
    fn micro_batches_are_few_divisors_from_one_to_the_whole_batch() {
        for global_batch in 1..=2_000 {
            let (all, tried) = (divisors(global_batch), micro_batches(&request(global_batch)));
            assert!(tried.is_sorted() && tried.iter().all(|d| all.contains(d)), "{global_batch}: {tried:?}");
            assert_eq!((tried.first(), tried.last()), (Some(&1), Some(&global_batch)), "{tried:?}");
            assert!(tried.len() <= MOST_MICRO_BATCHES + 1, "{global_batch}: {tried:?}");
            assert!(all.len() > MOST_MICRO_BATCHES || tried == all, "{global_batch}: {tried:?}");
        }
    }

    #[test]
    fn logits_are_chunked_by_the_rows_that_pass_at_a_time() {
        let request = request(12);
        let vocab_size = request.model.vocab_size();
        for micro_batch in [1, 2, 3, 12] {
            let scratches = scratches(&request, micro_batch);
            let most = default_head_chunk(micro_batch * 64, vocab_size, DeviceKind::Cpu);
            assert_eq!(scratches[0].0, most, "{micro_batch}");
            assert!(scratches.is_sorted_by(|a, b| a.0 >= b.0 && a.1 >= b.1 && a != b), "{scratches:?}");
        }
    }
}
