//! The most that fits: the longest sequence, the largest micro-batch, the largest model, the most runs on one device.

use crate::least::can_fit;
use crate::request::{PlanError, Request};
use plimsoll_units::Bytes;

/// Longer sequences and larger batches are not looked for.
const MOST: usize = 1 << 20;

/// More runs than this don't share a device.
pub const MOST_WORKERS: usize = 1 << 10;

/// Sequences are looked for in steps of this many tokens.
const TOKENS: usize = 64;

/// The longest sequence, in steps of 64 tokens, that fits; none if not even 64 do. The model is given as many
/// positions as that takes.
pub fn longest_sequence(request: &Request) -> Result<Option<usize>, PlanError> {
    let fits = |units: usize| {
        let seq_len = units * TOKENS;
        let mut model = request.model.clone();
        model.set_max_positions(model.max_positions().max(seq_len));
        can_fit(&Request { model, seq_len, buckets: vec![], ..request.clone() })
    };
    Ok(largest(MOST / TOKENS, fits)?.map(|units| units * TOKENS))
}

/// The largest batch that passes through the model at once, as the whole batch of a step; none if not even one sample.
pub fn largest_micro_batch(request: &Request) -> Result<Option<usize>, PlanError> {
    let fits = |samples| can_fit(&Request { global_batch: samples, micro_batch: Some(samples), ..request.clone() });
    largest(MOST, fits)
}

/// The largest preset of the model's family that fits, of those that take the request's sequences or can be made to.
pub fn largest_model(request: &Request) -> Result<Option<&'static str>, PlanError> {
    for (name, mut model) in request.model.presets_like() {
        model.set_max_positions(model.max_positions().max(request.seq_len));
        if can_fit(&Request { model, ..request.clone() })? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The most independent runs that share the device and the host evenly; none if not even one fits.
pub fn most_workers(request: &Request) -> Result<Option<usize>, PlanError> {
    largest(MOST_WORKERS, |workers| can_fit(&shared(request, workers)))
}

/// The request of one of `workers` runs that share the device and the host evenly.
pub fn shared(request: &Request, workers: usize) -> Request {
    Request { budget: request.budget.divided(workers), ..request.clone() }
}

/// The largest number up to `most` that fits, if whatever is smaller than one that fits does too.
fn largest(most: usize, fits: impl Fn(usize) -> Result<bool, PlanError>) -> Result<Option<usize>, PlanError> {
    if !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut too_large) = (1, most + 1);
    while fitting * 2 <= most && too_large > most {
        if fits(fitting * 2)? { fitting *= 2 } else { too_large = fitting * 2 }
    }
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        if fits(middle)? { fitting = middle } else { too_large = middle }
    }
    Ok(Some(fitting))
}

/// The settings that guides recommend for a card with this much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleOfThumb {
    /// Samples at a time.
    pub micro_batch: usize,
    /// Tokens of a sample.
    pub seq_len: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
    /// Whether blocks are recomputed.
    pub recompute: bool,
}

/// The usual rule of thumb, by the card's memory in whole GiB.
pub fn rule_of_thumb(memory: Bytes) -> RuleOfThumb {
    let rule =
        |micro_batch, seq_len, accumulation, recompute| RuleOfThumb { micro_batch, seq_len, accumulation, recompute };
    // As much as a driver keeps of what a card is sold with is rounded up.
    match (memory.as_f64() / Bytes::gib(1).as_f64()).round() as u64 {
        0..=8 => rule(1, 256, 16, true),
        9..=12 => rule(2, 512, 8, true),
        13..=16 => rule(2, 512, 8, true),
        17..=24 => rule(4, 1024, 4, false),
        25..=32 => rule(8, 1024, 2, false),
        _ => rule(12, 2048, 2, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_wherever_it_is() {
        for most in [1, 2, 3, 7, 64, 100] {
            for limit in 0..=most + 2 {
                let found = largest(most, |n| Ok(n <= limit)).expect("no error");
                assert_eq!(found, (limit > 0).then_some(limit.min(most)), "{limit} of {most}");
            }
        }
    }

    #[test]
    fn rules_go_by_whole_gibibytes() {
        for (sold_gib, rule) in [
            (6, (1, 256, 16, true)),
            (8, (1, 256, 16, true)),
            (10, (2, 512, 8, true)),
            (12, (2, 512, 8, true)),
            (16, (2, 512, 8, true)),
            (24, (4, 1024, 4, false)),
            (32, (8, 1024, 2, false)),
            (80, (12, 2048, 2, false)),
        ] {
            // What a driver reports of it.
            let reported = Bytes::mib(1024 * sold_gib - 12);
            for memory in [Bytes::gib(sold_gib), reported] {
                let RuleOfThumb { micro_batch, seq_len, accumulation, recompute } = rule_of_thumb(memory);
                assert_eq!((micro_batch, seq_len, accumulation, recompute), rule, "{memory}");
            }
        }
    }
}
