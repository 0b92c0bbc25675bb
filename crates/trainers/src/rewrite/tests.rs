use super::*;
use crate::run::{
    Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, Sharding, Targets,
};
use proptest::prelude::*;

fn after(kind: TrainerKind, text: &str, changes: &[SettingChange]) -> String {
    rewrite(kind, text, changes).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn values_change_in_place_and_nothing_else_changes() {
    let text = "# mine\nbase_model: a/b   # the model\nmicro_batch_size: 8 # too much?\n\ngradient_accumulation_steps:  2\n\
                datasets:\n  - path: x.jsonl # data\n    type: completion\noptimizer: 'adamw_torch'\n# end";
    let changes = [
        SettingChange::MicroBatch(4),
        SettingChange::Accumulation(4),
        SettingChange::Optimizer(Optimizer::PagedAdamW8bit),
    ];
    let expected = text
        .replace("size: 8", "size: 4")
        .replace("steps:  2", "steps:  4")
        .replace("'adamw_torch'", "paged_adamw_8bit");
    assert_eq!(after(TrainerKind::Axolotl, text, &changes), expected);
}

#[test]
fn missing_keys_are_added_to_their_map() {
    let checkpointing = [SettingChange::Checkpointing(Checkpointing::NonReentrant)];
    for (text, expected) in [
        (
            "bf16: true\n# tail\n",
            "bf16: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n# tail\n",
        ),
        (
            "bf16: true",
            "bf16: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
        ),
        (
            "bf16: true\r\n",
            "bf16: true\r\ngradient_checkpointing: true\r\ngradient_checkpointing_kwargs: {use_reentrant: false}\r\n",
        ),
        ("", "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"),
        ("# words\n", "# words\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"),
        (
            "gradient_checkpointing: false\ngradient_checkpointing_kwargs:\n    preserve_rng_state: true\nbf16: true\n",
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n    preserve_rng_state: true\n    \
             use_reentrant: false\nbf16: true\n",
        ),
        (
            "gradient_checkpointing_kwargs:\ngradient_checkpointing: true\n",
            "gradient_checkpointing_kwargs: {use_reentrant: false}\ngradient_checkpointing: true\n",
        ),
        (
            "{\n  \"bf16\": true\n}\n",
            "{\n  \"bf16\": true,\n  \"gradient_checkpointing\": true,\n  \
             \"gradient_checkpointing_kwargs\": {\"use_reentrant\": false}\n}\n",
        ),
        (
            "{\n\t\"gradient_checkpointing_kwargs\": {},\n\t\"gradient_checkpointing\": true}",
            "{\n\t\"gradient_checkpointing_kwargs\": {\"use_reentrant\": false},\n\t\"gradient_checkpointing\": true}",
        ),
        (
            "{\"a\": [1, {\"b\": 2}]}",
            "{\"a\": [1, {\"b\": 2}], \"gradient_checkpointing\": true, \
             \"gradient_checkpointing_kwargs\": {\"use_reentrant\": false}}",
        ),
        ("{}", "{\"gradient_checkpointing\": true, \"gradient_checkpointing_kwargs\": {\"use_reentrant\": false}}"),
        (
            "\u{feff}bf16: true\nnote: |\n  two\n  lines\n",
            "\u{feff}bf16: true\nnote: |\n  two\n  lines\ngradient_checkpointing: true\n\
             gradient_checkpointing_kwargs: {use_reentrant: false}\n",
        ),
    ] {
        assert_eq!(after(TrainerKind::HuggingFace, text, &checkpointing), expected, "{text:?}");
    }
}

#[test]
fn lists_grow_and_are_replaced_in_both_notations() {
    let liger = [SettingChange::Loss(Loss::Liger)];
    let plugin = "axolotl.integrations.liger.LigerPlugin";
    for (text, expected) in [
        (
            "plugins:\n- one # 1\nx: 1\n",
            format!("plugins:\n- one # 1\n- {plugin}\nx: 1\nliger_fused_linear_cross_entropy: true\n"),
        ),
        ("plugins: [one]\n", format!("plugins: [one, {plugin}]\nliger_fused_linear_cross_entropy: true\n")),
        ("plugins:\nx: 1\n", format!("plugins: [{plugin}]\nx: 1\nliger_fused_linear_cross_entropy: true\n")),
        ("x: 1\n", format!("x: 1\nplugins: [{plugin}]\nliger_fused_linear_cross_entropy: true\n")),
    ] {
        assert_eq!(after(TrainerKind::Axolotl, text, &liger), expected, "{text:?}");
    }
    let targets = Targets::Named(vec!["q_proj".to_owned(), "v_proj".to_owned()]);
    let lora = [SettingChange::Method(Method::Lora(Lora { rank: 8, targets, dropout: false }))];
    let text = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules:\n  - up_proj\n  - down_proj\nseed: 1\n";
    let expected = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\nseed: 1\n";
    assert_eq!(after(TrainerKind::Axolotl, text, &lora), expected);
}

#[test]
fn conflicting_keys_are_removed() {
    let text = "batch_size: 4\noptimizer:\n  _component_: torch.optim.AdamW\n  fused: True\n  lr: 2e-5\nseed: 1\n";
    let eight = [SettingChange::Optimizer(Optimizer::AdamW8bit)];
    let expected = "batch_size: 4\noptimizer:\n  _component_: bitsandbytes.optim.AdamW8bit\n  lr: 2e-5\nseed: 1\n";
    assert_eq!(after(TrainerKind::Torchtune, text, &eight), expected);
    let text = "optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 2e-5}\n";
    let expected = "optimizer: {_component_: bitsandbytes.optim.AdamW8bit, lr: 2e-5}\n";
    assert_eq!(after(TrainerKind::Torchtune, text, &eight), expected);
    let text = "optimizer: {_component_: torch.optim.AdamW, lr: 2e-5, fused: True}\n";
    assert_eq!(after(TrainerKind::Torchtune, text, &eight), expected);
    let text = "micro_batch_size: 2\nbatch_size: 16\nseed: 1\n";
    let expected = "micro_batch_size: 1\nseed: 1\ngradient_accumulation_steps: 16\n";
    assert_eq!(
        after(TrainerKind::Axolotl, text, &[SettingChange::MicroBatch(1), SettingChange::Accumulation(16)]),
        expected
    );
}

#[test]
fn an_edit_that_would_change_something_else_is_rejected() {
    let shared = "base: &b {use_reentrant: true}\ngradient_checkpointing_kwargs: *b\ngradient_checkpointing: true\n";
    let error = rewrite(TrainerKind::HuggingFace, shared, &[SettingChange::Checkpointing(Checkpointing::NonReentrant)])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`gradient_checkpointing_kwargs.use_reentrant` can't be changed without changing something else (line 2)"
    );
    let alias = "a: &n 8\nper_device_train_batch_size: *n\n";
    let expected = "a: &n 8\nper_device_train_batch_size: 4\n";
    assert_eq!(after(TrainerKind::HuggingFace, alias, &[SettingChange::MicroBatch(4)]), expected);
    for (text, expected) in [
        ("- 1\n", "not valid YAML"),
        ("a: 1\na: 2\n", "duplicate"),
        ("a:\n\tb: 1\n", "tabs"),
        ("a: [", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "multiple"),
    ] {
        let error = rewrite(TrainerKind::HuggingFace, text, &[SettingChange::MicroBatch(4)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error =
        rewrite(TrainerKind::HuggingFace, "bf16: true\n", &[SettingChange::Attention(Attention::Sdpa)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Hugging Face's Trainer has no key for the attention implementation: the script passes it to `from_pretrained`"
    );
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn arguments_keep_their_form() {
    let halved = [SettingChange::MicroBatch(4), SettingChange::Accumulation(2)];
    let checkpointing = [SettingChange::Checkpointing(Checkpointing::NonReentrant)];
    let paged = [SettingChange::Optimizer(Optimizer::PagedAdamW8bit)];
    for (kind, line, changes, expected) in [
        (
            TrainerKind::HuggingFace,
            "torchrun --nproc_per_node 2 t.py --per_device_train_batch_size 8 --bf16 --output_dir=o",
            &halved[..],
            "torchrun --nproc_per_node 2 t.py --per_device_train_batch_size 4 --bf16 --output_dir=o \
             --gradient_accumulation_steps 2",
        ),
        (
            TrainerKind::HuggingFace,
            "python t.py --per-device-train-batch-size=8 --gradient-accumulation-steps 1 --output_dir o",
            &halved[..],
            "python t.py --per-device-train-batch-size=4 --gradient-accumulation-steps 2 --output_dir o",
        ),
        (
            TrainerKind::HuggingFace,
            "accelerate launch --gradient_accumulation_steps 9 t.py --output_dir o --gradient_checkpointing",
            &checkpointing[..],
            "accelerate launch --gradient_accumulation_steps 9 t.py --output_dir o --gradient_checkpointing \
             --gradient_checkpointing_kwargs {\"use_reentrant\": false}",
        ),
        (
            TrainerKind::HuggingFace,
            "python t.py --gradient_checkpointing_kwargs {\"use_reentrant\":true} --gradient_checkpointing False --optim sgd",
            &checkpointing[..],
            "python t.py --gradient_checkpointing_kwargs {\"use_reentrant\":false} --gradient_checkpointing true --optim sgd",
        ),
        (
            TrainerKind::Axolotl,
            "axolotl train a.yml --micro-batch-size 8 --no-gradient-checkpointing -- --nproc_per_node=2",
            &halved[..],
            "axolotl train a.yml --micro-batch-size 4 --no-gradient-checkpointing --gradient-accumulation-steps 2 -- \
             --nproc_per_node=2",
        ),
        (
            TrainerKind::LlamaFactory,
            "llamafactory-cli train a.yaml per_device_train_batch_size=8 bf16=true",
            &halved[..],
            "llamafactory-cli train a.yaml per_device_train_batch_size=4 bf16=true gradient_accumulation_steps=2",
        ),
        (
            TrainerKind::LlamaFactory,
            "llamafactory-cli train --stage sft --per_device_train_batch_size 8",
            &halved[..],
            "llamafactory-cli train --stage sft --per_device_train_batch_size 4 --gradient_accumulation_steps 2",
        ),
        (
            TrainerKind::Torchtune,
            "tune run full_finetune_single_device --config a.yaml batch_size=8 optimizer.fused=True",
            &paged[..],
            "tune run full_finetune_single_device --config a.yaml batch_size=8 \
             optimizer._component_=bitsandbytes.optim.PagedAdamW8bit",
        ),
    ] {
        let found = rewrite_flags(kind, &words(line), changes).unwrap_or_else(|error| panic!("{line}: {error}"));
        // Compare the joined line, since arguments may contain spaces.
        assert_eq!(found.join(" "), expected, "{line}");
    }
    let other = rewrite_flags(TrainerKind::Axolotl, &words("python t.py --output_dir o"), &halved).unwrap_err();
    assert_eq!(other, RewriteError::NoCommand { kind: TrainerKind::Axolotl });
}

#[test]
fn a_key_is_changed_where_it_is_set() {
    let argv = words("tune run full_finetune_single_device --config a.yaml batch_size=8");
    let command = crate::command(&argv).expect("a command");
    let file =
        "batch_size: 2\ngradient_accumulation_steps: 4\noptimizer:\n  _component_: torch.optim.AdamW\n  fused: true\n";
    let changes =
        [SettingChange::MicroBatch(4), SettingChange::Accumulation(8), SettingChange::Optimizer(Optimizer::AdamW8bit)];
    let found = rewrite_command(&command, &argv, Some(file), &changes).expect("keys for all");
    assert_eq!(found.argv.last().map(String::as_str), Some("batch_size=4"));
    let expected =
        "batch_size: 2\ngradient_accumulation_steps: 8\noptimizer:\n  _component_: bitsandbytes.optim.AdamW8bit\n";
    assert_eq!(found.file.as_deref(), Some(expected));
}

/// Any realistic change.
fn changes() -> impl Strategy<Value = SettingChange> {
    let quantized = Quantized { block: 64, double: true };
    let lora = |targets| Lora { rank: 16, targets, dropout: false };
    let methods = vec![
        Method::Full,
        Method::Lora(lora(Targets::AllLinear)),
        Method::Lora(lora(Targets::Named(vec!["q_proj".to_owned()]))),
        Method::Qlora(lora(Targets::Default), quantized),
    ];
    let optimizers = vec![
        Optimizer::AdamWForeach,
        Optimizer::AdamWFused,
        Optimizer::AdamW8bit,
        Optimizer::PagedAdamW,
        Optimizer::Adafactor,
        Optimizer::Sgd { momentum: false },
    ];
    let precisions = vec![Precision::Fp32, Precision::PureBf16, Precision::PureFp16, Precision::AmpBf16];
    let checkpointings = vec![Checkpointing::Off, Checkpointing::Reentrant, Checkpointing::NonReentrant];
    let attentions = vec![Attention::Eager, Attention::Sdpa, Attention::Flash2];
    let losses = vec![Loss::Plain, Loss::Liger, Loss::CutCrossEntropy];
    let shardings = vec![Sharding::None, Sharding::Zero { stage: 3 }, Sharding::Fsdp];
    let offloads = vec![Offload::default(), Offload { optimizer: true, weights: true }];
    prop_oneof![
        (1u64..64).prop_map(SettingChange::MicroBatch),
        (1u64..64).prop_map(SettingChange::Accumulation),
        (1u64..9000).prop_map(SettingChange::SeqLen),
        prop::sample::select(methods).prop_map(SettingChange::Method),
        prop::sample::select(optimizers).prop_map(SettingChange::Optimizer),
        prop::sample::select(precisions).prop_map(SettingChange::Precision),
        prop::sample::select(checkpointings).prop_map(SettingChange::Checkpointing),
        prop::sample::select(attentions).prop_map(SettingChange::Attention),
        prop::sample::select(losses).prop_map(SettingChange::Loss),
        prop::sample::select(shardings).prop_map(SettingChange::Sharding),
        prop::sample::select(offloads).prop_map(SettingChange::Offload),
        any::<bool>().prop_map(SettingChange::Clips),
        any::<bool>().prop_map(SettingChange::Compiles),
    ]
}

/// Realistic lines in any order, with comments.
fn files() -> impl Strategy<Value = String> {
    let lines = prop::sample::select(vec![
        "per_device_train_batch_size: 8\n",
        "micro_batch_size: 8 # samples\n",
        "batch_size: 16\n",
        "train_micro_batch_size_per_gpu: auto\n",
        "gradient_accumulation_steps: '4'\n",
        "gradient_checkpointing:\n",
        "gradient_checkpointing_kwargs:\n  # how\n  use_reentrant: true\n\n",
        "optimizer: {_component_: torch.optim.AdamW, fused: true}\n",
        "optim:   \"adamw_torch\"   # c: d\n",
        "zero_optimization:\n      stage: 2\n      offload_optimizer: {device: none}\n",
        "tokenizer:\n  path: /x # {\n",
        "lora_target_modules:\n- q_proj\n- v_proj\n",
        "plugins: []\n",
        "bf16: true\n",
        "dtype: bf16\n",
        "pure_bf16: false\n",
        "note: >\n  words: 1\n\n  more\n",
        "# a: b\n",
        "\n",
        "é: 'ü # no comment'\n",
    ]);
    prop::collection::btree_set(lines, 0..12).prop_map(|lines| lines.into_iter().collect::<String>())
}

proptest! {
    /// A rewritten text can be read, has the new setting, and is not changed by the same rewrite again.
    #[test]
    fn a_rewrite_is_idempotent_or_rejected(
        text in files(), change in changes(), kind in prop::sample::select(TrainerKind::ALL.to_vec()), windows in any::<bool>(),
    ) {
        let text = if windows { text.replace('\n', "\r\n") } else { text };
        let Ok(once) = rewrite(kind, &text, std::slice::from_ref(&change)) else { return Ok(()) };
        prop_assert!(Document::parse(&once).is_ok());
        let (ends, of_windows) = (once.matches('\n').count(), once.matches("\r\n").count());
        prop_assert_eq!(of_windows, if text.contains("\r\n") { ends } else { 0 }, "{:?}", once);
        prop_assert_eq!(rewrite(kind, &once, &[change]), Ok(once.clone()));
        for comment in ["# samples", "# c: d", "# how", "# a: b"] {
            let is_gone = text.contains(comment) && !once.contains(comment);
            prop_assert!(!is_gone, "{comment}: {once}");
        }
    }

    /// Halving the micro-batch any number of times keeps the effective batch.
    #[test]
    fn halving_keeps_the_effective_batch_of_a_file(micro in 1u64..200, times in 1u64..9) {
        for (kind, micro_key) in [
            (TrainerKind::HuggingFace, "per_device_train_batch_size"),
            (TrainerKind::Axolotl, "micro_batch_size"),
            (TrainerKind::LlamaFactory, "per_device_train_batch_size"),
            (TrainerKind::Torchtune, "batch_size"),
            (TrainerKind::Unsloth, "per_device_train_batch_size"),
        ] {
            let mut text = format!("{micro_key}: {micro}\ngradient_accumulation_steps: {times}\n");
            let mut run = Run { micro_batch: micro, accumulation: times, ..Run::default() };
            while let Some(changes) = SettingChange::halve_micro_batch(&run) {
                text = rewrite(kind, &text, &changes).expect("keys for both");
                changes.iter().for_each(|change| change.apply(&mut run));
                let document = Document::parse(&text).expect("valid");
                let number = |key: &str| document.plain(key).and_then(|text| text.parse::<u64>().ok());
                let product = number(micro_key).zip(number("gradient_accumulation_steps")).map(|(a, b)| a * b);
                prop_assert_eq!(product, Some(micro * times), "{}", text);
            }
        }
    }

    #[test]
    fn any_text_and_arguments_are_rewritten_or_rejected(
        text in "[ -~\t\r\n{}\\[\\]:#&*|>é]{0,60}", change in changes(), kind in prop::sample::select(TrainerKind::ALL.to_vec()),
        argv in prop::collection::vec("(--)?[a-z_.~=-]{0,12}(=[{\\[a1]*)?|t.py|axolotl|train|a.yml|tune|run|--config", 0..8),
    ) {
        let _ = rewrite(kind, &text, std::slice::from_ref(&change));
        let _ = rewrite_flags(kind, &argv, std::slice::from_ref(&change));
        let _ = crate::detect(&text, "a.json");
    }
}
