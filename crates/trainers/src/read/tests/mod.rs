mod defaults;
mod hostile;

use super::*;
use crate::run::{
    Attention, Checkpointing, Elements, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Targets,
};
use crate::{command, detect, rewrite};
use expect_test::expect_file;
use std::fmt::Write as _;

fn of(kind: TrainerKind, text: &str) -> Read {
    read(kind, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The result of reading a file, as text.
fn shown(text: &str) -> String {
    let mut lines = String::new();
    let Some(kind) = detect(text, "") else { return "  unknown trainer\n".to_owned() };
    let read = match read(kind, text) {
        Ok(read) => read,
        Err(error) => return format!("  {kind}: {error}\n"),
    };
    let run = &read.run;
    writeln!(lines, "  {kind}: {}", read.model.as_deref().unwrap_or("-")).expect("a string");
    writeln!(lines, "  {:?}, {:?}, {:?}", run.method, run.precision, run.optimizer).expect("a string");
    let batch = format!("{} x {} of {}", run.micro_batch, run.accumulation, run.seq_len);
    writeln!(lines, "  {batch}, {:?}, {:?}, {:?}", run.checkpointing, run.attention, run.loss).expect("a string");
    writeln!(lines, "  {:?}, {:?}, clips {}, compiles {}", run.sharding, run.offload, run.clips, run.compiles)
        .expect("a string");
    for (kind, path) in &read.layers {
        writeln!(lines, "  with {kind}'s {path}").expect("a string");
    }
    for assumed in &read.assumed {
        writeln!(lines, "  assumed: {assumed}").expect("a string");
    }
    let line = |line: Option<u64>| line.expect("a line of a file");
    for UnmodeledKey { key, line: at, why, .. } in &read.unmodeled {
        writeln!(lines, "  line {}: `{key}`: {why}", line(*at)).expect("a string");
    }
    for UnknownKey { key, line: at, near, .. } in &read.unknown {
        let near = near.as_ref().map_or(String::new(), |near| format!(", did you mean `{near}`?"));
        writeln!(lines, "  line {}: `{key}` is unknown{near}", line(*at)).expect("a string");
    }
    lines
}

/// The files that the tests of the command line use.
#[test]
fn files_of_each_trainer_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll/tests/settings");
    for trainer in ["hugging_face", "axolotl", "llama_factory", "torchtune"] {
        let text = std::fs::read_to_string(format!("{folder}/{trainer}.yaml")).expect("files of settings");
        let title = |file: &str| file.lines().next().unwrap_or_default().to_owned();
        let told = text.split("---\n").map(|file| format!("{}\n{}", title(file), shown(file)));
        let path = format!("{}/tests/{trainer}.txt", env!("CARGO_MANIFEST_DIR"));
        expect_file![path].assert_eq(&told.collect::<Vec<_>>().join("\n"));
    }
}

/// A rewritten file has the new settings.
#[test]
fn each_change_is_read_back() {
    let lora = Lora { rank: 32, targets: Targets::Named(vec!["q_proj".to_owned()]), dropout: false };
    let quantized = Quantized { block: 64, double: true };
    let of_all = [
        crate::SettingChange::MicroBatch(3),
        crate::SettingChange::Accumulation(5),
        crate::SettingChange::Optimizer(Optimizer::PagedAdamW8bit),
        crate::SettingChange::Checkpointing(Checkpointing::NonReentrant),
        crate::SettingChange::Checkpointing(Checkpointing::Reentrant),
        crate::SettingChange::Checkpointing(Checkpointing::Off),
        crate::SettingChange::Attention(Attention::Eager),
        crate::SettingChange::Attention(Attention::Flash2),
        crate::SettingChange::Precision(Precision::Fp32),
        crate::SettingChange::Precision(Precision::PureBf16),
        crate::SettingChange::Precision(Precision::AmpBf16),
        crate::SettingChange::SeqLen(777),
        crate::SettingChange::Loss(Loss::Liger),
        crate::SettingChange::Loss(Loss::CutCrossEntropy),
        crate::SettingChange::Loss(Loss::Plain),
        crate::SettingChange::Method(Method::Qlora(lora.clone(), quantized)),
        crate::SettingChange::Method(Method::Lora(lora)),
        crate::SettingChange::Method(Method::Full),
        crate::SettingChange::Compiles(true),
        crate::SettingChange::Clips(false),
        crate::SettingChange::Sharding(Sharding::Fsdp),
        crate::SettingChange::Sharding(Sharding::Zero { stage: 2 }),
        crate::SettingChange::Offload(Offload { optimizer: true, weights: true }),
    ];
    let mut written = 0;
    for (kind, text) in [
        (
            TrainerKind::HuggingFace,
            "max_length: 5\ndtype: bfloat16\nattn_implementation: sdpa\nuse_peft: false\nfsdp: ''\n",
        ),
        (TrainerKind::Axolotl, "base_model: x\n"),
        (TrainerKind::LlamaFactory, "finetuning_type: full\n"),
        (TrainerKind::Torchtune, "batch_size: 1\nfsdp_cpu_offload: false\n"),
        (TrainerKind::Unsloth, "{\"full_finetuning\": true}"),
        (TrainerKind::DeepSpeed, "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1}"),
        (TrainerKind::Accelerate, "distributed_type: FSDP\n"),
    ] {
        for change in &of_all {
            let Ok(text) = rewrite(kind, text, std::slice::from_ref(change)) else { continue };
            let layers_onto = [kind == TrainerKind::DeepSpeed, kind == TrainerKind::Accelerate];
            // Settings that belong in another file, or that share a key with one of the same size.
            let is_elsewhere = match change {
                crate::SettingChange::MicroBatch(_) | crate::SettingChange::Accumulation(_) => layers_onto[1],
                crate::SettingChange::Precision(_) => layers_onto.contains(&true),
                crate::SettingChange::Sharding(_) => kind == TrainerKind::Axolotl,
                crate::SettingChange::Loss(_) | crate::SettingChange::Checkpointing(Checkpointing::NonReentrant) => {
                    kind == TrainerKind::Unsloth
                }
                _ => false,
            };
            if is_elsewhere {
                continue;
            }
            let found = of(kind, &text).run;
            let mut expected = found.clone();
            change.apply(&mut expected);
            assert_eq!(found, expected, "{kind}: {change:?}:\n{text}");
            written += 1;
        }
    }
    assert!(written > 70, "{written}");
}

#[test]
fn layers_set_sharding_and_keep_auto_values() {
    let mut read = of(TrainerKind::HuggingFace, "per_device_train_batch_size: 2\nbf16: true\ndeepspeed: ds.json\n");
    assert_eq!(read.layers, [(TrainerKind::DeepSpeed, "ds.json".to_owned())]);
    let layer = "{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 8, \
                 \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}, \
                 \"reduce_bucket_size\": 2e8, \"stage3_prefetch_bucket_size\": \"auto\", \"overlap_comm\": true, \
                 \"sub_group_size\": 1e9}, \"bf16\": {\"enabled\": \"auto\"}, \"zero_optimisation\": {\"stage\": 1}}";
    read.layer(TrainerKind::DeepSpeed, layer).expect("valid");
    assert_eq!((read.run.micro_batch, read.run.accumulation), (2, 8));
    assert_eq!(read.run.sharding, Sharding::Zero { stage: 3 });
    assert_eq!(read.run.offload, Offload { optimizer: true, weights: false });
    assert_eq!(read.run.precision, Precision::AmpBf16);
    let unknown = read.unknown.iter().map(|unknown| (unknown.key.as_str(), unknown.near.as_deref()));
    assert_eq!(unknown.collect::<Vec<_>>(), [("zero_optimisation.stage", Some("zero_optimization.stage"))]);
    let noted = read.unmodeled.iter().map(|noted| noted.key.as_str()).collect::<Vec<_>>();
    assert_eq!(noted, ["zero_optimization.sub_group_size"]);
    let buffers = read.run.buffers;
    assert_eq!((buffers.reduce, buffers.prefetch), (Elements::Of(200_000_000), Elements::Auto));
    // A key that DeepSpeed's file leaves out has DeepSpeed's default.
    assert_eq!((buffers.persistent, buffers.overlaps), (Elements::Of(100_000), Some(true)));

    let mut read = of(TrainerKind::Axolotl, "base_model: x\n");
    read.layer(TrainerKind::Accelerate, "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\n")
        .expect("valid");
    assert_eq!((read.run.cards, read.run.precision), (4, Precision::PureBf16));
    assert_eq!(read.run.sharding, Sharding::Ddp { bucket: Bytes::mib(25), views: false });
    let nested = "{\"deepspeed\": {\"zero_optimization\": {\"stage\": 2}}, \"optim\": \"adamw_torch\"}";
    assert_eq!(of(TrainerKind::HuggingFace, nested).run.sharding, Sharding::Zero { stage: 2 });
    let whole = "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}";
    assert_eq!(of(TrainerKind::DeepSpeed, whole).run.accumulation, 8);
}

#[test]
fn all_invalid_values_are_reported_with_their_lines() {
    let text = "optim: sgd\nper_device_train_batch_size: few\n\nbf16: maybe\ngradient_accumulation_steps: 0\nmax_length: -3\n\
                max_grad_norm: high\n";
    let error = read(TrainerKind::HuggingFace, text).unwrap_err().to_string();
    for expected in [
        "line 2: `per_device_train_batch_size`: `few` is not a whole number",
        "line 4: `bf16`: `maybe` is neither true nor false",
        "line 5: `gradient_accumulation_steps`: it must be at least 1",
        "line 6: `max_length`: `-3` is not a whole number",
        "line 7: `max_grad_norm`: `high` is not a number",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let error = read(TrainerKind::DeepSpeed, "{\"zero_optimization\": {\"stage\": 4}}").unwrap_err().to_string();
    assert_eq!(error, "line 1: `zero_optimization.stage`: the stages are 0 to 3");
}

#[test]
fn command_lines_are_read_like_files() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let argv = words(
        "torchrun --nproc_per_node 4 train.py --model_name_or_path google/flan-t5-base --per-device-train-batch-size=16 \
         --bf16 --gradient_checkpointing True --optim adafactor --max_source_length 256 --max_target_length 64 \
         --lora_target_modules q v --lora_r 4 --outptu_dir x --deepspeed ds.json",
    );
    let command = command(&argv).expect("a command");
    let read = read_command(&command, &argv, None).expect("valid");
    assert_eq!(read.model.as_deref(), Some("google/flan-t5-base"));
    let run = &read.run;
    assert_eq!((run.micro_batch, run.seq_len, run.target_len, run.cards), (16, 256, Some(64), 4));
    assert_eq!((run.precision, run.optimizer), (Precision::AmpBf16, Optimizer::Adafactor));
    assert_eq!(run.checkpointing, Checkpointing::NonReentrant);
    assert_eq!(run.sharding, Sharding::Ddp { bucket: Bytes::mib(25), views: false });
    let targets = Targets::Named(vec!["q".to_owned(), "v".to_owned()]);
    assert_eq!(run.method, Method::Lora(Lora { rank: 4, targets, dropout: true }));
    assert_eq!(read.unknown.len(), 1, "{:?}", read.unknown);
    assert_eq!(read.unknown[0].line, None);
    assert_eq!(read.layers, [(TrainerKind::DeepSpeed, "ds.json".to_owned())]);

    let argv = words("llamafactory-cli train a.yaml cutoff_len=64 finetuning_type=full");
    let command = crate::command(&argv).expect("a command");
    let read = read_command(&command, &argv, Some("cutoff_len: 4096\nbf16: true\nstage: sft\n")).expect("valid");
    assert_eq!((read.run.seq_len, read.run.precision), (64, Precision::AmpBf16));
}

/// Files with a map per plugin, as in LLaMA-Factory's `examples/v1`.
#[test]
fn llama_factorys_newer_layout_is_read() {
    let file = "model: meta-llama/Llama-3.1-8B\nmodel_class: llm\npeft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\n  \
                lora_dropout: 0.05\n  target_modules: all\nquant_config:\n  name: bnb\n  quantization_bit: 4\n\
                kernel_config:\n  name: liger_kernel\ndist_config:\n  name: fsdp2\n  dcp_path: null\n\
                train_dataset: data/v1_sft_demo.yaml\noutput_dir: out\nmicro_batch_size: 2\ncutoff_len: 4096\n\
                global_batch_size: 8\nmax_steps: 10\nsample_backend: hf\nlearning_rte: 1\n";
    let shown = shown(file);
    let expected = "  LLaMA-Factory: meta-llama/Llama-3.1-8B\n  \
        Qlora(Lora { rank: 16, targets: AllLinear, dropout: true }, Quantized { block: 64, double: true }), PureBf16, \
        AdamWForeach\n  2 x 4 of 4096, NonReentrant, Sdpa, Liger\n  Fsdp, Offload { optimizer: false, weights: false }, \
        clips true, compiles false\n  assumed: weights in bf16: they keep their stored type\n  \
        line 24: `learning_rte` is unknown\n";
    assert_eq!(shown, expected);
    let deepspeed =
        "model: gpt2\nmodel_class: llm\ndist_config:\n  name: deepspeed\n  config_file: ds_z3_config.json\n";
    let read = of(TrainerKind::LlamaFactory, deepspeed);
    assert_eq!(read.layers, [(TrainerKind::DeepSpeed, "ds_z3_config.json".to_owned())]);
    assert_eq!(read.run.method, Method::Full);
    let smaller =
        rewrite(TrainerKind::LlamaFactory, file, &[crate::SettingChange::MicroBatch(1)]).expect("it has the key");
    assert!(smaller.contains("\nmicro_batch_size: 1\n"), "{smaller}");
}

/// The pattern for the other arguments of checkpointing must not hide the one that matters.
#[test]
fn checkpointing_of_some_layers_is_noted() {
    for (kind, first) in [
        (TrainerKind::HuggingFace, "model_name_or_path: gpt2"),
        (TrainerKind::Axolotl, "base_model: gpt2"),
        (TrainerKind::LlamaFactory, "model_name_or_path: gpt2"),
        (TrainerKind::Unsloth, "model_name: gpt2"),
    ] {
        for (layers, expected) in [(1, 0), (2, 1)] {
            let text = format!(
                "{first}\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {{every_n_layers: {layers}}}\n"
            );
            let read = of(kind, &text);
            let is_it = |noted: &&UnmodeledKey| noted.key == "gradient_checkpointing_kwargs.every_n_layers";
            assert_eq!(read.unmodeled.iter().filter(is_it).count(), expected, "{kind}: {layers}");
            assert!(read.unknown.is_empty(), "{kind}: {:?}", read.unknown);
        }
        let read = of(kind, &format!("{first}\nauto_find_batch_size: true\n"));
        assert_eq!(read.unmodeled.len(), 1, "{kind}: {:?}", read.unmodeled);
        assert!(read.unknown.is_empty(), "{kind}: {:?}", read.unknown);
    }
}
