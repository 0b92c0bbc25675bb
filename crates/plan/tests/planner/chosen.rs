//! What is recomputed, chosen result by result: hardly slower than any level of blocks, or than any choice at random.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Optimizer, Targets};
use plimsoll_plan::{
    Budget, Found, Level, LeverRequest, Machine, NodeSet, Precision, Rates, Recompute, Request, card, curve,
    plan_settings, recompute_ladder, search,
};
use plimsoll_units::Bytes;
use rayon::prelude::*;

/// A model with its lengths and batch, on a card with much memory or with much memory of its host.
fn request([model, card_name]: [&str; 2], lengths: (usize, Option<usize>), global_batch: usize) -> Request {
    let card = card(card_name).expect("a known card");
    let model = ModelConfig::preset(model).expect("a preset");
    Request {
        optimizer: Optimizer { grad_clip: Some(1.0), ..Optimizer::default() },
        global_batch,
        seq_len: lengths.0,
        target_len: lengths.1,
        budget: Budget::apart(Bytes::gib(400), Bytes::gib(64)),
        levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
        ..Request::new(model, Targets::cuda(card.compute_capability, 8), Machine::of_rates(Rates::of_card(card)))
    }
}

fn within(request: &Request, device: u64) -> Option<Found> {
    let budget = Budget::apart(Bytes(device), Bytes::gib(64));
    search(&Request { budget, ..request.clone() }).expect("a sensible request").ok()
}

/// What a plan takes of a device and of a host is enough for it, however it was found that it fits.
#[test]
fn a_plan_fits_in_as_much_as_it_takes() {
    for (model, card, lengths, batch, gib) in [
        ("gpt2-medium", "3070", (1024, None), 8, 5),
        ("llama-3.2-1b", "4090", (2048, None), 8, 11),
        ("smollm2-360m", "3060", (1024, None), 64, 5),
        ("t5-base", "3060", (512, Some(128)), 16, 3),
    ] {
        let request = request([model, card], lengths, batch);
        let found = within(&request, Bytes::gib(gib).0).expect("enough memory");
        assert!(found.settings.levers.optimizer_offload > 0.0 || !found.limited_by.is_empty(), "{:?}", found.settings);
        let device = Bytes(found.plan.peak().0);
        for host in [Bytes::gib(64), Bytes(found.plan.host().0)] {
            let request = Request { budget: Budget::apart(device, host), ..request.clone() };
            let again = search(&request).expect("a sensible request").expect("as much as it takes");
            assert!(again.step <= found.step, "{model}, {host}: {:?}, not {:?}", again.step, found.step);
        }
    }
}

/// A budget is said to keep something faster out exactly where a larger one would make a faster plan.
#[test]
fn a_budget_limits_a_plan_where_more_of_it_makes_a_faster_one() {
    let request = request(["gpt2", "3060"], (256, None), 8);
    let fastest = within(&request, Bytes::gib(400).0).expect("enough memory");
    assert!(fastest.limited_by.is_empty());
    let (least, most) = (Bytes::mib(700).0, fastest.plan.peak().0);
    let budgets = (0..=12).map(|part| least + (most - least) * part / 12);
    let found = budgets.filter_map(|budget| within(&request, budget)).collect::<Vec<_>>();
    let limited = |found: &&Found| !found.limited_by.is_empty();
    assert!(found.iter().filter(limited).count() > 6, "{:?}", found.iter().map(|f| f.limited_by).collect::<Vec<_>>());
    for found in &found {
        assert_eq!(limited(&found), found.step > fastest.step, "{:?}: {:?}", found.settings, found.limited_by);
    }
}

/// Where micro-batches of hundreds fit in hundreds of gigabytes, the curve is still of what people have.
#[test]
fn a_curve_goes_from_what_is_enough_to_what_is_as_good_as_any() {
    let request = request(["gpt2-medium", "4070"], (1024, None), 512);
    let points = curve(&request, 5).expect("a sensible request");
    let steps = points.iter().map(|point| point.found.step.0).collect::<Vec<_>>();
    let fastest = within(&request, Bytes::gib(400).0).expect("enough memory").step.0;
    assert!(points.len() == 5 && points.is_sorted_by(|a, b| a.budget < b.budget), "{steps:?}");
    assert!(
        steps.is_sorted_by(|a, b| a >= b) && steps[4] <= 1.005 * fastest && steps[3] > 1.005 * fastest,
        "{steps:?}"
    );
    assert!(within(&request, points[0].budget.0 * 99 / 100).is_none(), "less is not enough");
    assert!(points[4].budget < Bytes::gib(40), "{}", points[4].budget);
}

/// How much slower a plan may be than a choice that is not among those of the search, as a part of its step.
const GRID: f64 = 0.03;

/// Most levels of blocks cost more than what the search chooses within the same bytes.
#[test]
fn the_choice_is_hardly_slower_than_levels_of_blocks() {
    let mut request = request(["gpt2-medium", "3070"], (1024, None), 4);
    (request.micro_batch, request.levers.optimizer_offload) = (Some(4), Some(0.0));
    request.levers.activation_offload = Some(0.0);
    let of_levels = |recompute| {
        let levers = LeverRequest { recompute: Some(recompute), ..request.levers };
        search(&Request { levers, ..request.clone() }).expect("a sensible request").expect("enough memory")
    };
    let levels = recompute_ladder(request.model.blocks()).into_par_iter().map(of_levels).collect::<Vec<_>>();
    let mut is_faster = 0;
    for level in &levels {
        let chosen = within(&request, level.plan.peak().0).expect("as much as that level needs");
        assert!(chosen.step.0 <= level.step.0 * (1.0 + GRID), "{:?}", level.settings.levers.recompute);
        is_faster += usize::from(chosen.step.0 < 0.999 * level.step.0);
    }
    assert!(is_faster * 10 > levels.len(), "faster at {is_faster} of {} budgets", levels.len());
}

/// Any results recomputed, with any number of blocks offloaded, take about as long, if they fit.
#[test]
fn no_choice_at_random_is_faster() {
    for (model, lengths) in [("gpt2", (512, None)), ("smollm2-135m", (512, None)), ("t5-small", (256, Some(64)))] {
        let mut request = request([model, "3060"], lengths, 8);
        let clipped = request.optimizer.grad_clip;
        for (offload, micro_batch, clip) in [(0.0, 8, clipped), (0.5, 8, clipped), (1.0, 8, None), (0.5, 4, clipped)] {
            (request.micro_batch, request.optimizer.grad_clip) = (Some(micro_batch), clip);
            request.levers.optimizer_offload = Some(offload);
            let found = within(&request, Bytes::gib(400).0).expect("enough memory");
            let mut words = 1_u64;
            let tried = std::iter::repeat_with(|| {
                words = words.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let set = Level::Chosen(NodeSet::of_places(words >> 30));
                let blocks = (words >> 20) as usize % (request.model.blocks() + 1);
                let rest = if words >> 63 == 0 { Level::None } else { Level::Block };
                let sent = (words >> 10) as usize % (request.model.blocks() + 1);
                (Recompute { blocks, first: set, rest }, sent)
            });
            for (recompute, sent) in tried.take(8) {
                let mut settings = found.settings;
                settings.levers.recompute = recompute;
                settings.levers.activation_offload = sent;
                let (graph, plan) = plan_settings(&request, settings).expect("levers that go together");
                let step = request.machine.step(&graph, 8 / micro_batch, &request.targets).0;
                let best = within(&request, plan.peak().0).expect("as much as that choice needs");
                let what = settings.levers;
                assert!(
                    best.step.0 <= step * (1.0 + GRID),
                    "{model}, {offload}: {step} s, not {:?}: {what:?}",
                    best.step
                );
            }
        }
    }
}
