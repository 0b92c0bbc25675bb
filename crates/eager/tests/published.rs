//! Estimates compared with peaks of memory that other projects measured: vramcalc 0.1.2 on an RTX A6000
//! (transformers 4.57) and fitcheck-llm 0.3.1 on a Tesla T4. `scripts/held_estimates.py` compares all of their rows, and
//! says what their scripts do.

use plimsoll_eager::{Gpu, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{
    Attention, Checkpointing, CustomLoop, KeptOutputs, Libraries, Library, Lora, Method, Optimizer, Precision,
    Quantized, Run, Targets,
};
use plimsoll_units::Bytes;

const A6000: Gpu = Gpu { memory: Bytes::gib(48), compute_capability: (8, 6) };
const T4: Gpu = Gpu { memory: Bytes::gib(15), compute_capability: (7, 5) };

fn lora(rank: u64) -> Lora {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"].map(str::to_owned);
    Lora { rank, targets: Targets::Named(names.to_vec()), dropout: false }
}

fn assert_near(name: &str, run: &Run, gpu: Gpu, measured_mib: f64, tolerance: f64) {
    let model = ModelConfig::preset(name).expect("a preset");
    let likely = estimate(&model, run, gpu).expect("a run that is modeled").likely;
    let error = likely.allocated.as_f64() / f64::from(1 << 20) / measured_mib - 1.0;
    println!("{name} {:?} {:?}: {:+.2} %", run.method, run.attention, 100.0 * error);
    assert!(error.abs() < tolerance, "{name} {run:?}: {:+.2} %", 100.0 * error);
}

/// Gradients stay allocated, outputs live in the backward pass, and a mask makes transformers 4.57 repeat keys.
#[test]
fn training_with_transformers_4_on_an_a6000() {
    let libraries = Libraries {
        torch: Library::Torch.read("2.14.1").expect("a known version"),
        transformers: Library::Transformers.read("4.57.6").expect("a known version"),
    };
    let run = |method, precision, checkpointing| Run {
        method,
        precision,
        micro_batch: 1,
        seq_len: 2048,
        optimizer: Optimizer::AdamWForeach,
        checkpointing,
        clips: false,
        custom_loop: CustomLoop { outputs: KeptOutputs::UntilBackward, keeps_gradients: true, omits_mask: true },
        libraries,
        ..Run::default()
    };
    let off = Checkpointing::Off;
    for (name, run, measured) in [
        ("llama-3.2-1b", run(Method::Full, Precision::PureBf16, off), 16_703.6),
        ("llama-3.2-1b", run(Method::Full, Precision::AmpBf16, Checkpointing::NonReentrant), 24_054.3),
        ("qwen2.5-1.5b", run(Method::Full, Precision::PureBf16, off), 22_313.7),
        ("llama-3.2-1b", run(Method::Lora(lora(16)), Precision::AmpBf16, Checkpointing::NonReentrant), 9_069.5),
        ("qwen2.5-1.5b", run(Method::Lora(lora(16)), Precision::PureBf16, off), 13_140.1),
    ] {
        assert_near(name, &run, A6000, measured, 0.002);
    }
}

fn packed(rank: u64) -> Method {
    Method::Qlora(lora(rank), Quantized { block: 64, double: false })
}

/// No autocast, outputs live until the step ends, and a pinned kernel.
fn on_a_t4(method: Method, attention: Attention, micro_batch: u64, seq_len: u64) -> Run {
    Run {
        method,
        precision: Precision::PureFp16,
        micro_batch,
        seq_len,
        optimizer: Optimizer::AdamWForeach,
        checkpointing: Checkpointing::NonReentrant,
        attention,
        clips: false,
        custom_loop: CustomLoop { outputs: KeptOutputs::UntilStep, keeps_gradients: false, omits_mask: true },
        ..Run::default()
    }
}

#[test]
fn lora_and_qlora_on_a_t4() {
    let (eager, efficient) = (Attention::Eager, Attention::Efficient);
    for (name, run, measured) in [
        ("smollm2-1.7b", on_a_t4(packed(32), efficient, 4, 1024), 5_281.3),
        ("smollm2-1.7b", on_a_t4(packed(32), eager, 4, 1024), 5_297.3),
        ("tinyllama-1.1b", on_a_t4(packed(32), eager, 8, 1024), 8_017.9),
        ("tinyllama-1.1b", on_a_t4(packed(32), efficient, 2, 1024), 2_531.6),
        ("smollm2-360m", on_a_t4(packed(32), eager, 1, 4096), 5_687.2),
        ("smollm2-360m", on_a_t4(Method::Lora(lora(32)), efficient, 1, 4096), 3_754.8),
        ("smollm2-1.7b", on_a_t4(Method::Lora(lora(32)), eager, 4, 1024), 6_536.7),
        ("tinyllama-1.1b", on_a_t4(Method::Lora(lora(32)), eager, 2, 2048), 6_616.1),
    ] {
        assert_near(name, &run, T4, measured, 0.003);
    }
}

/// The blocks that are free after loading decide how much more the allocator reserves.
#[test]
fn reserved_memory_of_qlora_on_a_t4() {
    let (eager, efficient) = (Attention::Eager, Attention::Efficient);
    for (name, run, measured_mib) in [
        ("tinyllama-1.1b", on_a_t4(packed(32), eager, 2, 1024), 3_532.0),
        ("tinyllama-1.1b", on_a_t4(packed(32), efficient, 2, 1024), 2_892.0),
        ("smollm2-1.7b", on_a_t4(packed(32), efficient, 4, 1024), 5_908.0),
        ("smollm2-1.7b", on_a_t4(packed(32), eager, 4, 1024), 6_996.0),
        ("qwen2.5-1.5b", on_a_t4(packed(32), eager, 1, 2048), 7_584.0),
    ] {
        let model = ModelConfig::preset(name).expect("a preset");
        let likely = estimate(&model, &run, T4).expect("a run that is modeled").likely;
        let error = likely.reserved.as_f64() / f64::from(1 << 20) / measured_mib - 1.0;
        assert!(error.abs() < 0.012, "{name} {run:?}: {:+.2} %", 100.0 * error);
    }
}

/// Measured reserved MiB, with the context's 140.875 MiB.
#[test]
fn upper_bounds_hold_on_a_t4() {
    for (name, run, reserved) in [
        ("qwen2.5-1.5b", on_a_t4(packed(16), Attention::Eager, 1, 1024), 5_060.0),
        ("qwen2.5-7b", on_a_t4(packed(16), Attention::Eager, 1, 1024), 11_746.0),
        ("tinyllama-1.1b", on_a_t4(Method::Lora(lora(32)), Attention::Eager, 2, 2048), 7_662.0),
    ] {
        let model = ModelConfig::preset(name).expect("a preset");
        let [least, most] = estimate(&model, &run, T4).expect("a run that is modeled").range;
        let mib = most.process().as_f64() / f64::from(1 << 20);
        assert!(mib > reserved + 140.875, "{name}: at most {mib:.0} MiB");
        assert!(least.context <= Bytes::mib(140), "{name}: {}", least.context);
    }
}
