//! The search over random models and budgets: more budget is never slower, plans stay valid, nothing depends on chance.

use graph::models::ModelConfig;
use graph::{Optimizer, Targets};
use plan::{LeverRequest, Machine, Precision, Rates, Request, card, search, validate};
use proptest::prelude::*;
use units::Bytes;

fn small_model(layers: usize, width: usize, vocab_size: usize) -> ModelConfig {
    let text = format!(
        r#"{{"model_type": "gpt2", "n_layer": {layers}, "n_embd": {width}, "n_head": 2, "n_positions": 64,
            "vocab_size": {vocab_size}}}"#
    );
    ModelConfig::from_json(&text).expect("a sensible model")
}

/// Of a small model on a slow or a fast device, with or without clipping, which updates in the backward pass go by.
fn requests() -> impl Strategy<Value = Request> {
    let sizes = (1..5usize, 1..5usize, prop::sample::select(vec![64, 256, 3000]));
    let run = (prop::sample::select(vec![1, 4, 6, 16]), 1..5usize, any::<bool>(), any::<bool>(), any::<bool>());
    (sizes, run).prop_map(|((layers, width, vocab_size), (global_batch, length, clips, on_card, half))| {
        let (targets, rates) = match on_card {
            true => (Targets::cuda((8, 6), 2), Rates::of_card(card("3060").expect("a known card"))),
            false => (Targets::cpu(2), Rates::guess(2)),
        };
        Request {
            optimizer: Optimizer { grad_clip: clips.then_some(1.0), ..Optimizer::default() },
            global_batch,
            seq_len: 16 * length.min(4),
            budget: Bytes::gib(1),
            host_budget: Bytes::gib(1),
            levers: LeverRequest {
                precision: if half { Precision::Bf16 } else { Precision::Fp32 },
                ..LeverRequest::default()
            },
            evaluates: true,
            ..Request::new(small_model(layers, 16 * width, vocab_size), targets, Machine::of_rates(rates))
        }
    })
}

/// What the fastest plan takes: budgets from nothing to a little more than that are the ones that matter.
fn most(request: &Request) -> u64 {
    search(request).expect("a sensible request").expect("a gibibyte is enough").plan.peak_bytes
}

/// Steps are sums of thousands of numbers, in an order that configurations may differ in.
const ROUNDING: f64 = 1.0 + 1e-9;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn more_budget_is_never_slower_and_what_fits_stays_valid(request in requests(), host in 0..3u64) {
        let most = most(&request);
        let host_budget = [Bytes::ZERO, Bytes(most / 8), Bytes::gib(1)][host as usize];
        let mut fastest = f64::INFINITY;
        for part in 1..=16u64 {
            let budget = Bytes(most * part / 15);
            let request = Request { budget, host_budget, ..request.clone() };
            match search(&request).expect("a sensible request") {
                Ok(found) => {
                    prop_assert!(found.step.0 <= fastest * ROUNDING, "{} s after {fastest} s", found.step.0);
                    fastest = found.step.0;
                    prop_assert!(found.plan.peak() <= budget && found.plan.host_bytes <= host_budget.0);
                    let mut roomier = found.plan.clone();
                    roomier.budget_bytes += 1 + budget.0 / 3;
                    prop_assert_eq!((validate(&found.plan), validate(&roomier)), (Ok(()), Ok(())));
                }
                Err(misfit) => {
                    prop_assert!(fastest.is_infinite(), "{budget} is too little, and less was enough");
                    prop_assert!(misfit.short + misfit.host_short > Bytes::ZERO);
                    prop_assert!(misfit.nearest.iter().all(|near| near.peak <= budget), "{:?}", misfit.nearest);
                }
            }
        }
        prop_assert!(fastest.is_finite() || host_budget < Bytes::gib(1));
    }

    #[test]
    fn the_same_request_gives_the_same_bytes(request in requests(), part in 4..12u64) {
        let request = Request { budget: Bytes(most(&request) * part / 10), ..request };
        let answer = || {
            let answer = search(&request).expect("a sensible request");
            let plan = match &answer {
                Ok(found) => &found.plan,
                Err(misfit) => &misfit.plan,
            };
            (serde_json::to_string(plan).expect("plans are plain data"), answer.map(|found| found.step.0))
        };
        prop_assert_eq!(answer(), answer());
    }
}
