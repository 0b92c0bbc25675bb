mod defaults;
mod hostile;

use super::*;
use crate::run::{
    Attention, Checkpointing, Elements, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Targets,
};
use crate::{command, detect, rewrite};
use expect_test::expect_file;
use std::fmt::Write as _;

fn of(kind: Kind, text: &str) -> Read {
    read(kind, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// What a file comes to, in lines.
fn shown(text: &str) -> String {
    let mut lines = String::new();
    let Some(kind) = detect(text, "") else { return "  nobody's\n".to_owned() };
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
    for Unmodelled { key, line: at, why, .. } in &read.unmodelled {
        writeln!(lines, "  line {}: `{key}`: {why}", line(*at)).expect("a string");
    }
    for Unknown { key, line: at, near, .. } in &read.unknown {
        let near = near.as_ref().map_or(String::new(), |near| format!(", did you mean `{near}`?"));
        writeln!(lines, "  line {}: `{key}` is not known{near}", line(*at)).expect("a string");
    }
    lines
}

/// The files that the command line's own settings are tested with.
#[test]
fn ten_files_of_each_trainer_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll/tests/settings");
    for trainer in ["hugging_face", "axolotl", "llama_factory", "torchtune"] {
        let text = std::fs::read_to_string(format!("{folder}/{trainer}.yaml")).expect("files of settings");
        let title = |file: &str| file.lines().next().unwrap_or_default().to_owned();
        let told = text.split("---\n").map(|file| format!("{}\n{}", title(file), shown(file)));
        let path = format!("{}/tests/{trainer}.txt", env!("CARGO_MANIFEST_DIR"));
        expect_file![path].assert_eq(&told.collect::<Vec<_>>().join("\n"));
    }
}

/// What a file is rewritten to says what it was rewritten for.
#[test]
fn what_is_written_is_read_again() {
    let lora = Lora { rank: 32, targets: Targets::Named(vec!["q_proj".to_owned()]), dropout: false };
    let quantized = Quantized { block: 64, double: true };
    let of_all = [
        crate::Change::MicroBatch(3),
        crate::Change::Accumulation(5),
        crate::Change::Optimizer(Optimizer::PagedAdamW8bit),
        crate::Change::Checkpointing(Checkpointing::NonReentrant),
        crate::Change::Checkpointing(Checkpointing::Reentrant),
        crate::Change::Checkpointing(Checkpointing::Off),
        crate::Change::Attention(Attention::Eager),
        crate::Change::Attention(Attention::Flash2),
        crate::Change::Precision(Precision::Fp32),
        crate::Change::Precision(Precision::PureBf16),
        crate::Change::Precision(Precision::AmpBf16),
        crate::Change::SeqLen(777),
        crate::Change::Loss(Loss::Liger),
        crate::Change::Loss(Loss::CutCrossEntropy),
        crate::Change::Loss(Loss::Plain),
        crate::Change::Method(Method::Qlora(lora.clone(), quantized)),
        crate::Change::Method(Method::Lora(lora)),
        crate::Change::Method(Method::Full),
        crate::Change::Compiles(true),
        crate::Change::Clips(false),
        crate::Change::Sharding(Sharding::Fsdp),
        crate::Change::Sharding(Sharding::Zero { stage: 2 }),
        crate::Change::Offload(Offload { optimizer: true, weights: true }),
    ];
    let mut written = 0;
    for (kind, text) in [
        (Kind::HuggingFace, "max_length: 5\ndtype: bfloat16\nattn_implementation: sdpa\nuse_peft: false\nfsdp: ''\n"),
        (Kind::Axolotl, "base_model: x\n"),
        (Kind::LlamaFactory, "finetuning_type: full\n"),
        (Kind::Torchtune, "batch_size: 1\nfsdp_cpu_offload: false\n"),
        (Kind::Unsloth, "{\"full_finetuning\": true}"),
        (Kind::DeepSpeed, "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1}"),
        (Kind::Accelerate, "distributed_type: FSDP\n"),
    ] {
        for change in &of_all {
            let Ok(text) = rewrite(kind, text, std::slice::from_ref(change)) else { continue };
            let layers_onto = [kind == Kind::DeepSpeed, kind == Kind::Accelerate];
            // What another file says, or a type in place of another that is as large: told apart by nothing in this one.
            let is_elsewhere = match change {
                crate::Change::MicroBatch(_) | crate::Change::Accumulation(_) => layers_onto[1],
                crate::Change::Precision(_) => layers_onto.contains(&true),
                crate::Change::Sharding(_) => kind == Kind::Axolotl,
                crate::Change::Loss(_) | crate::Change::Checkpointing(Checkpointing::NonReentrant) => {
                    kind == Kind::Unsloth
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
fn layers_say_how_a_run_is_divided_and_leave_auto_to_the_trainer() {
    let mut read = of(Kind::HuggingFace, "per_device_train_batch_size: 2\nbf16: true\ndeepspeed: ds.json\n");
    assert_eq!(read.layers, [(Kind::DeepSpeed, "ds.json".to_owned())]);
    let layer = "{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 8, \
                 \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\"}, \
                 \"reduce_bucket_size\": 2e8, \"stage3_prefetch_bucket_size\": \"auto\", \"overlap_comm\": true, \
                 \"sub_group_size\": 1e9}, \"bf16\": {\"enabled\": \"auto\"}, \"zero_optimisation\": {\"stage\": 1}}";
    read.layer(Kind::DeepSpeed, layer).expect("valid");
    assert_eq!((read.run.micro_batch, read.run.accumulation), (2, 8));
    assert_eq!(read.run.sharding, Sharding::Zero { stage: 3 });
    assert_eq!(read.run.offload, Offload { optimizer: true, weights: false });
    assert_eq!(read.run.precision, Precision::AmpBf16);
    let unknown = read.unknown.iter().map(|unknown| (unknown.key.as_str(), unknown.near.as_deref()));
    assert_eq!(unknown.collect::<Vec<_>>(), [("zero_optimisation.stage", Some("zero_optimization.stage"))]);
    let noted = read.unmodelled.iter().map(|noted| noted.key.as_str()).collect::<Vec<_>>();
    assert_eq!(noted, ["zero_optimization.sub_group_size"]);
    let buffers = read.run.buffers;
    assert_eq!((buffers.reduce, buffers.prefetch), (Elements::Of(200_000_000), Elements::Auto));
    // What a file of DeepSpeed's leaves out is as DeepSpeed has it.
    assert_eq!((buffers.persistent, buffers.overlaps), (Elements::Of(100_000), Some(true)));

    let mut read = of(Kind::Axolotl, "base_model: x\n");
    read.layer(Kind::Accelerate, "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\n")
        .expect("valid");
    assert_eq!((read.run.cards, read.run.precision), (4, Precision::PureBf16));
    assert_eq!(read.run.sharding, Sharding::Ddp { bucket: Bytes::mib(25), views: false });
    let nested = "{\"deepspeed\": {\"zero_optimization\": {\"stage\": 2}}, \"optim\": \"adamw_torch\"}";
    assert_eq!(of(Kind::HuggingFace, nested).run.sharding, Sharding::Zero { stage: 2 });
    let whole = "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}";
    assert_eq!(of(Kind::DeepSpeed, whole).run.accumulation, 8);
}

#[test]
fn wrong_values_are_all_told_with_their_lines() {
    let text = "optim: sgd\nper_device_train_batch_size: few\n\nbf16: maybe\ngradient_accumulation_steps: 0\nmax_length: -3\n\
                max_grad_norm: high\n";
    let error = read(Kind::HuggingFace, text).unwrap_err().to_string();
    for expected in [
        "line 2: `per_device_train_batch_size`: `few` is no whole number",
        "line 4: `bf16`: `maybe` is neither true nor false",
        "line 5: `gradient_accumulation_steps`: it must be at least 1",
        "line 6: `max_length`: `-3` is no whole number",
        "line 7: `max_grad_norm`: `high` is no number",
    ] {
        assert!(error.contains(expected), "{error}");
    }
    let error = read(Kind::DeepSpeed, "{\"zero_optimization\": {\"stage\": 4}}").unwrap_err().to_string();
    assert_eq!(error, "line 1: `zero_optimization.stage`: there are stages 0 to 3");
}

#[test]
fn command_lines_say_what_files_say() {
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
    assert_eq!(read.layers, [(Kind::DeepSpeed, "ds.json".to_owned())]);

    let argv = words("llamafactory-cli train a.yaml cutoff_len=64 finetuning_type=full");
    let command = crate::command(&argv).expect("a command");
    let read = read_command(&command, &argv, Some("cutoff_len: 4096\nbf16: true\nstage: sft\n")).expect("valid");
    assert_eq!((read.run.seq_len, read.run.precision), (64, Precision::AmpBf16));
}

/// Files with a map for each plugin, as LLaMA-Factory's `examples/v1` have them.
#[test]
fn the_newer_layout_of_llama_factory_is_read() {
    let file = "model: meta-llama/Llama-3.1-8B\nmodel_class: llm\npeft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\n  \
                lora_dropout: 0.05\n  target_modules: all\nquant_config:\n  name: bnb\n  quantization_bit: 4\n\
                kernel_config:\n  name: liger_kernel\ndist_config:\n  name: fsdp2\n  dcp_path: null\n\
                train_dataset: data/v1_sft_demo.yaml\noutput_dir: out\nmicro_batch_size: 2\ncutoff_len: 4096\n\
                global_batch_size: 8\nmax_steps: 10\nsample_backend: hf\nlearning_rte: 1\n";
    let shown = shown(file);
    let expected = "  LLaMA-Factory: meta-llama/Llama-3.1-8B\n  \
        Qlora(Lora { rank: 16, targets: AllLinear, dropout: true }, Quantized { block: 64, double: true }), PureBf16, \
        AdamWForeach\n  2 x 4 of 4096, NonReentrant, Sdpa, Liger\n  Fsdp, Offload { optimizer: false, weights: false }, \
        clips true, compiles false\n  assumed: weights in bf16: they are loaded as they were saved\n  \
        line 24: `learning_rte` is not known\n";
    assert_eq!(shown, expected);
    let deepspeed =
        "model: gpt2\nmodel_class: llm\ndist_config:\n  name: deepspeed\n  config_file: ds_z3_config.json\n";
    let read = of(Kind::LlamaFactory, deepspeed);
    assert_eq!(read.layers, [(Kind::DeepSpeed, "ds_z3_config.json".to_owned())]);
    assert_eq!(read.run.method, Method::Full);
    let smaller = rewrite(Kind::LlamaFactory, file, &[crate::Change::MicroBatch(1)]).expect("it has the key");
    assert!(smaller.contains("\nmicro_batch_size: 1\n"), "{smaller}");
}
