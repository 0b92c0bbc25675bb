//! `export`: files of runs, of adapters and of folders, and what is refused. The contents of files are tested by the crate
//! `gguf`, and compared with llama.cpp by `scripts/check_gguf.py`.

use crate::support::Sandbox;
use serde_json::json;
use std::fs;

const DATA: &str =
    "--data text.txt --seq-len 24 --global-batch 4 --sample-tokens 0 --eval-samples 2 --device cpu --cache-dir cache";

/// A sandbox with a run of one step, `runs/base`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.must(&format!("train {DATA} --name base --max-steps 1"));
    sandbox
}

#[test]
fn a_run_is_exported_with_its_tokenizer() {
    let sandbox = sandbox();
    let before = sandbox.tree("runs/base");
    let said = sandbox.must("export --checkpoint runs/base --gguf f16 --out base.gguf --ollama");
    assert!(said.starts_with("base.gguf: ") && said.contains(" F16"), "{said}");
    let file = sandbox.read("base.gguf");
    assert_eq!(file[..4], *b"GGUF");
    let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("blk.0.attn_qkv.weight") && has("tokenizer.ggml.tokens") && has("base"));
    assert_eq!(sandbox.text("Modelfile"), "FROM ./base.gguf\n");
    // The same weights give the same file, and a checkpoint is as good as its run.
    let checkpoint = "runs/base/checkpoints/step-000001";
    let told = sandbox.must(&format!("export --checkpoint {checkpoint} --gguf F32 --out base.gguf --json"));
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["type"], &told["bytes"]), (&json!("F32"), &json!(sandbox.read("base.gguf").len())));
    assert!(before == sandbox.tree("runs/base"), "the run stays as it is");
}

#[test]
fn adapters_are_exported_alone() {
    let sandbox = sandbox();
    let lora = "--method lora --lora-rank 2 --init runs/base/model";
    sandbox.must(&format!("train {DATA} {lora} --name adapted --max-steps 1"));
    let export = "export --checkpoint runs/adapted --out adapters.gguf --ollama";
    sandbox.must(&format!("{export} --gguf F16"));
    let file = sandbox.read("adapters.gguf");
    let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("adapter.lora.alpha") && has("blk.0.attn_qkv.weight.lora_a") && !has("token_embd"));
    let modelfile = sandbox.text("Modelfile");
    assert!(modelfile.starts_with("FROM /") && modelfile.contains("\nADAPTER ./adapters.gguf\n"), "{modelfile}");
    sandbox.refused(&format!("{export} --gguf Q8_0"), 2, &["has adapters, which have no `--gguf Q8_0`", "hint: "]);
    sandbox.must(&format!("train {DATA} {lora} --lora-modules-to-save ln_f --name whole --max-steps 1"));
    let whole = "export --checkpoint runs/whole --gguf F16 --out whole.gguf";
    sandbox.refused(whole, 4, &["`transformer.ln_f.", "was trained whole", "hint: "]);
    assert!(!sandbox.path("whole.gguf").exists());
}

#[test]
fn averages_are_exported_in_place_of_weights() {
    let sandbox = sandbox();
    sandbox.refused(
        "export --checkpoint runs/base --gguf F32 --out a.gguf --ema",
        4,
        &["has no averaged weights", "hint: "],
    );
    sandbox.must(&format!("train {DATA} --name averaged --max-steps 3 --ema 0.5"));
    sandbox.must("export --checkpoint runs/averaged --gguf F32 --out averages.gguf --ema");
    sandbox.must("export --checkpoint runs/averaged --gguf F32 --out weights.gguf");
    // The same averages as the weights of a model.
    fs::create_dir_all(sandbox.path("model")).expect("a folder");
    let checkpoint = sandbox.path("runs/averaged/checkpoints/step-000003");
    for (from, to) in [("average", "model.safetensors"), ("config", ""), ("tokenizer", ""), ("tokenizer_config", "")] {
        let from = format!("{from}.{}", if to.is_empty() { "json" } else { "safetensors" });
        let to = sandbox.path("model").join(if to.is_empty() { &from } else { to });
        fs::copy(checkpoint.join(&from), to).expect("copied");
    }
    sandbox.must("export --checkpoint model --gguf F32 --out expected.gguf");
    let weights = fs::metadata(checkpoint.join("average.safetensors")).expect("a file").len() as usize - (32 << 10);
    let tensors = |file: &str| {
        let all = sandbox.read(file);
        all[all.len() - weights..].to_vec()
    };
    assert!(tensors("averages.gguf") == tensors("expected.gguf"), "these are no averages");
    assert!(tensors("averages.gguf") != tensors("weights.gguf"), "the averages are the weights");
}

/// What is frozen has no average: it is taken from the weights.
#[test]
fn averages_of_a_run_with_frozen_parameters_are_whole() {
    let sandbox = sandbox();
    sandbox.must(&format!("train {DATA} --name frozen --max-steps 2 --ema 0.5 --freeze *.wte.*"));
    let lora = "--method lora --lora-rank 2 --init runs/base/model --freeze *.h.0.*";
    sandbox.must(&format!("train {DATA} {lora} --name adapted --max-steps 2 --ema 0.5"));
    for run in ["frozen", "adapted"] {
        sandbox.must(&format!("export --checkpoint runs/{run} --gguf F32 --out {run}.gguf --ema"));
        sandbox.must(&format!("generate --checkpoint runs/{run} --ema --device cpu --max-tokens 2 --prompt ships"));
    }
    sandbox.must("merge --checkpoint runs/adapted --out merged --ema --device cpu");
}

#[test]
fn what_cannot_be_exported_is_refused_before_a_file_is_written() {
    let sandbox = sandbox();
    let export = "export --checkpoint runs/base --gguf F16 --out";
    sandbox.refused("export --checkpoint runs/base --gguf Q3 --out base.gguf", 2, &["Q3", "Q4_K_M"]);
    sandbox.refused(&format!("{export} missing/base.gguf"), 5, &["missing/base.gguf", "hint: create the folder"]);
    sandbox.refused(&format!("{export} runs"), 5, &["runs", "hint: `--out`"]);
    #[cfg(target_os = "linux")]
    sandbox.refused(&format!("{export} /proc/base.gguf"), 5, &["/proc/base.gguf needs ", "0 B is free", "hint: "]);
    sandbox.refused("export --checkpoint missing --gguf F16 --out base.gguf", 4, &["missing is neither a run"]);

    let folder = sandbox.path("runs/base/checkpoints/step-000001");
    let copy = sandbox.path("other");
    fs::create_dir_all(&copy).expect("a folder");
    for name in ["model.safetensors", "tokenizer.json"] {
        fs::copy(folder.join(name), copy.join(name)).expect(name);
    }
    let ministral = json!({
        "model_type": "ministral", "vocab_size": 256, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
    });
    sandbox.write("other/config.json", ministral.to_string());
    let other = "export --checkpoint other --gguf F16 --out other.gguf";
    sandbox.refused(
        other,
        4,
        &["can't run this ministral model: it has no such architecture", "llama.cpp runs gpt2, llama"],
    );
    // A model of another shape than its weights.
    let mut llama = ministral;
    llama["model_type"] = json!("llama");
    sandbox.write("other/config.json", llama.to_string());
    sandbox.refused(other, 4, &["model.safetensors"]);
    assert!(!sandbox.path("other.gguf").exists() && !sandbox.path("base.gguf").exists());
}
