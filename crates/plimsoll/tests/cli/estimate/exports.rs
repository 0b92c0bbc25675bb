//! The files that `plimsoll estimate --export` writes, read again.

use super::{Sandbox, json};
use serde_json::Value;

/// A run whose settings all trainers have keys for.
const RUN: &str = "--precision pure-bf16 --micro-batch 2 --gradient-accumulation-steps 4 --seq-len 16 --optimizer \
                   paged-adamw-8bit --clip on --vram 24";

fn run_of(sandbox: &Sandbox, flags: &str) -> Value {
    let said = sandbox.run(&format!("estimate {flags} --json"));
    assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
    json(&said)["run"].clone()
}

/// The file has every setting of the run, or the command has a flag for it.
#[test]
fn every_export_describes_its_run() {
    let sandbox = Sandbox::new();
    let of_script = "--model tiny --seq-len 16 --precision pure-bf16";
    for (trainer, checkpointing, elsewhere) in [
        ("hf", "--gradient-checkpointing", of_script),
        ("hf", "--gradient-checkpointing=reentrant", of_script),
        ("axolotl", "--gradient-checkpointing", ""),
        ("axolotl", "--gradient-checkpointing=reentrant", ""),
        ("llamafactory", "--gradient-checkpointing", ""),
        ("llamafactory", "--gradient-checkpointing=off", ""),
        ("torchtune", "--gradient-checkpointing", "--model tiny"),
        ("unsloth", "--gradient-checkpointing=reentrant", ""),
        ("unsloth", "--gradient-checkpointing=off", ""),
    ] {
        let flags = format!("--model tiny {RUN} {checkpointing}");
        let said = sandbox.run(&format!("estimate {flags} --export {trainer}"));
        assert_eq!(said.code, Some(0), "{trainer}: {}", said.stderr);
        sandbox.write("exported.yaml", &said.stdout);
        let again = run_of(&sandbox, &format!("--config exported.yaml {elsewhere} --vram 24"));
        assert_eq!(again, run_of(&sandbox, &flags), "{trainer}, {checkpointing}:\n{}", said.stdout_text());
    }
}

/// DeepSpeed's and accelerate's files accompany a trainer's, and must not contradict it.
#[test]
fn accompanying_files_describe_the_same_run() {
    let sandbox = Sandbox::new();
    let flags = format!("--model tiny {}", RUN.replace("pure-bf16", "amp-bf16"));
    for (trainer, file) in [("hf", "args.yaml"), ("deepspeed", "ds.json"), ("accelerate", "acc.yaml")] {
        let said = sandbox.run(&format!("estimate {flags} --export {trainer}"));
        assert_eq!(said.code, Some(0), "{trainer}: {}", said.stderr);
        sandbox.write(file, &said.stdout);
    }
    let expected = run_of(&sandbox, &flags);
    for accompanying in ["--config ds.json", "--config acc.yaml", "--config ds.json --config acc.yaml"] {
        let again = run_of(&sandbox, &format!("--config args.yaml {accompanying} --model tiny --seq-len 16 --vram 24"));
        assert_eq!(again, expected, "{accompanying}");
    }
}

#[test]
fn models_have_their_hub_names() {
    let sandbox = Sandbox::new();
    let export = |model: &str, trainer: &str| {
        let said =
            sandbox.run(&format!("estimate --model {model} --seq-len 16 --micro-batch 1 --vram 80 --export {trainer}"));
        assert_eq!(said.code, Some(0), "{model}: {}", said.stderr);
        format!("{}{}", said.stdout_text(), said.stderr)
    };
    for (trainer, expected) in [
        ("hf", "# model: google/flan-t5-small, set in the script"),
        ("axolotl", "base_model: \"google/flan-t5-small\"\n"),
        ("llamafactory", "model_name_or_path: \"google/flan-t5-small\"\n"),
        ("torchtune", "recipe for google/flan-t5-small\n"),
        ("unsloth", "\"model_name\": \"google/flan-t5-small\""),
    ] {
        let text = export("flan-t5-small", trainer);
        assert!(text.contains(expected), "{trainer}: {text}");
        // A fine-tuned model keeps its name, a folder stays a folder, and a model that is on no hub has no name.
        assert!(export("HuggingFaceTB/SmolLM2-135M-Instruct", trainer).contains("HuggingFaceTB/SmolLM2-135M-Instruct"));
        assert!(export("tiny/config.json", trainer).contains("tiny"));
        let ours = export("nano", trainer);
        assert!(!ours.contains("\"nano\"") && ours.contains("these sizes"), "{trainer}: {ours}");
    }
}

/// An export to the trainer's own file keeps other keys, and a run that does not fit is not exported.
#[test]
fn a_file_of_the_same_trainer_is_rewritten() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "mine.yml",
        "# mine\nbase_model: tiny\nmicro_batch_size: 2 # samples\nsequence_len: 16\nwandb_project: p\n",
    );
    let said = sandbox.run("estimate --config mine.yml --micro-batch 4 --vram 24 --export axolotl");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let expected = "# mine\nbase_model: tiny\nmicro_batch_size: 4 # samples\nsequence_len: 16\nwandb_project: p\n";
    assert_eq!(said.stdout_text(), expected);
    let said = sandbox.run("estimate --model gpt2-xl --precision pure-bf16 --vram 1 --export hf");
    assert_eq!((said.code, said.stdout_text()), (Some(3), ""), "{}", said.stderr);
    let env =
        sandbox.run("estimate --model tiny --seq-len 16 --alloc-conf max_split_size_mb:64 --vram 24 --export env");
    assert_eq!(env.stdout_text(), "export PYTORCH_CUDA_ALLOC_CONF='max_split_size_mb:64'\n");
}
