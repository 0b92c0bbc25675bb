//! Lower and upper bounds for runs that are not modeled exactly.
//! Not here: the settings that cause this (`plimsoll_trainers`), the allocator (`simulate.rs`).

use crate::card::Gpu;
use crate::estimate::{Cannot, Estimate, Footprint};
use crate::sharding::{self, Bound};
use crate::step::Steps;
use crate::usage::Kind;
use crate::{frozen, simulate, step};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Attention, Checkpointing, Loss, Method, Optimizer, Part, Precision, Run};
use plimsoll_units::Bytes;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Widens the range of an estimate to all behaviors that the run allows. `likely` are the steps of the estimate.
/// Errors: those of `steps`.
pub(crate) fn widen(
    estimate: &mut Estimate,
    likely: &Steps,
    model: &ModelConfig,
    run: &Run,
    gpu: Gpu,
) -> Result<(), Cannot> {
    let unsure = &run.unsure;
    let is_unsure = sharding::is_uncertain(run) || sharding::frees_gradients_elsewhere(run);
    // If nothing overlaps and no setting differs, the bounds are the likely steps.
    let steps = |other: &Run, bound| match other == run && !sharding::is_uncertain(run) {
        true => Ok(Cow::Borrowed(likely)),
        false => step::steps(model, other, gpu, true, bound).map(Cow::Owned),
    };
    if is_unsure || !unsure.less.is_empty() {
        let run = least(run);
        let mut missing = kinds(&run.unsure.less);
        missing.extend(sharding::frees_gradients_elsewhere(&run).then_some(Kind::Gradient));
        let (least, fits) = simulate::least(&*steps(&run, Bound::Least)?, &run, gpu, &missing);
        replace(&mut estimate.range[0], least, std::cmp::min);
        estimate.least_fits |= fits;
    }
    if is_unsure || !unsure.more.is_empty() || unsure.evaluated.is_some() {
        let run = most(run);
        let mut most = simulate::most(&*steps(&run, Bound::Most)?, &run, gpu, &kinds(&run.unsure.more));
        if run.method != Method::Full && run.unsure.more.contains(&Part::Additions) {
            let whole = steps(&Run { method: Method::Full, ..run }, Bound::Most)?;
            most.grow(simulate::peak_of(&whole, &[Kind::Weight, Kind::Gradient, Kind::OptimizerState]));
        }
        replace(&mut estimate.range[1], most, std::cmp::max);
    }
    Ok(())
}

/// Replaces values by picks between them and those of another footprint; the context stays.
fn replace(footprint: &mut Footprint, other: Footprint, pick: fn(Bytes, Bytes) -> Bytes) {
    footprint.allocated = pick(footprint.allocated, other.allocated);
    footprint.reserved = pick(footprint.reserved, other.reserved);
}

/// The run with the least memory.
fn least(run: &Run) -> Run {
    let is_half = run.unsure.less.contains(&Part::SinglePrecision);
    let precision = match run.precision {
        Precision::AmpBf16 if is_half => Precision::PureBf16,
        Precision::AmpFp16 if is_half => Precision::PureFp16,
        precision => precision,
    };
    Run { precision, ..run.clone() }
}

/// The run with the most memory.
fn most(run: &Run) -> Run {
    let mut most = run.clone();
    for part in &run.unsure.more {
        match part {
            Part::Recomputation => most.checkpointing = Checkpointing::Off,
            Part::Attention => most.attention = Attention::Eager,
            Part::Loss => most.loss = Loss::Plain,
            Part::FusedUpdate if run.optimizer == Optimizer::AdamWFused => most.optimizer = Optimizer::AdamWForeach,
            Part::Division if sharding::is_parallel(run) => most = frozen::with_whole_weights(&most),
            _ => {}
        }
    }
    most.micro_batch = most.micro_batch.max(run.unsure.evaluated.unwrap_or(0));
    most
}

/// The kinds of storages that belong to the parts.
fn kinds(parts: &BTreeSet<Part>) -> Vec<Kind> {
    let of = |part: &Part| -> &[Kind] {
        match part {
            Part::Weights => &[Kind::Weight, Kind::Cast],
            Part::Gradients => &[Kind::Gradient],
            Part::OptimizerState => &[Kind::OptimizerState],
            Part::Activations => &[Kind::Activation, Kind::Recomputed],
            Part::Temporaries => &[Kind::Temporary],
            Part::Logits => &[Kind::Logits],
            Part::Recomputation
            | Part::Attention
            | Part::FusedUpdate
            | Part::Loss
            | Part::Division
            | Part::Additions
            | Part::SinglePrecision => &[],
        }
    };
    parts.iter().flat_map(of).copied().collect()
}
