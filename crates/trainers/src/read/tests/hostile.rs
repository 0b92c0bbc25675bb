//! Files that no trainer would take, and texts that are none: errors, never a panic.

use super::*;
use proptest::prelude::*;

#[test]
fn hostile_files_are_clear_errors() {
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
        for kind in [Kind::HuggingFace, Kind::DeepSpeed] {
            let error = read(kind, text).unwrap_err().to_string();
            assert!(error.to_lowercase().contains(expected) && error.len() < 2000, "{kind}: {error}");
        }
    }
    assert_eq!(of(Kind::Axolotl, &giant).model.map(|model| model.len()), Some(900_000));
    assert_eq!(of(Kind::Axolotl, &wide).unknown.len(), 20_000);
    let windows = "\u{feff}base_model: x\r\nmicro_batch_size: 3\r\n";
    assert_eq!(of(Kind::Axolotl, windows).run.micro_batch, 3);
    assert_eq!(detect(windows, "a.yml"), Some(Kind::Axolotl));
    let tabs = "{\n\t\"zero_optimization\": {\n\t\t\"stage\": 2\n\t}\n}";
    assert_eq!(detect(tabs, "x.json"), Some(Kind::DeepSpeed));
    assert_eq!(of(Kind::DeepSpeed, tabs).run.sharding, Sharding::Zero { stage: 2 });
}

#[test]
fn numbers_that_no_run_has_are_refused_by_name() {
    for value in
        ["-1", "-0.5", "0", "1.5", "1e30", "18446744073709551616", "NaN", "'inf'", "0x10", "many", "[1]", "{a: 1}"]
    {
        for (kind, key) in [
            (Kind::HuggingFace, "per_device_train_batch_size"),
            (Kind::HuggingFace, "ddp_bucket_cap_mb"),
            (Kind::Axolotl, "sequence_len"),
            (Kind::LlamaFactory, "cutoff_len"),
            (Kind::Torchtune, "batch_size"),
            (Kind::Unsloth, "max_seq_length"),
            (Kind::DeepSpeed, "train_batch_size"),
            (Kind::Accelerate, "num_processes"),
        ] {
            match read(kind, &format!("{key}: {value}\n")) {
                Err(error) => assert!(error.to_string().contains(key), "{kind}: {error}"),
                // A map is a key within the key, which nobody knows; a hexadecimal number is a number.
                Ok(read) if value == "{a: 1}" => assert_eq!(read.unknown[0].key, format!("{key}.a"), "{kind}"),
                Ok(read) => assert_eq!((value, read.unknown.len()), ("0x10", 0), "{kind}: {key}"),
            }
        }
    }
    // The largest are counted, not overflowed.
    let most = u64::MAX;
    let read = of(Kind::HuggingFace, &format!("per_device_train_batch_size: {most}\nddp_bucket_cap_mb: {most}\n"));
    assert_eq!(read.run.micro_batch, most);
    let whole = format!("{{\"train_batch_size\": 1, \"train_micro_batch_size_per_gpu\": {most}}}");
    assert_eq!(of(Kind::DeepSpeed, &whole).run.accumulation, 1);
}

#[test]
fn json_that_is_none_is_read_as_yaml_or_refused() {
    let trailing = "{\n  \"zero_optimization\": {\"stage\": 2,},\n  \"train_micro_batch_size_per_gpu\": 3,\n}\n";
    let read = of(Kind::DeepSpeed, trailing);
    assert_eq!((read.run.micro_batch, read.run.sharding), (3, Sharding::Zero { stage: 2 }));
    let hash = "{\n  # why\n  \"train_micro_batch_size_per_gpu\": 3 # three\n}\n";
    assert_eq!(of(Kind::DeepSpeed, hash).run.micro_batch, 3);
    // What stands behind two slashes is no comment, so the key behind it is not lost in silence.
    let slashes = "{\n  \"steps_per_print\": 1, // why\n  \"train_micro_batch_size_per_gpu\": 3\n}\n";
    if let Ok(read) = super::super::read(Kind::DeepSpeed, slashes) {
        assert_eq!(read.run.micro_batch == 3, read.unknown.is_empty(), "{:?}", read.unknown);
    }
}

#[test]
fn anchors_are_followed() {
    let text = "batch: &b 3\nmicro_batch_size: *b\nbase_model: &m x\nkeys: &k {use_reentrant: false}\n\
                gradient_checkpointing: true\ngradient_checkpointing_kwargs: *k\n";
    let read = of(Kind::Axolotl, text);
    assert_eq!((read.run.micro_batch, read.run.checkpointing), (3, Checkpointing::NonReentrant));
    let unknown = read.unknown.iter().map(|unknown| unknown.key.as_str()).collect::<Vec<_>>();
    assert_eq!(unknown, ["batch"], "what asks for nothing is not told");
}

/// Files as people write them, of all trainers.
fn real() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll/tests/settings");
    let files = ["hugging_face", "axolotl", "llama_factory", "torchtune"];
    let texts = files.map(|file| std::fs::read_to_string(format!("{folder}/{file}.yaml")).expect("files of settings"));
    texts.iter().flat_map(|text| text.split("---\n").map(str::to_owned)).collect()
}

/// What users may hand over: read, told apart and rewritten, in whatever kind's keys.
fn survives(text: &str, kind: Kind) {
    let _ = detect(text, text);
    let _ = super::super::read(kind, text);
    let mut below = of(Kind::HuggingFace, "output_dir: x\n");
    let _ = below.layer(kind, text);
    for change in [crate::Change::MicroBatch(3), crate::Change::Checkpointing(Checkpointing::NonReentrant)] {
        if let Ok(text) = rewrite(kind, text, &[change]) {
            assert!(crate::document::Document::parse(&text).is_ok(), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(
        bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        survives(&String::from_utf8_lossy(&bytes), kind);
    }

    /// A file that was cut off, or in which some bytes are others.
    #[test]
    fn no_damage_is_too_strange(
        file in prop::sample::select(real()), cut in any::<prop::sample::Index>(),
        other in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\t\r\n&*\u{feff}é]{0,3}"), 0..4),
        kind in prop::sample::select(Kind::ALL.to_vec()),
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

    /// Keys that no trainer has are all listed, with their lines.
    #[test]
    fn strange_keys_are_listed(
        keys in prop::collection::btree_set("zq_[a-z]{1,8}", 1..9), value in "w[a-z]{1,5}|[1-9][0-9]{0,3}|true|\\[a, b\\]",
        kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        let text = keys.iter().map(|key| format!("{key}: {value}\n")).collect::<String>();
        let unknown = of(kind, &text).unknown;
        let listed = unknown.iter().map(|unknown| (unknown.key.clone(), unknown.line));
        let written = keys.iter().enumerate().map(|(at, key)| (key.clone(), Some(at as u64 + 1)));
        prop_assert_eq!(listed.collect::<Vec<_>>(), written.collect::<Vec<_>>());
    }

    #[test]
    fn no_text_is_too_strange_to_be_read(
        text in "[ -~\t\r\n{}\\[\\]:#&*|>é]{0,80}", kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        let _ = read(kind, &text);
        let _ = detect(&text, &text);
    }

    /// Keys that trainers know, with whatever values.
    #[test]
    fn no_value_is_too_strange_to_be_read(
        pairs in prop::collection::btree_map(
            prop::sample::select(vec![
                "micro_batch_size", "per_device_train_batch_size", "bf16", "optim", "optimizer", "deepspeed", "fsdp",
                "lora_target_modules", "gradient_checkpointing", "gradient_checkpointing_kwargs", "zero_optimization",
                "model", "loss", "batch_size", "train_batch_size", "plugins", "num_processes", "dtype", "r",
            ]),
            "true|auto|[0-9]{1,30}|-1|1e99|\\[\\]|\\{\\}|\\[a, \\{b: 1\\}\\]|\\{stage: 9, _component_: x.y\\}|~|'\\$\\{optim\\}'|\\$\\{model\\}",
            0..8,
        ),
        kind in prop::sample::select(Kind::ALL.to_vec()),
    ) {
        let text = pairs.iter().map(|(key, value)| format!("{key}: {value}\n")).collect::<String>();
        if let Ok(read) = read(kind, &text) {
            prop_assert!(read.run.micro_batch > 0 && read.run.accumulation > 0 && read.run.seq_len > 0);
        }
    }
}
