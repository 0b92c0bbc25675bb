//! `plimsoll estimate`: whether a PyTorch run fits a card, by flags and by a trainer's file.

mod exports;
mod settings;

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// The run of a popular guide, which says that it needs 28 GB.
const GUIDE: &str = "estimate --model google/flan-t5-xl --micro-batch 8 --seq-len 16 --gpu 5090";

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stderr))
}

fn bytes(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn a_run_that_does_not_fit_lists_changes_that_fit() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&format!("{GUIDE} --precision amp-bf16 --json"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let value = json(&said);
    let [allocated, reserved, context, process] =
        ["peak_allocated_bytes", "peak_reserved_bytes", "context_bytes", "process_bytes"].map(|key| bytes(&value, key));
    // Weights and two moments in single precision, which are always needed: 2,849,757,184 parameters of 12 bytes.
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

/// The parts of a report add up to the allocated bytes.
fn assert_adds_up(value: &Value) {
    let parts = value["breakdown"].as_object().expect("an object").values().map(|part| bytes(part, "bytes"));
    assert_eq!(parts.sum::<u64>(), bytes(value, "peak_allocated_bytes"), "{value}");
}

#[test]
fn the_parts_add_up_to_the_allocated_bytes() {
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
fn the_keys_of_the_json_are_stable() {
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
            "verdict",
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
    // Without a card there is no verdict.
    let value = json(&sandbox.run("estimate --model tiny --seq-len 16 --json"));
    assert_eq!((&value["fits"], &value["card"], &value["settings"]), (&Value::Null, &Value::Null, &Value::Null));
}

#[test]
fn a_smaller_micro_batch_needs_less_and_is_exported() {
    let sandbox = Sandbox::new();
    let flags = "estimate --model google/flan-t5-base --precision amp-bf16 --seq-len 512 --gpu 3060 --micro-batch";
    let takes = |count: u64| bytes(&json(&sandbox.run(&format!("{flags} {count} --json"))), "process_bytes");
    assert!(takes(1) < takes(2) && takes(2) < takes(8));
    let said = sandbox.run(&format!("{flags} 8"));
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stdout_text().contains("does not fit RTX 3060"), "{}", said.stdout_text());
    assert!(said.stdout_text().contains("--gradient-checkpointing "), "{}", said.stdout_text());
    let said = sandbox.run(&format!("{flags} 8 --export hf"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    sandbox.write("args.yaml", &said.stdout);
    // The exported file fits when it is read again.
    let said = sandbox
        .run("estimate --config args.yaml --model google/flan-t5-base --precision amp-bf16 --seq-len 512 --gpu 3060");
    assert_eq!(said.code, Some(0), "{}\n{}", said.stdout_text(), said.stderr);
}

/// An 8-billion-parameter Llama on a card with 24 GB, a common setup.
#[test]
fn lora_fits_where_full_fine_tuning_does_not() {
    let sandbox = Sandbox::new();
    let llama =
        "estimate --model meta-llama/Llama-3.1-8B --precision amp-bf16 --micro-batch 1 --seq-len 512 --gpu 4090";
    let json_of = |flags: &str| json(&sandbox.run(&format!("{llama} {flags} --json")));
    let trained = |value: &Value| bytes(&value["breakdown"]["optimizer_state"], "bytes");
    let [lora, qlora] = ["lora", "qlora"].map(|method| {
        json_of(&format!("--method {method} --lora-rank 16 --lora-targets all-linear --gradient-checkpointing"))
    });
    // Per block: rank times inputs and outputs of q, k, v, o, gate, up and down; two moments in single precision.
    let (c, keys, inner) = (4096, 1024, 14336);
    let block = 16 * (2 * (c + c) + 2 * (c + keys) + 3 * (c + inner));
    for value in [&lora, &qlora] {
        let exact = 32 * block * 2 * 4;
        assert!((exact..exact + exact / 100).contains(&trained(value)), "{value}");
    }
    let allocated = |value: &Value| bytes(value, "peak_allocated_bytes");
    assert!(allocated(&lora) > 29 << 30 && allocated(&qlora) < 14 << 30, "{lora} {qlora}");
    assert_eq!((&lora["fits"], &qlora["fits"]), (&Value::Bool(false), &Value::Bool(true)));
    // All weights do not fit; QLoRA is among the changes that fit.
    let said = sandbox.run(llama);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stdout_text().contains("--method qlora --lora-rank 16"), "{}", said.stdout_text());
}

#[test]
fn lora_targets_are_matched_by_suffix() {
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
    let said = sandbox.run("estimate --model granite-3.3-2b --vram 80 --method lora");
    assert_eq!((said.code, said.stdout_text()), (Some(4), ""));
    assert!(
        said.stderr.contains("adapts no layers of this family") && said.stderr.contains("q_proj"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("--lora-targets"), "{}", said.stderr);
    let said = of("--method lora --lora-rank 0");
    assert!(matches!(said.code, Some(2 | 4)) && said.stderr.contains("error: "), "{:?} {}", said.code, said.stderr);
}

#[test]
fn unmodeled_and_unknown_settings_are_reported() {
    let sandbox = Sandbox::new();
    let begun = "estimate --model gpt2 --vram 12";
    for (flags, why) in [
        ("--method lora --lora-targets wte", "not modeled yet"),
        ("--offload all", "offloaded by ZeRO-3 and FSDP only"),
    ] {
        let said = sandbox.run(&format!("{begun} {flags}"));
        assert_eq!((said.code, said.stdout_text()), (Some(4), ""), "{flags}");
        assert!(said.stderr.contains(why) && said.stderr.contains("hint: "), "{}", said.stderr);
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

/// Minimum, likely and maximum bytes of the process.
fn processes(value: &Value) -> [u64; 3] {
    [&value["least"], value, &value["most"]].map(|footprint| bytes(footprint, "process_bytes"))
}

#[test]
fn losses_by_liger_and_cut_cross_entropy_need_less_than_all_logits() {
    let sandbox = Sandbox::new();
    let flags = "estimate --model meta-llama/Llama-3.2-1B --precision pure-bf16 --micro-batch 4 --seq-len 2048 --vram 80 --loss";
    let takes = |loss: &str| bytes(&json(&sandbox.run(&format!("{flags} {loss} --json"))), "peak_allocated_bytes");
    let [plain, liger, cut] = ["plain", "liger", "cce"].map(takes);
    // Logits in bf16, again in single precision, and the log-probabilities: 4 x 2,048 x 128,256 of each.
    let logits = 4 * 2048 * 128_256;
    assert!(plain - cut > logits * (2 + 4 + 4) && cut < plain && liger < plain, "{plain} {liger} {cut}");
    let said = sandbox.run("estimate --model gpt2 --vram 80 --loss liger");
    assert!(said.stdout_text().contains("Liger's kernels are not modeled for this family"), "{}", said.stdout_text());
}

#[test]
fn sharding_divides_memory_and_a_range_is_shown() {
    let sandbox = Sandbox::new();
    let flags =
        "estimate --model gpt2-xl --precision amp-bf16 --micro-batch 1 --seq-len 256 --vram 80 --cards 8 --sharding";
    let takes = |sharding: &str| processes(&json(&sandbox.run(&format!("{flags} {sharding} --json"))));
    let [ddp, zero2, zero3, fsdp] = ["ddp", "zero2", "zero3", "fsdp"].map(takes);
    for [least, likely, most] in [ddp, zero2, zero3, fsdp] {
        assert!(least < likely && likely < most, "{least} {likely} {most}");
    }
    // Eight bytes of state for each of 1,557,611,200 parameters, an eighth of it per card.
    let state = 8 * 1_557_611_200;
    assert!(
        ddp[1] - zero2[1] > state / 8 * 7 && zero3[1] < zero2[1] && fsdp[1] < zero2[1],
        "{ddp:?} {zero2:?} {zero3:?}"
    );
    let said = sandbox.run(&format!("{flags} zero2"));
    let text = said.stdout_text();
    assert!(text.contains("CUDA's context and NCCL's buffers; ") && text.contains("DeepSpeed's buckets"), "{text}");
    let [kept, offloaded] = ["none", "optimizer"]
        .map(|place| processes(&json(&sandbox.run(&format!("{flags} zero2 --offload {place} --json")))));
    assert!(kept[1] - offloaded[1] > state / 8, "{kept:?} {offloaded:?}");
}

#[test]
fn a_run_fits_only_if_the_upper_end_of_its_range_fits() {
    let sandbox = Sandbox::new();
    let flags = "estimate --model gpt2 --precision amp-bf16 --micro-batch 8 --seq-len 1024 --compile --vram-margin 0";
    let [least, likely, most] = processes(&json(&sandbox.run(&format!("{flags} --vram 80 --json"))));
    assert!(least < likely && likely <= most, "{least} {likely} {most}");
    let fits = |memory: u64| json(&sandbox.run(&format!("{flags} --vram {memory}b --json")))["fits"] == true;
    assert!(!fits(most - (1 << 20)), "{most}");
    assert!(fits(most + (64 << 20)), "{most}");
    let text = sandbox.run(&format!("{flags} --vram 80"));
    assert!(
        text.stdout_text().contains("CUDA's context; ") && text.stdout_text().contains("Fusion by `torch.compile`")
    );
}

/// With these settings PyTorch reserves memory until the card is full. The verdict uses the memory of the smallest card
/// on which the run works; a note says so.
#[test]
fn settings_that_fill_the_card_do_not_decide_whether_a_run_fits() {
    let sandbox = Sandbox::new();
    let estimate = |card: &str, conf: &str| {
        let run = "estimate --model t5-small --micro-batch 16 --seq-len 512 --json --vram";
        let said = sandbox.run(&format!("{run} {card} --alloc-conf {conf}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        (bytes(&json(&said), "peak_reserved_bytes"), said.stdout_text().contains("until the GPU is full"))
    };
    let all = "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:16";
    let two = "expandable_segments:True,roundup_power2_divisions:16";
    let (large, is_noted) = estimate("64", all);
    let (needed, _) = estimate("64", two);
    assert!(is_noted && large > needed + needed / 8, "{large} for {needed}");
    let card = (needed + needed / 8) as f64 / f64::from(1 << 30) + 1.0;
    let (limited, _) = estimate(&format!("{card:.2}"), all);
    assert!(limited < needed + needed / 16, "{limited} for {needed}");
    assert!(!estimate("64", two).1);
}
