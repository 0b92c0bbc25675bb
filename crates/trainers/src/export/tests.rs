use super::*;
use crate::read;
use crate::run::{Attention, Checkpointing, Lora, Loss, Method, Optimizer, Precision, Quantized, Targets};
use expect_test::expect_file;
use proptest::prelude::*;

fn runs() -> impl Strategy<Value = Run> {
    let lora = |targets| Lora { rank: 16, targets, dropout: false };
    let named = Targets::Named(vec!["q_proj".to_owned(), "v_proj".to_owned()]);
    let methods = vec![
        Method::Full,
        Method::Lora(lora(named)),
        Method::Qlora(lora(Targets::AllLinear), Quantized { block: 64, double: true }),
    ];
    let optimizers = vec![Optimizer::AdamWForeach, Optimizer::PagedAdamW8bit, Optimizer::Adafactor];
    let checkpointings = vec![Checkpointing::Off, Checkpointing::Reentrant, Checkpointing::NonReentrant];
    let shardings = vec![Sharding::None, Sharding::Zero { stage: 3 }, Sharding::Fsdp];
    let settings = (
        prop::sample::select(methods),
        prop::sample::select(vec![Precision::Fp32, Precision::PureBf16, Precision::AmpBf16, Precision::AmpFp16]),
        prop::sample::select(optimizers),
        prop::sample::select(checkpointings),
        prop::sample::select(vec![Attention::Eager, Attention::Sdpa, Attention::Flash2]),
        prop::sample::select(vec![Loss::Plain, Loss::Liger, Loss::CutCrossEntropy]),
        prop::sample::select(shardings),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        (1u64..64, 1u64..64, 1u64..5000),
    );
    settings.prop_map(|(method, precision, optimizer, checkpointing, attention, loss, sharding, flags, sizes)| Run {
        method,
        precision,
        optimizer,
        checkpointing,
        attention,
        loss,
        sharding,
        offload: Offload { optimizer: flags.0, weights: flags.1 },
        clips: flags.2,
        compiles: flags.3,
        micro_batch: sizes.0,
        accumulation: sizes.1,
        seq_len: sizes.2,
        alloc_conf: "expandable_segments:True".to_owned(),
        ..Run::default()
    })
}

proptest! {
    /// The reader accepts an export: no key is unknown, no value is invalid, and it has the same settings, except for
    /// those in the notes.
    #[test]
    fn an_exported_run_is_read_back(run in runs(), kind in prop::sample::select(TrainerKind::ALL.to_vec())) {
        let exported = export(kind, &run, Some("org/a model"));
        let found = read(kind, &exported.text).unwrap_or_else(|error| panic!("{error}: {}", exported.text));
        prop_assert!(found.unknown.is_empty(), "{:?}: {}", found.unknown, exported.text);
        if kind != TrainerKind::Accelerate {
            prop_assert_eq!((found.run.micro_batch, found.run.accumulation), (run.micro_batch, run.accumulation));
        }
        let line = "export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'";
        prop_assert!(exported.notes.iter().any(|note| note == line), "{:?}", exported.notes);
        // Each setting is in the file or in a note, or is a default.
        if matches!(kind, TrainerKind::Axolotl | TrainerKind::LlamaFactory) && exported.notes.len() == 1 {
            let differing = SettingChange::between(&run, &found.run);
            let is_equal = |change: &SettingChange| matches!(
                change,
                // axolotl's file names DeepSpeed's, which contains the stage.
                SettingChange::Sharding(_) | SettingChange::Checkpointing(Checkpointing::NonReentrant)
            );
            prop_assert!(differing.iter().all(is_equal), "{:?}\n{}", differing, exported.text);
        }
    }
}

/// Snapshots. `scripts/check_exports.py` reads these files with Hugging Face's own classes.
#[test]
fn exports_match_their_snapshots() {
    let lora = Lora { rank: 16, targets: Targets::AllLinear, dropout: false };
    let full = Run {
        precision: Precision::PureBf16,
        micro_batch: 2,
        accumulation: 64,
        seq_len: 512,
        target_len: Some(64),
        optimizer: Optimizer::PagedAdamW8bit,
        checkpointing: Checkpointing::NonReentrant,
        alloc_conf: "expandable_segments:True".to_owned(),
        ..Run::default()
    };
    let adapted = Run {
        method: Method::Qlora(lora, Quantized { block: 64, double: true }),
        loss: Loss::Liger,
        attention: Attention::Flash2,
        ..full.clone()
    };
    let divided = Run {
        precision: Precision::AmpBf16,
        sharding: Sharding::Zero { stage: 2 },
        offload: Offload { optimizer: true, weights: false },
        cards: 2,
        compiles: true,
        clips: false,
        ..full.clone()
    };
    let sharded = Run { sharding: Sharding::Fsdp, cards: 4, ..divided.clone() };
    for (name, run) in [("full", &full), ("adapted", &adapted), ("divided", &divided), ("sharded", &sharded)] {
        let mut all = String::new();
        for kind in TrainerKind::ALL {
            all += &format!("=== {kind}\n{}", export(kind, run, Some("google/flan-t5-xl")).text);
        }
        all += &format!("=== env\n{}", export_env(run));
        expect_file![format!("{}/tests/exports/{name}.txt", env!("CARGO_MANIFEST_DIR"))].assert_eq(&all);
    }
    assert_eq!(export_env(&Run::default()), "unset PYTORCH_CUDA_ALLOC_CONF\n");
    let strange = Run { alloc_conf: "a'b".to_owned(), ..Run::default() };
    assert_eq!(export_env(&strange), "export PYTORCH_CUDA_ALLOC_CONF='a'\\''b'\n");
}

/// A model that is not on the hub has no name: the file leaves it out, and a note says what to set.
#[test]
fn a_model_without_a_name_is_left_out_with_a_note() {
    let run = Run::default();
    for kind in TrainerKind::ALL {
        let exported = export(kind, &run, None);
        let found = read(kind, &exported.text).unwrap_or_else(|error| panic!("{error}: {}", exported.text));
        assert_eq!(found.model, None, "{}", exported.text);
        let is_noted = exported.notes.iter().any(|note| note.starts_with("model"));
        assert_eq!(is_noted, !kind.is_layer(), "{kind}: {:?}", exported.notes);
    }
}

proptest! {
    /// A change that is written to a file is read back, and nothing else changes.
    #[test]
    fn a_written_change_is_read_back_alone(from in runs(), to in runs(), at in any::<prop::sample::Index>(), kind in kinds()) {
        let text = export(kind, &from, Some("org/model")).text;
        let before = read(kind, &text).expect("it was exported");
        let changes = SettingChange::all_of(&to);
        let change = at.get(&changes);
        let Ok(written) = rewrite(kind, &text, std::slice::from_ref(change)) else { return Ok(()) };
        let after = read(kind, &written).unwrap_or_else(|error| panic!("{error}: {written}")).run;
        let mut expected = before.run.clone();
        change.apply(&mut expected);
        // Several settings may share a key.
        let is_shared = matches!(change, SettingChange::Method(_) | SettingChange::Precision(_) | SettingChange::Sharding(_) | SettingChange::Offload(_));
        let is_elsewhere = match (kind, change) {
            // DeepSpeed's file contains the stage.
            (TrainerKind::Axolotl, SettingChange::Sharding(_)) => true,
            // It has only one kind of checkpointing.
            (TrainerKind::Unsloth, SettingChange::Checkpointing(Checkpointing::NonReentrant)) => true,
            _ => false,
        };
        if !is_elsewhere && !is_shared {
            prop_assert_eq!(&after, &expected, "{:?}:\n{}\nbecame\n{}", change, text, written);
        }
        let comments = |text: &str| text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        prop_assert_eq!(comments(&written), comments(&text));
    }
}

/// Trainers whose files contain nearly all settings of a run.
fn kinds() -> impl Strategy<Value = TrainerKind> {
    prop::sample::select(vec![
        TrainerKind::HuggingFace,
        TrainerKind::Axolotl,
        TrainerKind::LlamaFactory,
        TrainerKind::Torchtune,
        TrainerKind::Unsloth,
    ])
}
