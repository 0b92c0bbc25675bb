//! Answers for names that users try, but that no command or flag has: what Plimsoll offers instead. Also drops clap's
//! suggestions that are too different from the given name.
//! Not here: other trainers' names of settings (`words/`).

use super::Failure;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use plimsoll_units::spelling;

const ADAPTERS: &str = "`plimsoll train --method lora` trains LoRA adapters, `--method qlora` over weights in NF4; `plimsoll \
    estimate --method lora` estimates a PyTorch run with adapters, and `plimsoll run -- COMMAND` supervises one";
const MERGE: &str = "`plimsoll merge --checkpoint runs/NAME --out FOLDER` merges adapters into their weights";
const GGUF: &str = "`plimsoll export --checkpoint runs/NAME --gguf Q4_K_M --out FILE` writes a GGUF file, with `--ollama` also a \
    Modelfile";
const EXPORT: &str = "`transformers` and vLLM open runs/NAME/model; `plimsoll export --gguf` writes a file for llama.cpp, and \
    `plimsoll estimate --export hf` prints settings for a trainer";
const CHAT: &str = "`plimsoll generate --checkpoint runs/NAME --chat` talks to a chat model";
const INFERENCE: &str = "`plimsoll generate --checkpoint runs/NAME --prompt TEXT` generates text; for an inference server, \
    open runs/NAME/model in vLLM";
const SERVE: &str = "`plimsoll serve` shows runs on a web page; to serve a model, open runs/NAME/model in vLLM";
const EVAL: &str = "`plimsoll train` evaluates held-out data every `--eval-every` steps; for benchmarks, open runs/NAME/model \
    in lm-evaluation-harness";
const SEVERAL_GPUS: &str = "`plimsoll train` uses one GPU, such as `--device cuda:1`; `plimsoll run -- torchrun COMMAND` \
    supervises a trainer on several, and `plimsoll estimate --cards N` estimates one";
const SHARDING: &str = "FSDP and DeepSpeed are not supported: `plimsoll train` offloads to the host \
    (`--optimizer-offload`, `--weight-offload`, `--activation-offload`); `plimsoll estimate --sharding zero3` estimates a PyTorch run with them";
const LAUNCHER: &str =
    "`plimsoll run -- torchrun train.py` or `plimsoll run -- accelerate launch train.py` supervises a trainer";
const TRAINERS: &str = "`plimsoll run -- COMMAND` supervises another trainer; `plimsoll estimate --config FILE` estimates it, and \
    `plimsoll train --config FILE` reads its settings";
const PREFERENCES: &str = "`plimsoll train --objective dpo` trains on preferences, as `orpo` and `kto` do; training on rewards (GRPO, \
    PPO) is not supported, and `plimsoll run -- python grpo.py` supervises a trainer that does it";
const LOGS: &str =
    "`plimsoll train --log-to wandb` logs for W&B; other values are `tensorboard`, `mlflow`, `jsonl` and `csv`";
const QUANTIZE: &str = "`--base-weights nf4` quantizes frozen weights (`--freeze`); `--optimizer-state 8bit` quantizes the optimizer's state, and \
    `--precision bf16-pure` halves the weights";
const UPLOAD: &str = "`hf upload OWNER/NAME runs/NAME/model` uploads a checkpoint; Plimsoll uploads nothing";
const DOWNLOAD: &str = "`plimsoll train --init OWNER/NAME --download` downloads weights from the Hugging Face hub";
const ATTENTION: &str = "attention is always computed in tiles, as in FlashAttention; no flag is needed";
const TRAIN: &str = "`plimsoll train --init OWNER/NAME --data FILE` fine-tunes; without `--init` it pretrains";
const PAGE: &str = "`plimsoll serve` shows runs and GPUs on a web page, and `plimsoll top` in a terminal";
const BACKGROUND: &str = "`plimsoll train --detach` trains in the background, `plimsoll run --detach -- COMMAND` runs other trainers, and `plimsoll install-service` resumes a run after each reboot";
const TOKENIZE: &str =
    "`plimsoll train` tokenizes its data and caches the tokens; `plimsoll tokenizer train` makes a tokenizer";
const RUNS: &str = "`plimsoll ps --all` lists runs, and `plimsoll models` lists models";
const SWEEP: &str =
    "sweeps are not supported; `plimsoll run --workers 2 -- COMMAND --seed {worker}` runs a command several times";

/// Names, in lower case with hyphens, and their answers.
const SOUGHT: &[(&[&str], &str)] = &[
    (
        &[
            "lora",
            "qlora",
            "dora",
            "qdora",
            "peft",
            "adapter",
            "adapters",
            "rslora",
            "lora-plus",
            "loraplus",
            "lora-r",
            "lora-rank",
            "lora-alpha",
        ],
        ADAPTERS,
    ),
    (&["merge", "merge-adapter", "merge-adapters", "merge-lora", "merge-and-unload"], MERGE),
    (&["gguf", "ggml", "llama-cpp", "llamacpp", "ollama", "to-gguf"], GGUF),
    (&["export", "convert", "save-model", "to-hf", "onnx", "safetensors", "vllm"], EXPORT),
    (&["chat", "talk", "ask", "repl"], CHAT),
    (&["inference", "infer", "predict", "sample", "complete", "completion", "prompt"], INFERENCE),
    (&["serve", "deploy", "api", "server"], SERVE),
    (&["eval", "evaluate", "evaluation", "validate", "test", "mmlu", "lm-eval", "perplexity"], EVAL),
    (
        &[
            "gpus",
            "multi-gpu",
            "multigpu",
            "num-gpus",
            "n-gpus",
            "ngpus",
            "ddp",
            "data-parallel",
            "tensor-parallel",
            "pipeline-parallel",
            "nproc-per-node",
            "num-processes",
            "world-size",
            "nnodes",
            "distributed",
        ],
        SEVERAL_GPUS,
    ),
    (&["fsdp", "fsdp2", "deepspeed", "zero", "zero2", "zero3", "zero-stage", "cpu-offload"], SHARDING),
    (&["torchrun", "accelerate", "launch", "mpirun", "slurm"], LAUNCHER),
    (
        &["unsloth", "axolotl", "trl", "llamafactory", "llama-factory", "torchtune", "transformers", "hf", "lightning"],
        TRAINERS,
    ),
    (
        &["dpo", "grpo", "rlhf", "rl", "ppo", "orpo", "kto", "simpo", "rloo", "reward", "reward-model", "preference"],
        PREFERENCES,
    ),
    (&["wandb", "tensorboard", "mlflow", "comet", "trackio", "log", "track", "tracking", "logger"], LOGS),
    (
        &["quantize", "quantise", "quantization", "bnb", "bitsandbytes", "gptq", "awq", "int8", "int4", "4bit", "8bit"],
        QUANTIZE,
    ),
    (&["push", "push-to-hub", "upload", "publish", "hub"], UPLOAD),
    (&["download", "pull", "fetch"], DOWNLOAD),
    (&["flash-attention", "flash-attn", "flash", "sdpa", "xformers", "flex-attention"], ATTENTION),
    (&["finetune", "fine-tune", "finetuning", "sft", "pretrain", "pretraining", "fit"], TRAIN),
    (&["ui", "webui", "web", "gui", "dashboard", "monitor", "watch"], PAGE),
    (&["detach", "background", "daemon", "nohup", "service", "systemd"], BACKGROUND),
    (&["tokenize", "preprocess", "prepare", "prepare-data"], TOKENIZE),
    (&["list", "ls", "runs", "status"], RUNS),
    (&["sweep", "optuna", "hpo", "tune", "grid-search"], SWEEP),
];

/// Prefixes to ignore in a name.
const FILLERS: &[&str] = &["use-", "enable-", "with-", "do-", "run-", "no-"];

/// The answer for a name that no command or flag has.
fn answer(name: &str) -> Option<&'static str> {
    let name = name.trim_start_matches('-').to_ascii_lowercase().replace('_', "-");
    let name = name.split('=').next().unwrap_or_default();
    let find = |name: &str| SOUGHT.iter().find(|(names, _)| names.contains(&name)).map(|(_, answer)| *answer);
    find(name).or_else(|| FILLERS.iter().find_map(|filler| find(name.strip_prefix(filler)?)))
}

/// The failure for an error of clap: with the answer for an unknown name, if there is one. Else `otherwise` makes it, after
/// this has removed suggestions that are too different.
pub(super) fn refused(mut error: Error, otherwise: impl FnOnce(Error) -> Failure) -> Failure {
    let (given, suggested) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        _ => return otherwise(error),
    };
    let Some(ContextValue::String(name)) = error.get(given).cloned() else { return otherwise(error) };
    let answer = answer(&name);
    let is_near = |known: &str| spelling::edits(name.trim_start_matches('-'), known.trim_start_matches('-')).is_some();
    let near = match error.remove(suggested) {
        Some(ContextValue::String(known)) if answer.is_none() && is_near(&known) => Some(ContextValue::String(known)),
        Some(ContextValue::Strings(known)) if answer.is_none() => {
            let near = known.into_iter().filter(|known| is_near(known)).collect::<Vec<_>>();
            (!near.is_empty()).then_some(ContextValue::Strings(near))
        }
        _ => None,
    };
    if let Some(near) = near {
        error.insert(suggested, near);
    }
    // Clap's tip "to pass it as a value" makes no sense for a name with two hyphens.
    error.remove(ContextKind::Suggested);
    match answer {
        Some(answer) => Failure::usage(error).hint(answer),
        None => otherwise(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_is_answered_once() {
        let mut seen = BTreeSet::new();
        for name in SOUGHT.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name} has two answers");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        }
    }

    #[test]
    fn names_are_found_in_any_spelling() {
        for (name, expected) in [
            ("--lora", Some(ADAPTERS)),
            ("--use_LoRA=true", Some(ADAPTERS)),
            ("export", Some(EXPORT)),
            ("--enable-flash-attn", Some(ATTENTION)),
            ("--no-wandb", Some(LOGS)),
            ("--zebra", None),
        ] {
            assert_eq!(answer(name), expected, "{name}");
        }
    }

    /// Every command in an answer exists, and so do its flags.
    #[test]
    fn answers_name_commands_and_flags_that_exist() {
        let commands = super::super::help::command();
        for (names, answer) in SOUGHT {
            let quoted = answer.split('`').skip(1).step_by(2).filter(|text| text.starts_with("plimsoll "));
            for command in quoted {
                let words = command.split_whitespace().take_while(|word| *word != "--").collect::<Vec<_>>();
                let sub = commands.find_subcommand(words[1]).unwrap_or_else(|| panic!("{names:?}: {command}"));
                for flag in words.iter().filter_map(|word| word.strip_prefix("--")) {
                    assert!(sub.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{names:?}: {command}");
                }
            }
        }
    }
}
