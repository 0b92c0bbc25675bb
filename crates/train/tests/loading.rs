//! Weights are read or initialized in the arena in parts: outside the arena a process needs little memory, however
//! large a tensor is.

mod support;

use peak_alloc::PeakAlloc;
use plimsoll_exec::{converted, normal_pair, remainders};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{DType, Init, MemoryId};
use plimsoll_plan::{Average, Levers, Precision};
use plimsoll_train::checkpoint::{MODEL_FILE, load_weights};
use plimsoll_train::{Ending, Start};
use std::fs;
use std::sync::{Mutex, PoisonError};
use support::weights::{deserialize, write_shards};
use support::{Setup, tiny_gpt2};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Allowance for names, the file's header and similar.
const SMALL: usize = 64 << 10;

/// Weights in single precision that are initialized or converted at a time.
const PART: usize = 4 << 16;

/// Read size while a file's checksum is computed.
const HASHED: usize = 1 << 20;

const LARGEST_TENSOR: usize = 4 * 2_000 * 256;

/// The tests measure the whole process, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

/// The peak heap use of `work`.
fn heap_of(work: impl FnOnce()) -> usize {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    work();
    HEAP.peak_usage() - before
}

const WANTED: [Precision; 4] = [Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure];

fn setup(precision: Precision) -> Setup {
    let model = ModelConfig::Gpt2(Gpt2Config { n_embd: 256, vocab_size: 2_000, ..tiny_gpt2() });
    Setup { model, levers: Levers { precision, ..Levers::default() }, steps: 1, ..Setup::default() }
}

#[test]
fn initializing_needs_a_part_of_a_tensor() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for precision in WANTED {
        let mut engine = setup(precision).engine();
        let grown = heap_of(|| engine.initialize(7).expect("a loaded plan"));
        let allowed = 2 * PART + SMALL;
        assert!(allowed < LARGEST_TENSOR / 2, "or a whole tensor would pass");
        assert!(grown <= allowed, "{precision:?}: {grown} bytes outside the arena, {allowed} allowed");
    }
}

/// Working in parts has no effect on the values: each weight equals that of a tensor initialized as a whole, in each of
/// its copies.
#[test]
fn a_weight_is_a_function_of_the_seed_and_its_index() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let average = Some(Average { decay: 0.9, memory: MemoryId::DEVICE });
    let levers = Levers { precision: Precision::Bf16, average, ..Levers::default() };
    let mut engine = Setup { levers, ..setup(Precision::Bf16) }.engine();
    engine.initialize(7).expect("a loaded plan");
    let mut compared = 0;
    for (index, parameter) in engine.parameters().iter().enumerate() {
        let elements = engine.plan()[parameter.tensor].ty.elements();
        let whole = match parameter.init {
            Init::Zeros => vec![0.0; elements],
            Init::Ones => vec![1.0; elements],
            Init::Copy(_) => unreachable!("the model has no adapters"),
            Init::Normal(deviation) => {
                let pairs = (0..).flat_map(|i| normal_pair([7, 0], index as u32, i));
                pairs.take(elements).map(|x| x * deviation).collect::<Vec<f32>>()
            }
        };
        let average = parameter.training.as_ref().and_then(|t| t.average);
        for tensor in [parameter.tensor, parameter.master()].into_iter().chain(average) {
            let expected = converted(bytemuck::cast_slice(&whole), DType::F32, engine.plan()[tensor].dtype());
            assert!(engine.view(tensor).expect("a tensor") == expected, "{}", engine.name(tensor));
            compared += elements;
        }
        let remainder = parameter.training.as_ref().and_then(|t| t.remainder).expect("weights in bf16 have remainders");
        let expected = remainders(bytemuck::cast_slice(&whole), DType::F32);
        assert!(engine.view(remainder).expect("a tensor") == expected, "{}", engine.name(remainder));
    }
    assert!(compared > 3 * LARGEST_TENSOR / 4, "{compared} weights");
}

#[test]
fn loading_needs_a_part_of_a_tensor() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    for stored in [Precision::Fp32, Precision::Bf16Pure] {
        let run = folder.path().join(format!("{stored:?}"));
        let (ending, _, checkpoint) = setup(stored).run(&run, &Start::Fresh, |_: &_, _: &_| {});
        assert_eq!(ending, Ending::Finished);
        let checkpoint = checkpoint.expect("a run that ended has a checkpoint");
        let bytes = checkpoint.join(MODEL_FILE).metadata().expect("a whole checkpoint").len() as usize;
        assert!(bytes > LARGEST_TENSOR, "one tensor is all there is");
        let sharded = run.join("sharded");
        fs::create_dir(&sharded).expect("a new folder");
        write_shards(&sharded, &deserialize(&fs::read(checkpoint.join(MODEL_FILE)).expect("weights")), 5);
        for (from, wanted) in [&checkpoint, &sharded].into_iter().flat_map(|from| WANTED.map(|wanted| (from, wanted))) {
            let mut engine = setup(wanted).engine();
            let grown = heap_of(|| load_weights(&mut engine, from).expect("weights of this model"));
            let allowed = HASHED + PART + SMALL;
            assert!(allowed < LARGEST_TENSOR, "or a whole tensor would pass");
            let what = format!("{} from {stored:?} to {wanted:?}", from.display());
            assert!(grown <= allowed, "{what}: {grown} bytes outside the arena, {allowed} allowed");
        }
    }
}
