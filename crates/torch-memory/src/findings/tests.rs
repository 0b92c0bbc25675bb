//! Programs with a leak, with copies, and with neither.

use super::*;
use crate::allocator::{BlockId, Request};
use crate::record::Recorder;
use crate::replay::{Replay, replay};
use crate::snapshot::{AllocatorSettings, Snapshot, StackId};
use crate::what_if::{Program, best};

const MIB: u64 = 1 << 20;
const TRAIN: &str = "/home/me/train.py";
const TORCH: &str = "/usr/lib/python3/site-packages/torch/nn/modules/module.py";

fn recorder() -> Recorder {
    Recorder::new(AllocatorSettings::default(), 4000 * MIB, None)
}

fn allocate(recorder: &mut Recorder, bytes: u64, stack: StackId) -> BlockId {
    recorder.allocate(Request { bytes, stream: 0, pool: (0, 0) }, stack).expect("there is room")
}

/// A model with `scale` bytes per element.
fn model(recorder: &mut Recorder, scale: u64, function: &str, line: u32) -> Vec<BlockId> {
    let stack = recorder.stack(&[
        ("convert", TORCH, 1150),
        ("_apply", TORCH, 780),
        ("to", TORCH, 1160),
        (function, TRAIN, line),
    ]);
    let sizes = [50_000_000, 768 * 1000, 768, 768 * 3072, 3072, 768 * 3072];
    sizes.iter().map(|elements| allocate(recorder, elements * scale, stack)).collect()
}

/// A training step: temporary activations, and `kept` bytes that remain.
fn step(recorder: &mut Recorder, kept: u64) {
    let forward = recorder.stack(&[("forward", TRAIN, 30), ("_call_impl", TORCH, 1700)]);
    let activations = (1..=20).map(|n| allocate(recorder, n * 100_000, forward)).collect::<Vec<_>>();
    let loss = recorder.stack(&[("log", TRAIN, 77)]);
    if kept > 0 {
        allocate(recorder, kept, loss);
    }
    activations.into_iter().for_each(|block| recorder.free(block));
}

fn replayed(recorder: &Recorder) -> (Snapshot, Replay) {
    let snapshot = recorder.snapshot(usize::MAX);
    let replay = replay(&snapshot.cards[0], &snapshot.settings);
    assert!(replay.agreement.is_whole());
    (snapshot, replay)
}

fn copies_of(recorder: &Recorder) -> Vec<(Vec<(String, u64)>, u64)> {
    let (snapshot, replay) = replayed(recorder);
    let owners = Owners::of(&snapshot.stacks);
    let found = copies(&replay, &snapshot.stacks, &owners, peak_event(&replay));
    let words = |copy: &Copy| (owners.get(copy.owner).to_string(), copy.bytes);
    found.iter().map(|copies| (copies.copies.iter().map(words).collect(), copies.wasted)).collect()
}

#[test]
fn a_model_that_is_moved_twice_is_found_with_both_lines() {
    let bytes = (50_000_000 + 768 * 1000 + 768 + 2 * 768 * 3072 + 3072) as u64;
    let mut twice = recorder();
    model(&mut twice, 4, "load", 10);
    model(&mut twice, 2, "main", 14);
    let lines = vec![("load (train.py:10)".to_owned(), 4 * bytes), ("main (train.py:14)".to_owned(), 2 * bytes)];
    assert_eq!(copies_of(&twice), [(lines, 4 * bytes)]);
    // A model that is freed before the next is created is not a copy.
    let mut moved = recorder();
    let first = model(&mut moved, 4, "load", 10);
    first.into_iter().for_each(|block| moved.free(block));
    model(&mut moved, 4, "main", 14);
    assert_eq!(copies_of(&moved), []);
    // An optimizer's moments have the sizes of the weights, and are not copies.
    let mut trained = recorder();
    model(&mut trained, 4, "load", 10);
    let stack = trained.stack(&[("zeros_like", TORCH, 3), ("step", TRAIN, 40)]);
    for elements in [50_000_000, 768 * 1000, 768, 768 * 3072, 3072, 768 * 3072u64] {
        allocate(&mut trained, 4 * elements, stack);
    }
    assert_eq!(copies_of(&trained), []);
}

#[test]
fn only_growth_from_step_to_step_is_found() {
    for kept in [0, 3_000_000] {
        let mut recorder = recorder();
        model(&mut recorder, 4, "load", 10);
        (0..5).for_each(|_| step(&mut recorder, kept));
        let (snapshot, replay) = replayed(&recorder);
        let owners = Owners::of(&snapshot.stacks);
        let steps = Steps::of(&snapshot.cards[0], &replay, &snapshot.annotations);
        assert!(steps.are_enough() && !steps.annotated, "{steps:?}");
        assert_eq!(steps.ends.len(), 4);
        let grows = growth(&replay, &owners, &steps);
        let words = grows.iter().map(|growth| (owners.get(growth.owner).to_string(), growth.steps)).collect::<Vec<_>>();
        let expected = if kept > 0 { vec![("log (train.py:77)".to_owned(), 2)] } else { vec![] };
        assert_eq!(words, expected);
        assert!(grows.iter().all(|growth| growth.bytes >= 2 * kept));
    }
}

/// Layers of a forward pass recur like steps, but are not steps: their memory remains for the backward pass.
#[test]
fn layers_are_not_steps() {
    let mut recorder = recorder();
    let forward = recorder.stack(&[("forward", TRAIN, 30), ("_call_impl", TORCH, 1700)]);
    for _layer in 0..12 {
        let made = (1..=20).map(|n| allocate(&mut recorder, n * 100_000, forward)).collect::<Vec<_>>();
        made.into_iter().step_by(2).for_each(|block| recorder.free(block));
    }
    let (snapshot, replay) = replayed(&recorder);
    assert_eq!(Steps::of(&snapshot.cards[0], &replay, &[]).ends, [0; 0]);
}

#[test]
fn owners_are_the_programs_lines_before_any_librarys() {
    let mut recorder = recorder();
    let stacks = [
        recorder.stack(&[("linear", TORCH, 1), ("forward", "/me/model.py", 7), ("main", TRAIN, 9)]),
        recorder.stack(&[
            ("torch::unwind::unwind()", "??", 0),
            ("torch::autograd::generated::MmBackward0::apply(int&&)", "??", 0),
        ]),
        recorder.stack(&[("convert", TORCH, 5)]),
        recorder.stack(&[
            ("torch::unwind::unwind()", "??", 0),
            ("at::(anonymous namespace)::addmm(at::Tensor const&)", "??", 0),
        ]),
        StackId(0),
    ];
    let owners = Owners::of(&recorder.snapshot(0).stacks);
    let words = stacks.map(|stack| owners.get(owners.index(stack)).to_string());
    let expected =
        ["forward (model.py:7)", "backward: MmBackward0", "convert (module.py:5)", "at::addmm", "(no stack recorded)"];
    assert_eq!(words, expected);
}

/// Blocks of increasing sizes leave holes that only expandable segments can reuse.
#[test]
fn the_setting_with_the_lowest_peak_is_recommended() {
    let mut recorder = recorder();
    let stack = recorder.stack(&[("forward", TRAIN, 30)]);
    for n in 1..30 {
        let block = allocate(&mut recorder, (20 + 3 * n) * MIB, stack);
        recorder.free(block);
    }
    let (snapshot, replay) = replayed(&recorder);
    let program = Program::of(&snapshot.cards[0], &replay, &snapshot.stacks);
    let outcomes =
        program.candidates(&snapshot.settings, None).iter().map(|settings| program.run(settings)).collect::<Vec<_>>();
    let recorded = replay.memory.iter().map(|moment| moment.reserved).max();
    assert_eq!(
        Some(outcomes[0].peak_reserved),
        recorded,
        "from an empty allocator, the recorded setting is the recording"
    );
    let best = best(&outcomes).expect("there are settings");
    assert_eq!(best.settings.conf(), "expandable_segments:True");
    assert_eq!(best.peak_reserved, 120 * MIB, "the largest block, in whole units of 20 MiB");
    let least = program.least(snapshot.cards[0].events.len()).expect("sizes do not overflow");
    assert_eq!((least.bound, least.packed), (107 * MIB, Some(107 * MIB)));
}

/// The card was too small only because of holes; another setting would have succeeded.
#[test]
fn a_setting_that_serves_the_refused_request_is_recommended() {
    let mut recorder = Recorder::new(AllocatorSettings::default(), 200 * MIB, None);
    let stack = recorder.stack(&[("forward", TRAIN, 30)]);
    let blocks = [40, 40, 40, 40].map(|mib| allocate(&mut recorder, mib * MIB, stack));
    let kept = [0, 2].map(|index| blocks[index]);
    // A part of each block is reused, so that neither can be freed.
    blocks.iter().filter(|block| !kept.contains(block)).for_each(|block| recorder.free(*block));
    for mib in [22, 22] {
        allocate(&mut recorder, mib * MIB, stack);
    }
    assert!(recorder.allocate(Request { bytes: 50 * MIB, stream: 0, pool: (0, 0) }, stack).is_err());
    let (snapshot, replay) = replayed(&recorder);
    let program = Program::of(&snapshot.cards[0], &replay, &snapshot.stacks);
    assert_eq!(program.capacity, Some(200 * MIB));
    let outcomes =
        program.candidates(&snapshot.settings, None).iter().map(|settings| program.run(settings)).collect::<Vec<_>>();
    assert_eq!(outcomes[0].refused, 1);
    let best = best(&outcomes).expect("there are settings");
    assert_eq!((best.refused, best.settings.conf().as_str()), (0, "expandable_segments:True"));
}

/// All ways of summing up memory agree.
#[test]
fn memory_over_time_and_the_map_add_up() {
    for conf in ["", "expandable_segments:True"] {
        let mut settings = AllocatorSettings::default();
        settings.set(conf);
        let mut recorder = Recorder::new(settings, 4000 * MIB, None);
        model(&mut recorder, 4, "load", 10);
        (0..4).for_each(|_| step(&mut recorder, 2_000_000));
        recorder.empty_cache(StackId(0));
        model(&mut recorder, 2, "main", 14);
        let (snapshot, replay) = replayed(&recorder);
        let owners = Owners::of(&snapshot.stacks);
        let all = over_time(&replay, &owners, usize::MAX, owners.count(), |owner| owner);
        assert_eq!(all.len(), replay.memory.len());
        for (stretch, moment) in all.iter().zip(&replay.memory) {
            assert_eq!((stretch.owned.iter().sum::<u64>(), stretch.reserved), (moment.in_use, moment.reserved));
            let mapped = mapped_at(&snapshot.cards[0], &replay, stretch.moment);
            assert_eq!(
                mapped.iter().flat_map(|mapped| &mapped.used).map(|life| life.bytes).sum::<u64>(),
                moment.in_use
            );
            if all.last() == Some(stretch) {
                assert_eq!(mapped.iter().map(|mapped| mapped.bytes).sum::<u64>(), moment.reserved);
            }
        }
        let few = over_time(&replay, &owners, 7, 1, |_| 0);
        assert_eq!(few.len(), 7);
        let highest = |memory: &mut dyn Iterator<Item = u64>| memory.max();
        assert_eq!(
            highest(&mut few.iter().map(|stretch| stretch.owned[0])),
            highest(&mut replay.memory.iter().map(|moment| moment.in_use))
        );
    }
}
