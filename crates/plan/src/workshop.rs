//! Where candidates are built. What they have in common is built once: the graph and the levers on its types for each
//! micro-batch, what is recomputed and when updates run for all parts of the optimizer that may be moved.
//!
//! ```text
//!   base    per micro-batch          model, gradients, precision, moments      kept
//!   trunk   per rung                 recomputation, place of the update        its outline is kept, made of the one
//!                                                                              program that is live the most
//!   graph   per part that is moved   tensors on the host, transfers
//!           per scratch              two attributes of ops: set on the graph   nothing is built
//! ```
//!
//! Most candidates are judged by their outline, and not built at all (`outline/`).

use crate::candidates::{
    Candidate, Kept, Programs, Settings, built, least_scratch, micro_batches, predicted_step, scratches, settings,
};
use crate::choice::{Choices, Closeness, PartBound, Plain, mixes};
use crate::levers::{Levers, Recompute, attention_rows, head_chunk, recompute, update_in_backward_excluded};
use crate::outline::{Common, Outline, keep_what_is_outlined, state_when_moved};
use crate::parts::{Detail, Span, parts};
use crate::request::{PlanError, Request};
use plimsoll_graph::Graph;
use plimsoll_units::{Bytes, Seconds};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Builds candidates of one request, on any thread. Only the order of work depends on threads.
pub(crate) struct Workshop<'r> {
    pub(crate) request: &'r Request,
    pub(crate) detail: Detail,
    /// By micro-batch and programs, with whether its parameters are updated in the backward pass.
    bases: Mutex<BTreeMap<(usize, Programs), Arc<Base>>>,
    /// By micro-batch and what is kept.
    outlines: Mutex<FxHashMap<(usize, Kept), Arc<Outline>>>,
    parts: OnceLock<Vec<f64>>,
    /// By micro-batch.
    plain: Mutex<BTreeMap<usize, Arc<Option<Plain>>>>,
    /// What is recomputed, chosen result by result.
    ladder: OnceLock<Vec<Recompute>>,
    /// Bounds on steps by micro-batch and the part that is moved.
    bounds: Mutex<FxHashMap<(usize, usize), Arc<PartBound>>>,
    built: AtomicUsize,
}

/// A graph whose first levers are pulled.
struct Base {
    graph: Graph,
    update_in_backward: bool,
    outlined: OnceLock<Outlined>,
}

/// What a micro-batch's outlines have in common.
struct Outlined {
    /// The base without programs that outlines are not read off, with all scratch.
    graph: Graph,
    common: Arc<Common>,
    /// What was recomputed last, and its graph: rungs that differ in what is sent come one after the other.
    recomputed: Mutex<Option<(Recompute, Arc<Graph>)>>,
}

impl Outlined {
    /// The graph with this recomputed.
    fn recomputed(&self, wanted: Recompute) -> Arc<Graph> {
        let mut last = self.recomputed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, graph)) = last.as_ref().filter(|(recomputed, _)| *recomputed == wanted) {
            return graph.clone();
        }
        let mut graph = self.graph.clone();
        recompute(&mut graph, wanted);
        last.insert((wanted, Arc::new(graph))).1.clone()
    }
}

/// A graph whose levers are pulled but for those that say where tensors lie.
pub(crate) struct Trunk {
    pub(crate) graph: Graph,
    settings: Settings,
}

impl<'r> Workshop<'r> {
    pub(crate) fn new(request: &'r Request, detail: Detail) -> Self {
        Self {
            request,
            detail,
            bases: Mutex::default(),
            outlines: Mutex::default(),
            parts: OnceLock::new(),
            plain: Mutex::default(),
            ladder: OnceLock::new(),
            bounds: Mutex::default(),
            built: AtomicUsize::new(0),
        }
    }

    /// How many candidates were built.
    pub(crate) fn built(&self) -> usize {
        self.built.load(Ordering::Relaxed)
    }

    /// The parts of the optimizer that may be moved, ascending.
    pub(crate) fn parts(&self) -> Result<&[f64], PlanError> {
        if let Some(known) = self.parts.get() {
            return Ok(known);
        }
        let micro_batch = micro_batches(self.request)[0];
        let scratch = scratches(self.request, micro_batch)[0];
        let settings = settings(self.request, micro_batch, 0.0, scratch, Kept::ALL);
        let parts = parts(self.request, self.detail, &self.base(&settings, Programs::OfStep)?.graph);
        Ok(self.parts.get_or_init(|| parts))
    }

    /// The index of one of them.
    pub(crate) fn index_of_part(&self, part: f64) -> Result<usize, PlanError> {
        Ok(self.parts()?.iter().position(|known| *known == part).expect("one that may be moved"))
    }

    /// Where updating in the backward pass is left open, it is done if nothing excludes it, for it costs nothing.
    fn base(&self, settings: &Settings, programs: Programs) -> Result<Arc<Base>, PlanError> {
        let key = (settings.micro_batch, programs);
        let known = |this: &Self| {
            let bases = this.bases.lock().unwrap_or_else(PoisonError::into_inner);
            bases.get(&key).cloned()
        };
        if let Some(base) = known(self) {
            return Ok(base);
        }
        let mut graph = built(self.request, settings, programs)?;
        let excluded = || update_in_backward_excluded(&graph, settings.levers.precision);
        let update_in_backward = self.request.levers.update_in_backward.unwrap_or_else(|| excluded().is_none());
        settings.levers.pull_types(&mut graph);
        let base = Arc::new(Base { graph, update_in_backward, outlined: OnceLock::new() });
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(bases.entry(key).or_insert(base).clone())
    }

    /// What all candidates share that differ from these settings in the part that is moved alone.
    pub(crate) fn trunk(&self, settings: Settings, programs: Programs) -> Result<Trunk, PlanError> {
        let base = self.base(&settings, programs)?;
        self.trunk_of(&base, settings)
    }

    fn trunk_of(&self, base: &Base, mut settings: Settings) -> Result<Trunk, PlanError> {
        settings.levers.update_in_backward = base.update_in_backward;
        let mut graph = base.graph.clone();
        attention_rows(&mut graph, settings.levers.attention_rows);
        head_chunk(&mut graph, settings.head_chunk);
        settings.levers.pull_order(&mut graph)?;
        Ok(Trunk { graph, settings })
    }

    pub(crate) fn candidate(&self, settings: Settings) -> Result<Candidate, PlanError> {
        Ok(self.moved(self.trunk(settings, Programs::All)?, settings.levers.optimizer_offload))
    }

    /// The predicted step of these settings, without a candidate that could be laid out.
    pub(crate) fn step_of(&self, settings: Settings) -> Result<Seconds, PlanError> {
        Ok(self.step(&self.candidate_of_step(settings)?))
    }

    /// With this part of the optimizer on the host.
    pub(crate) fn moved(&self, trunk: Trunk, optimizer_offload: f64) -> Candidate {
        let Trunk { mut graph, mut settings } = trunk;
        settings.levers.optimizer_offload = optimizer_offload;
        settings.levers.pull_places(&mut graph);
        self.built.fetch_add(1, Ordering::Relaxed);
        Candidate { settings, graph }
    }

    /// Predicted time of a candidate's step.
    pub(crate) fn step(&self, candidate: &Candidate) -> Seconds {
        predicted_step(self.request, candidate)
    }

    /// What is known of all candidates of a micro-batch that keep this.
    pub(crate) fn outline(&self, micro_batch: usize, kept: Kept) -> Result<Arc<Outline>, PlanError> {
        let key = (micro_batch, kept);
        let known = self.outlines.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(outline) = known {
            return Ok(outline);
        }
        let scratches = scratches(self.request, micro_batch);
        let mut settings = settings(self.request, micro_batch, 0.0, scratches[0], kept);
        let base = self.base(&settings, Programs::OfStep)?;
        settings.levers.update_in_backward = base.update_in_backward;
        let outlined = match base.outlined.get() {
            Some(outlined) => outlined,
            None => {
                let outlined = self.outlined(&base, settings)?;
                base.outlined.get_or_init(|| outlined)
            }
        };
        let mut graph = match kept.sent_blocks {
            0 => outlined.graph.clone(),
            _ => outlined.recomputed(kept.recompute).as_ref().clone(),
        };
        if kept.sent_blocks == 0 {
            recompute(&mut graph, kept.recompute);
        }
        settings.levers.pull_order_of_recomputed(&mut graph)?;
        let outline = Outline::new(self.request, outlined.common.clone(), &graph);
        let mut outlines = self.outlines.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(outlines.entry(key).or_insert_with(|| Arc::new(outline)).clone())
    }

    /// Forgets outlines that are not asked for again.
    pub(crate) fn forget(&self, is_done: impl Fn(Kept) -> bool) {
        let mut outlines = self.outlines.lock().unwrap_or_else(PoisonError::into_inner);
        outlines.retain(|(_, kept), _| !is_done(*kept));
    }

    /// What the outlines have in common that are made of a base.
    fn outlined(&self, base: &Base, settings: Settings) -> Result<Outlined, PlanError> {
        let kept = Settings {
            levers: Levers { recompute: Kept::ALL.recompute, activation_offload: 0, ..settings.levers },
            ..settings
        };
        let scratches = scratches(self.request, settings.micro_batch);
        let trunk = self.trunk_of(base, kept)?.graph;
        let common = Common::new(self.request, settings.micro_batch, &trunk, self.parts()?, &scratches);
        let mut graph = base.graph.clone();
        attention_rows(&mut graph, settings.levers.attention_rows);
        head_chunk(&mut graph, settings.head_chunk);
        keep_what_is_outlined(&mut graph);
        Ok(Outlined { graph, common: Arc::new(common), recomputed: Mutex::default() })
    }

    /// What a micro-batch's steps are bounded with; none if nothing is trained.
    pub(crate) fn plain(&self, micro_batch: usize) -> Result<Arc<Option<Plain>>, PlanError> {
        let known = self.plain.lock().unwrap_or_else(PoisonError::into_inner).get(&micro_batch).cloned();
        if let Some(plain) = known {
            return Ok(plain);
        }
        let plain = Arc::new(Plain::new(self, micro_batch)?);
        let mut all = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.entry(micro_batch).or_insert(plain).clone())
    }

    /// No plan that fits with this micro-batch and any of these parts of the optimizer on the host has a shorter step than this.
    pub(crate) fn span_at_least(&self, micro_batch: usize, parts: Span) -> Result<Seconds, PlanError> {
        let plain = self.plain(micro_batch)?;
        Ok((*plain).as_ref().map_or(Seconds(0.0), |plain| plain.span_at_least(self, parts, Seconds(f64::INFINITY))))
    }

    /// The same for a single part, much closer, or no shorter than the shortest that was found so far.
    pub(crate) fn part_at_least(
        &self,
        micro_batch: usize,
        part: usize,
        found: Seconds,
    ) -> Result<Arc<PartBound>, PlanError> {
        let key = (micro_batch, part);
        let known = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let bound = Arc::new(match &*self.plain(micro_batch)? {
            Some(plain) => plain.part_at_least(self, part, Closeness::Search, found)?,
            None => PartBound::default(),
        });
        // What is found later takes no longer, so that a bound that is no shorter than this is none of that.
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner).insert(key, bound.clone());
        Ok(bound)
    }

    /// What may be recomputed, ever more of it, the cheapest bytes first: the same whatever the budget, so that more of it never
    /// makes a plan slower.
    pub(crate) fn ladder(&self) -> Result<&[Recompute], PlanError> {
        if let Some(known) = self.ladder.get() {
            return Ok(known);
        }
        let largest = *micro_batches(self.request).last().expect("there is always one");
        let ladder = self.choices(largest)?.ladder();
        Ok(self.ladder.get_or_init(|| ladder))
    }

    /// What is recomputed along which ever more is sent: about so many at most, fewer where there are many micro-batches, by which
    /// budgets are met too.
    pub(crate) fn mixes(&self) -> Result<Vec<Recompute>, PlanError> {
        const FEW: usize = 5;
        let most = if micro_batches(self.request).len() <= FEW { 50 } else { 25 };
        Ok(mixes(self.ladder()?, most))
    }

    /// What there is to choose from of what is recomputed.
    pub(crate) fn choices(&self, micro_batch: usize) -> Result<Choices, PlanError> {
        let scratch = scratches(self.request, micro_batch)[0];
        let settings = settings(self.request, micro_batch, 0.0, scratch, Kept::ALL);
        Ok(Choices::new(self.request, &self.base(&settings, Programs::OfStep)?.graph))
    }

    /// With the programs of a step alone.
    pub(crate) fn candidate_of_step(&self, settings: Settings) -> Result<Candidate, PlanError> {
        Ok(self.moved(self.trunk(settings, Programs::OfStep)?, settings.levers.optimizer_offload))
    }

    /// What budgets lack at the least for what is kept over the whole run, with this part of the optimizer on the host.
    pub(crate) fn lacks_for_state(&self, micro_batch: usize, optimizer_offload: f64) -> Result<[Bytes; 2], PlanError> {
        let scratch = least_scratch(self.request, micro_batch);
        let settings = settings(self.request, micro_batch, optimizer_offload, scratch, Kept::ALL);
        let base = self.base(&settings, Programs::OfStep)?;
        Ok(self.request.budget.lacking(state_when_moved(&base.graph, optimizer_offload)))
    }
}

impl Trunk {
    /// For another part to be moved.
    pub(crate) fn copy(&self) -> Self {
        Self { graph: self.graph.clone(), settings: self.settings }
    }
}
