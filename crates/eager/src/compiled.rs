//! What `torch.compile` may save for the backward pass, compared with what its partitioner saved for small models:
//! `scripts/record_compiled.py`.

use crate::golden::Record;
use crate::runtime::Event;
use crate::sharding::Bound;
use crate::step::Steps;
use crate::usage::Phase;
use plimsoll_trainers::Run;

/// Bytes that the last forward pass saved.
fn saved(steps: &Steps) -> u64 {
    let (mut live, mut before, mut left) = (0, 0, 0);
    for event in &steps.events {
        match event {
            Event::Enter(Phase::Forward) => before = live,
            Event::Enter(Phase::Backward) => left = live - before,
            Event::Enter(_) => {}
            Event::Allocate(id) => live += steps.records[*id as usize].bytes,
            Event::Free(id) => live -= steps.records[*id as usize].bytes,
        }
    }
    left
}

#[test]
fn saved_bytes_of_a_compiled_model_are_within_the_range() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compiled.txt")).expect("the records");
    let mut records = 0;
    for line in text.lines() {
        let (name, bytes) = line.split_once(' ').expect("a name and bytes");
        let bytes = bytes.parse::<u64>().expect("bytes");
        let record = Record::named(name);
        let run = Run { compiles: true, ..record.run() };
        let [least, most] = [Bound::Least, Bound::Most].map(|bound| saved(&record.steps_of(&run, bound)));
        println!("{name}: {least} <= {bytes} <= {most}");
        assert!(least <= bytes && bytes <= most, "{name}: {bytes} recorded, {least} to {most} here");
        // A range that is too wide would contain every value.
        assert!(least > bytes / 3 && most < 3 * bytes, "{name}: {bytes} recorded, {least} to {most} here");
        records += 1;
    }
    assert_eq!(records, 9);
}

/// Fused operands of a product are in memory while it runs: GPT-2's second feed-forward layer reads 3 x 40 rows of 4 x
/// 48 channels in single precision.
#[test]
fn fused_operands_of_a_product_are_in_memory_while_it_runs() {
    let record = Record::named("gpt2-sdpa-fp32");
    let run = Run { compiles: true, ..record.run() };
    let fused = |bound| {
        let steps = record.steps_of(&run, bound);
        let read = steps.records.iter().filter(|record| record.op == "fused" && record.bytes == 3 * 40 * 4 * 48 * 4);
        read.count()
    };
    assert!(fused(Bound::Least) > 0);
    assert_eq!(fused(Bound::Most), 0, "eager steps fuse nothing");
}
