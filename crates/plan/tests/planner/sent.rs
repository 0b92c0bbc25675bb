//! Activations that wait on the host: what is sent, what that frees and costs, and when it is chosen.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{MemoryId, Op, Optimizer, Pass, ProgramKind, Targets, TensorId};
use plimsoll_plan::{
    Budget, Found, Level, LeverRequest, Machine, Misfit, Precision, Rates, Recompute, Request, Step, card,
    lever_effects, search,
};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// Of a model in bf16 on a card, whole batches of one micro-batch, with so much of the blocks sent.
fn request(model: &str, part: Option<f64>, recompute: Option<Level>) -> Request {
    let card = card("4090").expect("a known card");
    let levers = LeverRequest {
        precision: Precision::Bf16,
        recompute: recompute.map(Recompute::all),
        activation_offload: part,
        optimizer_offload: Some(0.0),
        ..LeverRequest::default()
    };
    let model = ModelConfig::preset(model).expect("a preset");
    Request {
        optimizer: Optimizer { grad_clip: Some(1.0), ..Optimizer::default() },
        seq_len: 512,
        target_len: model.decoder_start().map(|_| 128),
        global_batch: 4,
        micro_batch: Some(4),
        budget: Budget::apart(Bytes::gib(40), Bytes::gib(40)),
        levers,
        ..Request::new(model, Targets::cuda(card.compute_capability, 8), Machine::of_rates(Rates::of_card(card)))
    }
}

fn within(request: &Request, [device, host]: [u64; 2]) -> Result<Found, Box<Misfit>> {
    let budget = Budget::apart(Bytes(device), Bytes(host));
    search(&Request { budget, ..request.clone() }).expect("a sensible request")
}

fn found(request: &Request) -> Found {
    search(request).expect("a sensible request").expect("40 GiB are enough")
}

/// Each goes away once and comes back once, the host keeps nothing else, and what is recomputed is not sent.
#[test]
fn what_the_backward_pass_reads_goes_away_and_comes_back() {
    for (model, level) in [("gpt2", Level::None), ("smollm2-135m", Level::Cheap), ("t5-small", Level::Block)] {
        let plan = found(&request(model, Some(1.0), Some(level))).plan;
        let program = plan.program(ProgramKind::MicroStep).expect("training has one");
        let mut moves = BTreeMap::<TensorId, Vec<MemoryId>>::new();
        for step in program.steps.iter().filter(|step| matches!(step.op, Op::Transfer(_))) {
            let (from, to) = (step.inputs[0], step.outputs[0]);
            let (on_host, memory) =
                if plan[to].memory == MemoryId::HOST { (to, MemoryId::HOST) } else { (from, MemoryId::DEVICE) };
            assert!(!plan[from].name.contains("/again"), "{model}: {} is recomputed", plan[from].name);
            assert_eq!(step.pass == Pass::Forward, memory == MemoryId::HOST, "{model}: {}", plan[from].name);
            moves.entry(on_host).or_default().push(memory);
        }
        let blocks = request(model, None, None).model.blocks();
        // Of blocks that are recomputed from their input, only that is kept.
        assert!(moves.len() + 2 >= blocks, "{model}: {} tensors of {blocks} blocks", moves.len());
        assert!(moves.values().all(|places| *places == [MemoryId::HOST, MemoryId::DEVICE]), "{model}: {moves:?}");
        let host = plan.tensors.iter().filter(|tensor| tensor.memory == MemoryId::HOST);
        assert!(host.clone().all(|tensor| tensor.name.ends_with("/host")), "{model}");
        assert_eq!(plan.host().0 > 0, host.count() > 0);
    }
}

/// Whatever the number of blocks, what is on its way to the host is no more than four blocks have, and during the output head no more than the
/// last block and half of another; and of what came back no more than a block is still to be read, but for what is needed at once.
#[test]
fn no_more_than_four_blocks_are_on_their_way_and_one_back() {
    for (model, level, part) in [
        ("gpt2", Level::None, 1.0),
        ("gpt2", Level::Cheap, 0.9),
        ("gpt2", Level::Attention, 0.3),
        ("smollm2-135m", Level::Cheap, 0.5),
        ("t5-small", Level::Cheap, 0.9),
    ] {
        let plan = found(&request(model, Some(part), Some(level))).plan;
        let program = plan.program(ProgramKind::MicroStep).expect("training has one");
        let bytes = |id: TensorId| plan[id].ty.bytes().0;
        let is_from = |step: &Step, memory| matches!(step.op, Op::Transfer(_)) && plan[step.inputs[0]].memory == memory;
        let is_op = |step: &Step| !matches!(step.op, Op::Transfer(_) | Op::AwaitTransfer(_));
        let mut of_blocks = BTreeMap::<_, u64>::new();
        for step in program.steps.iter().filter(|step| is_from(step, MemoryId::DEVICE)) {
            *of_blocks.entry(step.block).or_default() += bytes(step.inputs[0]);
        }
        let (last, window) = (request(model, None, None).model.blocks() as u32 - 1, of_blocks.into_values().max());
        let window = window.expect("some are sent");
        let (mut to_host, mut unread, mut most) = (BTreeMap::new(), Vec::new(), [0; 2]);
        for (index, step) in program.steps.iter().enumerate() {
            let later = &program.steps[index + 1..];
            if is_from(step, MemoryId::DEVICE) {
                to_host.insert(step.inputs[0], step.block);
            } else if is_from(step, MemoryId::HOST) {
                let from_now = later.iter().filter(|step| is_op(step));
                let fetched = step.outputs[0];
                let is_needed = from_now.take(1).any(|step| step.inputs.contains(&fetched));
                unread.push(fetched);
                let in_all = unread.iter().map(|id| bytes(*id)).sum::<u64>();
                assert!(in_all <= window || is_needed, "{model}, {part}: {in_all} of {window}");
                most[1] = in_all.max(most[1]);
            } else if matches!(step.op, Op::AwaitTransfer(_)) {
                to_host.remove(&step.inputs[0]);
            } else if step.block.is_none() && step.pass != Pass::Forward {
                let early = to_host.iter().filter(|(_, block)| **block != Some(last)).map(|(id, _)| bytes(*id));
                assert!(2 * early.sum::<u64>() <= window, "{model}, {part}: {to_host:?}");
            }
            unread.retain(|id| later.iter().any(|step| step.inputs.contains(id)));
            // What the forward pass still reads is there anyway.
            let from_here = program.steps[index..].iter().filter(|s| s.pass == Pass::Forward && is_op(s));
            let is_read = |id: &TensorId| from_here.clone().any(|step| step.inputs.contains(id));
            let held = to_host.keys().filter(|id| !is_read(id)).map(|id| bytes(*id)).sum::<u64>();
            assert!(held <= 4 * window || !is_op(step), "{model}, {part}: {held} of {window}");
            most[0] = held.max(most[0]);
        }
        assert!(most.iter().all(|bytes| 4 * bytes > window), "{model}, {part}: {most:?} of {window}");
    }
}

/// One block more never takes more of the device, nor less time.
#[test]
fn the_more_is_sent_the_less_is_kept_and_the_longer_it_takes() {
    for (model, level) in [("gpt2", Level::None), ("gpt2", Level::Block), ("t5-small", Level::Cheap)] {
        let blocks = request(model, None, None).model.blocks();
        let all = (0..=blocks).map(|sent| found(&request(model, Some(sent as f64 / blocks as f64), Some(level))));
        let all = all.collect::<Vec<_>>();
        let counts = all.iter().map(|found| found.settings.levers.activation_offload).collect::<Vec<_>>();
        assert_eq!(counts, (0..=blocks).collect::<Vec<_>>(), "{model}");
        let host = all.iter().map(|found| found.plan.host().0).collect::<Vec<_>>();
        // The head may read all that the last block keeps except its input, so it stays.
        assert!(
            host.is_sorted() && host.windows(2).filter(|pair| pair[0] == pair[1]).count() <= 1,
            "{model}: {host:?}"
        );
        let steps = all.iter().map(|found| found.step.0).collect::<Vec<_>>();
        assert!(steps.is_sorted_by(|a, b| *a <= b * (1.0 + 1e-9)), "{model}: {steps:?}");
        // A block is on its way; what is sent beyond it is gone. A decoder's are much smaller than an encoder's.
        let part = if model.starts_with("t5") { 0.25 } else { 0.8 };
        let saved = all[1].plan.peak().0.saturating_sub(all[blocks - 1].plan.peak().0);
        let sent = all[blocks - 1].plan.host().0 - all[1].plan.host().0;
        assert!(saved as f64 > part * sent as f64 || level == Level::Block, "{model}: {saved} bytes for {sent}");
    }
}

/// A few of many blocks go while others are computed; all of them are too many for the link, which is said.
#[test]
fn transfers_hide_behind_what_computes_as_long_as_the_link_is_fast_enough() {
    // A link of the next generation's rate, so that tensor cores leave it time for a few.
    let rates = Rates::of_card(card("4090").expect("a known card"));
    let machine = Machine::of_rates(Rates { transfer_bytes_per_s: 2.0 * rates.transfer_bytes_per_s, ..rates });
    let request = |part| {
        let request = request("gpt2-medium", Some(part), Some(Level::None));
        Request { seq_len: 1024, machine: machine.clone(), ..request }
    };
    let (none, few, all) = (found(&request(0.0)), found(&request(0.15)), found(&request(1.0)));
    assert!(few.step.0 < 1.005 * none.step.0, "{:?} and {:?}", few.step, none.step);
    assert!(all.step.0 > 1.5 * none.step.0, "{:?} and {:?}", all.step, none.step);
    let note = |found: &Found, request: &Request| {
        let effects = lever_effects(request, found).expect("a sensible request");
        let effect = effects.into_iter().find(|effect| effect.name == "activation-offload").expect("one of the levers");
        (effect.on, effect.host_bytes > 0, effect.note)
    };
    assert_eq!(note(&none, &request(0.0)), (false, false, None));
    assert_eq!(note(&few, &request(0.15)), (true, true, None));
    let (on, takes_host, words) = note(&all, &request(1.0));
    let added = 1e3 * (all.step.0 - none.step.0);
    assert!(
        on && takes_host && words.clone().is_some_and(|words| words.contains(&format!("{added:.0} ms"))),
        "{words:?}"
    );
}

/// What is too little for recomputation alone is enough for some that is sent; never slower than without.
#[test]
fn what_a_budget_makes_necessary_is_sent() {
    let open = Request { micro_batch: None, seq_len: 1024, ..request("gpt2-medium", None, None) };
    let off = LeverRequest { activation_offload: Some(0.0), ..open.levers };
    let off = Request { levers: off, ..open.clone() };
    let most = found(&off).plan.peak().0;
    let (mut faster, mut sent) = (0, 0);
    for part in [78, 80, 82, 85, 90, 95, 100] {
        let budgets = [most * part / 100, Bytes::gib(40).0];
        let Ok(with) = within(&open, budgets) else { panic!("{part} % is enough") };
        sent += usize::from(with.settings.levers.activation_offload > 0);
        if let Ok(without) = within(&off, budgets) {
            assert_eq!(without.plan.host().0, 0);
            assert!(with.step.0 <= without.step.0, "{part} %");
            faster += usize::from(with.step.0 < 0.995 * without.step.0);
        }
    }
    assert!(sent >= 4 && faster >= 2, "sent at {sent} budgets, faster at {faster}");
}

/// Where only that would fit, and the host has too little as well, both budgets are short.
#[test]
fn a_host_that_is_too_small_is_told_with_the_device() {
    let request = Request { seq_len: 1024, ..request("gpt2-medium", Some(1.0), Some(Level::None)) };
    let fitting = found(&request);
    let exact = [fitting.plan.peak().0, fitting.plan.host().0];
    assert!(within(&request, exact).is_ok());
    let misfit = within(&request, [exact[0], exact[1] - 1]).expect_err("a byte too little");
    let short = |misfit: &Misfit| [MemoryId::DEVICE, MemoryId::HOST].map(|memory| misfit.short[memory]);
    assert_eq!(short(&misfit).map(|short| short > Bytes::ZERO), [false, true]);
    let misfit = within(&request, [exact[0] / 2, exact[1] / 2]).expect_err("half as much");
    assert_eq!(short(&misfit).map(|short| short > Bytes::ZERO), [true, true], "{:?}", misfit.short);
    assert_eq!(misfit.plan.host().0 - misfit.short[MemoryId::HOST].0, exact[1] / 2);
}

#[test]
fn on_one_memory_nothing_is_sent_unasked_and_it_saves_nothing() {
    let of = |part| {
        let recompute = Some(Recompute::all(Level::None));
        let levers = LeverRequest { activation_offload: part, recompute, ..LeverRequest::default() };
        let model = ModelConfig::preset("nano").expect("a preset");
        let machine = Machine::of_rates(Rates::guess(2));
        let budget = Budget::shared(Bytes::gib(1));
        Request {
            levers,
            budget,
            micro_batch: Some(4),
            global_batch: 4,
            ..Request::new(model, Targets::cpu(2), machine)
        }
    };
    let (open, none, all) = (found(&of(None)), found(&of(Some(0.0))), found(&of(Some(1.0))));
    assert_eq!((open.plan.host().0, open.settings), (0, none.settings));
    let in_all = |found: &Found| found.plan.peak().0 + found.plan.host().0;
    assert!(all.plan.host().0 > 0 && in_all(&all) >= in_all(&none), "{} and {}", in_all(&all), in_all(&none));
    assert!(all.step > none.step, "it costs copies");
    let effects = lever_effects(&of(Some(1.0)), &all).expect("a sensible request");
    let note = effects.iter().find(|effect| effect.name == "activation-offload").and_then(|effect| effect.note.clone());
    assert!(note.is_some_and(|note| note.contains("saves nothing")), "{effects:?}");
}
