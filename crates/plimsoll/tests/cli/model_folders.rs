//! Model folders: the tokenizer of a model, and the files of a checkpoint that other programs need.

use crate::support::{Sandbox, tiny_config};
use serde_json::json;
use std::fs;
use std::path::Path;

/// A sandbox with a trained tokenizer in `tok`, and a GPT-2 with this vocabulary size in `model`.
fn sandbox(vocab_size: usize) -> Sandbox {
    let sandbox = Sandbox::new();
    let train = "tokenizer train --data text.txt --kind bpe --vocab-size 300 --output tok/tokenizer.json";
    assert_eq!(sandbox.run(train).code, Some(0));
    sandbox.write("model/config.json", tiny_config(&json!({"vocab_size": vocab_size, "n_embd": 8, "n_head": 2})));
    sandbox
}

fn tokenizer_of(sandbox: &Sandbox, run: &str) -> String {
    sandbox.json(&format!("runs/{run}/checkpoints/step-000001/state.json"))["tokenizer"]
        .as_str()
        .expect("text")
        .to_owned()
}

/// A GPT-2 with a vocabulary of its own must not be trained with OpenAI's tokenizer.
#[test]
fn the_tokenizer_in_a_model_s_folder_wins() {
    let sandbox = sandbox(50_300);
    sandbox.write("model/tokenizer.json", sandbox.read("tok/tokenizer.json"));
    sandbox.must_train("--model model --name fresh --max-steps 1");
    assert_eq!(tokenizer_of(&sandbox, "fresh"), "model/tokenizer.json");
    // The same with `--init` and a folder that has weights.
    sandbox.write("model/model.safetensors", sandbox.read("runs/fresh/model/model.safetensors"));
    for (name, flags) in [("own", "--model model --init model"), ("family", "--model gpt2 --init model")] {
        sandbox.must_train(&format!("{flags} --name {name} --max-steps 1"));
        assert_eq!(tokenizer_of(&sandbox, name), "model/tokenizer.json");
    }
    // An explicit tokenizer overrides it.
    sandbox.must_train("--model model --tokenizer bytes --name named --max-steps 1");
    assert_eq!(tokenizer_of(&sandbox, "named"), "bytes");
    // GPT-2's older files are a tokenizer, too.
    fs::remove_file(sandbox.path("model/tokenizer.json")).expect("it was written");
    let words = sandbox.json("tok/tokenizer.json");
    let mut vocab = words["model"]["vocab"].clone();
    vocab["<|endoftext|>"] = json!(vocab.as_object().expect("an object").len());
    sandbox.write("model/vocab.json", vocab.to_string());
    sandbox.write("model/merges.txt", "#version: 0.2\n");
    sandbox.must_train("--model model --name pair --max-steps 1");
    assert_eq!(tokenizer_of(&sandbox, "pair"), "./model");
    assert!(sandbox.path("runs/pair/model/tokenizer.json").is_file());
    // Without one, no tokenizer is guessed.
    fs::remove_file(sandbox.path("model/vocab.json")).expect("it was written");
    let said = sandbox.train("--model model --name none");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("model needs its own tokenizer"), "{}", said.stderr);
}

#[test]
fn a_tokenizer_with_more_ids_than_the_model_is_refused() {
    let sandbox = sandbox(290);
    sandbox.write("model/tokenizer.json", sandbox.read("tok/tokenizer.json"));
    let said = sandbox.train("--model model --name small");
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    let expected = "the tokenizer has 300 ids, the model's vocabulary has 290";
    assert!(said.stderr.contains(expected), "{}", said.stderr);
}

/// A checkpoint has everything that other programs need.
#[test]
fn a_checkpoint_is_a_model_folder() {
    let sandbox = sandbox(300);
    sandbox.write("tok/tokenizer_config.json", r#"{"eos_token":"<|endoftext|>","model_max_length":16}"#);
    sandbox.write("tok/chat_template.jinja", "{{ messages }}");
    sandbox.must_train("--model model --tokenizer tok --name first --max-steps 10");
    let link = fs::read_link(sandbox.path("runs/first/model")).expect("a link");
    assert_eq!(link, Path::new("checkpoints/step-000010"), "relative, to the newest");
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        assert_eq!(sandbox.read(&format!("runs/first/model/{file}")), sandbox.read(&format!("tok/{file}")), "{file}");
    }
    let config = sandbox.json("runs/first/model/config.json");
    assert!(config["eos_token_id"].is_u64() && config["bos_token_id"].is_null(), "{config}");
    sandbox.copy("runs/first/checkpoints/step-000010", "elsewhere");
    fs::remove_dir_all(sandbox.path("tok")).expect("it was written");
    let write = |from: &str| {
        let said = sandbox.run(&format!("generate --checkpoint {from} --prompt a --max-tokens 8 --temperature 0"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    };
    let text = write("elsewhere");
    assert_eq!(write("runs/first/model"), text);
    assert_eq!(write("runs/first"), text);
    // The generation and token settings of the weights' folder are copied.
    sandbox.write("elsewhere/generation_config.json", r#"{"eos_token_id":[0,1]}"#);
    let ids = json!([0, 1]);
    let mut config = sandbox.json("elsewhere/config.json");
    config["eos_token_id"] = ids.clone();
    fs::remove_file(sandbox.path("elsewhere/state.json")).expect("it was written");
    sandbox.write("elsewhere/config.json", config.to_string());
    sandbox.must_train("--model elsewhere --init elsewhere --name second --max-steps 1");
    assert_eq!(sandbox.json("runs/second/model/config.json")["eos_token_id"], ids);
    assert_eq!(sandbox.json("runs/second/model/generation_config.json")["eos_token_id"], ids);
    // A changed file is detected like any other.
    sandbox.write("runs/second/checkpoints/step-000001/tokenizer.json", "{}");
    let said = sandbox.run("train --resume runs/second --max-steps 2");
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("tokenizer.json"), "{}", said.stderr);
}

/// Built-in tokenizers are written as files, and opened with their own type.
#[test]
fn a_built_in_tokenizer_comes_with_a_checkpoint() {
    let sandbox = sandbox(50_257);
    sandbox.must_train("--model model --tokenizer gpt2 --name gpt2 --max-steps 1");
    sandbox.must_train("--name bytes --max-steps 1");
    for (run, end, id) in [("gpt2", "<|endoftext|>", 50_256), ("bytes", "\0", 0)] {
        assert_eq!(sandbox.json(&format!("runs/{run}/model/tokenizer_config.json"))["eos_token"], json!(end));
        assert_eq!(sandbox.json(&format!("runs/{run}/model/config.json"))["eos_token_id"], json!(id));
        let said = sandbox
            .must_train(&format!("--model runs/{run}/model --init runs/{run}/model --name {run}-2 --max-steps 1"));
        assert!(!said.stderr.contains("documents end with"), "it is the built-in one: {}", said.stderr);
    }
}
