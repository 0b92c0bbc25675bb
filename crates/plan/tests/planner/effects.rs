//! What levers leave in a plan, and what reports say of them.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{MemoryId, Op, Optimizer, Pass, Targets, TensorId};
use plimsoll_plan::{
    Budget, Found, Level, LeverRequest, Machine, Rates, Recompute, Request, card, lever_effects, search,
};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;

/// Of a small model on a card, with clipping: what is measured of all gradients is needed before the updates.
fn request(levers: LeverRequest) -> Request {
    Request {
        optimizer: Optimizer { grad_clip: Some(1.0), ..Optimizer::default() },
        seq_len: 64,
        global_batch: 4,
        micro_batch: Some(4),
        budget: Budget::apart(Bytes::gib(8), Bytes::gib(8)),
        levers,
        ..Request::new(
            ModelConfig::preset("nano").expect("a preset"),
            Targets::cuda((8, 6), 2),
            Machine::of_rates(Rates::of_card(card("3060").expect("a known card"))),
        )
    }
}

fn found(request: &Request) -> Found {
    search(request).expect("a sensible request").expect("eight gibibytes are enough")
}

#[test]
fn what_is_recomputed_is_marked_so_and_nothing_else_is() {
    for (level, recomputes) in [(Level::None, false), (Level::Cheap, true), (Level::Block, true)] {
        let levers = LeverRequest { recompute: Some(Recompute::all(level)), ..LeverRequest::default() };
        let plan = found(&request(levers)).plan;
        let mut again = 0;
        for step in plan.programs.iter().flat_map(|program| &program.steps) {
            let makes_again = step.outputs.iter().any(|&id| plan[id].name.contains("/again"));
            assert_eq!(step.pass == Pass::Recompute, makes_again, "{level:?}: {step:?}");
            again += usize::from(makes_again);
        }
        assert_eq!(again > 0, recomputes, "{level:?}");
    }
}

/// A gradient that was sent to the host is measured there: only the norm of it comes back.
#[test]
fn a_gradient_on_the_host_is_measured_there() {
    for part in [0.5, 1.0] {
        let plan = found(&request(LeverRequest { optimizer_offload: Some(part), ..LeverRequest::default() })).plan;
        let (mut on_host, mut came_back) = (0, BTreeSet::<TensorId>::new());
        for step in plan.programs.iter().flat_map(|program| &program.steps) {
            if matches!(step.op, Op::Transfer(_)) {
                let to_device = |id: &&TensorId| plan[**id].memory == MemoryId::DEVICE && plan[**id].ty.elements() > 1;
                came_back.extend(step.outputs.iter().filter(to_device));
            }
            if step.op.name() == "grad_norm" {
                on_host += usize::from(step.memory == MemoryId::HOST);
                let large = step.inputs.iter().find(|id| came_back.contains(id));
                assert_eq!(large.map(|&id| &plan[id].name), None, "{part} of the optimizer on the host");
            }
        }
        assert!(on_host > 0, "{part} of the optimizer is on the host, so some gradients are measured there");
    }
}

#[test]
fn an_effect_is_told_of_each_lever_that_is_pulled_and_of_no_other() {
    let blocks = ModelConfig::preset("nano").expect("a preset").blocks();
    let of = |recompute, optimizer_offload, head_chunk| LeverRequest {
        recompute: Some(recompute),
        optimizer_offload: Some(optimizer_offload),
        head_chunk: Some(head_chunk),
        attention_rows: Some(64),
        update_in_backward: Some(false),
        ..LeverRequest::default()
    };
    let some = Recompute { blocks: 1, first: Level::Block, rest: Level::Cheap };
    let (in_some, rows) = (format!("blocks in 1 of {blocks}, cheap in the rest"), 4 * 64);
    for (recompute, offload, chunk, told) in [
        (Recompute::all(Level::None), 0.0, rows, ["none", "0 %", "256 of 256 rows"]),
        (Recompute::all(Level::Block), 0.5, 16, ["blocks", "50 %", "16 of 256 rows"]),
        (some, 1.0, rows - 1, [in_some.as_str(), "100 %", "255 of 256 rows"]),
        (Recompute { blocks, ..some }, 0.0, 2 * rows, ["blocks", "0 %", "256 of 256 rows"]),
    ] {
        let request = request(of(recompute, offload, chunk));
        let effects = lever_effects(&request, &found(&request)).expect("levers that go together");
        let effect = |name: &str| effects.iter().find(|effect| effect.name == name).expect("a lever of this name");
        let pulled = [recompute != Recompute::all(Level::None), offload > 0.0, chunk < rows];
        for ((name, told), pulled) in ["recompute", "optimizer-offload", "head-chunk"].into_iter().zip(told).zip(pulled)
        {
            let effect = effect(name);
            assert_eq!((effect.setting.as_str(), effect.on), (told, pulled), "{name}");
            assert!(pulled || (effect.saved_bytes, effect.host_bytes, effect.added_time) == (0, 0, 0.0), "{effect:?}");
        }
        assert!(!pulled[1] || effect("optimizer-offload").host_bytes > 0, "{:?}", effect("optimizer-offload"));
        assert!(!pulled[0] || effect("recompute").added_time > 0.0, "{:?}", effect("recompute"));
    }
}
