//! Estimates compared with measurements of PyTorch 2 on an H100 with 80 GiB, each in its own process:
//! `bench/results/2026-11-22-h100.md`, "What PyTorch takes". `-- --nocapture` prints the table of
//! `bench/results/2026-11-23-estimate.md`.

use plimsoll_eager::{Gpu, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Checkpointing, Optimizer, Precision, Run};
use plimsoll_units::Bytes;

/// Model, samples of 1,024 tokens, precision, checkpointing, and peaks of allocated and reserved GiB.
type Measured = (&'static str, u64, Precision, Checkpointing, [f64; 2]);

const MEASURED: [Measured; 9] = [
    ("gpt2", 32, Precision::AmpBf16, Checkpointing::Off, [43.90, 46.48]),
    ("gpt2-medium", 16, Precision::AmpBf16, Checkpointing::Off, [45.52, 47.75]),
    ("gpt2", 8, Precision::AmpFp16, Checkpointing::Off, [12.24, 13.72]),
    ("gpt2", 8, Precision::AmpFp16, Checkpointing::NonReentrant, [6.45, 8.34]),
    ("gpt2", 8, Precision::AmpBf16, Checkpointing::Off, [12.24, 13.72]),
    ("gpt2", 8, Precision::AmpBf16, Checkpointing::NonReentrant, [6.45, 8.34]),
    ("gpt2", 8, Precision::Fp32, Checkpointing::Off, [13.98, 14.67]),
    ("gpt2", 8, Precision::Fp32, Checkpointing::NonReentrant, [6.39, 7.54]),
    ("gpt2", 8, Precision::PureBf16, Checkpointing::Off, [9.35, 11.27]),
];

#[test]
fn estimates_equal_measurements_on_a_card() {
    let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
    for (name, micro_batch, precision, checkpointing, measured) in MEASURED {
        let model = ModelConfig::preset(name).expect("a preset");
        let optimizer = Optimizer::AdamWFused;
        let run =
            Run { precision, micro_batch, seq_len: 1024, optimizer, checkpointing, clips: false, ..Run::default() };
        let likely = estimate(&model, &run, gpu).expect("a run that is modeled").likely;
        let gib = [likely.allocated, likely.reserved].map(|bytes| bytes.as_f64() / f64::from(1 << 30));
        let errors = [0, 1].map(|at| gib[at] / measured[at] - 1.0);
        let percent = errors.map(|error| 100.0 * error);
        println!(
            "| {name} | {micro_batch} x 1024 | {precision:?} | {checkpointing:?} | {:.2} | {:.2} | {:+.1} % | {:.2} | {:.2} | {:+.1} % |",
            measured[0], gib[0], percent[0], measured[1], gib[1], percent[1]
        );
        assert!(errors[0].abs() < 0.005, "{name} {precision:?} {checkpointing:?}: {gib:?}, measured {measured:?}");
        assert!(errors[1].abs() < 0.01, "{name} {precision:?} {checkpointing:?}: {gib:?}, measured {measured:?}");
    }
}
