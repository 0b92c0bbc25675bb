//! Encoders on the command line: planned, trained on pairs, resumed, and refused where text is continued.

use crate::support::Sandbox;
use serde_json::json;

const DATA: &str = "--tokenizer bytes --data pairs.jsonl --source-len 48 --target-len 64 --bucket 16";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let row = |n: usize| json!({"anchor": format!("number {n}"), "positive": format!("the {n}th of the numbers")});
    sandbox.write("pairs.jsonl", (0..300).map(|n| row(n).to_string() + "\n").collect::<String>());
    sandbox
}

#[test]
fn an_encoder_is_trained_on_pairs_and_resumed() {
    let sandbox = sandbox();
    sandbox.write(
        "modernbert.json",
        json!({
            "model_type": "modernbert", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 64, "local_attention": 8,
        })
        .to_string(),
    );
    for (model, name) in [("bert-nano", "bert"), ("modernbert.json", "modernbert")] {
        let run = |flags: &str| {
            let said = sandbox.run(&format!("train {flags} --cache-dir cache --device cpu --json"));
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            said.json()
        };
        let flags = "--global-batch 8 --max-steps 4 --pooling cls --similarity-scale 10 --dropout 0.1";
        let report = run(&format!("--model {model} {DATA} {flags} --name {name}"));
        assert_eq!(report["plan"]["micro_batch"], 8);
        assert_eq!(report["measured"]["touched_bytes"], report["measured"]["planned_bytes_of_what_ran"]);
        let resumed = run(&format!("--resume runs/{name} --max-steps 6"));
        assert_eq!(resumed["losses"].as_array().map(Vec::len), Some(6));
        assert_eq!(resumed["losses"][3], report["losses"][3]);
        let again = run(&format!("--model {model} {DATA} {flags} --recompute blocks --name again-{name}"));
        assert_eq!(again["losses"], report["losses"]);
        let half =
            run(&format!("--model {model} {DATA} {flags} --precision bf16 --optimizer-offload 1 --name half-{name}"));
        assert_eq!(half["losses"].as_array().map(Vec::len), Some(4));
        let said = sandbox.run(&format!("generate --checkpoint runs/{name} --prompt x"));
        assert_eq!(said.code, Some(4));
        assert!(said.stderr.contains("is an encoder: it computes vectors of texts"), "{}", said.stderr);
    }
}

#[test]
fn what_encoders_are_not_trained_with_is_refused() {
    let sandbox = sandbox();
    sandbox.write("bad.jsonl", "{\"anchor\": \"a\", \"positive\": \"b\"}\n{\"anchor\": \"a\"}\n");
    for (flags, code, words) in [
        ("--model bert-nano --tokenizer bytes --data bad.jsonl", 4, "positive"),
        (&*format!("--model bert-nano {DATA} --global-batch 8 --micro-batch 4"), 2, "--micro-batch 8"),
        (&*format!("--model bert-nano {DATA} --r-drop 1"), 2, "--r-drop"),
        ("--model bert-nano --tokenizer bytes", 2, "anchor"),
    ] {
        let said = sandbox.run(&format!("train {flags} --max-steps 1 --cache-dir cache --device cpu"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
    let said = sandbox.run("estimate --model bert-base --gpu h100");
    assert_ne!(said.code, Some(0));
    assert!(said.stderr.contains("sentence encoders are not modeled yet"), "{}", said.stderr);
    let said = sandbox.run("plan --model bert-base --seq-len 128 --global-batch 32 --gpu h100");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}
