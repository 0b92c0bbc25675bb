//! Changes that make a run fit which does not.

use crate::budget::Budget;
use crate::candidates::{OFFLOADS, Settings};
use crate::fastest::{fastest_step, fastest_that_fits};
use crate::levers::{Level, Precision, Recompute};
use crate::plan::Plan;
use crate::request::{LeverRequest, PlanError, Request};
use graph::ops::StateFormat;
use rayon::prelude::*;
use units::{Bytes, Seconds};

/// A change that makes a run fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Nearest {
    /// The flags that ask for it.
    pub flags: String,
    /// What its plan takes of the device's budget.
    pub peak: Bytes,
    /// Predicted time of a step of it.
    pub step: Seconds,
    /// Predicted time that it adds for each token, as a part of that of the run with all the memory that it asks for;
    /// below zero where it saves some.
    pub added_time: f64,
}

/// Changes that are told.
const WANTED: usize = 3;

/// Shorter sequences are not suggested.
const SHORTEST: usize = 16;

/// A changed request, and the flags that ask for it.
type Change = (String, Request);

/// Up to three changes that fit: first those that keep the result, then those that round it otherwise, then those that
/// train something else. Among each, the one that costs the least time comes first. Where `state_is_too_large`, shorter
/// sequences are no help.
pub(crate) fn nearest_that_fit(request: &Request, state_is_too_large: bool) -> Result<Vec<Nearest>, PlanError> {
    let unlimited = Request { budget: request.budget.without_limits(), ..request.clone() };
    let Some(asked) = fastest_step(&unlimited)? else { return Ok(Vec::new()) };
    let asked = per_token(asked, request);
    let mut nearest = Vec::new();
    let kinds = [keeping(request), together(request), rounding(request), training_less(request, state_is_too_large)];
    for (index, kind) in kinds.into_iter().enumerate() {
        // Several levers at once are no help where one is enough.
        if index == 1 && !nearest.is_empty() {
            continue;
        }
        let first_that_fits = |alternatives: Vec<Change>| {
            alternatives.into_iter().map(|change| priced(change, asked)).find_map(Result::transpose).transpose()
        };
        let of_kind = kind.into_par_iter().map(first_that_fits).collect::<Result<Vec<_>, _>>()?;
        let mut of_kind = of_kind.into_iter().flatten().collect::<Vec<_>>();
        of_kind.sort_by(|a, b| a.added_time.total_cmp(&b.added_time));
        nearest.extend(of_kind);
        if nearest.len() >= WANTED {
            break;
        }
    }
    nearest.truncate(WANTED);
    Ok(nearest)
}

/// A change with its price beside the step that was asked for, in seconds a token; none if it does not fit either.
fn priced((flags, changed): Change, asked: f64) -> Result<Option<Nearest>, PlanError> {
    let priced = |(settings, step, plan): (Settings, Seconds, Plan)| {
        let flags = flags.replace("{micro-batch}", &settings.micro_batch.to_string());
        let [peak, _] = plan.needed();
        Nearest { flags, peak, step, added_time: per_token(step, &changed) / asked - 1.0 }
    };
    Ok(fastest_that_fits(&changed)?.map(priced))
}

/// Seconds of a step for each of its tokens.
fn per_token(step: Seconds, of: &Request) -> f64 {
    step.0 / (of.global_batch * (of.seq_len + of.target_len.unwrap_or(0))) as f64
}

fn with_levers(request: &Request, change: impl Fn(&mut LeverRequest)) -> Request {
    let mut changed = request.clone();
    change(&mut changed.levers);
    changed
}

/// Levers that were fixed, turned as far as it takes or left to the search; alternatives from the smallest change on.
fn keeping(request: &Request) -> Vec<Vec<Change>> {
    let asked = &request.levers;
    let mut changes = Vec::new();
    if request.micro_batch.is_some() {
        changes
            .push(vec![("--micro-batch {micro-batch}".to_owned(), Request { micro_batch: None, ..request.clone() })]);
    }
    if let Some(recompute) = asked.recompute {
        let levels = [(Level::Cheap, "cheap"), (Level::Attention, "attention"), (Level::Block, "blocks")];
        let deeper = levels.into_iter().filter(|(level, _)| *level > recompute.rest);
        let change = |(level, name): (Level, &str)| {
            let changed = with_levers(request, |levers| levers.recompute = Some(Recompute::all(level)));
            (format!("--recompute {name}"), changed)
        };
        changes.push(deeper.map(change).collect());
    }
    if let (Some(offload), Budget::Apart { .. }) = (asked.optimizer_offload, request.budget) {
        let change = |part: f64| {
            let changed = with_levers(request, |levers| levers.optimizer_offload = Some(part));
            (format!("--optimizer-offload {part}"), changed)
        };
        changes.push(OFFLOADS.into_iter().filter(|&part| part > offload).map(change).collect());
    }
    changes
}

/// All levers that were fixed and keep the result, left to the search at once.
fn together(request: &Request) -> Vec<Vec<Change>> {
    let asked = &request.levers;
    let fixed = [
        ("--micro-batch auto", request.micro_batch.is_some()),
        ("--recompute auto", asked.recompute.is_some()),
        ("--optimizer-offload auto", asked.optimizer_offload.is_some()),
        ("--head-chunk auto", asked.head_chunk.is_some()),
        ("--attention-rows auto", asked.attention_rows.is_some()),
    ];
    let flags = fixed.into_iter().filter(|(_, is_fixed)| *is_fixed).map(|(flag, _)| flag).collect::<Vec<_>>();
    if flags.is_empty() {
        return Vec::new();
    }
    let open = with_levers(request, |levers| {
        (levers.recompute, levers.optimizer_offload) = (None, None);
        (levers.head_chunk, levers.attention_rows) = (None, None);
    });
    vec![vec![(flags.join(" "), Request { micro_batch: None, ..open })]]
}

/// Fewer bits of weights and moments.
fn rounding(request: &Request) -> Vec<Vec<Change>> {
    let asked = &request.levers;
    let half = |levers: &mut LeverRequest| levers.precision = Precision::Bf16;
    let pure = |levers: &mut LeverRequest| levers.precision = Precision::Bf16Pure;
    let coarse = |levers: &mut LeverRequest| levers.optimizer_state = Some(StateFormat::Blockwise8);
    let mut changes = Vec::new();
    let mut change = |flags: &str, changed: Request| changes.push(vec![(flags.to_owned(), changed)]);
    if asked.precision == Precision::Fp32 {
        change("--precision bf16", with_levers(request, half));
    }
    if asked.precision != Precision::Bf16Pure {
        change("--precision bf16-pure", with_levers(request, pure));
    }
    if asked.optimizer_state.is_none() {
        change("--optimizer-state 8bit", with_levers(request, coarse));
    }
    changes
}

/// Shorter sequences, smaller models.
fn training_less(request: &Request, state_is_too_large: bool) -> Vec<Vec<Change>> {
    let halves = std::iter::successors(Some(request.seq_len / 2), |seq_len| Some(seq_len / 2));
    let shorter = halves.take_while(|&seq_len| seq_len >= SHORTEST && !state_is_too_large);
    let shorter = shorter
        .map(|seq_len| (format!("--seq-len {seq_len}"), Request { seq_len, buckets: vec![], ..request.clone() }));
    let mut smaller = Vec::new();
    for (name, mut model) in request.model.presets_like() {
        model.set_vocab_size(request.model.vocab_size());
        model.set_max_positions(model.max_positions().max(request.seq_len));
        if model.parameter_bound() < request.model.parameter_bound() {
            smaller.push((format!("--model {name}"), Request { model, ..request.clone() }));
        }
    }
    vec![shorter.collect(), smaller]
}
