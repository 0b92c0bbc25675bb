//! Runs that train low-rank adapters: their checkpoints, their resume, text from them, and what is refused. Values are
//! compared with PEFT's by the crate `train`.

use crate::support::Sandbox;
use std::fs;
use std::path::PathBuf;

const DATA: &str =
    "--data text.txt --seq-len 24 --global-batch 4 --sample-tokens 0 --eval-samples 2 --device cpu --cache-dir cache";

/// A sandbox with text, and weights to adapt in `runs/base/model`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    must(&sandbox, &format!("train {DATA} --name base --max-steps 2"));
    sandbox
}

fn must(sandbox: &Sandbox, command: &str) -> String {
    let said = sandbox.run(command);
    assert_eq!(said.code, Some(0), "{command}: {}", said.stderr);
    String::from_utf8(said.stdout).expect("text")
}

fn refused(sandbox: &Sandbox, command: &str, code: i32, words: &[&str]) {
    let said = sandbox.run(command);
    assert_eq!(said.code, Some(code), "{command}: {}", said.stderr);
    for word in words {
        assert!(said.stderr.contains(word), "{command}: `{word}` is not in {}", said.stderr);
    }
}

fn file(sandbox: &Sandbox, run: &str, step: u64, name: &str) -> PathBuf {
    sandbox.path(&format!("runs/{run}/checkpoints/step-{step:06}/{name}"))
}

#[test]
fn invariant_7_a_resumed_run_of_adapters_is_the_run() {
    let sandbox = sandbox();
    let base = fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights");
    let flags = "--init runs/base/model --method lora --lora-rank 3 --lora-alpha 5 --lora-dropout 0.2 --lora-targets *_attn,mlp.* \
                 --lora-rank-pattern c_proj=2 --lora-modules-to-save ln_f --rslora --ema 0.9 --learning-rate 0.02";
    must(
        &sandbox,
        &format!("train {DATA} {flags} --name whole --max-steps 6 --scheduler constant --checkpoint-every 3"),
    );
    must(&sandbox, &format!("train {DATA} {flags} --name parts --max-steps 3 --scheduler constant"));
    // The settings of the run have the weights below the adapters.
    must(&sandbox, "train --resume runs/parts --max-steps 6");
    for name in ["adapter_model.safetensors", "optimizer.safetensors", "average.safetensors", "adapter_config.json"] {
        let [whole, parts] = ["whole", "parts"].map(|run| fs::read(file(&sandbox, run, 6, name)).expect(name));
        assert!(whole == parts, "{name}");
    }
    assert!(!file(&sandbox, "whole", 6, "model.safetensors").exists(), "the base is not copied");
    assert_eq!(fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights"), base);

    let generate = |checkpoint: &str, more: &str| {
        must(
            &sandbox,
            &format!("generate --checkpoint {checkpoint} --prompt ships --max-tokens 4 --logits l.json {more}"),
        );
        fs::read_to_string(sandbox.path("l.json")).expect("logits")
    };
    let [of_base, adapted, averaged] =
        [("runs/base", ""), ("runs/whole", ""), ("runs/whole", "--ema")].map(|(run, more)| generate(run, more));
    assert!(of_base != adapted && adapted != averaged);

    // Adapters are continued by their folder, which names the weights.
    must(&sandbox, &format!("train {DATA} --init runs/whole/model --name on --max-steps 1 --learning-rate 1e-30"));
    assert_eq!(generate("runs/on", ""), adapted);
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let sandbox = sandbox();
    fs::create_dir_all(sandbox.path("weights")).expect("a folder");
    for name in ["model.safetensors", "config.json"] {
        fs::copy(file(&sandbox, "base", 2, name), sandbox.path("weights").join(name)).expect(name);
    }
    let train = format!("train {DATA} --name new --max-steps 1 --init weights");
    for (flags, code, words) in [
        ("--method lora --lora-targets c_atn", 2, &["`c_atn` matches no linear layer", "`c_attn`"][..]),
        ("--method lora --lora-targets nothing", 2, &["there are `c_attn`", "`c_fc`", "`c_proj`"]),
        ("--method lora --lora-modules-to-save head", 2, &["`head` matches no module"]),
        (
            "--method lora --lora-rank 100000",
            2,
            &["a rank of 100000 does not fit `transformer.h.0.attn.c_attn`", "from 1 to"],
        ),
        ("--method lora --lora-rank 0", 2, &["--lora-rank"]),
        ("--method lora --lora-rank-pattern c_fc", 2, &["is not a name, `=` and a number"]),
        ("--lora-rank 4", 2, &["`--lora-rank` needs `--method lora`"]),
        ("--method lora --lora-dropout 1", 2, &["--lora-dropout"]),
    ] {
        refused(&sandbox, &format!("{train} {flags}"), code, words);
    }
    refused(&sandbox, &format!("train {DATA} --method lora --max-steps 1"), 2, &["needs `--init`"]);
    assert!(!sandbox.path("runs/new/checkpoints/step-000001").exists());

    must(&sandbox, &format!("{train} --method lora --lora-rank 2"));
    let resume = "train --resume runs/new --max-steps 2";
    refused(
        &sandbox,
        &format!("{resume} --lora-rank 3"),
        4,
        &["was made with adapters with `lora_alpha` 4", "`lora_alpha` 6"],
    );
    // Other weights of the same shape below the adapters would give other losses.
    let weights = sandbox.path("weights/model.safetensors");
    must(&sandbox, &format!("train {DATA} --name other --seed 7 --max-steps 1"));
    fs::copy(file(&sandbox, "other", 1, "model.safetensors"), &weights).expect("weights");
    refused(&sandbox, resume, 4, &["was made with other weights below its adapters"]);
    fs::copy(file(&sandbox, "base", 2, "model.safetensors"), &weights).expect("weights");
    must(&sandbox, resume);

    let config = file(&sandbox, "new", 2, "adapter_config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    for (from, to, words) in [
        ("\"use_dora\": false", "\"use_dora\": true", &["`use_dora` is true"][..]),
        ("\"LORA\"", "\"IA3\"", &["`peft_type`"]),
        ("\"lora_alpha\": 4", "\"lora_alpha\": \"x\"", &["`lora_alpha`"]),
        ("/weights", "/gone", &["gone"]),
        ("{", "", &["not valid JSON"]),
    ] {
        let folder = "copied";
        fs::create_dir_all(sandbox.path(folder)).expect("a folder");
        for name in ["adapter_model.safetensors", "config.json"] {
            fs::copy(file(&sandbox, "new", 2, name), sandbox.path(folder).join(name)).expect(name);
        }
        sandbox.write("copied/adapter_config.json", text.replacen(from, to, 1));
        refused(&sandbox, &format!("generate --checkpoint {folder} --tokenizer bytes --prompt a"), 4, words);
        refused(&sandbox, &format!("train {DATA} --init {folder} --name again --max-steps 1"), 4, words);
    }
}

#[test]
fn a_plan_of_adapters_has_a_fraction_of_the_optimizers_state() {
    let sandbox = Sandbox::new();
    let state = |flags: &str| {
        let plan = must(
            &sandbox,
            &format!(
                "plan --model llama-3.2-1b --gpu a6000 --seq-len 1024 --micro-batch 1 --global-batch 1 --json {flags}"
            ),
        );
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
        plan["breakdown"]["optimizer_bytes"].as_u64().expect("a plan that fits")
    };
    let whole = state("--optimizer-offload 0");
    let adapters = state("--method lora --lora-rank 8 --optimizer-offload 0");
    assert!(adapters * 50 < whole, "{adapters} of {whole}");
}
