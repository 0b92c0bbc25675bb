//! Changes that make a run fit which does not.

use super::build::Builder;
use super::heap::{Best, Search};
use super::space::Fineness;
use super::{best, fits_at};
use crate::base_graph::{Programs, built};
use crate::levers::{Alternative, Change, LEVERS, divisors};
use crate::request::{PlanError, Request};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::optimizers::{AdamW, Lion, Rule};
use plimsoll_graph::{AdapterSettings, Adapters, MemoryId, Optimizer, WeightCodes};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;

/// Changes that together make a run fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Nearest {
    /// What is changed.
    pub changes: Vec<Change>,
    /// What its plan takes of the device's budget.
    pub peak: Bytes,
    /// Predicted time of a step of it.
    pub step: Seconds,
    /// Predicted time that it adds for each token, as a part of that of the run with all the memory that it asks for;
    /// below zero where it saves some.
    pub added_time: f64,
}

/// Changes that are reported.
const WANTED: usize = 3;

/// The setting of a smaller model.
const MODEL: &str = "model";

/// The setting of the host's memory.
const HOST_RAM: &str = "host-ram";

/// Shorter sequences are not suggested.
const SHORTEST: usize = 16;

/// Alternatives from the smallest change on. Each needs less memory than the one before.
type Ladder = Vec<Alternative>;

/// Up to three changes that fit: first those that keep the result, then those that round it otherwise, more host memory,
/// those that train the model otherwise (adapters, shorter sequences, another optimizer), and smaller models. Within each kind, the one
/// that costs the least time comes first. Several changes at once are named where one is not enough. Where weights, gradients
/// and moments alone are too large, shorter sequences are not tried.
pub(super) fn nearest_that_fit(misfit: &Search) -> Result<Vec<Nearest>, PlanError> {
    let request = misfit.builder.request;
    let without_limits = Request { budget: request.budget.without_limits(), ..request.clone() };
    let Some(asked) = best(&misfit.builder.of(&without_limits), Fineness::HINT)? else { return Ok(Vec::new()) };
    let asked = per_token(asked.step, request);
    let of_kind = |kind: Vec<Ladder>| {
        let fitting = kind.into_par_iter().map(|ladder| first_that_fits(misfit.builder, &ladder, asked));
        let mut fitting = fitting.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>();
        fitting.sort_by(|a, b| a.added_time.total_cmp(&b.added_time));
        Ok::<_, PlanError>(fitting)
    };
    let mut nearest = of_kind(keeping(request))?;
    if nearest.len() < WANTED {
        // Several levers at once are no help where one is enough.
        let together = if nearest.is_empty() { together(request) } else { Vec::new() };
        let kinds = [together, rounding(request), vec![more_of_host(request)], vec![adapters(request)]];
        let kinds = kinds.into_par_iter().map(of_kind).collect::<Result<Vec<_>, _>>()?;
        let [together, mut rounding, host, adapters] = <[_; 4]>::try_from(kinds).expect("a list for each kind");
        if nearest.is_empty() && together.is_empty() && rounding.is_empty() {
            rounding = of_kind(rounding_together(request))?;
            // The others are the same levers in other combinations: as few as are enough, the one of the shortest step.
            rounding.sort_by_key(|nearest| nearest.changes.len());
            rounding.truncate(1);
        }
        nearest.extend([together, rounding].into_iter().flatten());
        let none_keeps_the_model = nearest.is_empty();
        nearest.extend([host, adapters].into_iter().flatten());
        // What is not reported is not searched for.
        if nearest.len() < WANTED {
            let otherwise = [vec![shorter(request, misfit.state_is_too_large)], other_optimizer(request)].concat();
            let mut otherwise = of_kind(otherwise)?;
            if none_keeps_the_model && otherwise.is_empty() {
                otherwise = of_kind(rounding_and_otherwise(request)?)?;
            }
            nearest.extend(otherwise);
        }
        if nearest.len() < WANTED {
            let models = SmallerModels::than(request);
            let mut models_that_fit = of_kind(vec![models.of_family])?;
            if models_that_fit.is_empty() {
                models_that_fit = of_kind(vec![models.of_others])?;
            }
            nearest.extend(models_that_fit);
        }
    }
    nearest.truncate(WANTED);
    Ok(nearest)
}

/// The first rung that fits, with the time that it adds to the step that was asked for, in seconds a token; `None` if the last
/// does not fit. Bisected, by whether the smallest plan of a rung fits on few points; a single rung is tried on all of them where
/// none of these fits.
fn first_that_fits(misfit: &Builder, ladder: &Ladder, asked: f64) -> Result<Option<Nearest>, PlanError> {
    let builders = ladder.iter().map(|rung| misfit.of(&rung.request)).collect::<Vec<_>>();
    let finenesses = if ladder.len() == 1 { &[Fineness::HINT, Fineness::PLAN][..] } else { &[Fineness::HINT] };
    for &fineness in finenesses {
        // Whether a single rung fits is seen when it is priced.
        let (mut low, mut high) = (0, if ladder.len() == 1 { 0 } else { ladder.len() });
        // The last rung shows at once whether the ladder helps at all.
        let mut next = high.saturating_sub(1);
        while low < high {
            if fits_at(&builders[next], fineness)? {
                high = next
            } else {
                low = next + 1
            }
            next = low + (high - low) / 2;
        }
        let Some(Alternative { changes, request }) = ladder.get(low) else { continue };
        if let Some(Best { layout, step, .. }) = best(&builders[low], fineness)? {
            let peak = request.budget.needed(&layout.arenas())[MemoryId::DEVICE];
            let added_time = per_token(step, request) / asked - 1.0;
            return Ok(Some(Nearest { changes: changes.clone(), peak, step, added_time }));
        }
    }
    Ok(None)
}

/// Seconds of a step for each of its tokens.
fn per_token(step: Seconds, of: &Request) -> f64 {
    step.0 / (of.global_batch * (of.seq_len + of.target_len.unwrap_or(0))) as f64
}

/// Whether a smaller micro-batch can be suggested: updates in the backward pass need the whole batch at once.
fn may_accumulate(request: &Request) -> bool {
    request.levers.update_in_backward != Some(true)
}

/// What was fixed and keeps the result, turned further.
fn keeping(request: &Request) -> Vec<Ladder> {
    let mut smaller = Vec::new();
    if let Some(asked) = request.micro_batch.filter(|_| may_accumulate(request)) {
        let divisors = divisors(request.global_batch).into_iter().rev().filter(|&samples| samples < asked);
        smaller.extend(divisors.map(|samples| {
            Alternative::new("micro-batch", samples, Request { micro_batch: Some(samples), ..request.clone() })
        }));
    }
    std::iter::once(smaller).chain(LEVERS.iter().map(|lever| lever.further(request))).collect()
}

/// All that was fixed and keeps the result, left to the search at once.
fn together(request: &Request) -> Vec<Ladder> {
    let auto = |setting| Change { setting, value: "auto".to_owned() };
    let mut open = request.clone();
    let mut changes = Vec::new();
    if may_accumulate(request) {
        changes.extend(open.micro_batch.take().map(|_| auto("micro-batch")));
    }
    for lever in LEVERS {
        changes.extend(lever.leave_open(&mut open.levers).then(|| auto(lever.name())));
    }
    if changes.is_empty() { Vec::new() } else { vec![vec![Alternative { changes, request: open }]] }
}

/// Fewer bits of weights and moments.
fn rounding(request: &Request) -> Vec<Ladder> {
    LEVERS.iter().flat_map(|lever| lever.coarser(request)).map(|alternative| vec![alternative]).collect()
}

/// The request, with no change or with all left open that was fixed and keeps the result, and both with fewer bits by any
/// number of levers: how many, and the request.
fn rounded(request: &Request) -> Vec<(usize, Alternative)> {
    let asked = || Alternative { changes: Vec::new(), request: request.clone() };
    let mut all = vec![(0, together(request).into_iter().flatten().next().unwrap_or_else(asked))];
    for lever in LEVERS {
        let coarser = all.iter().flat_map(|(levers, before)| {
            let further = lever.coarser(&before.request).into_iter();
            further.map(move |next| (levers + 1, before.and(next)))
        });
        all.extend(coarser.collect::<Vec<_>>());
    }
    all
}

/// Fewer bits by several levers at once, and by one or several with all left open that was fixed.
fn rounding_together(request: &Request) -> Vec<Ladder> {
    let least = if together(request).is_empty() { 2 } else { 1 };
    let several = rounded(request).into_iter().filter(|(levers, _)| *levers >= least);
    several.map(|(_, alternative)| vec![alternative]).collect()
}

/// Fewer bits with shorter sequences or another optimizer: by as few levers as are enough.
fn rounding_and_otherwise(request: &Request) -> Result<Vec<Ladder>, PlanError> {
    let after = |before: &Alternative| -> Vec<Ladder> {
        let ladders = other_optimizer(&before.request).into_iter().chain([shorter(&before.request, false)]);
        let ladders = ladders.map(|ladder| ladder.into_iter().map(|next| before.and(next)).collect::<Ladder>());
        ladders.filter(|ladder| !ladder.is_empty()).collect()
    };
    let all = rounded(request);
    let most = all.iter().map(|(levers, _)| *levers).max().unwrap_or(0);
    for wanted in 0..=most {
        let ladders = all.iter().filter(|(levers, _)| *levers == wanted).flat_map(|(_, before)| after(before));
        let ladders = ladders.collect::<Vec<_>>();
        let last = |ladder: &Ladder| {
            ladder.last().map_or(Ok(false), |last| fits_at(&Builder::new(&last.request), Fineness::HINT))
        };
        let fits = ladders.par_iter().map(last).collect::<Result<Vec<_>, PlanError>>()?;
        if fits.contains(&true) || wanted == most {
            return Ok(ladders);
        }
    }
    Ok(Vec::new())
}

/// Adapters of all linear layers, instead of training all parameters; then also with the frozen weights in codes.
fn adapters(request: &Request) -> Ladder {
    let adapters = Adapters::of(&request.model, &AdapterSettings::default()).ok();
    let adapters = adapters.filter(|_| request.adapters.is_none() && request.frozen.is_empty());
    let Some(adapters) = adapters else { return Vec::new() };
    let adapted = Request { adapters: Some(adapters), ..request.clone() };
    let mut in_codes = adapted.clone();
    in_codes.levers.base_weights.get_or_insert(WeightCodes::Nf4);
    let settings = Builder::new(&in_codes).plain(in_codes.micro_batch.unwrap_or(1));
    let mut ladder = vec![Alternative::new("method", "lora", adapted)];
    // Not every model has weights that can be in codes.
    if built(&in_codes, &settings, Programs::OfStep).is_ok() {
        ladder.push(Alternative::new("method", "qlora", in_codes));
    }
    ladder
}

/// Sizes of the host's memory that are tried, in GiB.
const HOSTS: [u64; 12] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];

/// More memory of the host, where it has one of its own.
fn more_of_host(request: &Request) -> Ladder {
    let Some(host) = request.budget.host() else { return Vec::new() };
    let larger = HOSTS.into_iter().map(Bytes::gib).filter(|&larger| larger > host);
    let with = |host: Bytes| Request { budget: request.budget.with(MemoryId::HOST, host), ..request.clone() };
    larger.map(|host| Alternative::new(HOST_RAM, format!("{}GiB", host.0 >> 30), with(host))).collect()
}

/// An optimizer that keeps less for each parameter, where the one that was asked for has its usual constants.
fn other_optimizer(request: &Request) -> Vec<Ladder> {
    let (asked, lion) = (request.optimizer.rule, Rule::from(Lion::default()));
    if asked != Rule::from(AdamW::default()) {
        return Vec::new();
    }
    let optimizer = Optimizer { rule: lion, ..request.optimizer };
    vec![vec![Alternative::new("optimizer", lion.name(), Request { optimizer, ..request.clone() })]]
}

/// Shorter sequences.
fn shorter(request: &Request, state_is_too_large: bool) -> Ladder {
    let halves = std::iter::successors(Some(request.seq_len / 2), |seq_len| Some(seq_len / 2));
    let shorter = halves.take_while(|&seq_len| seq_len >= SHORTEST && !state_is_too_large);
    let shorter = shorter
        .map(|seq_len| Alternative::new("seq-len", seq_len, Request { seq_len, buckets: vec![], ..request.clone() }));
    shorter.collect()
}

/// Smaller models that are published, the largest first.
struct SmallerModels {
    /// Those that are named like the one that was asked for, as `flan-t5-large` is like `flan-t5-xl`.
    of_family: Ladder,
    of_others: Ladder,
}

impl SmallerModels {
    fn than(request: &Request) -> Self {
        let bound = request.model.parameters();
        let mut like = request.model.presets_like();
        like.retain(|(name, _)| !ModelConfig::hub_names(name).is_empty());
        for (_, model) in &mut like {
            model.set_vocab_size(request.model.vocab_size());
            model.set_max_positions(model.max_positions().max(request.seq_len));
        }
        let asked = like.iter().find(|(_, model)| model.parameters() == bound).map(|(name, _)| family(name));
        like.retain(|(_, model)| model.parameters() < bound);
        let (of_family, of_others) = like.into_iter().partition::<Vec<_>, _>(|(name, _)| asked == Some(family(name)));
        let ladder = |models: Vec<(&'static str, ModelConfig)>| {
            let rungs = models.into_iter();
            let changed = rungs.map(|(name, model)| {
                let adapters = request.adapters.as_ref().map(|adapters| adapters.of_other(&model));
                Alternative::new(MODEL, name, Request { model, adapters, ..request.clone() })
            });
            changed.filter(|rung| rung.request.adapters.as_ref().is_none_or(|of| !of.layers.is_empty())).collect()
        };
        Self { of_family: ladder(of_family), of_others: ladder(of_others) }
    }
}

/// The first word of a preset's name.
fn family(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}
