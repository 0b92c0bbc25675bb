use super::super::space::micro_batches;
use super::*;
use crate::budget::Budget;
use crate::candidate::predicted_step;
use crate::cards::card;
use crate::cost::{Machine, Rates};
use crate::layout::at_least;
use crate::settings::{Average, LeverRequest, Precision};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{ALIGNMENT, Lengths, Optimizer, Storage, Targets};
use plimsoll_units::Bytes;
use std::cell::RefCell;
use std::collections::HashMap;

/// Of small models, with what changes which tensors are where and when.
fn requests() -> Vec<Request> {
    let gpt2 =
        r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 300}"#;
    let gpt2 = ModelConfig::from_json(gpt2).expect("a sensible model");
    let t5 = ModelConfig::preset("t5-nano").expect("a preset");
    let average = Some(Average { decay: 0.9, memory: MemoryId::HOST });
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
                budget: Budget::apart(Bytes::gib(1), Bytes::gib(1)),
                levers: LeverRequest { precision, average, ..LeverRequest::default() },
                evaluates: true,
                sample_prefill: Some(4),
                ..Request::new(model.clone(), targets, Machine::of_rates(rates))
            });
        }
    }
    requests
}

/// Calls `check` with some points of each micro-batch, what is known of them, and what is built.
fn each_point(request: &Request, fineness: Fineness, check: impl Fn(Point, AtLeast, PerMemory<u64>, f64)) {
    let builder = Builder::new(request);
    let first =
        builder.candidate(builder.plain(micro_batches(request)[0]), Programs::OfStep).expect("levers that go together");
    let space = Space::new(request, fineness, &first.graph);
    for index in 0..space.micro_batches.len() {
        let profile = Profile::new(&builder, &space, fineness, index).expect("a sensible request");
        let mut count = 0;
        profile.visit(|point, bounds| {
            assert_eq!(profile.index_of(point), Some(count));
            count += 1;
            // A step that has no factor in common with the sizes of the axes.
            if count % 7 != 0 {
                return;
            }
            let settings = profile.settings(request, point);
            let candidate = builder.candidate(settings, Programs::OfStep).expect("levers that go together");
            let step = predicted_step(request, &candidate).0;
            check(point, bounds, at_least(&candidate.graph, &request.targets), step);
        });
    }
}

/// A point's graph is never smaller and never faster than its bounds say.
#[test]
fn bounds_hold_for_what_is_built() {
    let fineness = Fineness { shares: 4, weights: 3, offloads: 2, recompute: 8 };
    for request in requests() {
        each_point(&request, fineness, |point, bounds, built, step| {
            let what = format!("{point:?} of {:?}, {:?}", request.model, request.levers);
            for (bound, built) in bounds.bytes.into_iter().zip(built) {
                assert!(bound <= built, "{bound} bytes, {built} are live: {what}");
            }
            assert!(bounds.step.0 <= step * (1.0 + 1e-9), "{:?}, {step} s: {what}", bounds.step);
        });
    }
}

/// A request at a size at which what bounds leave out is small.
fn of_size(model: &str, target_len: Option<usize>, grad_clip: Option<f32>) -> Request {
    let card = card("3060").expect("a known card");
    Request {
        optimizer: Optimizer { grad_clip, ..Optimizer::default() },
        global_batch: 8,
        seq_len: 256,
        target_len,
        budget: Budget::apart(Bytes::gib(8), Bytes::gib(8)),
        levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
        ..Request::new(
            ModelConfig::preset(model).expect("a preset"),
            Targets::cuda(card.compute_capability, 2),
            Machine::of_rates(Rates::of_card(card)),
        )
    }
}

/// A bound that is far off rejects too little, and the heap builds graphs in vain.
#[test]
fn bounds_on_bytes_are_close() {
    for (model, target_len) in [("gpt2", None), ("t5-small", Some(128))] {
        each_point(&of_size(model, target_len, Some(1.0)), Fineness::HINT, |point, bounds, built, _| {
            let device = built[MemoryId::DEVICE];
            let part = bounds.bytes[MemoryId::DEVICE] as f64 / device as f64;
            // The copy of a weight that comes one ahead is left out.
            assert!(part > 0.88, "{part} of {device} bytes: {model}, {point:?}");
        });
    }
}

/// What the heap takes for granted: neighbors below are no slower, and points that do less mostly aren't.
#[test]
fn steps_grow_with_what_a_point_does() {
    for (model, target_len, grad_clip) in [("gpt2", None, Some(1.0)), ("t5-small", Some(128), None)] {
        let request = of_size(model, target_len, grad_clip);
        let builder = Builder::new(&request);
        let shares = [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0)];
        let shares = shares.map(|(optimizer, weights)| HostShare { optimizer, weights }).to_vec();
        let space = Space { micro_batches: vec![2, 8], shares, offloads: vec![0, 3, 6] };
        for index in 0..2 {
            let fineness = Fineness { shares: 2, weights: 2, offloads: 2, recompute: 4 };
            let profile = Profile::new(&builder, &space, fineness, index).expect("a sensible request");
            let known = RefCell::new(HashMap::new());
            let step = |point: Point| {
                *known.borrow_mut().entry(profile.index_of(point).expect("a point of it")).or_insert_with(|| {
                    let settings = profile.settings(&request, point);
                    let candidate = builder.candidate(settings, Programs::OfStep).expect("levers that go together");
                    predicted_step(&request, &candidate).0
                })
            };
            for point in profile.points().filter(|point| point.scratch < 2) {
                let longest = step(point);
                let is_slower = |less: &Point, by: f64| step(*less) > longest * (1.0 + by);
                let below = point.neighbors_below().find(|below| is_slower(below, 1e-9));
                assert_eq!(below, None, "below {point:?}, {longest} s");
                let less = profile.points_that_do_less(point).find(|less| is_slower(less, MORE_ROOM));
                assert_eq!(less, None, "less than {point:?}, {longest} s");
            }
        }
    }
}

/// What is offloaded leaves room in which gradients can wait for the link.
const MORE_ROOM: f64 = 0.05;

/// Weights, gradients and moments are known exactly, for updates at the end of a step.
#[test]
fn state_is_known_before_it_is_moved() {
    for request in requests() {
        let request = Request { evaluates: false, sample_prefill: None, ..request };
        let builder = Builder::new(&request);
        let first = builder.candidate(builder.plain(4), Programs::OfStep).expect("levers that go together");
        let space = Space::new(&request, Fineness::PLAN, &first.graph);
        assert!(space.shares.len() > 4, "{:?}", space.shares);
        for index in 0..space.micro_batches.len() {
            let profile = Profile::new(&builder, &space, Fineness::HINT, index).expect("a sensible request");
            for (known, share) in profile.states().zip(0..) {
                let point = Point { micro_batch: index as u8, offload: 0, share, recompute: 0, scratch: 0 };
                let mut settings = profile.settings(&request, point);
                settings.levers.host_update_at_end = true;
                let graph = builder.candidate(settings, Programs::OfStep).expect("levers that go together").graph;
                let mut kept = graph.memories.map(|memory| scalars_in(memory, &request.targets));
                for tensor in graph.tensors.iter().filter(|t| t.storage == Storage::Persistent) {
                    kept[tensor.memory] += tensor.ty.bytes().align_up(ALIGNMENT).0;
                }
                assert_eq!(known, kept, "{settings:?}");
            }
        }
    }
}
