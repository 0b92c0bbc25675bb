//! `plimsoll estimate`: whether a PyTorch run fits a card, by flags and by a trainer's file.

mod exports;
mod settings;

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
    assert_adds_up(&value);
    let said = sandbox.run(&format!("{GUIDE} --precision amp-bf16"));
    let row = |name: &str| {
        let line = said.stdout_text().lines().find(|line| line.starts_with(&format!("│ {name} "))).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no row of {name}:\n{}", said.stdout_text()))
    };
    assert!(row("allocated").contains("100.0 %") && row("rests of blocks").contains(" - "), "{}", said.stdout_text());
}

/// The parts of a report are what is allocated, to the byte.
fn assert_adds_up(value: &Value) {
    let parts = value["breakdown"].as_object().expect("an object").values().map(|part| bytes(part, "bytes"));
    assert_eq!(parts.sum::<u64>(), bytes(value, "peak_allocated_bytes"), "{value}");
}

#[test]
fn the_parts_are_all_that_is_allocated() {
    let sandbox = Sandbox::new();
    for flags in [
        "--model tiny --micro-batch 3 --seq-len 17",
        "--model gpt2 --precision amp-bf16 --gradient-checkpointing --optimizer adamw-8bit",
        "--model flan-t5-small --attention eager --seq-len 100 --alloc-conf expandable_segments:True",
        "--model smollm2-135m --precision pure-bf16 --optimizer sgd --micro-batch 1",
    ] {
        let said = sandbox.run(&format!("estimate {flags} --vram 80 --json"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        assert_adds_up(&json(&said));
    }
}

#[test]
fn the_keys_of_the_json_stay() {
    let sandbox = Sandbox::new();
    let value = json(&sandbox.run("estimate --model tiny --seq-len 16 --vram 24 --json"));
    let keys = value.as_object().expect("an object").keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(
        keys,
        [
            "breakdown",
            "card",
            "caveats",
            "context_bytes",
            "fits",
            "largest",
            "least",
            "model",
            "most",
            "peak_allocated_bytes",
            "peak_phase",
            "peak_reserved_bytes",
            "process_bytes",
            "run",
            "settings",
            "shortfall",
            "smallest_card",
            "what_fits",
        ]
    );
    for footprint in [&value, &value["least"], &value["most"]] {
        assert_eq!(
            bytes(footprint, "process_bytes"),
            bytes(footprint, "peak_reserved_bytes") + bytes(footprint, "context_bytes")
        );
        assert!(bytes(footprint, "peak_allocated_bytes") <= bytes(footprint, "peak_reserved_bytes"));
    }
    assert_eq!((&value["fits"], bytes(&value["card"], "memory_bytes")), (&Value::Bool(true), 24 << 30));
    // Without a card nothing is said to fit.
    let value = json(&sandbox.run("estimate --model tiny --seq-len 16 --json"));
    assert_eq!((&value["fits"], &value["card"], &value["settings"]), (&Value::Null, &Value::Null, &Value::Null));
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

/// An 8-billion-parameter Llama on a card of 24 GB, as people train it.
#[test]
fn additions_alone_are_trained_where_all_weights_do_not_fit() {
    let sandbox = Sandbox::new();
    let llama =
        "estimate --model meta-llama/Llama-3.1-8B --precision amp-bf16 --micro-batch 1 --seq-len 512 --gpu 4090";
    let json_of = |flags: &str| json(&sandbox.run(&format!("{llama} {flags} --json")));
    let trained = |value: &Value| bytes(&value["breakdown"]["optimizer_state"], "bytes");
    let [lora, qlora] = ["lora", "qlora"].map(|method| {
        json_of(&format!("--method {method} --lora-rank 16 --lora-targets all-linear --gradient-checkpointing"))
    });
    // Of each block: rank times inputs and outputs of q, k, v, o, gate, up and down; two moments in single precision.
    let (c, keys, inner) = (4096, 1024, 14336);
    let block = 16 * (2 * (c + c) + 2 * (c + keys) + 3 * (c + inner));
    for value in [&lora, &qlora] {
        let exact = 32 * block * 2 * 4;
        assert!((exact..exact + exact / 100).contains(&trained(value)), "{value}");
    }
    let allocated = |value: &Value| bytes(value, "peak_allocated_bytes");
    assert!(allocated(&lora) > 29 << 30 && allocated(&qlora) < 14 << 30, "{lora} {qlora}");
    assert_eq!((&lora["fits"], &qlora["fits"]), (&Value::Bool(false), &Value::Bool(true)));
    // All weights do not fit; additions over weights in 4 bits are told among what does.
    let said = sandbox.run(llama);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stdout_text().contains("--method qlora --lora-rank 16"), "{}", said.stdout_text());
}

#[test]
fn layers_that_get_additions_are_named_by_their_ends() {
    let sandbox = Sandbox::new();
    let of = |flags: &str| sandbox.run(&format!("estimate --model gpt2 --vram 12 --seq-len 64 {flags}"));
    let said = of("--lora-targets c_attn,c_fc");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let said = of("--method lora --lora-targets q_proj");
    assert_eq!((said.code, said.stdout_text()), (Some(4), ""));
    assert!(
        said.stderr.contains("no layer's name ends in `q_proj`; the model has c_attn, c_fc, c_proj, lm_head"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("--lora-targets"), "{}", said.stderr);
    let said = of("--method lora --lora-rank 0");
    assert!(matches!(said.code, Some(2 | 4)) && said.stderr.contains("error: "), "{:?} {}", said.code, said.stderr);
}

#[test]
fn what_is_not_modeled_or_known_is_said() {
    let sandbox = Sandbox::new();
    let begun = "estimate --model gpt2 --vram 12";
    for flags in ["--method lora --lora-targets wte", "--cards 2", "--loss liger", "--compile"] {
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
