//! The search over random models and budgets: more budget is never slower, plans stay valid, nothing depends on chance.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{MemoryId, Optimizer, Targets};
use plimsoll_plan::{
    Average, Budget, Found, Level, LeverRequest, Machine, Misfit, Precision, Rates, Recompute, Request, Settings, card,
    plan_settings, search, validate,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

fn small_model(layers: usize, width: usize, vocab_size: usize) -> ModelConfig {
    let text = format!(
        r#"{{"model_type": "gpt2", "n_layer": {layers}, "n_embd": {width}, "n_head": 2, "n_positions": 64,
            "vocab_size": {vocab_size}}}"#
    );
    ModelConfig::from_json(&text).expect("a sensible model")
}

fn apart(device: Bytes, host: Bytes) -> Budget {
    Budget::apart(device, host)
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
            budget: apart(Bytes::gib(1), Bytes::gib(1)),
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
    search(request).expect("a sensible request").expect("a gibibyte is enough").plan.peak().0
}

/// How much longer a step may be than the shortest that can be had: a use of the host has to gain 0.4 %, and a plan that
/// offloads more activations may gain a little by the room that they leave.
const TOLERATED: f64 = 1.01;

/// The same if what is recomputed is chosen from levels, which the search has only for all blocks alike: it loses up to 2.6 % in one
/// of some thousand requests.
const TOLERATED_OF_LEVELS: f64 = 1.03;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn more_budget_is_never_slower_and_what_fits_stays_valid(request in requests(), host in 0..3u64) {
        let most = most(&request);
        let host_budget = [Bytes::ZERO, Bytes(most / 8), Bytes::gib(1)][host as usize];
        let mut fastest = f64::INFINITY;
        for part in 1..=16u64 {
            let budget = Bytes(most * part / 15);
            let request = Request { budget: apart(budget, host_budget), ..request.clone() };
            match search(&request).expect("a sensible request") {
                Ok(found) => {
                    prop_assert!(found.step.0 <= fastest * TOLERATED, "{} s after {fastest} s", found.step.0);
                    fastest = fastest.min(found.step.0);
                    prop_assert!(found.plan.peak() <= budget && found.plan.host().0 <= host_budget.0);
                    let roomier = found.plan.clone().within(&apart(Bytes(budget.0 + 1 + budget.0 / 3), host_budget));
                    prop_assert_eq!((validate(&found.plan), validate(&roomier)), (Ok(()), Ok(())));
                }
                Err(misfit) => {
                    prop_assert!(fastest.is_infinite(), "{budget} is too little, and less was enough");
                    prop_assert!(misfit.largest_short() > Bytes::ZERO);
                    prop_assert!(misfit.nearest.iter().all(|near| near.peak <= budget), "{:?}", misfit.nearest);
                }
            }
        }
        prop_assert!(fastest.is_finite() || host_budget < Bytes::gib(1));
    }

    #[test]
    fn the_same_request_gives_the_same_bytes(request in requests(), part in 4..12u64) {
        let request = Request { budget: apart(Bytes(most(&request) * part / 10), Bytes::gib(1)), ..request };
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

    #[test]
    fn on_one_memory_both_arenas_fit_one_budget_and_nothing_is_moved_unasked(
        request in requests(),
        part in 1..12u64,
        offload in prop::sample::select(vec![None, Some(0.5), Some(1.0)]),
        averages in any::<bool>(),
    ) {
        let average = averages.then_some(Average { decay: 0.9, memory: MemoryId::HOST });
        let levers = LeverRequest { optimizer_offload: offload, average, ..request.levers };
        let of = |bytes| Request { levers, budget: Budget::shared(bytes), ..request.clone() };
        let roomy = search(&of(Bytes::gib(1))).expect("a sensible request").expect("a gibibyte is enough");
        let budget = Bytes((roomy.plan.peak().0 + roomy.plan.host().0) * part / 10);
        match search(&of(budget)).expect("a sensible request") {
            Ok(Found { plan, settings, .. }) => {
                prop_assert!(plan.peak().0 + plan.host().0 <= budget.0);
                prop_assert_eq!(settings.levers.optimizer_offload, offload.unwrap_or(0.0));
                prop_assert_eq!(plan.host().0 > 0, offload.is_some() || averages);
                prop_assert_eq!(validate(&plan), Ok(()));
                let tight = plan.clone().within(&Budget::shared(Bytes(plan.peak().0 + plan.host().0 - 1)));
                prop_assert!(validate(&tight).is_err(), "both arenas count");
            }
            Err(misfit) => {
                prop_assert_eq!(misfit.plan.peak() + misfit.plan.host(), budget + misfit.short[MemoryId::DEVICE]);
                prop_assert_eq!(misfit.short[MemoryId::HOST], Bytes::ZERO);
                prop_assert!(misfit.nearest.iter().all(|near| near.peak <= budget), "{:?}", misfit.nearest);
            }
        }
    }

}

proptest! {
    // Each packs hundreds of plans.
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn no_configuration_that_fits_is_faster_than_the_one_that_is_found(
        request in requests(),
        part in 3..10u64,
        host in 0..3u64,
    ) {
        let most = most(&request);
        let host = [Bytes::ZERO, Bytes(most / 8), Bytes::gib(1)][host as usize];
        let request = Request { budget: apart(Bytes(most * part / 10), host), ..request };
        let fastest = fastest_of_all(&request);
        match search(&request).expect("a sensible request") {
            Ok(found) => {
                let fastest = fastest.unwrap_or(f64::INFINITY);
                prop_assert!(found.step.0 <= fastest * TOLERATED_OF_LEVELS, "{} s, {fastest} s can be had", found.step.0);
            }
            Err(_) => prop_assert_eq!(fastest, None),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn invariant_1_pure_any_number_of_threads_gives_the_same_answer(request in requests(), part in 2..12u64) {
        let request = Request { budget: apart(Bytes(most(&request) * part / 10), Bytes::gib(1)), ..request };
        let answer = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            comparable(pool.install(|| search(&request)).expect("a sensible request"))
        };
        let alone = answer(1);
        for threads in [2, 3, 8] {
            prop_assert_eq!(&alone, &answer(threads), "{} threads", threads);
        }
    }
}

/// What `auto` chooses does not depend on which of the levers are left to it.
#[test]
fn asking_for_what_auto_chose_gives_the_same_plan() {
    for (model, card_name, seq_len, target_len, global_batch, gib) in [
        ("gpt2-medium", "3060", 1024, None, 64, 4),
        ("gpt2-xl", "3090", 1024, None, 64, 22),
        ("llama-3.2-1b", "3060", 1024, None, 64, 10),
        ("t5-base", "3060", 512, Some(128), 32, 3),
    ] {
        let card = card(card_name).expect("a known card");
        let mut model = ModelConfig::preset(model).expect("a preset");
        model.set_max_positions(seq_len);
        let request = Request {
            optimizer: Optimizer { grad_clip: Some(1.0), ..Optimizer::default() },
            global_batch,
            seq_len,
            target_len,
            budget: apart(Bytes::gib(gib), Bytes::gib(64)),
            levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
            ..Request::new(model, Targets::cuda(card.compute_capability, 8), Machine::of_rates(Rates::of_card(card)))
        };
        let find = |request: &Request| search(request).expect("a sensible request").expect("enough memory");
        let auto = find(&request);
        let Settings { micro_batch, head_chunk, levers } = auto.settings;
        let open = request.levers;
        let offloaded = levers.activation_offload as f64 / request.model.blocks() as f64;
        for (asked, levers) in [
            (Some(micro_batch), open),
            (None, LeverRequest { optimizer_offload: Some(levers.optimizer_offload), ..open }),
            (None, LeverRequest { activation_offload: Some(offloaded), ..open }),
            (None, LeverRequest { recompute: Some(levers.recompute), ..open }),
            (None, LeverRequest { head_chunk: Some(head_chunk), attention_rows: Some(levers.attention_rows), ..open }),
        ] {
            let found = find(&Request { micro_batch: asked, levers, ..request.clone() });
            assert_eq!((found.settings, found.step), (auto.settings, auto.step), "{asked:?}, {levers:?}");
            assert_eq!(found.plan, auto.plan, "{asked:?}, {levers:?}");
        }
    }
}

/// Of this model the last rung takes more than one before it, which alone fits.
#[test]
fn what_fits_in_the_middle_of_a_ladder_is_found() {
    let model = small_model(2, 48, 64);
    let machine = Machine::of_rates(Rates::guess(2));
    let request = Request { evaluates: true, ..Request::new(model, Targets::cpu(2), machine) };
    let request = Request { budget: apart(Bytes(most(&request) * 9 / 10), Bytes::ZERO), ..request };
    let found = search(&request).expect("a sensible request").expect("it fits");
    assert!(found.settings.levers.recompute != Recompute::all(Level::Block), "{:?}", found.settings);
}

/// Everything of an answer.
fn comparable(answer: Result<Found, Box<Misfit>>) -> String {
    match answer {
        Ok(found) => {
            let Found { plan, settings, step, limited_by, next_larger, candidates, .. } = found;
            format!("{plan:?} {settings:?} {step:?} {limited_by:?} {next_larger:?} {candidates}")
        }
        Err(misfit) => format!("{misfit:?}"),
    }
}

/// The shortest step of nearly all configurations that the request leaves open and that fit, each built and packed by
/// itself.
fn fastest_of_all(request: &Request) -> Option<f64> {
    let blocks = request.model.blocks();
    let mut rungs = vec![Recompute::all(Level::None)];
    for (first, rest) in
        [(Level::Cheap, Level::None), (Level::Attention, Level::Cheap), (Level::Block, Level::Attention)]
    {
        rungs.extend((1..=blocks).map(|blocks| Recompute { blocks, first, rest }));
    }
    let machine = &request.machine;
    let mut fastest = None::<f64>;
    for micro_batch in plimsoll_plan::divisors(request.global_batch) {
        for (optimizer_offload, recompute, (head_chunk, attention_rows)) in configurations(&rungs, request, micro_batch)
        {
            let levers = plimsoll_plan::Levers {
                precision: request.levers.precision,
                update_in_backward: micro_batch == request.global_batch && request.optimizer.grad_clip.is_none(),
                attention_rows,
                recompute,
                optimizer_offload,
                ..plimsoll_plan::Levers::default()
            };
            let settings = Settings { micro_batch, head_chunk, levers };
            let (graph, plan) = plan_settings(request, settings).expect("levers that go together");
            if request.budget.holds(&plan.arenas()) {
                let step = machine.step(&graph, request.global_batch / micro_batch, &request.targets).0;
                fastest = Some(fastest.map_or(step, |fastest| fastest.min(step)));
            }
        }
    }
    fastest
}

/// Some of the parts that may be moved, with all that may be recomputed and all scratch.
fn configurations(
    rungs: &[Recompute],
    request: &Request,
    micro_batch: usize,
) -> impl Iterator<Item = (f64, Recompute, (usize, usize))> {
    let rows = micro_batch * request.seq_len;
    let device = request.targets.device.kind();
    let chunks = plimsoll_plan::head_chunk_choices(rows, request.model.vocab_size(), device);
    let rows = [64, 64, 16, 16, 4];
    let scratches: [_; 5] = std::array::from_fn(|index| (chunks[index], rows[index]));
    let of_part =
        move |part: f64| rungs.iter().flat_map(move |&recompute| scratches.map(|scratch| (part, recompute, scratch)));
    [0.0, 0.25, 1.0].into_iter().flat_map(of_part)
}

/// With everything fixed that takes memory, in the least that the run needs with all of it left open.
#[test]
fn several_levers_are_left_open_together_where_no_single_one_is_enough() {
    let model = small_model(4, 64, 256);
    let machine = Machine::of_rates(Rates::of_card(card("3060").expect("a known card")));
    let within = |device: u64, levers: LeverRequest, micro_batch| Request {
        global_batch: 16,
        micro_batch,
        seq_len: 64,
        budget: apart(Bytes(device), Bytes::gib(1)),
        levers,
        ..Request::new(model.clone(), Targets::cuda((8, 6), 2), machine.clone())
    };
    let fits = |request: &Request| search(request).expect("a sensible request").is_ok();
    let (mut too_small, mut enough) = (0, 1 << 30);
    while enough - too_small > 1024 {
        let middle = too_small + (enough - too_small) / 2;
        if fits(&within(middle, LeverRequest::default(), None)) { enough = middle } else { too_small = middle }
    }
    let fixed = LeverRequest {
        recompute: Some(Recompute::all(Level::None)),
        optimizer_offload: Some(0.0),
        ..Default::default()
    };
    let misfit = search(&within(enough, fixed, Some(16))).expect("a sensible request").expect_err("too large");
    let settings = misfit.nearest[0].changes.iter().map(|change| change.setting).collect::<Vec<_>>();
    assert!(misfit.nearest[0].changes.iter().all(|change| change.value == "auto"), "{:?}", misfit.nearest);
    assert_eq!(settings, ["micro-batch", "recompute", "optimizer-offload"], "{:?}", misfit.nearest);
}

/// On a card of 12 GiB with a budget of 11, and this many GiB of the host.
fn ways_out(model: &str, host: u64) -> Vec<Vec<(&'static str, String)>> {
    let card = card("3060").expect("a known card");
    let mut model = ModelConfig::preset(model).expect("a preset");
    model.set_max_positions(512);
    let request = Request {
        global_batch: 4,
        seq_len: 512,
        target_len: model.decoder_start().map(|_| 512),
        budget: apart(Bytes::gib(11), Bytes::gib(host)),
        levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
        ..Request::new(model, Targets::cuda(card.compute_capability, 2), Machine::of_rates(Rates::of_card(card)))
    };
    let misfit = search(&request).expect("a sensible request").expect_err("too large");
    let ways = misfit.nearest.iter().inspect(|way| assert!(way.peak <= Bytes::gib(11), "{way:?}"));
    ways.map(|way| way.changes.iter().map(|change| (change.setting, change.value.clone())).collect()).collect()
}

#[test]
fn ways_out_combine_levers_and_keep_the_family() {
    let eight_bits = [("optimizer-state", "8bit".to_owned())];
    assert_eq!(ways_out("flan-t5-xl", 24)[0], eight_bits, "one is enough");
    let ways = ways_out("flan-t5-xl", 18);
    // Gradients in bf16 would shorten the step further, but these two are enough.
    let together = [("precision", "bf16-pure"), ("optimizer-state", "8bit")];
    let together = together.map(|(setting, value)| (setting, value.to_owned()));
    assert_eq!(ways[0], together, "{ways:?}");
    assert_eq!(ways[1], [("host-ram", "48GiB".to_owned())], "{ways:?}");
    assert_eq!(ways[2], [("method", "lora".to_owned())], "{ways:?}");
    // Few points of Llama 3.2 3B fit with both.
    let ways = ways_out("llama-3.2-3b", 24);
    assert_eq!(ways[0], together, "{ways:?}");
    assert_eq!(ways[1..], [[("host-ram", "48GiB".to_owned())], [("method", "lora".to_owned())]]);
    // Weights that are larger than the card rest on the host, if that has room. Qwen 2.5 1.5B is larger than Llama 3.2 1B, and
    // another model.
    let ways = ways_out("llama-3.1-8b", 24);
    let expected = [("host-ram", "128GiB"), ("method", "lora"), ("model", "llama-3.2-1b")];
    assert_eq!(ways, expected.map(|(setting, value)| [(setting, value.to_owned())]));
}

/// Moments in eight bits and shorter sequences are enough together, and neither is alone.
#[test]
fn ways_out_combine_fewer_bits_with_shorter_sequences() {
    let mut model = small_model(4, 64, 512);
    model.set_max_positions(512);
    let within = |device: u64| Request {
        global_batch: 1,
        seq_len: 512,
        budget: Budget::shared(Bytes(device)),
        levers: LeverRequest { precision: Precision::Bf16Pure, ..LeverRequest::default() },
        ..Request::new(model.clone(), Targets::cpu(2), Machine::of_rates(Rates::guess(2)))
    };
    let eight_bits = |request: &Request| Request {
        levers: LeverRequest { optimizer_state: Some(StateFormat::Blockwise8), ..request.levers },
        ..request.clone()
    };
    let fits = |request: &Request| search(request).expect("a sensible request").is_ok();
    let shortest = |request: Request| Request { seq_len: 16, ..request };
    // From the least that both need together on, up to where one is enough.
    let mut device = 1 << 16;
    while !fits(&shortest(eight_bits(&within(device)))) {
        device += device / 16;
    }
    assert!(!fits(&eight_bits(&within(device))) && !fits(&shortest(within(device))), "{device} bytes");
    let misfit = search(&within(device)).expect("a sensible request").expect_err("too large");
    let ways = misfit.nearest.iter().map(|way| way.changes.iter().map(|change| change.setting).collect::<Vec<_>>());
    let ways = ways.collect::<Vec<_>>();
    assert!(ways.iter().any(|way| way[0] == "optimizer-state" && way.len() == 2), "{ways:?}");
}

#[test]
fn a_model_that_nobody_published_is_no_way_out() {
    let request = Request {
        budget: Budget::shared(Bytes::mib(400)),
        seq_len: 16,
        ..Request::new(
            ModelConfig::preset("gpt2-medium").expect("a preset"),
            Targets::cpu(1),
            Machine::of_rates(Rates::guess(1)),
        )
    };
    let misfit = search(&request).expect("a sensible request").expect_err("too large");
    let models = misfit.nearest.iter().flat_map(|way| &way.changes).filter(|change| change.setting == "model");
    assert_eq!(models.count(), 0, "`nano` would fit: {:?}", misfit.nearest);
}
