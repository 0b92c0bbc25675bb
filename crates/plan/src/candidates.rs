//! The configurations that a search chooses from. They depend on what is asked, never on a budget.
//!
//! ```text
//!   offload × micro-batch × scratch      chains of
//!   recompute, block by block            rungs: each recomputes more than the one before, so it is slower
//! ```

use crate::budget::Budget;
use crate::layout::Layout;
use crate::levers::{
    ATTENTION_ROW_CHOICES, Level, Levers, Recompute, SCRATCHES, attention_rows, blocks_of, divisors, head_chunk,
    head_chunk_choices, recompute_ladder,
};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Graph, GraphError, Parameter, SampleShape, Targets, TrainShape, build_sampling, build_training};
use plimsoll_units::{Bytes, Seconds};

/// A configuration: the micro-batch, and where all levers stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Rows of logits at a time.
    pub head_chunk: usize,
    /// The levers that are rewrites.
    pub levers: Levers,
}

/// What becomes of the forward pass's results until the backward pass reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) recompute: Recompute,
    /// Blocks, counted from the first, of which all that is not recomputed waits on the host.
    pub(crate) sent_blocks: usize,
}

impl Kept {
    /// On the device, all of it.
    pub(crate) const ALL: Self = Self { recompute: Recompute::all(Level::None), sent_blocks: 0 };
}

impl Settings {
    pub(crate) fn kept(&self) -> Kept {
        Kept { recompute: self.levers.recompute, sent_blocks: self.levers.activation_offload }
    }
}

/// A configuration whose graph is built and whose arena is not packed yet.
pub(crate) struct Candidate {
    pub(crate) settings: Settings,
    pub(crate) graph: Graph,
}

impl Candidate {
    /// The same with other rows of logits and of scores at a time, which are attributes of ops.
    pub(crate) fn with_scratch(mut self, (chunk, rows): (usize, usize)) -> Self {
        head_chunk(&mut self.graph, chunk);
        attention_rows(&mut self.graph, rows);
        (self.settings.head_chunk, self.settings.levers.attention_rows) = (chunk, rows);
        self
    }
}

/// So few rungs are tried one by one.
pub(crate) const FEW_RUNGS: usize = 16;

/// Micro-batches that are tried at most.
const MOST_MICRO_BATCHES: usize = 10;

/// The divisors of the global batch, thinned out where there are many.
pub(crate) fn micro_batches(request: &Request) -> Vec<usize> {
    if let Some(micro_batch) = request.micro_batch {
        return vec![micro_batch];
    }
    let all = divisors(request.global_batch);
    let stride = all.len().div_ceil(MOST_MICRO_BATCHES);
    // From the smallest on, and the largest too.
    let last = all.len() - 1;
    all.into_iter().enumerate().filter(|(i, _)| i % stride == 0 || *i == last).map(|(_, d)| d).collect()
}

/// How many blocks may have their kept activations sent to the host, ascending.
pub(crate) fn sent_blocks(request: &Request) -> Vec<usize> {
    let blocks = request.model.blocks();
    match (request.levers.activation_offload, request.budget) {
        (Some(part), _) => vec![blocks_of(part, blocks)],
        // What is sent within one memory frees nothing.
        (None, Budget::Shared(_)) => vec![0],
        (None, Budget::Apart { .. }) => (0..=blocks).collect(),
    }
}

/// What may be recomputed, ever more of it, with as little sent to the host as may be.
pub(crate) fn rungs(request: &Request) -> Vec<Kept> {
    let sent_blocks = sent_blocks(request)[0];
    recomputed(request).into_iter().map(|recompute| Kept { recompute, sent_blocks }).collect()
}

/// The same, level by level, each with as much sent as may be, ever less of it, and as little: of these one takes the least
/// memory of the device that the host has room for.
pub(crate) fn extremes(request: &Request) -> Vec<Kept> {
    let mut levels = recomputed(request);
    let few = levels.len() <= FEW_RUNGS;
    levels.retain(|level| few || level.blocks == 0);
    let sent = milestones_of(&sent_blocks(request));
    let of_level = |recompute| sent.iter().rev().map(move |&sent_blocks| Kept { recompute, sent_blocks });
    levels.into_iter().rev().flat_map(of_level).collect()
}

/// All of few, of many some that lie evenly among them, the first and the last too.
pub(crate) fn milestones_of(sent: &[usize]) -> Vec<usize> {
    let (last, parts) = (sent.len() - 1, (sent.len() - 1).min(FEW_RUNGS / 2));
    let few = sent.len() <= FEW_RUNGS;
    if few { sent.to_vec() } else { (0..=parts).map(|part| sent[last * part / parts]).collect() }
}

fn recomputed(request: &Request) -> Vec<Recompute> {
    request.levers.recompute.map_or_else(|| recompute_ladder(request.model.blocks()), |asked| vec![asked])
}

/// Rows of logits and of scores at a time, ever fewer.
pub(crate) fn scratches(request: &Request, micro_batch: usize) -> Vec<(usize, usize)> {
    let asked = &request.levers;
    let chunks = match asked.head_chunk {
        Some(rows) => [rows; SCRATCHES],
        None => {
            let rows = micro_batch * request.target_len.unwrap_or(request.seq_len);
            head_chunk_choices(rows, request.model.vocab_size(), request.targets.device.kind())
        }
    };
    let rows = asked.attention_rows.map_or(ATTENTION_ROW_CHOICES, |rows| [rows; SCRATCHES]);
    let mut scratches = chunks.into_iter().zip(rows).collect::<Vec<_>>();
    scratches.dedup();
    scratches
}

/// The fewest rows of all.
pub(crate) fn least_scratch(request: &Request, micro_batch: usize) -> (usize, usize) {
    *scratches(request, micro_batch).last().expect("there is always some")
}

/// What the weights alone take, wherever everything else is.
pub(crate) fn weights(request: &Request) -> Bytes {
    let mut graph = Graph::default();
    request.model.declare(&mut graph);
    let dtype = request.levers.precision.dtype();
    let bytes = |parameter: &Parameter| graph[parameter.tensor].ty.with_dtype(dtype).bytes();
    graph.parameters.iter().map(bytes).sum()
}

/// One configuration of those that a request leaves open.
pub(crate) fn settings(
    request: &Request,
    micro_batch: usize,
    optimizer_offload: f64,
    (head_chunk, attention_rows): (usize, usize),
    kept: Kept,
) -> Settings {
    let levers = request.levers.levers(kept, optimizer_offload, attention_rows);
    Settings { micro_batch, head_chunk, levers }
}

/// The programs of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Programs {
    /// Those that a step runs, which its time depends on and mostly the peak too.
    OfStep,
    /// Evaluation and sampling too.
    All,
}

/// The graph before any lever is pulled.
pub(crate) fn built(request: &Request, settings: &Settings, programs: Programs) -> Result<Graph, PlanError> {
    let has_all = programs == Programs::All;
    let shape = TrainShape {
        micro_batch: settings.micro_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        buckets: request.buckets.clone(),
        packed: request.packed,
        objective: request.objective,
        accumulates: settings.micro_batch < request.global_batch,
        head_chunk: settings.head_chunk,
        evaluates: request.evaluates && has_all,
        sample_prefill: request.sample_prefill.filter(|_| has_all),
        frozen: request.frozen.clone(),
    };
    Ok(build_training(&request.model, &request.optimizer, &shape)?)
}

/// Pulls the levers as they stand.
pub(crate) fn pulled(settings: Settings, mut graph: Graph) -> Result<Candidate, PlanError> {
    settings.levers.pull(&mut graph)?;
    Ok(Candidate { settings, graph })
}

/// Predicted time of a step.
pub(crate) fn predicted_step(request: &Request, Candidate { settings, graph }: &Candidate) -> Seconds {
    request.machine.step(graph, request.global_batch / settings.micro_batch, &request.targets)
}

pub(crate) fn plan_candidate(request: &Request, candidate: &Candidate) -> Plan {
    plan_layout(request, candidate, &Layout::new(&candidate.graph, &request.targets))
}

/// The plan of a candidate that was laid out.
pub(crate) fn plan_layout(request: &Request, candidate: &Candidate, layout: &Layout) -> Plan {
    let micro_batch = candidate.settings.micro_batch;
    Plan {
        budget_bytes: request.budget.device().0,
        host_budget_bytes: request.budget.host().map(|bytes| bytes.0),
        micro_batch,
        accumulation: request.global_batch / micro_batch,
        global_batch: request.global_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        ..layout.plan(&candidate.graph, &request.targets)
    }
}

/// The graph and the plan of a configuration, whether it fits or not. Errors: levers that exclude each other.
pub fn plan_settings(request: &Request, settings: Settings) -> Result<(Graph, Plan), PlanError> {
    request.check()?;
    let candidate = pulled(settings, built(request, &settings, Programs::All)?)?;
    let plan = plan_candidate(request, &candidate);
    Ok((candidate.graph, plan))
}

/// A plan for writing text with a model: weights, caches and what `prefill` and `sample` need.
pub fn plan_sampling(
    model: &ModelConfig,
    shape: &SampleShape,
    targets: &Targets,
    budget: Bytes,
) -> Result<(Graph, Plan), GraphError> {
    let graph = build_sampling(model, shape)?;
    let plan = Plan {
        micro_batch: 1,
        accumulation: 1,
        global_batch: 1,
        seq_len: shape.capacity,
        budget_bytes: budget.0,
        ..crate::lay_out(&graph, targets)
    };
    Ok((graph, plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::card;
    use crate::cost::{Machine, Rates};
    use crate::levers::default_head_chunk;
    use crate::parts::Detail;
    use crate::workshop::Workshop;
    use plimsoll_graph::DeviceKind;
    use plimsoll_graph::Targets;
    use plimsoll_graph::models::ModelConfig;

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
            assert_eq!(least_scratch(&request, micro_batch), *scratches.last().expect("there is some"));
        }
    }

    /// They are attributes of ops alone, whatever levers are pulled.
    #[test]
    fn other_rows_of_scratch_make_of_a_candidate_the_one_that_is_built_with_them() {
        let card = card("3060").expect("a known card");
        for (model, target_len) in [("nano", None), ("t5-nano", Some(64))] {
            let request = Request {
                target_len,
                budget: Budget::Apart { device: Bytes::gib(1), host: Bytes::gib(1) },
                targets: Targets::cuda(card.compute_capability, 2),
                model: ModelConfig::preset(model).expect("a preset"),
                evaluates: true,
                ..request(4)
            };
            let workshop = Workshop::new(&request, Detail::Full);
            let scratches = scratches(&request, 2);
            let (most, least) = (scratches[0], least_scratch(&request, 2));
            assert_ne!(most, least);
            for recompute in [Level::None, Level::Block].map(Recompute::all) {
                for (sent_blocks, part) in [(0, 0.0), (2, 0.5)] {
                    let kept = Kept { recompute, sent_blocks };
                    let built = |scratch| {
                        workshop.candidate(settings(&request, 2, part, scratch, kept)).expect("levers that go together")
                    };
                    let (changed, expected) = (built(most).with_scratch(least), built(least));
                    assert_eq!(changed.settings, expected.settings);
                    assert!(changed.graph == expected.graph, "{model}, {:?}", expected.settings);
                    assert!(built(most).graph != expected.graph);
                }
            }
        }
    }
}
