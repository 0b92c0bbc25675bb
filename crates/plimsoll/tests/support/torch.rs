//! A snapshot of a training run in PyTorch's format, from the simulated allocator: a model's weights, which move to the
//! card twice, and steps that leave tensors allocated.

use plimsoll_torch_memory::allocator::Request;
use plimsoll_torch_memory::record::{Recorder, write};
use plimsoll_torch_memory::snapshot::AllocatorSettings;

/// File name of the program.
const TRAIN: &str = "/home/me/train.py";
const MODULE: &str = "/usr/lib/python3/site-packages/torch/nn/modules/module.py";

/// The snapshot as a pickle: five steps with PyTorch's default settings and growing batches, which leave holes.
pub fn snapshot() -> Vec<u8> {
    let mut recorder = Recorder::new(AllocatorSettings::default(), 16 << 30, None);
    let allocate = |recorder: &mut Recorder, bytes, stack| {
        recorder.allocate(Request { bytes, stream: 0, pool: (0, 0) }, stack).expect("there is room")
    };
    for (function, line, width) in [("load", 10, 4), ("main", 14, 2)] {
        let stack = recorder.stack(&[("convert", MODULE, 1150), ("to", MODULE, 1160), (function, TRAIN, line)]);
        for elements in [5_000_000, 768 * 1024, 768, 768 * 3072, 3072, 768 * 3072] {
            allocate(&mut recorder, width * elements, stack);
        }
    }
    let forward = recorder.stack(&[("linear", MODULE, 9), ("forward", TRAIN, 31), ("main", TRAIN, 20)]);
    let log = recorder.stack(&[("log", TRAIN, 77), ("main", TRAIN, 21)]);
    for step in 1..=5 {
        let activations =
            (1..=20).map(|n| allocate(&mut recorder, (n * (4 + step)) << 18, forward)).collect::<Vec<_>>();
        allocate(&mut recorder, 3 << 20, log);
        activations.into_iter().for_each(|block| recorder.free(block));
    }
    write(&recorder.snapshot(usize::MAX))
}
