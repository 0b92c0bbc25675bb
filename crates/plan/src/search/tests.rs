//! What the coarseness of the axes costs.

use super::heap::Search;
use super::*;
use crate::budget::Budget;
use crate::cards::card;
use crate::cost::{Machine, Rates};
use crate::settings::{LeverRequest, Precision};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Optimizer, Targets};

/// Twice as many steps on each axis gain less than a prediction is off by.
#[test]
fn a_finer_grid_gains_little() {
    for (model, card_name, global_batch, device) in
        [("gpt2-medium", "3060", 64, Bytes::gib(4)), ("llama-3.2-1b", "4090", 32, Bytes::gib(8))]
    {
        let card = card(card_name).expect("a known card");
        let mut model = ModelConfig::preset(model).expect("a preset");
        model.set_max_positions(1024);
        let request = Request {
            optimizer: Optimizer { grad_clip: Some(1.0), ..Optimizer::default() },
            global_batch,
            micro_batch: Some(8),
            budget: Budget::apart(device, Bytes::gib(24)),
            levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
            ..Request::new(model, Targets::cuda(card.compute_capability, 8), Machine::of_rates(Rates::of_card(card)))
        };
        let step = |fineness: Fineness| {
            let builder = Builder::new(&request);
            let search = Search::new(&builder, fineness).expect("a sensible request");
            search.cheapest().expect("a sensible request").expect("enough memory").step.0
        };
        let Fineness { shares, weights, offloads, recompute } = Fineness::PLAN;
        let finer =
            Fineness { shares: 2 * shares, weights: 2 * weights, offloads: 2 * offloads, recompute: 2 * recompute };
        let gain = 1.0 - step(finer) / step(Fineness::PLAN);
        assert!(gain < 0.015, "{:.2} %: {:?}", 100.0 * gain, request.model);
    }
}
