//! Estimates the GPU memory of a run of a model.
//! Not here: running the step (`step.rs`) and counting its events (`simulate.rs`).

use crate::card::Gpu;
use crate::estimate::{Cannot, Estimate};
use crate::frozen;
use crate::sharding::{self, Bound};
use crate::{range, simulate, step};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Method, Run};

/// The memory that each GPU needs for a run of a model. Simulates the first step, which creates the optimizer's state,
/// and further steps until memory use no longer changes.
/// Errors: [`Cannot`] for sizes that are zero or too large, and for settings that are not modeled.
pub fn estimate(model: &ModelConfig, run: &Run, gpu: Gpu) -> Result<Estimate, Cannot> {
    check(model, run)?;
    if frozen::divides_frozen_weights(run) {
        let whole = estimate(model, &frozen::with_whole_weights(run), gpu)?;
        return Ok(frozen::divided(whole, model, run, gpu));
    }
    let steps = step::steps(model, run, gpu, true, Bound::Likely)?;
    let mut likely = simulate::estimate_of(&steps, run, gpu);
    range::widen(&mut likely, &steps, model, run, gpu)?;
    Ok(likely)
}

/// Checks that all sizes are above zero and small enough to count without overflow, and that the sharding is modeled.
fn check(model: &ModelConfig, run: &Run) -> Result<(), Cannot> {
    /// More than any GPU's memory, and far below the limit of a `u128`.
    const MOST: u128 = 1 << 50;
    model.validate()?;
    let target = run.target_len.unwrap_or(run.seq_len);
    let (rank, block) = match &run.method {
        Method::Full => (1, 1),
        Method::Lora(lora) => (lora.rank, 1),
        Method::Qlora(lora, quantized) => (lora.rank, quantized.block),
    };
    for (size, name) in [
        (run.micro_batch, "the micro-batch"),
        (run.accumulation, "the number of micro-batches"),
        (run.seq_len, "the sequence length"),
        (target, "the target's length"),
        (run.cards, "the number of GPUs"),
        (rank, "the rank"),
        (block, "the block of 4-bit weights"),
    ] {
        if size == 0 {
            return Err(Cannot::Zero(name));
        }
    }
    let longest = u128::from(run.seq_len.max(target));
    let tokens = u128::from(run.micro_batch).saturating_mul(longest);
    let heads = tokens.saturating_mul(longest).saturating_mul(1 << 12);
    let all = tokens.saturating_mul(model.elements_per_token()).max(heads);
    if all.max(model.parameters()) > MOST * (1 << 10) || tokens > MOST || model.parameters() > MOST {
        return Err(Cannot::TooLarge { tokens });
    }
    sharding::check(run)
}
