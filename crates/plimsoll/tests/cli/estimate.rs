//! `plimsoll estimate`: whether a PyTorch run fits a card, by flags and by a trainer's file.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// The run of a popular guide, which says that it takes 28 GB.
const GUIDE: &str = "estimate --model google/flan-t5-xl --micro-batch 8 --seq-len 16 --gpu 5090";

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stderr))
}

fn bytes(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn a_run_that_does_not_fit_is_told_with_what_does() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&format!("{GUIDE} --precision amp-bf16 --json"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let value = json(&said);
    let [allocated, reserved, context, process] =
        ["peak_allocated_bytes", "peak_reserved_bytes", "context_bytes", "process_bytes"].map(|key| bytes(&value, key));
    // Weights and two moments in single precision, which nothing does without: 2,849,757,184 parameters of 12 bytes.
    assert!(allocated > 12 * 2_849_757_184 && allocated <= reserved && reserved + context == process, "{value}");
    assert_eq!(value["fits"], false);
    let parts = value["breakdown"].as_object().expect("an object").values().map(|part| bytes(part, "bytes"));
    // What is allocated counts blocks, which are a little larger than what was asked for.
    let asked = parts.sum::<u64>();
    assert!(asked <= allocated && allocated - asked < allocated / 1000, "{asked} of {allocated}");
}

#[test]
fn a_smaller_micro_batch_takes_less_and_what_fits_is_exported() {
    let sandbox = Sandbox::new();
    let flags = "estimate --model google/flan-t5-xl --precision pure-bf16 --seq-len 512 --gpu 5090 --micro-batch";
    let takes = |count: u64| bytes(&json(&sandbox.run(&format!("{flags} {count} --json"))), "process_bytes");
    assert!(takes(1) < takes(2) && takes(2) < takes(8));
    let said = sandbox.run(&format!("{flags} 8"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stdout_text().contains("does not fit RTX 5090"), "{}", said.stdout_text());
    assert!(said.stdout_text().contains("--gradient-checkpointing "), "{}", said.stdout_text());
    let said = sandbox.run(&format!("{flags} 8 --export hf"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    sandbox.write("args.yaml", &said.stdout);
    // What was exported fits, as it is read again.
    let said = sandbox
        .run("estimate --config args.yaml --model google/flan-t5-xl --precision pure-bf16 --seq-len 512 --gpu 5090");
    assert_eq!(said.code, Some(0), "{}\n{}", said.stdout_text(), said.stderr);
}

#[test]
fn what_is_not_modeled_or_known_is_said() {
    let sandbox = Sandbox::new();
    let begun = "estimate --model gpt2 --vram 12";
    for flags in ["--method lora", "--cards 2", "--loss liger", "--compile"] {
        let said = sandbox.run(&format!("{begun} {flags}"));
        assert_eq!((said.code, said.stdout_text()), (Some(4), ""), "{flags}");
        assert!(said.stderr.contains("not modeled yet") && said.stderr.contains("hint: "), "{}", said.stderr);
    }
    sandbox.write("args.yaml", "per_device_train_batch_size: 4\nper_device_train_batchsize: 8\nbf16: true\n");
    let said = sandbox.run(&format!("{begun} --config args.yaml"));
    let all = format!("{}{}", said.stdout_text(), said.stderr);
    assert!(all.contains("per_device_train_batchsize"), "{all}");
    sandbox.write("broken.yaml", "a: [1, 2\nb: \u{0}");
    let said = sandbox.run(&format!("{begun} --config broken.yaml"));
    assert!(matches!(said.code, Some(2 | 4)) && said.stderr.contains("broken.yaml"), "{:?} {}", said.code, said.stderr);
    let said = sandbox.run(&format!("{begun} --micro-batch 0"));
    assert!(matches!(said.code, Some(2 | 4)) && said.stderr.contains("error: "), "{:?} {}", said.code, said.stderr);
}
