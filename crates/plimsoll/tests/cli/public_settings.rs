//! Files of other trainers and names on the hub: what is supported, what is replaced, and what is refused, each in a
//! line.

use crate::support::{Sandbox, tiny_config};
use serde_json::json;

/// A folder with a model, its weights and a file of instructions, for files with this start.
const BEGUN: &str = "base_model: model\ndatasets:\n  - path: al.jsonl\n    type: alpaca\nsequence_len: 32\n\
                     micro_batch_size: 1\ngradient_accumulation_steps: 1\nmax_steps: 1\n";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("model/config.json", tiny_config(&json!({})));
    sandbox.write("al.jsonl", "{\"instruction\": \"Say hi\", \"input\": \"\", \"output\": \"hi there\"}\n".repeat(30));
    sandbox
}

#[test]
fn settings_with_another_effect_are_listed_with_what_happens_instead() {
    let sandbox = sandbox();
    let settings = "excess_length_strategy: raise\nspecial_tokens: {eos_token: \"<|im_end|>\"}\n";
    sandbox.write("run.yml", format!("{BEGUN}{settings}"));
    let said = sandbox.run("train --config run.yml --tokenizer bytes --init model").stderr;
    let instead = "not supported; what happens instead: ";
    for expected in [
        "`datasets.type` (rows become chats in the tokenizer's chat template, not in the trainer's own prompt)",
        "`excess_length_strategy` (samples longer than `seq_len` are split into rows; none is dropped or refused)",
        "`special_tokens.eos_token` (the tokenizer's own special tokens are used: answers end with its end token)",
    ] {
        assert!(said.contains(instead) && said.contains(expected), "{said}");
    }
    let nothing = said.lines().find(|line| line.contains("changes nothing: ")).unwrap_or_default();
    for key in ["datasets.type", "plugins", "excess_length_strategy", "special_tokens"] {
        assert!(!nothing.contains(key), "{nothing}");
    }
    sandbox.write("kd.yml", format!("{BEGUN}plugins: [axolotl.integrations.kd.KDPlugin]\n"));
    let said = sandbox.run("train --config kd.yml --tokenizer bytes");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("`plugins: axolotl.integrations.kd.KDPlugin` is not supported"), "{}", said.stderr);
    // A key that no trainer has is reported with its consequence.
    sandbox.write("typo.yml", format!("{BEGUN}lerning_rate: 1\n"));
    let said = sandbox.run("train --config typo.yml --tokenizer bytes");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("unknown setting `lerning_rate`") && said.stderr.contains("did you mean `learning_rate`?")
    );
}

#[test]
fn plan_accepts_a_training_file_without_its_data() {
    let sandbox = Sandbox::new();
    let file = "base_model: meta-llama/Llama-3.2-1B\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\nsequence_len: 1024\n\
                micro_batch_size: 1\ngradient_accumulation_steps: 8\nlearning_rate: 2e-5\noptimizer: adamw_torch\nbf16: auto\n";
    sandbox.write("run.yml", file);
    let said = sandbox.run("plan --config run.yml --gpu h100");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(
        said.stderr.contains("not used here: `datasets.path` (only `plimsoll train` reads data"),
        "{}",
        said.stderr
    );
    // An unsupported optimizer is planned as AdamW, which has at least as much state.
    sandbox.write("muon.yml", file.replace("adamw_torch", "muon"));
    let said = sandbox.run("plan --config muon.yml --gpu h100");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("`optimizer` (the plan uses AdamW)"), "{}", said.stderr);
}

/// Files of trainers that train on preferences are planned if they train adapters, or need no reference.
#[test]
fn files_for_training_on_preferences_run_as_they_are() {
    let sandbox = sandbox();
    let factory = "model_name_or_path: gpt2\nstage: dpo\ncutoff_len: 512\n";
    let torchtune = "model:\n  _component_: torchtune.models.qwen2_5.lora_qwen2_5_0_5b\n  lora_attn_modules: ['q_proj', 'v_proj']\n  \
                     lora_rank: 8\n  lora_alpha: 16\ntokenizer:\n  max_seq_len: 512\nbatch_size: 4\nloss:\n  \
                     _component_: torchtune.rlhf.loss.DPOLoss\n  beta: 0.2\n  label_smoothing: 0\n";
    let trl = "model_name_or_path: gpt2\nuse_peft: true\nlora_r: 8\nbeta: 0.3\nmax_length: 512\n";
    let lora = format!("{factory}finetuning_type: lora\n");
    let lora_kto = lora.replace("stage: dpo", "stage: kto");
    for (name, file) in [
        ("a.yml", format!("{BEGUN}adapter: lora\nrl: dpo\nrl_beta: 0.1\ndpo_loss_type: [ipo]\n")),
        ("i.yml", format!("{BEGUN}adapter: lora\nrl: ipo\nrl_beta: 0.1\n")),
        ("o.yml", format!("{BEGUN}rl: orpo\norpo_alpha: 0.1\n")),
        ("k.yml", format!("{BEGUN}adapter: lora\nrl: kto\nkto_desirable_weight: 0.2\nkto_undesirable_weight: 1.0\n")),
        ("lk.yaml", format!("{lora_kto}pref_beta: 0.1\nkto_chosen_weight: 1.0\nkto_rejected_weight: 1.5\n")),
        ("l.yaml", format!("{lora}pref_beta: 0.1\npref_loss: hinge\ndpo_label_smoothing: 0\n")),
        ("lo.yaml", format!("{factory}finetuning_type: full\npref_loss: orpo\n")),
        ("t.yaml", torchtune.to_owned()),
        ("kto.yaml", format!("{trl}loss_type: kto\ndesirable_weight: 1.0\nundesirable_weight: 1.5\n")),
        ("apo.yaml", format!("{trl}loss_type: apo_zero_unpaired\n")),
        ("trl.yaml", format!("{trl}loss_type: robust\nlabel_smoothing: 0.1\n")),
    ] {
        sandbox.write(name, file);
        let said = sandbox.run(&format!("plan --config {name} --gpu h100 --micro-batch 1 --global-batch 1"));
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
    }
    for (name, file) in
        [("full.yml", format!("{BEGUN}rl: dpo\n")), ("full.yaml", format!("{factory}finetuning_type: full\n"))]
    {
        sandbox.write(name, file);
        let said = sandbox.run(&format!("plan --config {name} --gpu h100"));
        assert_eq!(said.code, Some(2), "{name}: {}", said.stderr);
        assert!(
            said.stderr.contains("needs a reference") && said.stderr.contains("`--method lora`"),
            "{}",
            said.stderr
        );
    }
}

/// Files for another kind of training are refused with one reason, whatever the number of their keys.
#[test]
fn files_for_other_training_on_preferences_are_refused_in_a_line() {
    let sandbox = sandbox();
    let factory = "model_name_or_path: gpt2\nstage: rm\nfinetuning_type: full\npref_ftx: 0.1\nref_model: x\n";
    let torchtune = "model:\n  _component_: torchtune.models.qwen2_5.qwen2_5_0_5b\nbatch_size: 1\nbeta3: 1\n\
                     loss:\n  _component_: torchtune.rlhf.loss.SimPOLoss\n";
    for (name, file, said_of) in [
        ("a.yml", format!("{BEGUN}rl: simpo\nrl_beta: 0.1\ncpo_alpha: 0.1\n"), "line 9: `rl: simpo`"),
        (
            "r.yml",
            format!("{BEGUN}reward_model: true\ncenter_rewards_coefficient: 0.1\n"),
            "line 9: `reward_model: true`",
        ),
        ("l.yaml", factory.to_owned(), "line 2: `stage: rm`"),
        ("t.yaml", torchtune.to_owned(), "line 6: `loss._component_: torchtune.rlhf.loss.SimPOLoss`"),
    ] {
        sandbox.write(name, file);
        let said = sandbox.run(&format!("plan --config {name} --gpu h100"));
        assert_eq!((said.code, said.stdout_text()), (Some(2), ""), "{name}: {}", said.stderr);
        let lines = said.stderr.lines().collect::<Vec<_>>();
        assert_eq!(lines[0], format!("error: {name}, {said_of} is not supported"), "{}", said.stderr);
        assert_eq!(
            lines[1..],
            [
                "hint: there is no such training on preferences or rewards; `--objective dpo` and `--objective orpo` train on rows with `chosen` and `rejected`"
            ],
            "{}",
            said.stderr
        );
    }
}

#[test]
fn a_setting_may_be_repeated_with_the_same_value_only() {
    let sandbox = sandbox();
    let twice = "bfloat16: true\nbf16: true\nloss_watchdog_threshold: 5.0\neot_tokens: [\"<|im_end|>\"]\n";
    sandbox.write("run.yml", format!("{BEGUN}{twice}"));
    let said = sandbox.run("train --config run.yml --tokenizer bytes --init model").stderr;
    assert!(!said.contains("twice") && !said.contains("unknown setting"), "{said}");
    for expected in [
        "`loss_watchdog_threshold` (a run is not ended when its loss rises",
        "`eot_tokens` (the chat template ends each turn",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    sandbox.write("other.yml", format!("{BEGUN}bfloat16: true\nprecision: fp32\n"));
    let said = sandbox.run("train --config other.yml --tokenizer bytes");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("`precision` is set twice, to different values"), "{}", said.stderr);
}

#[test]
fn template_names_of_other_trainers_are_rejected() {
    let sandbox = sandbox();
    for name in ["llama3", "mistral_v1", "jinja", "alpaca", "qwen_25", "gemma", "phi_3"] {
        sandbox.write("part.yml", format!("{BEGUN}chat_template: {name}\n"));
        let said = sandbox.run("train --config part.yml --tokenizer bytes");
        assert!(matches!(said.code, Some(2 | 4)), "{name}: {}", said.stderr);
        assert!(said.stderr.contains("is not a known template"), "{name}: {}", said.stderr);
        assert!(!said.stderr.contains("put patterns"), "{name}: {}", said.stderr);
    }
}

#[test]
fn hub_names_of_known_families_are_estimated() {
    let sandbox = Sandbox::new();
    for name in [
        "NousResearch/Llama-2-7b-hf",
        "NousResearch/Llama-3.2-1B",
        "TinyLlama/TinyLlama_v1.1",
        "codellama/CodeLlama-7b-hf",
        "codellama/CodeLlama-7b-Python-hf",
        "Qwen/Qwen2-1.5B-Instruct",
        "huggyllama/llama-7b",
        "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "Qwen/Qwen2.5-Coder-7B-Instruct",
        "unsloth/Qwen3-1.7B",
        "google/gemma-3-1b-it",
        "TheBloke/Llama-2-7B-GPTQ",
    ] {
        let said = sandbox
            .run(&format!("estimate --model {name} --gpu h200 --micro-batch 1 --seq-len 64 --precision pure-bf16"));
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
        let quantized = name.contains("GPTQ");
        assert_eq!(
            said.stderr.contains("the quantization of its weights is not modeled"),
            quantized,
            "{}",
            said.stderr
        );
    }
    let said = sandbox.run("estimate --model Qwen/Qwen4-8B --gpu h200");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: unknown model `Qwen/Qwen4-8B`"), "{}", said.stderr);
}
