//! Loading streams weights out of the mapped files into the arena: beside the arena it takes one tensor at most, and
//! nothing where the weights are in the wanted precision already.

mod support;

use graph::models::{Gpt2Config, ModelConfig};
use peak_alloc::PeakAlloc;
use plan::{Levers, Precision};
use std::fs;
use support::weights::{deserialize, write_shards};
use support::{Setup, tiny_gpt2};
use train::checkpoint::{MODEL_FILE, load_weights};
use train::{Ending, Start};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Room for names, the file's header and the like.
const SMALL: usize = 64 << 10;

const WANTED: [Precision; 4] = [Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure];

fn setup(precision: Precision) -> Setup {
    let model = ModelConfig::Gpt2(Gpt2Config { n_embd: 256, vocab_size: 2_000, ..tiny_gpt2() });
    Setup { model, levers: Levers { precision, ..Levers::default() }, steps: 1, ..Setup::default() }
}

#[test]
fn loading_takes_the_arena_and_one_tensor() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let largest_f32 = 4 * 2_000 * 256;
    for stored in [Precision::Fp32, Precision::Bf16Pure] {
        let run = folder.path().join(format!("{stored:?}"));
        let (ending, _, checkpoint) = setup(stored).run(&run, &Start::Fresh, |_: &_, _: &_| {});
        assert_eq!(ending, Ending::Finished);
        let checkpoint = checkpoint.expect("a run that ended has a checkpoint");
        let bytes = checkpoint.join(MODEL_FILE).metadata().expect("a whole checkpoint").len() as usize;
        assert!(bytes > 2 * largest_f32 / if stored == Precision::Fp32 { 1 } else { 2 }, "one tensor is all there is");
        let sharded = run.join("sharded");
        fs::create_dir(&sharded).expect("a new folder");
        write_shards(&sharded, &deserialize(&fs::read(checkpoint.join(MODEL_FILE)).expect("weights")), 5);
        for (from, wanted) in [&checkpoint, &sharded].into_iter().flat_map(|from| WANTED.map(|wanted| (from, wanted))) {
            let mut engine = setup(wanted).engine();
            let before = HEAP.current_usage();
            HEAP.reset_peak_usage();
            load_weights(&mut engine, from).expect("weights of this model");
            let grown = HEAP.peak_usage() - before;
            // Single precision behind half precision asks for both.
            let is_there = stored == wanted;
            let allowed = if is_there { SMALL } else { largest_f32 + SMALL };
            let what = format!("{} from {stored:?} to {wanted:?}", from.display());
            assert!(grown <= allowed, "{what}: {grown} bytes beside the arena, {allowed} allowed");
        }
    }
}
