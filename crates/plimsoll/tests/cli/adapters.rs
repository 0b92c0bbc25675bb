//! Runs that train low-rank adapters: their checkpoints, their resume, text from them, and what is refused. Values are
//! compared with PEFT's by the crate `train`.

use crate::support::{Said, Sandbox};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const DATA: &str =
    "--data text.txt --seq-len 24 --global-batch 4 --sample-tokens 0 --eval-samples 2 --device cpu --cache-dir cache";

/// A sandbox with text, and weights to adapt in `runs/base/model`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.must(&format!("train {DATA} --name base --max-steps 2"));
    sandbox
}

fn file(sandbox: &Sandbox, run: &str, step: u64, name: &str) -> PathBuf {
    sandbox.path(&format!("runs/{run}/checkpoints/step-{step:06}/{name}"))
}

#[test]
fn invariant_7_a_resumed_run_of_adapters_is_the_run() {
    let sandbox = sandbox();
    let base = fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights");
    let flags = "--init runs/base/model --method lora --lora-rank 3 --lora-alpha 5 --lora-dropout 0.2 --lora-targets *_attn,mlp.* \
                 --lora-rank-pattern c_proj=2 --lora-modules-to-save ln_f --rslora --lora-plus-ratio 4 --ema 0.9 --learning-rate 0.02";
    sandbox.must(&format!("train {DATA} {flags} --name whole --max-steps 6 --scheduler constant --checkpoint-every 3"));
    sandbox.must(&format!("train {DATA} {flags} --name parts --max-steps 3 --scheduler constant"));
    // The settings of the run have the weights below the adapters.
    sandbox.must("train --resume runs/parts --max-steps 6");
    for name in ["adapter_model.safetensors", "optimizer.safetensors", "average.safetensors", "adapter_config.json"] {
        let [whole, parts] = ["whole", "parts"].map(|run| fs::read(file(&sandbox, run, 6, name)).expect(name));
        assert!(whole == parts, "{name}");
    }
    assert!(!file(&sandbox, "whole", 6, "model.safetensors").exists(), "the base is not copied");
    assert_eq!(fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights"), base);

    let generate = |checkpoint: &str, more: &str| {
        sandbox
            .must(&format!("generate --checkpoint {checkpoint} --prompt ships --max-tokens 4 --logits l.json {more}"));
        fs::read_to_string(sandbox.path("l.json")).expect("logits")
    };
    let [of_base, adapted, averaged] =
        [("runs/base", ""), ("runs/whole", ""), ("runs/whole", "--ema")].map(|(run, more)| generate(run, more));
    assert!(of_base != adapted && adapted != averaged);

    // Adapters are continued by their folder, which names the weights.
    let more = "--max-steps 1 --learning-rate 1e-30 --lora-plus-ratio 2";
    sandbox.must(&format!("train {DATA} --init runs/whole/model --name on {more}"));
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
        ("--method lora --lora-targets c_atn", 2, &["`c_atn` matches no layer", "`c_attn`"][..]),
        ("--method lora --lora-targets nothing", 2, &["there are `c_attn`", "`c_fc`", "`c_proj`"]),
        ("--method lora --lora-targets lm_heads,c_attn", 2, &["`lm_heads` matches no layer", "`lm_head`"]),
        ("--method lora --lora-modules-to-save head", 2, &["`head` matches no module"]),
        (
            "--method lora --lora-rank 100000",
            2,
            &["a rank of 100000 does not fit `transformer.h.0.attn.c_attn`", "from 1 to"],
        ),
        ("--method lora --lora-rank 0", 2, &["--lora-rank"]),
        ("--method lora --lora-rank-pattern c_fc", 2, &["is not a name, `=` and a number"]),
        ("--method lora --lora-plus-ratio 0", 2, &["--lora-plus-ratio"]),
        ("--lora-plus-ratio 4", 2, &["`--lora-plus-ratio` needs `--method lora`"]),
        ("--lora-rank 4", 2, &["`--lora-rank` needs `--method lora`"]),
        ("--method lora --lora-dropout 1", 2, &["--lora-dropout"]),
    ] {
        sandbox.refused(&format!("{train} {flags}"), code, words);
    }
    sandbox.refused(&format!("train {DATA} --method lora --max-steps 1"), 2, &["needs `--init`"]);
    assert!(!sandbox.path("runs/new/checkpoints/step-000001").exists());

    sandbox.must(&format!("{train} --method lora --lora-rank 2"));
    let resume = "train --resume runs/new --max-steps 2";
    sandbox.refused(
        &format!("{resume} --lora-rank 3"),
        4,
        &["was made with adapters with `lora_alpha` 4", "`lora_alpha` 6"],
    );
    // Other weights of the same shape below the adapters would give other losses.
    let weights = sandbox.path("weights/model.safetensors");
    sandbox.must(&format!("train {DATA} --name other --seed 7 --max-steps 1"));
    fs::copy(file(&sandbox, "other", 1, "model.safetensors"), &weights).expect("weights");
    sandbox.refused(resume, 4, &["was made with other weights below its adapters"]);
    fs::copy(file(&sandbox, "base", 2, "model.safetensors"), &weights).expect("weights");
    sandbox.must(resume);

    let config = file(&sandbox, "new", 2, "adapter_config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    for (from, to, words) in [
        ("\"use_dora\": false", "\"use_dora\": true", &["lora_magnitude_vector"][..]),
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
        sandbox.refused(&format!("generate --checkpoint {folder} --tokenizer bytes --prompt a"), 4, words);
        sandbox.refused(&format!("train {DATA} --init {folder} --name again --max-steps 1"), 4, words);
    }
}

#[test]
fn a_plan_of_adapters_has_a_fraction_of_the_optimizers_state() {
    let sandbox = Sandbox::new();
    let state = |flags: &str| {
        let plan = sandbox.must(&format!(
            "plan --model llama-3.2-1b --gpu a6000 --seq-len 1024 --micro-batch 1 --global-batch 1 --json {flags}"
        ));
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
        plan["breakdown"]["optimizer_bytes"].as_u64().expect("a plan that fits")
    };
    let whole = state("--optimizer-offload 0");
    let adapters = state("--method lora --lora-rank 8 --optimizer-offload 0");
    assert!(adapters * 50 < whole, "{adapters} of {whole}");
}

/// The logits that a model computes for a prompt.
pub fn logits(sandbox: &Sandbox, checkpoint: &str, more: &str) -> Vec<f64> {
    sandbox
        .must(&format!("generate --checkpoint {checkpoint} --tokenizer bytes --prompt ships --logits l.json {more}"));
    let written = fs::read_to_string(sandbox.path("l.json")).expect("logits");
    let written: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    let rows = written["logits"].as_array().expect("a row for each token").iter();
    rows.flat_map(|row| row.as_array().expect("logits")).map(|logit| logit.as_f64().expect("a number")).collect()
}

pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn merged_weights_are_the_model_with_its_adapters() {
    let sandbox = sandbox();
    let flags = "--method lora --lora-rank 3 --lora-modules-to-save ln_f --learning-rate 0.02 --ema 0.9";
    sandbox.must(&format!("train {DATA} --init runs/base/model --name adapted --max-steps 4 {flags}"));
    for (out, more) in [("merged", ""), ("averages/merged", "--ema")] {
        let said = sandbox.run(&format!("merge --checkpoint runs/adapted --out {out} {more} --device cpu"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        for words in
            ["merging 16 adapters into the F32 weights of", "logits differ by at most", &format!("wrote {out}")]
        {
            assert!(said.stderr.contains(words), "{words}: {}", said.stderr);
        }
        let adapted = logits(&sandbox, "runs/adapted", more);
        assert!(largest_difference(&adapted, &logits(&sandbox, out, "")) < 1e-5, "{out}");
        assert!(largest_difference(&adapted, &logits(&sandbox, "runs/base", "")) > 1e-2, "the adapters were trained");
    }
    let mut names = fs::read_dir(sandbox.path("merged")).expect("a folder").map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().contains("adapter")));
    assert!(sandbox.path("merged/tokenizer.json").exists());
    sandbox.refused("merge --checkpoint runs/adapted --out merged", 2, &["merged already exists", "new folder"]);
    sandbox.refused("merge --checkpoint runs/base --out new", 4, &["has no adapters to merge"]);
    // A matrix that is not the layer's is refused before anything is written.
    fs::create_dir_all(sandbox.path("bad")).expect("a folder");
    for name in ["adapter_config.json", "config.json"] {
        fs::copy(file(&sandbox, "adapted", 4, name), sandbox.path("bad").join(name)).expect(name);
    }
    let matrices = fs::read(file(&sandbox, "adapted", 4, "adapter_model.safetensors")).expect("adapters");
    for (from, to, words) in [
        ("h.3.mlp", "h.7.mlp", "h.7.mlp.c_fc` is no layer of the model that can have an adapter"),
        ("\"shape\":[3,128]", "\"shape\":[128,3]", "error: "),
    ] {
        let changed = String::from_utf8_lossy(&matrices[..matrices.len().min(1 << 14)]).replace(from, to).into_bytes();
        let header = 8 + u64::from_le_bytes(matrices[..8].try_into().unwrap()) as usize;
        fs::write(sandbox.path("bad/adapter_model.safetensors"), [&changed[..header], &matrices[header..]].concat())
            .expect("a file");
        sandbox.refused("merge --checkpoint bad --out new", 4, &[words]);
    }
    assert!(!sandbox.path("new").exists());
    // Two processes do not write into one folder, and what a killed one left is not in the next one's.
    sandbox.write(".merging-new/left.safetensors", "of a merge that was killed");
    let lock = plimsoll_files::FolderLock::take(&sandbox.path(".merging-new")).expect("it is free");
    let merge = "merge --checkpoint runs/adapted --out new --device cpu --no-check";
    sandbox.refused(merge, 2, &["another process is merging into new", "another `--out`"]);
    assert!(sandbox.path(".merging-new/left.safetensors").exists(), "the other process's files stay");
    drop(lock);
    sandbox.must(merge);
    assert!(!sandbox.path("new/left.safetensors").exists() && !sandbox.path("new/lock").exists());
    let left = fs::read_dir(sandbox.path(".")).expect("a folder").map(|entry| entry.unwrap().file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().starts_with(".merging")));
}

#[test]
fn noise_of_embeddings_changes_training_and_is_the_same_in_a_resumed_run() {
    let sandbox = sandbox();
    for method in ["full", "lora"] {
        let train =
            format!("train {DATA} --init runs/base/model --method {method} --scheduler constant --learning-rate 0.01");
        let weights = if method == "full" { "model.safetensors" } else { "adapter_model.safetensors" };
        let run = |name: &str, flags: &str| {
            sandbox.must(&format!("{train} --name {method}-{name} --max-steps 4 {flags}"));
            fs::read(file(&sandbox, &format!("{method}-{name}"), 4, weights)).expect(weights)
        };
        let whole = run("whole", "--neftune-noise-alpha 5");
        let (plain, off) = (run("plain", ""), run("off", "--neftune-noise-alpha 0"));
        assert!(plain == off && plain != whole, "{method}");
        sandbox.must(&format!("{train} --name {method}-parts --max-steps 2 --neftune-noise-alpha 5"));
        sandbox.must(&format!("train --resume runs/{method}-parts --max-steps 4"));
        let parts = fs::read(file(&sandbox, &format!("{method}-parts"), 4, weights)).expect(weights);
        assert!(parts == whole, "{method}");
        sandbox.refused(&format!("{train} --name no --neftune-noise-alpha=-1"), 2, &["--neftune-noise-alpha"]);
    }
}

/// A limit on file sizes makes writes fail as on a disk that fills up, after a part of the weights.
#[cfg(unix)]
#[test]
fn a_merge_that_fills_the_disk_leaves_nothing_and_can_be_repeated() {
    let sandbox = sandbox();
    sandbox.must(&format!("train {DATA} --init runs/base/model --name adapted --max-steps 1 --method lora"));
    let saved = || fs::read(file(&sandbox, "adapted", 1, "adapter_model.safetensors")).expect("adapters");
    let before = (saved(), fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights"));
    let merge = "merge --checkpoint runs/adapted --out merged --device cpu --no-check";
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$0\" $1", env!("CARGO_BIN_EXE_plimsoll"), merge]);
    sandbox.confine(&mut command);
    let said = Said::of(command.output().expect("a shell"));
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    assert!(said.stderr.contains("model.safetensors: ") && said.stderr.contains("hint: free space"), "{}", said.stderr);
    let names = fs::read_dir(sandbox.path(".")).expect("a folder").map(|entry| entry.unwrap().file_name());
    let mut left = names.filter(|name| name.to_string_lossy().contains("merg"));
    assert_eq!(left.next(), None, "a file of the merge that failed");
    let after = (saved(), fs::read(sandbox.path("runs/base/model/model.safetensors")).expect("weights"));
    assert!(before == after, "the run or the weights below it changed");
    sandbox.must(merge);
    assert!(sandbox.path("merged/model.safetensors").exists());
}

#[test]
fn adapters_over_codes_are_merged_into_either_weights() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    // A family whose files store three matrices, with codes of their own, in one tensor.
    sandbox.write(
        "phi/config.json",
        r#"{"model_type": "phi3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, "tie_word_embeddings": true}"#,
    );
    sandbox.must(&format!("train {DATA} --tokenizer bytes --model phi/config.json --name base --max-steps 2"));
    let flags = "--method qlora --lora-rank 4 --learning-rate 0.02";
    sandbox.must(&format!("train {DATA} --init runs/base/model --name coded --max-steps 4 {flags}"));
    // `generate` stores the weights as the run does.
    let trained = logits(&sandbox, "runs/coded", "");
    assert_eq!(trained, logits(&sandbox, "runs/coded", "--base-weights nf4"));
    let plain = logits(&sandbox, "runs/coded", "--base-weights off");
    assert!(largest_difference(&trained, &plain) > 1e-4);

    let merge = |out: &str, more: &str, words: &[&str]| {
        let said = sandbox.run(&format!("merge --checkpoint runs/coded --out {out} --device cpu {more}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        for word in words {
            assert!(said.stderr.contains(word), "{word}: {}", said.stderr);
        }
        logits(&sandbox, out, "")
    };
    let words = ["trained over weights in nf4, into the F32 weights of", "in the run's codes"];
    assert!(largest_difference(&merge("plain", "", &words), &plain) < 1e-5);
    let words = ["trained over weights in nf4, into the weights decoded from nf4, in F32, of"];
    assert!(largest_difference(&merge("decoded", "--base-weights nf4", &words), &trained) < 1e-5);
}

#[test]
fn adapters_with_magnitudes_are_trained_resumed_and_merged() {
    let sandbox = sandbox();
    let train = format!("train {DATA} --init runs/base/model --method lora --dora --lora-rank 3 --scheduler constant");
    let more = "--learning-rate 0.02 --ema 0.9";
    sandbox.must(&format!("{train} {more} --name whole --max-steps 4 --precision bf16"));
    sandbox.must(&format!("{train} {more} --name parts --max-steps 2 --precision bf16"));
    sandbox.must("train --resume runs/parts --max-steps 4");
    for name in ["adapter_model.safetensors", "optimizer.safetensors", "average.safetensors"] {
        let [whole, parts] = ["whole", "parts"].map(|run| fs::read(file(&sandbox, run, 4, name)).expect(name));
        assert!(whole == parts, "{name}");
    }
    let bytes = fs::read(file(&sandbox, "whole", 4, "adapter_model.safetensors")).expect("adapters");
    let tensors = SafeTensors::deserialize(&bytes).expect("a right file");
    let magnitudes = "base_model.model.transformer.h.0.attn.c_attn.lora_magnitude_vector";
    assert_eq!(tensors.tensor(magnitudes).expect("magnitudes").shape(), [384]);
    let config = fs::read_to_string(file(&sandbox, "whole", 4, "adapter_config.json")).expect("a configuration");
    assert!(config.contains("\"use_dora\": true"), "{config}");
    // A rate of almost zero leaves the model as it was.
    sandbox.must(&format!("{train} --name still --max-steps 1 --learning-rate 1e-20"));
    let base = logits(&sandbox, "runs/base", "");
    assert!(largest_difference(&logits(&sandbox, "runs/still", ""), &base) < 1e-4);
    sandbox.must("merge --checkpoint runs/whole --out merged --device cpu");
    let adapted = logits(&sandbox, "runs/whole", "--precision fp32");
    assert!(largest_difference(&adapted, &logits(&sandbox, "merged", "--precision fp32")) < 1e-4);
    assert!(largest_difference(&adapted, &base) > 1e-2, "the adapters were trained");

    let flags = format!("{train} --name refused --max-steps 1");
    sandbox.must(&format!("{train} --name dropped --max-steps 1 --lora-dropout 0.1 --precision bf16"));
    sandbox.refused(
        &format!("{flags} --lora-targets wte"),
        2,
        &["`transformer.wte` can't have magnitudes", "embedding"],
    );
    sandbox.refused(
        &format!("{flags} --lora-targets lm_head,c_attn"),
        2,
        &["`lm_head` can't have magnitudes", "output head"],
    );
    sandbox.refused(
        &format!("train {DATA} --dora --name refused --max-steps 1"),
        2,
        &["`--dora` needs `--method lora`"],
    );
    let export = "export --checkpoint runs/whole --gguf F16 --out adapters.gguf";
    sandbox.refused(export, 4, &["magnitudes (DoRA)", "`plimsoll merge`"]);
    fs::create_dir_all(sandbox.path("copied")).expect("a folder");
    for name in ["adapter_model.safetensors", "config.json"] {
        fs::copy(file(&sandbox, "whole", 4, name), sandbox.path("copied").join(name)).expect(name);
    }
    sandbox.write("copied/adapter_config.json", config.replace("\"use_dora\": true", "\"use_dora\": false"));
    sandbox.refused("generate --checkpoint copied --tokenizer bytes --prompt a", 4, &["`use_dora` is not true"]);
}

#[test]
fn magnitudes_over_codes_are_merged_into_the_decoded_weights() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.write(
        "llama/config.json",
        r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
            "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": false}"#,
    );
    sandbox.must(&format!("train {DATA} --tokenizer bytes --model llama/config.json --name base --max-steps 2"));
    let train = format!("train {DATA} --init runs/base/model --method qlora --dora --lora-rank 4 --scheduler constant");
    sandbox.must(&format!("{train} --name still --max-steps 1 --learning-rate 1e-20"));
    let base = logits(&sandbox, "runs/base", "--base-weights nf4");
    assert!(
        largest_difference(&logits(&sandbox, "runs/still", ""), &base) < 1e-4,
        "norms are those of decoded weights"
    );
    sandbox.must(&format!("{train} --name coded --max-steps 4 --learning-rate 0.02"));
    let trained = logits(&sandbox, "runs/coded", "");
    sandbox.must("merge --checkpoint runs/coded --out decoded --device cpu --base-weights nf4");
    assert!(largest_difference(&trained, &logits(&sandbox, "decoded", "")) < 1e-4);
}

/// A Llama whose head has a weight of its own, or that of the embedding.
fn llama(is_tied: bool) -> String {
    let config = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
        "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": TIED}"#;
    config.replace("TIED", &is_tied.to_string())
}

/// Trains adapters of a model's layers over weights in `runs/base-NAME`, in one run, `NAME-whole`, and in two, whose files are
/// the same; and returns the shapes of the tensors in the adapters' file.
fn trained_in_parts(sandbox: &Sandbox, name: &str, config: &str, more: &str) -> BTreeMap<String, Vec<usize>> {
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.write(&format!("{name}/config.json"), config);
    let model = format!("--tokenizer bytes --model {name}/config.json");
    sandbox.must(&format!("train {DATA} {model} --name base-{name} --max-steps 2"));
    let flags = "--method lora --lora-rank 3 --ema 0.9 --learning-rate 0.02 --scheduler constant --precision bf16";
    let train = format!("train {DATA} --init runs/base-{name}/model {flags} {more}");
    sandbox.must(&format!("{train} --name {name}-whole --max-steps 4"));
    sandbox.must(&format!("{train} --name {name}-parts --max-steps 2"));
    sandbox.must(&format!("train --resume runs/{name}-parts --max-steps 4"));
    for file_name in ["adapter_model.safetensors", "optimizer.safetensors", "average.safetensors"] {
        let [whole, parts] = ["whole", "parts"]
            .map(|run| fs::read(file(sandbox, &format!("{name}-{run}"), 4, file_name)).expect(file_name));
        assert!(whole == parts, "{name}: {file_name}");
    }
    shapes(&file(sandbox, &format!("{name}-whole"), 4, "adapter_model.safetensors"))
}

/// The shapes of the tensors in a file.
fn shapes(path: &Path) -> BTreeMap<String, Vec<usize>> {
    let bytes = fs::read(path).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("a right file").tensors();
    tensors.into_iter().map(|(name, view)| (name, view.shape().to_vec())).collect()
}

/// Adds the embedding to a file of weights as the head's.
fn double_the_weight(path: &Path) {
    let bytes = fs::read(path).expect("weights");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a right file");
    let tensors = SafeTensors::deserialize(&bytes).expect("a right file");
    let mut views = tensors.tensors();
    views.push(("lm_head.weight".to_owned(), tensors.tensor("model.embed_tokens.weight").expect("an embedding")));
    fs::write(path, safetensors::serialize(views, metadata.metadata().clone()).expect("a file")).expect("written");
}

#[test]
fn an_adapter_of_an_embedding_is_trained_resumed_and_merged() {
    let sandbox = Sandbox::new();
    for (name, is_tied) in [("untied", false), ("tied", true)] {
        let shapes = trained_in_parts(&sandbox, name, &llama(is_tied), "--lora-targets embed_tokens,q_proj");
        let shape = |end: &str| &shapes[&format!("base_model.model.model.embed_tokens.lora_embedding_{end}")];
        assert_eq!([shape("A"), shape("B")], [&[3, 256], &[32, 3]], "the layout of PEFT");
        let adapted = logits(&sandbox, &format!("runs/{name}-whole"), "");
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("runs/base-{name}"), "")) > 1e-2);
        sandbox.must(&format!("merge --checkpoint runs/{name}-whole --out {name}-merged --device cpu"));
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("{name}-merged"), "")) < 1e-5);
        let export = format!("export --checkpoint runs/{name}-whole --gguf F16 --out a.gguf");
        sandbox.refused(&export, 4, &["`model.embed_tokens`"]);
    }
}

#[test]
fn an_adapter_of_the_output_head_is_trained_resumed_and_merged() {
    let sandbox = Sandbox::new();
    for (name, is_tied, targets) in
        [("untied", false, "lm_*"), ("tied", true, "lm_head,q_proj"), ("both", true, "lm_head,embed_tokens")]
    {
        let more = format!("--lora-dropout 0.1 --lora-targets {targets}");
        let of_adapters = trained_in_parts(&sandbox, name, &llama(is_tied), &more);
        let shape = |end: &str| &of_adapters[&format!("base_model.model.lm_head.lora_{end}.weight")];
        assert_eq!([shape("A"), shape("B")], [&[3, 32], &[256, 3]], "the layout of PEFT");
        let adapted = logits(&sandbox, &format!("runs/{name}-whole"), "");
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("runs/base-{name}"), "")) > 1e-2);
        // The adapters are continued.
        let more = format!("--init runs/{name}-whole/model --max-steps 1 --learning-rate 1e-30 --precision bf16");
        sandbox.must(&format!("train {DATA} {more} --name {name}-on"));
        assert_eq!(logits(&sandbox, &format!("runs/{name}-on"), ""), adapted);

        let said = sandbox.run(&format!("merge --checkpoint runs/{name}-whole --out {name}-merged --device cpu"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert_eq!(said.stderr.contains("have one each now"), is_tied, "{}", said.stderr);
        let merged = sandbox.path(&format!("{name}-merged"));
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("{name}-merged"), "")) < 1e-5);
        assert_eq!(shapes(&merged.join("model.safetensors"))["lm_head.weight"], [256, 32]);
        let config = fs::read_to_string(merged.join("config.json")).expect("a configuration");
        assert!(config.contains("\"tie_word_embeddings\": false"), "{config}");
        sandbox.must(&format!("export --checkpoint {name}-merged --gguf F16 --out model.gguf --tokenizer bytes"));
        if is_tied {
            // Files may have the shared weight under both names.
            let base = format!("base-{name}");
            double_the_weight(&file(&sandbox, &base, 2, "model.safetensors"));
            fs::remove_file(file(&sandbox, &base, 2, "state.json")).expect("the state, which has the size of the file");
            sandbox.must(&format!("merge --checkpoint runs/{name}-whole --out {name}-again --device cpu"));
            let [again, before] = ["again", "merged"].map(|end| logits(&sandbox, &format!("{name}-{end}"), ""));
            assert_eq!(again, before, "{name}");
            assert_eq!(fs::read_to_string(sandbox.path(&format!("{name}-again/config.json"))).ok(), Some(config));
        }

        let export = format!("export --checkpoint runs/{name}-whole --gguf F32 --out adapters.gguf");
        match is_tied {
            true => sandbox.refused(&export, 4, &["`lm_head` shares the weight of the embedding", "plimsoll merge"]),
            false => {
                sandbox.must(&export);
                let file = fs::read(sandbox.path("adapters.gguf")).expect("a file");
                let has = |name: &str| file.windows(name.len()).any(|part| part == name.as_bytes());
                assert!(has("output.weight.lora_a") && has("output.weight.lora_b"));
            }
        }
    }
    sandbox.must(&format!(
        "train {DATA} --init runs/base-tied/model --method lora --lora-rank 2 --max-steps 1 --name saved \
        --lora-targets lm_head --lora-modules-to-save embed_tokens"
    ));
    sandbox.refused("merge --checkpoint runs/saved --out no", 4, &["was trained whole and has an adapter"]);
    // So is one whose loss compares two passes; its rank is limited as that of any layer.
    let train = format!("train {DATA} --init runs/base-tied/model --method lora --lora-rank 2 --max-steps 2");
    sandbox.must(&format!("{train} --name paired --lora-targets lm_head --r-drop 1 --lora-dropout 0.1"));
    sandbox.refused(
        &format!("{train} --name no --lora-targets lm_head --lora-rank-pattern lm_head=33"),
        2,
        &["does not fit `lm_head`"],
    );
}

/// Writes adapters of rank 2 with values of their own over the weights in `runs/base-qwen`, as PEFT does with transformers 5.
fn write_adapters(sandbox: &Sandbox, folder: &str, shapes: BTreeMap<String, Vec<usize>>) {
    let base = sandbox.path("runs/base-qwen/model");
    let config = serde_json::json!({
        "peft_type": "LORA", "r": 1, "lora_alpha": 3, "rank_pattern": {".*\\.gate_up_proj": 2, "down_proj": 2},
        "target_parameters": ["gate_up_proj", "down_proj"], "base_model_name_or_path": base,
    });
    sandbox.write(&format!("{folder}/adapter_config.json"), config.to_string());
    let values = |shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        (0..count).flat_map(|at| ((at * 7 % 19) as f32 / 60.0 - 0.15).to_le_bytes()).collect::<Vec<_>>()
    };
    let tensors = shapes.into_iter().map(|(name, shape)| (name, values(&shape), shape)).collect::<Vec<_>>();
    let views = tensors.iter().map(|(name, bytes, shape)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes of this shape"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    fs::write(sandbox.path(&format!("{folder}/adapter_model.safetensors")), file).expect("written");
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// Copies the model of `runs/base` to `published` with its experts in MXFP4: random numbers with scales around 1/32.
fn write_mxfp4(sandbox: &Sandbox) {
    let base = file(sandbox, "base", 1, "model.safetensors");
    let bytes = fs::read(&base).expect("a checkpoint");
    let archive = SafeTensors::deserialize(&bytes).expect("a right file");
    let mut tensors = BTreeMap::new();
    for (name, view) in archive.tensors() {
        let &[experts, inputs, outputs] = view.shape() else {
            tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            continue;
        };
        let groups = [experts, outputs, inputs / 32];
        let count = groups.iter().product::<usize>();
        let blocks = (0..count * 16).map(|at| (at * 37 % 251) as u8).collect();
        let scales = (0..count).map(|at| 121 + (at % 3) as u8).collect();
        tensors.insert(format!("{name}_blocks"), (Dtype::U8, [&groups[..], &[16]].concat(), blocks));
        tensors.insert(format!("{name}_scales"), (Dtype::U8, groups.to_vec(), scales));
    }
    let mut index = serde_json::Map::new();
    fs::create_dir(sandbox.path("published")).expect("a new folder");
    for (number, shard) in SHARDS.iter().enumerate() {
        let own = tensors.iter().skip(number).step_by(SHARDS.len());
        index.extend(own.clone().map(|(name, _)| (name.clone(), serde_json::json!(shard))));
        let views = own.map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).expect("bytes of this shape"))
        });
        let shard = sandbox.path(&format!("published/{shard}"));
        fs::write(shard, safetensors::serialize(views, None).expect("a file")).expect("written");
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": index });
    sandbox.write("published/model.safetensors.index.json", index.to_string());
    let config = fs::read_to_string(base.with_file_name("config.json")).expect("a configuration");
    let config = config.replacen('{', r#"{"quantization_config": {"quant_method": "mxfp4"}, "#, 1);
    sandbox.write("published/config.json", config);
}

#[test]
fn adapters_of_a_published_gpt_oss_are_merged_into_floats_if_experts_have_them() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.write(
        "gpt-oss/config.json",
        r#"{"model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 256,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts_per_tok": 2,
            "num_local_experts": 3, "max_position_embeddings": 64}"#,
    );
    sandbox.must(&format!("train {DATA} --tokenizer bytes --model gpt-oss/config.json --name base --max-steps 1"));
    write_mxfp4(&sandbox);
    let experts = "model.layers.0.mlp.experts.down_proj";
    for (name, flags, codes) in [
        ("attention", "--method lora --lora-targets q_proj,v_proj", ""),
        ("experts", "--method lora --lora-targets experts.*", ""),
        ("coded", "--method qlora --lora-targets experts.*", "--base-weights nf4"),
    ] {
        sandbox.must(&format!(
            "train {DATA} --tokenizer bytes --init published {flags} --lora-rank 2 --max-steps 2 --learning-rate 0.02 --name {name}"
        ));
        let merge = format!("merge --checkpoint runs/{name} --out {name}-merged --device cpu {codes}");
        let said = sandbox.run(&merge);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let folder = sandbox.path(&format!("{name}-merged"));
        let merged = SHARDS.iter().flat_map(|shard| shapes(&folder.join(shard))).collect::<BTreeMap<_, _>>();
        let index = fs::read_to_string(folder.join("model.safetensors.index.json")).expect("an index");
        let index = serde_json::from_str::<serde_json::Value>(&index).expect("JSON");
        assert!(index["weight_map"].as_object().expect("a map").keys().eq(merged.keys()), "{name}: {index}");
        let config = fs::read_to_string(sandbox.path(&format!("{name}-merged/config.json"))).expect("a configuration");
        let keeps = name == "attention";
        assert_eq!(merged.get(experts).map(Vec::as_slice), (!keeps).then_some(&[3, 32, 64][..]), "{name}");
        for end in ["blocks", "scales"] {
            assert_eq!(merged.contains_key(&format!("{experts}_{end}")), keeps, "{name}");
        }
        assert_eq!(config.contains("quantization_config"), keeps, "{name}");
        assert_eq!(said.stderr.contains("decoded weights of MXFP4"), name == "experts", "{}", said.stderr);
        let [of_run, of_merged] =
            [format!("runs/{name}"), format!("{name}-merged")].map(|at| logits(&sandbox, &at, ""));
        assert!(largest_difference(&of_run, &of_merged) < 1e-5, "{name}");
    }
}

#[test]
fn adapters_of_experts_are_trained_resumed_merged_and_exported() {
    let sandbox = Sandbox::new();
    let config = |more: &str| {
        format!(
            r#"{{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
            "num_experts_per_tok": 2, "vocab_size": 256, "max_position_embeddings": 64, {more}}}"#
        )
    };
    let of_qwen = r#""model_type": "qwen3_moe", "num_experts": 3, "moe_intermediate_size": 24, "intermediate_size": 48, "norm_topk_prob": true"#;
    let of_gpt_oss = r#""model_type": "gpt_oss", "num_local_experts": 3, "intermediate_size": 24"#;
    let list = "base_model.model.model.layers.0.mlp.experts";
    let of_each: &[(&str, [usize; 2])] = &[
        ("0.gate_proj.lora_A", [3, 32]),
        ("2.gate_proj.lora_B", [24, 3]),
        ("1.down_proj.lora_A", [3, 24]),
        ("1.down_proj.lora_B", [32, 3]),
    ];
    let stacked: &[(&str, [usize; 2])] =
        &[("base_layer.lora_A", [9, 32]), ("base_layer.lora_B", [48, 9]), ("lora_A", [9, 24]), ("lora_B", [32, 9])];
    for (name, config, targets, expected, count) in [
        ("qwen", config(of_qwen), "q_proj,gate_proj,up_proj,down_proj", of_each, 20),
        ("gpt-oss", config(of_gpt_oss), "experts.*", stacked, 4),
    ] {
        let of_adapters = trained_in_parts(&sandbox, name, &config, &format!("--lora-targets {targets}"));
        for (end, shape) in expected {
            assert_eq!(of_adapters[&format!("{list}.{end}.weight")], shape, "the layout of PEFT");
        }
        assert_eq!(of_adapters.len(), count);
        let adapted = logits(&sandbox, &format!("runs/{name}-whole"), "");
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("runs/base-{name}"), "")) > 1e-2);
        // The adapters are continued.
        let more = format!("--init runs/{name}-whole/model --max-steps 1 --learning-rate 1e-30 --precision bf16");
        sandbox.must(&format!("train {DATA} {more} --name {name}-on"));
        assert_eq!(logits(&sandbox, &format!("runs/{name}-on"), ""), adapted);
        sandbox.must(&format!("merge --checkpoint runs/{name}-whole --out {name}-merged --device cpu"));
        assert!(largest_difference(&adapted, &logits(&sandbox, &format!("{name}-merged"), "")) < 1e-5);
        // The experts below the adapters in codes.
        let coded = format!("--init runs/base-{name}/model --method qlora --lora-rank 2 --lora-targets {targets}");
        sandbox.must(&format!("train {DATA} {coded} --max-steps 2 --learning-rate 0.02 --name {name}-coded"));
        let coded = logits(&sandbox, &format!("runs/{name}-coded"), "");
        let plain = logits(&sandbox, &format!("runs/{name}-coded"), "--base-weights off");
        assert!(largest_difference(&coded, &plain) > 1e-3, "{name}");
        sandbox.must(&format!(
            "merge --checkpoint runs/{name}-coded --out {name}-decoded --device cpu --base-weights nf4"
        ));
        assert!(largest_difference(&coded, &logits(&sandbox, &format!("{name}-decoded"), "")) < 1e-5, "{name}");
    }
    sandbox.must("export --checkpoint runs/qwen-whole --gguf F32 --out adapters.gguf");
    let exported = fs::read(sandbox.path("adapters.gguf")).expect("a file");
    let has = |name: &str| exported.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(has("blk.0.ffn_gate_exps.weight.lora_a") && has("blk.0.ffn_down_exps.weight.lora_b"));
    let export = "export --checkpoint runs/gpt-oss-whole --gguf F32 --out adapters.gguf";
    sandbox.refused(export, 4, &["is not one layer there", "plimsoll merge"]);
    // PEFT writes adapters of fused layers with transformers 5.
    let fused: &[(&str, [usize; 2])] =
        &[("base_layer.lora_A", [6, 32]), ("base_layer.lora_B", [48, 6]), ("lora_A", [6, 24]), ("lora_B", [32, 6])];
    let shapes_of_fused = fused.iter().map(|(end, shape)| (format!("{list}.{end}.weight"), shape.to_vec()));
    write_adapters(&sandbox, "fused", shapes_of_fused.collect());
    let trained = logits(&sandbox, "fused", "");
    assert!(largest_difference(&trained, &logits(&sandbox, "runs/base-qwen", "")) > 1e-2);
    sandbox.must(&format!("train {DATA} --init fused --max-steps 1 --learning-rate 1e-30 --name fused"));
    assert!(largest_difference(&trained, &logits(&sandbox, "runs/fused", "")) < 1e-5);
    let written = shapes(&file(&sandbox, "fused", 1, "adapter_model.safetensors"));
    assert!(written.len() == 4 && fused.iter().all(|(end, shape)| written[&format!("{list}.{end}.weight")] == shape));
    let shapes_of_each = ["gate_proj.lora_A", "gate_proj.lora_B"].into_iter().zip([[2, 32], [24, 2]]);
    let shapes_of_each = (0..3).flat_map(|expert| {
        shapes_of_each.clone().map(move |(end, shape)| (format!("{list}.{expert}.{end}.weight"), shape.to_vec()))
    });
    let both = fused.iter().map(|(end, shape)| (format!("{list}.{end}.weight"), shape.to_vec())).chain(shapes_of_each);
    write_adapters(&sandbox, "both", both.collect());
    for command in ["generate --tokenizer bytes --prompt a", "merge --out no --device cpu"] {
        sandbox.refused(&format!("{command} --checkpoint both"), 4, &["has a second adapter, for each of its experts"]);
    }
    sandbox.must("merge --checkpoint fused --out fused-merged --device cpu");
    assert!(largest_difference(&trained, &logits(&sandbox, "fused-merged", "")) < 1e-5);
    // All linear layers are those that every token passes.
    let train = format!("train {DATA} --init runs/base-qwen/model --method lora --lora-rank 2 --max-steps 1");
    sandbox.must(&format!("{train} --name usual"));
    let usual = shapes(&file(&sandbox, "usual", 1, "adapter_model.safetensors"));
    assert!(!usual.is_empty() && usual.keys().all(|name| !name.contains("experts")));
    sandbox.refused(&format!("{train} --dora --lora-targets up_proj"), 2, &["it is a layer of experts"]);
    let dropout = format!("{train} --lora-targets up_proj --lora-dropout 0.1");
    sandbox.refused(&dropout, 2, &["`model.layers.0.mlp.experts.up_proj`, can't have dropout", "`--lora-dropout 0`"]);
    sandbox.refused(&format!("{train} --lora-targets experts.1.up_proj"), 2, &["`experts.1.up_proj` matches no layer"]);
}

/// GPT-2's embedding and head have one weight in every program.
#[test]
fn a_head_that_always_shares_its_weight_is_not_merged() {
    let sandbox = sandbox();
    let train = format!("train {DATA} --init runs/base/model --method lora --lora-rank 3 --max-steps 2");
    for targets in ["lm_head", "wte"] {
        sandbox.must(&format!("{train} --name {targets} --lora-targets {targets},c_attn"));
        let merge = format!("merge --checkpoint runs/{targets} --out merged --device cpu");
        let words = ["has an adapter", "the embedding and the output head always share a weight", "hint: "];
        sandbox.refused(&merge, 4, &words);
    }
}

#[test]
fn a_file_of_another_trainer_with_adapters_runs() {
    let sandbox = sandbox();
    sandbox.write(
        "axolotl.yaml",
        "base_model: runs/base/model\ndatasets:\n  - path: text.txt\n    type: completion\nsequence_len: 24\nmicro_batch_size: 2\n\
         gradient_accumulation_steps: 2\nmax_steps: 2\nadapter: lora\nlora_r: 2\nlora_alpha: 6\nlora_dropout: 0.1\n\
         lora_target_modules: [c_attn, c_fc]\n",
    );
    sandbox.must("train --config axolotl.yaml --name of-file --device cpu --cache-dir cache --sample-tokens 0");
    let config = fs::read_to_string(file(&sandbox, "of-file", 2, "adapter_config.json")).expect("adapters");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&2.into(), &6.into()));
    assert_eq!(config["target_modules"], serde_json::json!(["c_attn", "c_fc"]));
}
