//! Models, tokenizers and data as others publish and save them. Each test is named after the kind of file that it holds.

use crate::support::Sandbox;
use serde_json::{Value, json};

/// A folder with a model of one layer whose tokens are bytes.
fn write_mistral(sandbox: &Sandbox, name: &str, window: &Value) {
    let config = json!({
        "model_type": "mistral", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "sliding_window": window,
    });
    sandbox.write(&format!("{name}/config.json"), config.to_string());
}

/// With one layer, logits depend on the last tokens within the window alone. That they are those of `transformers` is held
/// by `golden.rs` of the crate `train`.
#[test]
fn a_prompt_beyond_window() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(40));
    let train = |name: &str, seq_len: usize| {
        sandbox.run(&format!(
            "train --model {name} --tokenizer bytes --data text.txt --seq-len {seq_len} --max-steps 2 --held-out 0 \
             --sample-tokens 0 --cache-dir cache --name {name} --device cpu"
        ))
    };
    // For each token, whether the logits after it change with the first token.
    let changes = |name: &str, window: &Value| {
        write_mistral(&sandbox, name, window);
        let said = train(name, 40);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let logits = |first: &str| {
            let prompt = format!("{first}hips-and-their-lines-are-loaded-again");
            let said = sandbox.run(&format!("generate --checkpoint runs/{name} --prompt {prompt} --logits out.json"));
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            sandbox.json("out.json")["logits"].as_array().expect("rows").clone()
        };
        let (one, other) = (logits("s"), logits("w"));
        one.iter().zip(&other).map(|(one, other)| one != other).collect::<Vec<_>>()
    };
    let windowed = changes("windowed", &json!(16));
    assert_eq!(windowed, (0..windowed.len()).map(|token| token < 16).collect::<Vec<_>>());
    assert!(changes("full", &Value::Null).iter().all(|&changed| changed));

    let long = train("windowed", 65);
    assert_eq!(long.code, Some(2), "{}", long.stderr);
    assert!(long.stderr.contains("65 tokens does not fit the model, which has 64 positions"), "{}", long.stderr);
    let prompt = "a".repeat(70);
    let beyond = sandbox.run(&format!("generate --checkpoint runs/windowed --prompt {prompt} --max-tokens 2"));
    assert_eq!(beyond.code, Some(0), "{}", beyond.stderr);
    let warning = "a prompt of 70 tokens and its answer of 2 exceed the model's 64 positions";
    assert!(beyond.stderr.contains(warning), "{}", beyond.stderr);
}
