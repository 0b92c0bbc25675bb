//! Estimates of runs that were measured on an H100.
use plimsoll_eager::{Gpu, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Checkpointing, Optimizer, Precision, Run};
use plimsoll_units::Bytes;
fn main() {
    let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
    for (name, batch, length, precision, checkpointing, allocated, reserved) in [
        ("gpt2", 32, 1024, Precision::AmpBf16, Checkpointing::Off, 43.90, 46.48),
        ("gpt2-medium", 16, 1024, Precision::AmpBf16, Checkpointing::Off, 45.52, 47.75),
        ("gpt2", 8, 1024, Precision::AmpFp16, Checkpointing::Off, 12.24, 13.72),
        ("gpt2", 8, 1024, Precision::AmpFp16, Checkpointing::NonReentrant, 6.45, 8.34),
        ("gpt2", 8, 1024, Precision::AmpBf16, Checkpointing::Off, 12.24, 13.72),
        ("gpt2", 8, 1024, Precision::AmpBf16, Checkpointing::NonReentrant, 6.45, 8.34),
        ("gpt2", 8, 1024, Precision::Fp32, Checkpointing::Off, 13.98, 14.67),
        ("gpt2", 8, 1024, Precision::Fp32, Checkpointing::NonReentrant, 6.39, 7.54),
        ("gpt2", 8, 1024, Precision::PureBf16, Checkpointing::Off, 9.35, 11.27),
        ("llama-3.2-1b", 4, 1024, Precision::AmpBf16, Checkpointing::Off, 0.0, 31.06),
    ] {
        let model = ModelConfig::preset(name).unwrap();
        let run = Run {
            micro_batch: batch,
            seq_len: length,
            precision,
            checkpointing,
            clips: false,
            optimizer: Optimizer::AdamWFused,
            ..Run::default()
        };
        let t = std::time::Instant::now();
        match estimate(&model, &run, gpu) {
            Ok(e) => {
                let g = |b: Bytes| b.as_f64() / f64::from(1 << 30);
                println!(
                    "{name} {batch}x{length} {precision:?} {checkpointing:?}: allocated {:.2} ({allocated}) reserved {:.2} ({reserved}) {} {:?}",
                    g(e.likely.allocated),
                    g(e.likely.reserved),
                    e.phase,
                    t.elapsed()
                );
                if std::env::args().count() > 1 {
                    for s in e.breakdown.iter().take(14) {
                        println!("   {} {} {} {}", s.kind, s.op, s.bytes, s.count);
                    }
                }
            }
            Err(e) => println!("{name}: {e}"),
        }
    }
}
