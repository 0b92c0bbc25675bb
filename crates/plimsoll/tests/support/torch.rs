//! A snapshot of a training run as PyTorch writes it, made on the simulated allocator: the weights of a model that is moved
//! to the card twice, and steps that leave something behind.

use plimsoll_torch_memory::allocator::Request;
use plimsoll_torch_memory::record::{Recorder, write};
use plimsoll_torch_memory::snapshot::AllocatorSettings;

/// Where the program lies.
const TRAIN: &str = "/home/me/train.py";
const MODULE: &str = "/usr/lib/python3/site-packages/torch/nn/modules/module.py";

/// The snapshot's pickle: five steps under PyTorch's default settings, with growing batches, which leave holes.
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
