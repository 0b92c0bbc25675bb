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

proptest! {
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
