//! Files of settings of other trainers, as their documentation shows them: which keys are used, which change nothing, and
//! which are refused.

use super::file::File;
use super::problems::keys_by_reason;
use super::refused;
use expect_test::expect_file;
use std::fmt::Write as _;

/// The settings, notes and problems of a file, in lines.
fn summary(text: &str) -> String {
    summary_of_file(File::parse(text, true).expect("keys with values"))
}

/// The same for a notebook with this code.
fn summary_of_notebook(code: &str) -> String {
    let words = serde_json::json!({ "cell_type": "markdown", "source": ["r = 3"] });
    let lines = code.split_inclusive('\n').collect::<Vec<_>>();
    let code = serde_json::json!({ "cell_type": "code", "source": lines, "outputs": [], "execution_count": null });
    let notebook = serde_json::json!({ "cells": [words, code], "metadata": {}, "nbformat": 4 });
    summary_of_file(File::of_notebook(&notebook.to_string(), true).expect("a notebook"))
}

fn summary_of_file(mut file: File) -> String {
    let wrong = file.sets.iter().filter_map(refused).collect::<Vec<_>>();
    file.problems.extend(wrong);
    let mut text = String::new();
    for set in &file.sets {
        writeln!(text, "  {} = {}  <- {}", set.flag, set.values.join(", "), set.key).expect("a string");
    }
    for (what, keys) in [("changes nothing", &file.ignored), ("instead", &file.instead), ("not used", &file.unused)] {
        if !keys.is_empty() {
            writeln!(text, "  {what}: {}", keys_by_reason(keys)).expect("a string");
        }
    }
    file.problems.sort_by_key(|problem| problem.line);
    for problem in &file.problems {
        let hint = problem.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
        writeln!(text, "  line {}: {}{hint}", problem.line, problem.what).expect("a string");
    }
    text
}

#[test]
fn ten_files_of_each_trainer_load_or_are_refused_by_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/settings");
    let files = ["hugging_face.yaml", "axolotl.yaml", "llama_factory.yaml", "torchtune.yaml", "unsloth.py"];
    for file in files {
        let (trainer, extension) = file.split_once('.').expect("names with extensions");
        let summary = if extension == "py" { summary_of_notebook } else { summary };
        let text = std::fs::read_to_string(format!("{folder}/{file}")).expect("files of settings");
        let files = text.split("---\n").collect::<Vec<_>>();
        assert_eq!(files.len(), 10, "{trainer}");
        let title = |file: &str| file.lines().next().unwrap_or_default().to_owned();
        let summaries = files.iter().map(|file| format!("{}\n{}", title(file), summary(file)));
        expect_file![format!("{folder}/{trainer}.txt")].assert_eq(&summaries.collect::<Vec<_>>().join("\n"));
    }
}

/// A file that is not a file of settings, with a mistake in each line, gives an error that fits on a screen.
#[test]
fn only_the_first_of_many_problems_are_listed() {
    let file =
        File::parse(&(0..3000).map(|i| format!("zz{i}: 1\n")).collect::<String>(), true).expect("keys with values");
    let failure = super::failure(std::path::Path::new("a.yaml"), file.problems).message();
    assert_eq!(failure.lines().count(), 52);
    assert!(failure.starts_with("a.yaml has 3000 problems\n  line 1: unknown setting `zz0`\n"), "{failure}");
    assert!(failure.ends_with("\n  and 2950 more"), "{failure}");
}

fn settings(text: &str) -> Vec<String> {
    let file = File::parse(text, true).expect("keys with values");
    assert!(file.problems.is_empty(), "{:?}", file.problems);
    file.sets.iter().map(|set| format!("{} = {}", set.flag, set.values.join(", "))).collect()
}

#[test]
fn keys_of_other_trainers_become_flags() {
    let text = "per_device_train_batch_size: 4\nlearning-rate: 3e-4\nnum_train_epochs: 2\nbf16: true\nfp16: false\noptim: adamw_bnb_8bit\ngradient_checkpointing: true\ndata: [a, b]\nname:\n";
    let mut found = settings(text);
    found.sort();
    assert_eq!(
        found,
        [
            "data = a, b",
            "epochs = 2",
            "gradient_accumulation_steps = 1",
            "learning_rate = 0.0003",
            "micro_batch = 4",
            "optimizer = adamw",
            "optimizer_state = 8bit",
            "precision = bf16",
            "recompute = blocks",
        ]
    );
    assert!(settings("").is_empty(), "an empty file sets nothing");
    // In those trainers, fp8 is a setting in addition to bf16.
    for other in ["bf16: true", "pure_bf16: true", "bf16: auto", "dtype: bf16"] {
        for key in ["fp8", "enable_fp8_training", "float8_training"] {
            let found = settings(&format!("{other}\n{key}: true\nfp8_recipe_name: tensorwise\n"));
            assert_eq!(found, ["precision = fp8"], "{other}, {key}");
        }
        let without = settings(&format!("{other}\nfp8: false\n"));
        assert!(!without.contains(&"precision = fp8".to_owned()), "{other}: {without:?}");
    }
}

#[test]
fn unknown_keys_and_what_is_not_built_are_refused() {
    for (text, expected) in [
        ("lerning_rate: 1", "did you mean `learning_rate`"),
        ("bf16: maybe", "supported: `true`, `full`, `false`, `auto`"),
        ("optim: sgd", "`lion_8bit`"),
        ("optim: lion_8bit\noptimizer: adamw", "line 2: `optimizer` is set twice"),
        (
            "lr: 1\nseed: 2\nlearning-rate: 2",
            "`learning_rate` is set twice, to different values: `lr: 1` in line 1 and `learning-rate: 2` in line 3",
        ),
        (
            "datasets:\n  - field: story\n  - field: body\n",
            "`text_field` is one setting for all data sets, but has two values: `datasets.field: story` in line 2 and \
             `datasets.field: body` in line 3",
        ),
        ("plugins: [axolotl.integrations.kd.KDPlugin]", "`plugins: axolotl.integrations.kd.KDPlugin` is not supported"),
        ("chat_template_jinja: x", "`chat_template_jinja: x` is not supported; write the template to a file"),
        ("chat_template: llama3", "line 1: `chat_template: llama3`: is not a known template"),
        ("bf16: true\nprecision: fp32", "`precision` is set twice"),
        ("data: {a: 1}", "must be a plain value"),
        ("lr: 1\nlearning-rate: 2", "`learning_rate` is set twice"),
        ("seed: 1\n\nlr: fast\n", "line 3: `lr: fast`: `fast` is not a number"),
    ] {
        let summary = summary(text);
        assert!(summary.contains(expected), "{text}: {summary}");
    }
    for text in ["{}", "[]", "{\"cells\": 3}", "a: ["] {
        let failure = format!("{:?}", File::of_notebook(text, true).unwrap_err());
        assert!(failure.contains("it is not a notebook"), "{text}: {failure}");
    }
    let long = format!("{{\"cells\": [{{\"cell_type\": \"code\", \"source\": \"{}\"}}]}}", "Trainer(".repeat(200_000));
    let failure = format!("{:?}", File::of_notebook(&long, true).unwrap_err());
    assert!(failure.contains("its code is longer than 1.00 MiB"), "{failure}");
    for text in ["- 1\n- 2", "a: ["] {
        let failure = format!("{:?}", File::parse(text, true).unwrap_err());
        assert!(failure.contains("not valid YAML"), "{text}: {failure}");
    }
}

#[test]
fn equal_values_of_two_keys_are_one_setting() {
    assert_eq!(settings("bf16: true\nbfloat16: true"), ["precision = bf16"]);
    assert_eq!(settings("lr: 3e-4\nlearning_rate: 0.0003"), ["learning_rate = 0.0003"]);
    assert_eq!(settings("weight_decay: 1\noptimizer.weight_decay: 1.0"), ["weight_decay = 1"]);
}

/// A key that Plimsoll understands but replaces is never reported as changing nothing.
#[test]
fn replaced_requests_are_reported() {
    for (text, expected) in [
        ("datasets: [{type: alpaca}]", "instead: `datasets.type` (rows become chats in the tokenizer's chat template"),
        ("datasets: [{type: chat_template}]", ""),
        ("datasets: [{split: 'train[:5%]'}]", "instead: `datasets.split` (all rows of the files are used"),
        ("datasets: [{split: train}]", ""),
        ("excess_length_strategy: raise", "instead: `excess_length_strategy` (samples longer"),
        ("special_tokens: {eos_token: x, pad_token: y}", "instead: `special_tokens.eos_token` (the tokenizer's own"),
        ("loss_watchdog_threshold: 5.0", "instead: `loss_watchdog_threshold` (a run is not ended when its loss rises"),
        ("eot_tokens: ['<|im_end|>']", "instead: `eot_tokens` (the chat template ends each turn"),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", ""),
        ("neftune_noise_alpha: 5", "neftune_noise_alpha = 5"),
        ("noisy_embedding_alpha: null", ""),
        ("max_samples: 10", "instead: `max_samples` (all rows"),
        ("chat_template: tokenizer_default_fallback_chatml", "chat_template = tokenizer_default_fallback_chatml"),
    ] {
        let summary = summary(text);
        assert!(summary.contains(expected) && (!expected.is_empty() || summary.is_empty()), "{text}: {summary}");
    }
}

/// A plan reads no data and writes nothing, so it needs neither, and reports what it ignores.
#[test]
fn plan_needs_no_data_or_output() {
    let text = "base_model: meta-llama/Llama-3.2-1B\ndatasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\n    field: a\n  \
                - path: other/set\n    field: b\noutput_dir: /nowhere/at/all\nwandb_project: x\nreport_to: nothing\n\
                chat_template: llama3\ntokenizer: /nowhere/tokenizer.json\npissa_init: true\nloraplus_lr_embedding: 8\nmade_up: 3\n\
                optimizer: muon\nsequence_len: 1024\n";
    let mut file = File::parse(text, false).expect("keys with values");
    assert!(file.problems.is_empty(), "{:?}", file.problems);
    file.sets.retain(|set| refused(set).is_none());
    let sets = file.sets.iter().map(|set| format!("{} = {}", set.flag, set.values.join(", "))).collect::<Vec<_>>();
    assert_eq!(sets, ["model = meta-llama/Llama-3.2-1B", "seq_len = 1024"]);
    let unused = keys_by_reason(&file.unused);
    for expected in [
        "`datasets.path`, `datasets.field`, `output_dir`, `wandb_project`, `report_to` (only `plimsoll train` reads data",
        "`pissa_init`, `loraplus_lr_embedding` (the plan is without it: adapters are LoRA's",
        "`optimizer` (the plan uses AdamW)",
        "`made_up` (not a known setting",
    ] {
        assert!(unused.contains(expected), "{unused}");
    }
    for text in ["rl: simpo", "sequence_length: 3", "sequence_len: many"] {
        let file = File::parse(text, false).expect("keys with values");
        assert!(!file.problems.is_empty() || file.sets.iter().any(|set| refused(set).is_some()), "{text}");
    }
}

/// The settings of preferences in the files of trainers.
#[test]
fn preferences_of_trainers_are_read() {
    for (text, expected) in [
        ("rl: dpo\nrl_beta: 0.2", "beta=0.2 objective=dpo"),
        (
            "rl: dpo\ndpo_loss_type: [hinge]\ndpo_label_smoothing: 0.1",
            "dpo_loss=hinge label_smoothing=0.1 objective=dpo",
        ),
        ("rl: ipo", "dpo_loss=ipo objective=dpo"),
        ("rl: orpo\norpo_alpha: 0.3", "beta=0.3 objective=orpo"),
        ("rl: kto\nkto_desirable_weight: 0.5", "kto_desirable_weight=0.5 objective=kto"),
        ("stage: kto\nkto_rejected_weight: 1.5", "kto_undesirable_weight=1.5 objective=kto"),
        (
            "loss_type: apo_zero_unpaired\ndesirable_weight: 2",
            "kto_desirable_weight=2 kto_loss=apo_zero_unpaired objective=kto",
        ),
        ("stage: dpo\npref_beta: 0.2\npref_loss: sigmoid", "beta=0.2 dpo_loss=sigmoid objective=dpo"),
        ("stage: dpo\npref_loss: orpo", "objective=orpo"),
        ("loss_type: robust\nlabel_smoothing: 0.1", "dpo_loss=robust label_smoothing=0.1 objective=dpo"),
        ("loss:\n  _component_: torchtune.rlhf.loss.DPOLoss\n  beta: 0.2", "beta=0.2 objective=dpo"),
    ] {
        let file = File::parse(text, true).expect("keys with values");
        assert_eq!(file.problems, [], "{text}");
        let found = file.sets.iter().map(|set| format!("{}={}", set.flag, set.values.join(","))).collect::<Vec<_>>();
        assert_eq!(found.join(" "), expected, "{text}");
    }
    for text in
        ["rl: simpo", "rl: grpo", "pref_loss: simpo", "stage: rm", "dpo_loss_type: [sppo_hard]", "pref_ftx: 0.1"]
    {
        assert!(!File::parse(text, true).expect("keys with values").problems.is_empty(), "{text}");
    }
}

/// The settings of adapters in the files of trainers.
#[test]
fn adapters_of_trainers_are_read() {
    for (text, expected) in [
        (
            "adapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_linear: true\n\
             lora_target_modules: [q_proj]\npeft_use_rslora: true\npeft_use_dora: true\nloraplus_lr_ratio: 8\nlora_modules_to_save: [embed_tokens, lm_head]",
            "base_weights = nf4; dora = true; lora_alpha = 16; lora_dropout = 0.05; lora_modules_to_save = embed_tokens lm_head; \
             lora_plus_ratio = 8; lora_rank = 32; lora_targets = all-linear; method = qlora; rslora = true",
        ),
        (
            "finetuning_type: lora\nlora_rank: 8\nlora_target: q_proj,v_proj\nquantization_bit: 8\nadditional_target: lm_head",
            "base_weights = int8; lora_modules_to_save = lm_head; lora_rank = 8; lora_targets = q_proj,v_proj; method = lora",
        ),
        ("finetuning_type: lora\nlora_target: all", "lora_targets = all-linear; method = lora"),
        (
            "use_peft: true\nlora_r: 4\nlora_target_modules: all-linear\nuse_rslora: false\nload_in_4bit: false",
            "lora_rank = 4; lora_targets = all-linear; method = lora; rslora = false",
        ),
        // Unsloth and PEFT have no key for the method.
        (
            "r: 16\nlora_alpha: 16\nlora_dropout: 0\nbias: none\ntarget_modules: [q_proj, down_proj]\nload_in_4bit: true\n\
             random_state: 3407\nuse_rslora: false\nloftq_config: null",
            "base_weights = nf4; lora_alpha = 16; lora_dropout = 0; lora_rank = 16; lora_targets = q_proj down_proj; method = lora; \
             rslora = false",
        ),
        (
            "model:\n  _component_: torchtune.models.llama3_2.qlora_llama3_2_1b\n  lora_attn_modules: [q_proj, output_proj]\n  \
             apply_lora_to_mlp: true\n  apply_lora_to_output: false\n  lora_rank: 64\n  lora_alpha: 128\n  lora_dropout: 0.0",
            "lora_alpha = 128; lora_dropout = 0; lora_rank = 64; lora_targets = q_proj o_proj gate_proj,up_proj,down_proj; \
             method = qlora; model = llama-3.2-1b",
        ),
        (
            "peft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\n  target_modules: all\nquant_config:\n  name: bnb\n  \
             quantization_bit: 4",
            "base_weights = nf4; lora_alpha = 32; lora_rank = 16; lora_targets = all-linear; method = lora",
        ),
        // These ask for no adapters, and describe some.
        ("finetuning_type: full\nlora_rank: 8\nlora_target: all", ""),
        ("adapter:\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj]\nlora_target_linear: true", ""),
    ] {
        let file = File::parse(text, true).expect("keys with values");
        assert!(file.problems.is_empty(), "{text}: {:?}", file.problems);
        let mut sets =
            file.sets.iter().map(|set| format!("{} = {}", set.flag, set.values.join(" "))).collect::<Vec<_>>();
        sets.sort();
        assert_eq!(sets.join("; "), expected, "{text}");
        assert!(file.sets.iter().all(|set| refused(set).is_none()), "{text}");
    }
}
