//! The most of anything that fits, and the most runs on one device.

use crate::request::{PlanError, Request};
use crate::search::{can_fit, shortest_step};
use plimsoll_units::Bytes;

/// More runs than this don't share a device.
pub const MOST_WORKERS: usize = 1 << 10;

/// The largest number up to `most` whose request fits, by some setting or other; `None` if not even that of 1 does. Assumes that
/// every number smaller than one that fits fits too. Errors: those of a request, and of making it.
pub fn largest_that_fits<E: From<PlanError>>(
    most: usize,
    request_of: impl Fn(usize) -> Result<Request, E>,
) -> Result<Option<usize>, E> {
    let fits = |number: usize| -> Result<bool, E> { Ok(can_fit(&request_of(number)?)?) };
    let Some(found) = largest(most, fits)? else { return Ok(None) };
    // Near the limit the points with the most estimated room are not always the smallest plans, so larger numbers are planned.
    let is_planned = |beyond: usize| -> Result<bool, E> { Ok(shortest_step(&request_of(found + beyond)?)?.is_some()) };
    let beyond = match most - found {
        0 => None,
        beyond => largest(beyond, is_planned)?,
    };
    Ok(Some(found + beyond.unwrap_or(0)))
}

/// The first of `count` requests that fits, if each request after one that fits does too; `None` if not even the last does.
/// Errors: those of a request, and of making it.
pub fn first_that_fits<E: From<PlanError>>(
    count: usize,
    request_of: impl Fn(usize) -> Result<Request, E>,
) -> Result<Option<usize>, E> {
    let mut fitting = None;
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if can_fit(&request_of(middle)?)? {
            (fitting, high) = (Some(middle), middle);
        } else {
            low = middle + 1;
        }
    }
    Ok(fitting)
}

/// The most independent runs that share the device and the host evenly; `None` if not even one fits.
pub fn most_workers(request: &Request) -> Result<Option<usize>, PlanError> {
    largest(MOST_WORKERS, |workers| can_fit(&shared(request, workers)))
}

/// The request of one of `workers` runs that share the device and the host evenly: their memory and their speed.
pub fn shared(request: &Request, workers: usize) -> Request {
    let (budget, machine) = (request.budget.divided(workers), request.machine.shared_by(workers));
    Request { budget, machine, ..request.clone() }
}

/// The largest number up to `most` that fits, if whatever is smaller than one that fits does too.
fn largest<E>(most: usize, fits: impl Fn(usize) -> Result<bool, E>) -> Result<Option<usize>, E> {
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
    // Rounding adds what a driver keeps of the memory that a card is sold with.
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
    use crate::budget::Budget;
    use crate::cards::card;
    use crate::cost::{Machine, Rates};
    use crate::search::search;
    use plimsoll_graph::Targets;
    use plimsoll_graph::models::ModelConfig;

    #[test]
    fn the_largest_is_found_wherever_it_is() {
        for most in [1, 2, 3, 7, 64, 100] {
            for limit in 0..=most + 2 {
                let found = largest(most, |n| Ok::<_, PlanError>(n <= limit)).expect("no error");
                assert_eq!(found, (limit > 0).then_some(limit.min(most)), "{limit} of {most}");
            }
        }
    }

    #[test]
    fn runs_that_share_a_device_share_its_speed() {
        let model = ModelConfig::preset("nano").expect("a preset");
        let machine = Machine::of_rates(Rates::of_card(card("3090").expect("a known card")));
        let alone = Request { budget: Budget::unlimited(), ..Request::new(model, Targets::cuda((8, 6), 2), machine) };
        let step = |request: &Request| search(request).expect("a sensible request").expect("it fits").step.0;
        let ratio = step(&shared(&alone, 4)) / step(&alone);
        assert!((ratio - 4.0).abs() < 1e-6, "{ratio}");
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
