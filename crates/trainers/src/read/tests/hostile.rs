//! Files that no trainer would accept, and invalid texts: errors, never a panic.

use super::*;
use proptest::prelude::*;

#[test]
fn hostile_files_give_clear_errors() {
    let deep = format!("a: {}{}", "[".repeat(3000), "]".repeat(3000));
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let before = format!("*a{}, ", i - 1).repeat(9);
        writeln!(aliases, "a{i}: &a{i} [{}]", before.trim_end_matches(", ")).expect("a string");
    }
    let giant = format!("base_model: {}\n", "x".repeat(900_000));
    let wide = (0..20_000).map(|i| format!("key_{i}: x\n")).collect::<String>();
    for (text, expected) in [
        (deep.as_str(), "recursion"),
        (&aliases, "budget"),
        ("a:\n\tb: 1\n", "tabs"),
        ("a: 1\na: 2\n", "duplicate"),
        ("\u{0}", ""),
        ("[1, 2]", "keys with values"),
    ] {
        for kind in [TrainerKind::HuggingFace, TrainerKind::DeepSpeed] {
            let error = read(kind, text).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(expected) && error.len() < 2000, "{kind}: {error}");
        }
    }
    assert_eq!(of(TrainerKind::Axolotl, &giant).model.map(|model| model.len()), Some(900_000));
    assert_eq!(of(TrainerKind::Axolotl, &wide).unknown.len(), 20_000);
    let windows = "\u{feff}base_model: x\r\nmicro_batch_size: 3\r\n";
    assert_eq!(of(TrainerKind::Axolotl, windows).run.micro_batch, 3);
    assert_eq!(detect(windows, "a.yml"), Some(TrainerKind::Axolotl));
    let tabs = "{\n\t\"zero_optimization\": {\n\t\t\"stage\": 2\n\t}\n}";
    assert_eq!(detect(tabs, "x.json"), Some(TrainerKind::DeepSpeed));
    assert_eq!(of(TrainerKind::DeepSpeed, tabs).run.sharding, Sharding::Zero { stage: 2 });
}

#[test]
fn invalid_numbers_are_rejected_with_their_key() {
    for value in
        ["-1", "-0.5", "0", "1.5", "1e30", "18446744073709551616", "NaN", "'inf'", "0x10", "many", "[1]", "{a: 1}"]
    {
        for (kind, key) in [
            (TrainerKind::HuggingFace, "per_device_train_batch_size"),
            (TrainerKind::HuggingFace, "ddp_bucket_cap_mb"),
            (TrainerKind::Axolotl, "sequence_len"),
            (TrainerKind::LlamaFactory, "cutoff_len"),
            (TrainerKind::Torchtune, "batch_size"),
            (TrainerKind::Unsloth, "max_seq_length"),
            (TrainerKind::DeepSpeed, "train_batch_size"),
            (TrainerKind::Accelerate, "num_processes"),
        ] {
            match read(kind, &format!("{key}: {value}\n")) {
                Err(error) => assert!(error.to_string().contains(key), "{kind}: {error}"),
                // A map is an unknown nested key. A hexadecimal number is a number.
                Ok(read) if value == "{a: 1}" => assert_eq!(read.unknown[0].key, format!("{key}.a"), "{kind}"),
                Ok(read) => assert_eq!((value, read.unknown.len()), ("0x10", 0), "{kind}: {key}"),
            }
        }
    }
    // The largest numbers do not overflow.
    let max = u64::MAX;
    let read = of(TrainerKind::HuggingFace, &format!("per_device_train_batch_size: {max}\nddp_bucket_cap_mb: {max}\n"));
    assert_eq!(read.run.micro_batch, max);
    let whole = format!("{{\"train_batch_size\": 1, \"train_micro_batch_size_per_gpu\": {max}}}");
    assert_eq!(of(TrainerKind::DeepSpeed, &whole).run.accumulation, 1);
}

#[test]
fn invalid_json_is_read_as_yaml_or_rejected() {
    let trailing = "{\n  \"zero_optimization\": {\"stage\": 2,},\n  \"train_micro_batch_size_per_gpu\": 3,\n}\n";
    let read = of(TrainerKind::DeepSpeed, trailing);
    assert_eq!((read.run.micro_batch, read.run.sharding), (3, Sharding::Zero { stage: 2 }));
    let hash = "{\n  # why\n  \"train_micro_batch_size_per_gpu\": 3 # three\n}\n";
    assert_eq!(of(TrainerKind::DeepSpeed, hash).run.micro_batch, 3);
    // Two slashes are not a comment, so the key after them must not be lost silently.
    let slashes = "{\n  \"steps_per_print\": 1, // why\n  \"train_micro_batch_size_per_gpu\": 3\n}\n";
    if let Ok(read) = super::super::read(TrainerKind::DeepSpeed, slashes) {
        assert_eq!(read.run.micro_batch == 3, read.unknown.is_empty(), "{:?}", read.unknown);
    }
}

#[test]
fn anchors_are_followed() {
    let text = "batch: &b 3\nmicro_batch_size: *b\nbase_model: &m x\nkeys: &k {use_reentrant: false}\n\
                gradient_checkpointing: true\ngradient_checkpointing_kwargs: *k\n";
    let read = of(TrainerKind::Axolotl, text);
    assert_eq!((read.run.micro_batch, read.run.checkpointing), (3, Checkpointing::NonReentrant));
    let unknown = read.unknown.iter().map(|unknown| unknown.key.as_str()).collect::<Vec<_>>();
    assert_eq!(unknown, ["batch"], "a key that is turned off is not reported");
}

/// Realistic files of all trainers.
fn real() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll/tests/settings");
    let files = ["hugging_face", "axolotl", "llama_factory", "torchtune"];
    let texts = files.map(|file| std::fs::read_to_string(format!("{folder}/{file}.yaml")).expect("files of settings"));
    texts.iter().flat_map(|text| text.split("---\n").map(str::to_owned)).collect()
}

/// Reads, detects and rewrites a text as a file of a trainer, without panicking.
fn survives(text: &str, kind: TrainerKind) {
    let _ = detect(text, text);
    let _ = super::super::read(kind, text);
    let mut below = of(TrainerKind::HuggingFace, "output_dir: x\n");
    let _ = below.layer(kind, text);
    for change in
        [crate::SettingChange::MicroBatch(3), crate::SettingChange::Checkpointing(Checkpointing::NonReentrant)]
    {
        if let Ok(text) = rewrite(kind, text, &[change]) {
            assert!(crate::document::Document::parse(&text).is_ok(), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_handled(
        bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(TrainerKind::ALL.to_vec()),
    ) {
        survives(&String::from_utf8_lossy(&bytes), kind);
    }

    /// A truncated file, or one with some changed bytes.
    #[test]
    fn any_damaged_file_is_handled(
        file in prop::sample::select(real()), cut in any::<prop::sample::Index>(),
        other in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\t\r\n&*\u{feff}é]{0,3}"), 0..4),
        kind in prop::sample::select(TrainerKind::ALL.to_vec()),
    ) {
        let mut text = file;
        for (at, written) in other {
            let places = text.char_indices().map(|(at, _)| at).collect::<Vec<_>>();
            if !places.is_empty() {
                text.insert_str(*at.get(&places), &written);
            }
        }
        let places = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect::<Vec<_>>();
        survives(&text[..*cut.get(&places)], kind);
        survives(&text, kind);
    }

    /// All unknown keys are reported with their lines.
    #[test]
    fn unknown_keys_are_reported(
        keys in prop::collection::btree_set("zq_[a-z]{1,8}", 1..9), value in "w[a-z]{1,5}|[1-9][0-9]{0,3}|true|\\[a, b\\]",
        kind in prop::sample::select(TrainerKind::ALL.to_vec()),
    ) {
        let text = keys.iter().map(|key| format!("{key}: {value}\n")).collect::<String>();
        let unknown = of(kind, &text).unknown;
        let listed = unknown.iter().map(|unknown| (unknown.key.clone(), unknown.line));
        let written = keys.iter().enumerate().map(|(at, key)| (key.clone(), Some(at as u64 + 1)));
        prop_assert_eq!(listed.collect::<Vec<_>>(), written.collect::<Vec<_>>());
    }

    #[test]
    fn any_text_is_read_or_rejected(
        text in "[ -~\t\r\n{}\\[\\]:#&*|>é]{0,80}", kind in prop::sample::select(TrainerKind::ALL.to_vec()),
    ) {
        let _ = read(kind, &text);
        let _ = detect(&text, &text);
    }

    /// Known keys with arbitrary values.
    #[test]
    fn any_value_is_read_or_rejected(
        pairs in prop::collection::btree_map(
            prop::sample::select(vec![
                "micro_batch_size", "per_device_train_batch_size", "bf16", "optim", "optimizer", "deepspeed", "fsdp",
                "lora_target_modules", "gradient_checkpointing", "gradient_checkpointing_kwargs", "zero_optimization",
                "model", "loss", "batch_size", "train_batch_size", "plugins", "num_processes", "dtype", "r",
            ]),
            "true|auto|[0-9]{1,30}|-1|1e99|\\[\\]|\\{\\}|\\[a, \\{b: 1\\}\\]|\\{stage: 9, _component_: x.y\\}|~|'\\$\\{optim\\}'|\\$\\{model\\}",
            0..8,
        ),
        kind in prop::sample::select(TrainerKind::ALL.to_vec()),
    ) {
        let text = pairs.iter().map(|(key, value)| format!("{key}: {value}\n")).collect::<String>();
        if let Ok(read) = read(kind, &text) {
            prop_assert!(read.run.micro_batch > 0 && read.run.accumulation > 0 && read.run.seq_len > 0);
        }
    }
}
