//! Builds the graphs of candidates. The graph of a micro-batch is built once, or read off those of a smaller and a larger one
//! (`between.rs`); each candidate is a copy of it with its levers pulled.

use super::between::between;
use super::space::{micro_batches, scratches};
use crate::base_graph::{Programs, built};
use crate::budget::Budget;
use crate::candidate::{Candidate, settings};
use crate::levers::{attention_rows, head_chunk, update_in_backward_excluded};
use crate::request::{PlanError, Request};
use crate::settings::{HostShare, Kept, LeverRequest, Settings};
use plimsoll_graph::Graph;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Builds candidates of one request, on any thread.
pub(crate) struct Builder<'r> {
    pub(crate) request: &'r Request,
    bases: Arc<Mutex<Bases>>,
}

type Bases = BTreeMap<(usize, Programs), Arc<Base>>;

/// The graph of a micro-batch after [`Levers::pull_types`](crate::levers::Levers::pull_types).
struct Base {
    graph: Graph,
    update_in_backward: bool,
}

impl<'r> Builder<'r> {
    pub(crate) fn new(request: &'r Request) -> Self {
        Self { request, bases: Arc::default() }
    }

    /// A builder of another request. It shares the graphs of this one if both requests build the same graphs.
    pub(crate) fn of<'q>(&self, request: &'q Request) -> Builder<'q> {
        let is_same = of_graphs(request) == of_graphs(self.request);
        Builder { request, bases: if is_same { self.bases.clone() } else { Arc::default() } }
    }

    /// The settings of a micro-batch that neither recompute nor offload.
    pub(crate) fn plain(&self, micro_batch: usize) -> Settings {
        settings(self.request, micro_batch, HostShare::NONE, scratches(self.request, micro_batch)[0], Kept::ALL)
    }

    /// The graph of a candidate. Errors: levers that exclude each other, a model that can't be built.
    pub(crate) fn candidate(&self, mut settings: Settings, programs: Programs) -> Result<Candidate, PlanError> {
        let base = self.base(settings.micro_batch, programs)?;
        settings.levers.update_in_backward = base.update_in_backward;
        let mut graph = base.graph.clone();
        attention_rows(&mut graph, settings.levers.attention_rows);
        head_chunk(&mut graph, settings.head_chunk);
        settings.levers.pull_order(&mut graph)?;
        settings.levers.pull_places_of(&mut graph, programs == Programs::All);
        Ok(Candidate { settings, graph })
    }

    /// Builds the graphs of the [`ends`], from which those of the micro-batches between them are read off. Errors: levers that
    /// exclude each other, a model that can't be built.
    pub(crate) fn build_ends(&self) -> Result<(), PlanError> {
        let ends = ends(self.request).into_iter().flatten();
        ends.into_iter().try_for_each(|micro_batch| self.base(micro_batch, Programs::OfStep).map(|_| ()))
    }

    fn base(&self, micro_batch: usize, programs: Programs) -> Result<Arc<Base>, PlanError> {
        if let Some(base) = self.known(micro_batch, programs) {
            return Ok(base);
        }
        let base = match self.read_off(micro_batch, programs) {
            Some(base) => base,
            None => self.built(micro_batch, programs)?,
        };
        Ok(self.bases().entry((micro_batch, programs)).or_insert(Arc::new(base)).clone())
    }

    fn bases(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, micro_batch: usize, programs: Programs) -> Option<Arc<Base>> {
        self.bases().get(&(micro_batch, programs)).cloned()
    }

    /// The graph of a micro-batch between the [`ends`]; `None` if theirs are not built, or differ by more than extents.
    fn read_off(&self, micro_batch: usize, programs: Programs) -> Option<Base> {
        let ends = ends(self.request)?;
        let [low, high] = ends.map(|end| self.known(end, programs));
        let (low, high) = (low?, high?);
        let graph = between([(ends[0], &low.graph), (ends[1], &high.graph)], micro_batch)?;
        Some(Base { graph, update_in_backward: low.update_in_backward })
    }

    /// Updates run in the backward pass, which costs nothing, unless the request says otherwise or something excludes it.
    fn built(&self, micro_batch: usize, programs: Programs) -> Result<Base, PlanError> {
        // Candidates set their own rows of scratch, so all micro-batches can be built with those of the smallest.
        let settings = Settings { micro_batch, ..self.plain(micro_batches(self.request)[0]) };
        let mut graph = built(self.request, &settings, programs)?;
        let excluded = || update_in_backward_excluded(&graph, settings.levers.precision);
        let update_in_backward = self.request.levers.update_in_backward.unwrap_or_else(|| excluded().is_none());
        settings.levers.pull_types(&mut graph);
        Ok(Base { graph, update_in_backward })
    }
}

/// The smallest micro-batch of a request, and the largest that is not the whole batch; `None` if none is between them.
fn ends(request: &Request) -> Option<[usize; 2]> {
    let mut all = micro_batches(request);
    all.retain(|&micro_batch| micro_batch < request.global_batch);
    (all.len() > 2).then(|| [all[0], all[all.len() - 1]])
}

/// What the graphs of a request depend on, apart from the micro-batch.
fn of_graphs(request: &Request) -> Request {
    let levers = LeverRequest {
        recompute: None,
        activation_offload: None,
        optimizer_offload: None,
        weight_offload: None,
        head_chunk: None,
        attention_rows: None,
        ..request.levers
    };
    Request { budget: Budget::unlimited(), micro_batch: None, levers, ..request.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::card;
    use crate::cost::{Machine, Rates};
    use crate::settings::{Precision, SequenceTile};
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_graph::{AdapterSettings, Adapters, Objective, Preferences, Targets, WeightCodes};

    fn request(model: &str) -> Request {
        let mut model = ModelConfig::preset(model).expect("a preset");
        model.set_max_positions(2048);
        let card = card("4090").expect("a known card");
        Request {
            global_batch: 96,
            levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
            target_len: model.takes_pairs().then_some(128),
            ..Request::new(model, Targets::cuda(card.compute_capability, 8), Machine::of_rates(Rates::of_card(card)))
        }
    }

    fn adapted(model: &str) -> Request {
        let request = request(model);
        let adapters = Adapters::of(&request.model, &AdapterSettings { dropout: 0.1, ..AdapterSettings::default() });
        Request { adapters: Some(adapters.expect("layers")), ..request }
    }

    #[test]
    fn graphs_that_are_read_off_are_those_that_are_built() {
        let models = ["gpt2", "llama-3.2-1b", "gemma-2-2b", "gemma-3-1b", "gpt-oss-20b", "qwen3-30b-a3b", "t5-small"];
        let mut requests = models.map(request).to_vec();
        requests.push(Request { packed: true, ..request("qwen3-0.6b") });
        requests.push(Request { targets: Targets::cpu(2), ..request("smollm2-135m") });
        let mut tiled = request("qwen3-0.6b");
        tiled.levers.sequence_tile = Some(SequenceTile::Rows(256));
        requests.push(tiled);
        let mut rounded = request("smollm2-135m");
        rounded.levers.precision = Precision::Fp8;
        requests.push(rounded);
        let mut coded = adapted("llama-3.2-1b");
        coded.levers.base_weights = Some(WeightCodes::Nf4);
        requests.push(coded.clone());
        requests.push(Request {
            objective: Objective { preferences: Some(Preferences::default()), ..Objective::default() },
            ..coded
        });
        for request in requests {
            let builder = Builder::new(&request);
            let all = micro_batches(&request);
            builder.build_ends().expect("a sensible request");
            let [low, high] = ends(&request).expect("micro-batches between two others");
            for &micro_batch in all.iter().filter(|&&micro_batch| low < micro_batch && micro_batch < high) {
                let what = format!("{micro_batch} of {:?}", request.model);
                let read_off = builder.read_off(micro_batch, Programs::OfStep).unwrap_or_else(|| panic!("{what}"));
                let built = builder.built(micro_batch, Programs::OfStep).expect("a sensible request");
                assert!(read_off.graph == built.graph, "{what}");
                assert_eq!(read_off.update_in_backward, built.update_in_backward, "{what}");
            }
        }
    }

    #[test]
    fn requests_share_graphs_if_only_budgets_and_the_choice_among_points_differ() {
        let asked = request("gpt2");
        let builder = Builder::new(&asked);
        let mut offloads = Request { micro_batch: Some(2), budget: Budget::unlimited(), ..asked.clone() };
        offloads.levers.optimizer_offload = Some(1.0);
        assert!(Arc::ptr_eq(&builder.bases, &builder.of(&offloads).bases));
        let mut rounded = asked.clone();
        rounded.levers.precision = Precision::Fp32;
        for other in [rounded, Request { seq_len: asked.seq_len - 1, ..asked.clone() }, adapted("gpt2")] {
            assert!(!Arc::ptr_eq(&builder.bases, &builder.of(&other).bases));
        }
    }
}
