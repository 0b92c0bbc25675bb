use super::*;
use crate::budget::Budget;
use crate::candidates::{Kept, micro_batches, rungs, scratches, settings};
use crate::cards::card;
use crate::cost::{Machine, Rates};
use crate::layout::{ALIGNMENT, at_least};
use crate::least::ends;
use crate::levers::{Average, LeverRequest, Precision};
use crate::parts::Detail;
use crate::workshop::Workshop;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Lengths, Optimizer, Storage, Targets};
use plimsoll_units::Bytes;

fn requests() -> Vec<Request> {
    let gpt2 =
        r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 300}"#;
    let gpt2 = ModelConfig::from_json(gpt2).expect("a sensible model");
    let t5 = ModelConfig::preset("t5-nano").expect("a preset");
    let average = Some(Average { decay: 0.9, place: Place::Host });
    let mut requests = Vec::new();
    for (model, target_len) in [(gpt2, None), (t5, Some(32))] {
        for (precision, grad_clip, average, on_card) in [
            (Precision::Fp32, Some(1.0), None, true),
            (Precision::Bf16, None, average, true),
            (Precision::Bf16Pure, Some(1.0), None, true),
            (Precision::Fp16, Some(1.0), average, true),
            (Precision::Bf16Pure, None, None, true),
            (Precision::Fp32, None, average, false),
        ] {
            let (targets, rates) = match on_card {
                true => (Targets::cuda((8, 6), 2), Rates::of_card(card("3060").expect("a known card"))),
                false => (Targets::cpu(2), Rates::guess(2)),
            };
            requests.push(Request {
                optimizer: Optimizer { grad_clip, ..Optimizer::default() },
                global_batch: 4,
                seq_len: 32,
                target_len,
                buckets: vec![Lengths { tokens: 16, target: target_len }],
                budget: Budget::Apart { device: Bytes::gib(1), host: Bytes::gib(1) },
                levers: LeverRequest { precision, average, ..LeverRequest::default() },
                evaluates: true,
                sample_prefill: Some(4),
                ..Request::new(model.clone(), targets, Machine::of_rates(rates))
            });
        }
    }
    requests
}

/// What is built is never smaller and never faster than its outline says.
#[test]
fn outlines_are_bounds_of_what_is_built() {
    for request in requests() {
        let workshop = Workshop::new(&request, Detail::Full);
        for micro_batch in ends(&request) {
            let sending = |(index, kept): (usize, Kept)| Kept { sent_blocks: index % 3, ..kept };
            for kept in rungs(&request).into_iter().enumerate().map(sending).step_by(2) {
                let outline = workshop.outline(micro_batch, kept).expect("a sensible request");
                let parts = workshop.parts().expect("a sensible request");
                assert!(parts.len() > 4, "{parts:?}");
                for (index, &part) in parts.iter().enumerate() {
                    for scratch in scratches(&request, micro_batch) {
                        let settings = settings(&request, micro_batch, part, scratch, kept);
                        let candidate = workshop.candidate(settings).expect("levers that go together");
                        let found = at_least(&candidate.graph, &request.targets);
                        let step = workshop.step(&candidate);
                        let (first, last) = (index / 2, index + (parts.len() - 1 - index) / 2);
                        let wider = [(first, index), (index, last), (0, parts.len() - 1)];
                        let wider = wider.map(|(first, last)| Span { first, last });
                        for span in [Span::one(index)].into_iter().chain(wider) {
                            let (least, bound) = (outline.least(span, scratch), outline.step(span, scratch));
                            assert!(least[0] <= found[0] && least[1] <= found[1], "{least:?}, {found:?}: {settings:?}");
                            assert!(bound <= step, "{bound:?}, {step:?}: {settings:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Of weights, gradients and moments it knows all, before any lever is pulled that says when something is done.
#[test]
fn state_is_known_before_it_is_moved() {
    for request in requests() {
        let request = Request { evaluates: false, sample_prefill: None, ..request };
        let workshop = Workshop::new(&request, Detail::Full);
        for micro_batch in micro_batches(&request) {
            for &part in workshop.parts().expect("a sensible request") {
                let scratch = scratches(&request, micro_batch)[0];
                let settings = settings(&request, micro_batch, part, scratch, rungs(&request)[0]);
                let candidate = workshop.candidate(settings).expect("levers that go together");
                let mut kept = [Bytes::ZERO; 2];
                for tensor in candidate.graph.tensors.iter().filter(|t| t.storage == Storage::Persistent) {
                    kept[tensor.place as usize] += tensor.ty.bytes().align_up(ALIGNMENT);
                }
                let without = Budget::Apart { device: Bytes::ZERO, host: Bytes::ZERO };
                let request = Request { budget: without, ..workshop.request.clone() };
                let lacks = Workshop::new(&request, Detail::Full)
                    .lacks_for_state(micro_batch, part)
                    .expect("a sensible request");
                assert_eq!(lacks, kept, "{settings:?}");
            }
        }
    }
}
