//! Defaults of trainers, and keys whose meaning depends on other keys.

use super::*;

/// The note about a key.
fn noted(read: &Read, key: &str) -> Option<String> {
    read.unmodeled.iter().find(|noted| noted.key == key).map(|noted| noted.why.clone())
}

#[test]
fn trl_uses_checkpointing_and_bf16_by_default() {
    let plain = "learning_rate: 1e-4\nper_device_train_batch_size: 2\n";
    let of_trl = format!("{plain}dataset_text_field: text\n");
    let read = of(TrainerKind::HuggingFace, &of_trl);
    assert_eq!((read.run.checkpointing, read.run.precision), (Checkpointing::NonReentrant, Precision::AmpBf16));
    assert!(read.has_length() && !of(TrainerKind::HuggingFace, plain).has_length());
    assert_eq!(read.assumed.len(), 5, "{:?}", read.assumed);
    let told = of(TrainerKind::HuggingFace, &format!("{of_trl}gradient_checkpointing: false\nbf16: false\n"));
    assert_eq!((told.run.checkpointing, told.run.precision), (Checkpointing::Off, Precision::Fp32));
    assert_eq!(of(TrainerKind::HuggingFace, &format!("{of_trl}fp16: true\n")).run.precision, Precision::AmpFp16);
    let trainer = of(TrainerKind::HuggingFace, plain).run;
    assert_eq!((trainer.checkpointing, trainer.precision), (Checkpointing::Off, Precision::Fp32));

    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (line, expected) in [
        ("trl sft --model_name_or_path gpt2 --output_dir o", Checkpointing::NonReentrant),
        ("python train.py --model_name_or_path gpt2 --output_dir o", Checkpointing::Off),
    ] {
        let argv = words(line);
        let read = read_command(&command(&argv).expect("a command"), &argv, None).expect("valid");
        assert_eq!(read.run.checkpointing, expected, "{line}");
    }

    // A rewrite sets the precision explicitly, since TRL's default differs.
    for precision in [Precision::Fp32, Precision::AmpBf16, Precision::AmpFp16] {
        let text =
            rewrite(TrainerKind::HuggingFace, &of_trl, &[crate::SettingChange::Precision(precision)]).expect("keys");
        assert_eq!(of(TrainerKind::HuggingFace, &text).run.precision, precision, "{text}");
    }
}

#[test]
fn unsloth_has_its_own_defaults_and_all_logits() {
    let text = "{\"model_name\": \"unsloth/Llama-3.2-1B-bnb-4bit\", \"max_seq_length\": 512}";
    let read = of(TrainerKind::Unsloth, text);
    assert_eq!((read.run.loss, read.run.checkpointing), (Loss::Plain, Checkpointing::Reentrant));
    assert!(matches!(&read.run.method, Method::Qlora(lora, _) if lora.rank == 16), "{:?}", read.run.method);
    // The default is an assumption, not a note about another key.
    assert!(read.unmodeled.is_empty(), "{:?}", read.unmodeled);
    assert!(
        read.assumed.iter().any(|line| line.contains("`use_gradient_checkpointing: unsloth`")),
        "{:?}",
        read.assumed
    );
    let told = of(TrainerKind::Unsloth, "{\"use_gradient_checkpointing\": \"unsloth\", \"r\": 8}");
    assert!(noted(&told, "use_gradient_checkpointing").is_some(), "{:?}", told.unmodeled);
    let off = of(TrainerKind::Unsloth, "{\"use_gradient_checkpointing\": false, \"r\": 8}");
    assert_eq!(off.run.checkpointing, Checkpointing::Off);
    for (keys, expected) in [
        ("", Precision::PureBf16),
        (", \"float32_mixed_precision\": true", Precision::AmpBf16),
        (", \"dtype\": \"float16\"", Precision::AmpFp16),
    ] {
        let all = of(TrainerKind::Unsloth, &format!("{{\"full_finetuning\": true{keys}}}"));
        assert_eq!((all.run.method, all.run.precision), (Method::Full, expected), "{keys}");
    }
}

#[test]
fn axolotls_kinds_of_checkpointing_are_read() {
    for (keys, expected) in [
        ("", Checkpointing::Off),
        ("gradient_checkpointing: true\n", Checkpointing::Reentrant),
        ("gradient_checkpointing: offload\n", Checkpointing::Reentrant),
        ("gradient_checkpointing: offload_disk\n", Checkpointing::Reentrant),
        (
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n",
            Checkpointing::NonReentrant,
        ),
    ] {
        let read = of(TrainerKind::Axolotl, &format!("base_model: x\n{keys}"));
        assert_eq!(read.run.checkpointing, expected, "{keys}");
        assert_eq!(noted(&read, "gradient_checkpointing").is_some(), keys.contains("offload"), "{keys}");
        let told = read.used.iter().filter(|told| told.key == "gradient_checkpointing").count();
        assert!(told <= 1, "{keys}: told {told} times");
    }
    let quantized = "base_model: x\nadapter: qlora\nload_in_4bit: true\n";
    let of_double = |text: &str| match of(TrainerKind::Axolotl, text).run.method {
        Method::Qlora(_, quantized) => quantized.double,
        other => panic!("{other:?}"),
    };
    assert!(of_double(quantized));
    assert!(!of_double(&format!("{quantized}bnb_config_kwargs:\n  bnb_4bit_use_double_quant: false\n")));
    for val_set_size in ["0.05", "500", "0"] {
        let read = of(TrainerKind::Axolotl, &format!("base_model: x\nval_set_size: {val_set_size}\n"));
        assert!(read.unknown.is_empty() && read.unmodeled.is_empty(), "{val_set_size}");
    }
}

#[test]
fn a_note_is_at_its_own_key() {
    let read = of(
        TrainerKind::LlamaFactory,
        "stage: sft\nquantization_bit: 4\nquantization_type: fp4\nquantization_method: bnb\ndouble_quantization: false\n",
    );
    let keys = read.unmodeled.iter().map(|noted| noted.key.as_str()).collect::<Vec<_>>();
    assert_eq!(keys, ["quantization_type"]);
    assert!(matches!(read.run.method, Method::Qlora(_, Quantized { double: false, .. })), "{:?}", read.run.method);
    let read = of(
        TrainerKind::HuggingFace,
        "use_liger_kernel: true\nliger_kernel_config:\n  fused_linear_cross_entropy: false\n",
    );
    assert_eq!(read.run.loss, Loss::Plain);
    assert!(noted(&read, "liger_kernel_config.fused_linear_cross_entropy").is_some(), "{:?}", read.unmodeled);
}

#[test]
fn a_larger_evaluation_batch_is_noted() {
    const KEY: &str = "per_device_eval_batch_size";
    let text = |keys: &str| {
        of(TrainerKind::HuggingFace, &format!("eval_strategy: steps\nper_device_train_batch_size: 2\n{keys}"))
    };
    assert!(noted(&text("per_device_eval_batch_size: 4\n"), KEY).is_some());
    assert!(noted(&text("per_device_eval_batch_size: 2\n"), KEY).is_none());
    // The default evaluation batch is 8.
    let by_default = |read: Read| read.assumed.iter().any(|line| line.starts_with("8 samples: evaluation"));
    assert!(by_default(text("")) && !by_default(text("per_device_eval_batch_size: 2\n")));
    assert!(!by_default(of(TrainerKind::HuggingFace, "eval_strategy: 'no'\nper_device_train_batch_size: 2\n")));
    assert!(!by_default(of(TrainerKind::Axolotl, "base_model: x\neval_strategy: steps\nmicro_batch_size: 2\n")));
}

#[test]
fn an_infinite_limit_still_clips() {
    for limit in ["inf", "'inf'", "1.0"] {
        assert!(of(TrainerKind::Torchtune, &format!("batch_size: 1\nclip_grad_norm: {limit}\n")).run.clips, "{limit}");
    }
    let error = read(TrainerKind::Torchtune, "clip_grad_norm: nan\n").unwrap_err().to_string();
    assert!(error.contains("`clip_grad_norm`: `nan` is not a number"), "{error}");
}
