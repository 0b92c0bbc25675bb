//! Encoders on the command line: planned, trained on pairs, resumed, and refused where text is continued.

use crate::support::{Said, Sandbox};
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
        assert!(said.stderr.contains("hint: `plimsoll embed --checkpoint runs/"), "{}", said.stderr);
    }
}

/// The numbers of a .npy: their shape (N, C) and the rows.
fn npy(bytes: &[u8]) -> ([usize; 2], Vec<Vec<f32>>) {
    let header = String::from_utf8_lossy(&bytes[10..128]).into_owned();
    let shape = header.split(['(', ')']).nth(1).expect("a shape");
    let shape = shape.split(", ").map(|size| size.parse().expect("a size")).collect::<Vec<usize>>();
    let numbers = bytes[128..].as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect::<Vec<_>>();
    assert_eq!(numbers.len(), shape[0] * shape[1], "{header}");
    ([shape[0], shape[1]], numbers.chunks(shape[1]).map(<[f32]>::to_vec).collect())
}

#[test]
fn vectors_of_texts_are_written_in_their_order() {
    let sandbox = sandbox();
    let flags = "--global-batch 8 --max-steps 1 --pooling cls --name run --eval-every 0";
    let trained = sandbox.run(&format!("train --model bert-nano {DATA} {flags} --cache-dir cache --device cpu"));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    // More texts than a batch, of many lengths, some truncated.
    let texts = (0..75).map(|i| "a long text ".repeat(i * 7 % 16) + &i.to_string()).collect::<Vec<_>>();
    sandbox.write("texts.txt", texts.iter().map(|text| text.clone() + "\n").collect::<String>());
    let run = |flags: &str| {
        let said = sandbox.run(&format!("embed --checkpoint runs/run --device cpu --max-tokens 96 {flags}"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        said
    };
    let said = run("--data texts.txt --out all.npy --vram 1 --batch 16");
    assert!(said.stderr.contains("75 vectors of 192 numbers (cls pooling) in all.npy"), "{}", said.stderr);
    assert!(said.stderr.contains("of 75 texts were truncated to 96 tokens"), "{}", said.stderr);
    let (shape, vectors) = npy(&std::fs::read(sandbox.path("all.npy")).expect("vectors"));
    assert_eq!(shape, [75, 192]);
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(vectors.iter().all(|vector| (vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5));
    // One at a time, from arguments, as JSON: the same vectors and texts.
    for i in [0, 3, 74] {
        let flags = "embed --checkpoint runs/run --device cpu --max-tokens 96".split(' ');
        let said = sandbox.command(flags.chain([&*texts[i]])).output().expect("the binary runs");
        let line = Said::of(said).json();
        assert_eq!(line["text"], texts[i]);
        let vector = serde_json::from_value::<Vec<f32>>(line["vector"].clone()).expect("numbers");
        assert!(close(&vector, &vectors[i]), "text {i}");
    }
    // Without normalization, the directions are the same; with the mean, they are not.
    run("--data texts.txt --out plain.jsonl --no-normalize");
    run("--data texts.txt --out mean.npy --pooling mean");
    let plain = std::fs::read_to_string(sandbox.path("plain.jsonl")).expect("vectors");
    let of_line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["vector"].clone();
    let plain = plain.lines().map(|line| serde_json::from_value::<Vec<f32>>(of_line(line)).expect("numbers"));
    let (_, mean) = npy(&std::fs::read(sandbox.path("mean.npy")).expect("vectors"));
    for ((plain, vector), mean) in plain.zip(&vectors).zip(&mean) {
        let length = plain.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() > 1e-3, "{length}");
        assert!(close(&plain.iter().map(|x| x / length).collect::<Vec<_>>(), vector) && !close(mean, vector));
    }
}

#[test]
fn what_can_not_be_embedded_is_refused() {
    let sandbox = sandbox();
    let gpt =
        "train --global-batch 2 --max-steps 1 --seq-len 8 --sample-tokens 0 --eval-every 0 --name gpt --device cpu";
    sandbox.write("text.txt", "a text that is long enough for a window of it, and for another\n".repeat(9));
    let trained = sandbox.run(&format!("{gpt} --model nano --tokenizer bytes --data text.txt --cache-dir cache"));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let flags = "--global-batch 8 --max-steps 1 --name bert --eval-every 0 --cache-dir cache --device cpu";
    let trained = sandbox.run(&format!("train --model bert-nano {DATA} {flags}"));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    sandbox.write("table.csv", "a,b\n");
    sandbox.write("empty.txt", "");
    for (flags, code, words) in [
        ("--checkpoint runs/gpt x", 4, "only encoders compute vectors"),
        ("--checkpoint runs/bert --out v.txt x", 2, "neither a .npy nor a .jsonl"),
        ("--checkpoint runs/bert --max-tokens 99999 x", 2, "positions of the model"),
        ("--checkpoint runs/bert --data table.csv", 4, "is a table"),
        ("--checkpoint runs/bert --data empty.txt", 4, "there are no texts"),
        ("--checkpoint runs/bert --vram 1MiB x", 3, "the budget is 1.00 MiB"),
        ("--checkpoint runs/none x", 4, "runs/none"),
    ] {
        let said = sandbox.run(&format!("embed --device cpu {flags}"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{flags}: {}", said.stderr);
    }
    assert!(!sandbox.path("v.txt").exists());
}

#[test]
fn triplets_are_planned_and_trained() {
    let sandbox = sandbox();
    let row = |n: usize| {
        json!({
            "anchor": format!("number {n}"), "positive": format!("the {n}th of them"), "negative_1": format!("{}", n + 1),
            "negative_2": "a sentence about ships",
        })
    };
    sandbox.write("triplets.jsonl", (0..60).map(|n| row(n).to_string() + "\n").collect::<String>());
    sandbox.write("mixed.jsonl", format!("{}\n{}\n", json!({"anchor": "a", "positive": "b"}), row(1)));
    let flags = "--model bert-nano --tokenizer bytes --source-len 24 --target-len 32 --bucket 32 --global-batch 8";
    let run = |data: &str| {
        sandbox.run(&format!("train {flags} --data {data} --max-steps 3 --cache-dir cache --device cpu --json"))
    };
    let said = run("triplets.jsonl --name triplets");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("data: pairs, each with 2 hard negatives,"), "{}", said.stderr);
    let report = said.json();
    assert_eq!(report["measured"]["touched_bytes"], report["measured"]["planned_bytes_of_what_ran"]);
    let pairs = run("triplets.jsonl --negative-column negative_2 --name one");
    assert_eq!(pairs.code, Some(0), "{}", pairs.stderr);
    // The loss of random vectors is about the logarithm of the number of candidates.
    assert!(report["losses"][0].as_f64() > pairs.json()["losses"][0].as_f64());
    let resumed = sandbox.run("train --resume runs/one --max-steps 5 --cache-dir cache --device cpu --json");
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(resumed.json()["losses"][2], pairs.json()["losses"][2]);
    let mixed = run("mixed.jsonl --name mixed");
    assert_eq!(mixed.code, Some(4));
    assert!(mixed.stderr.contains("line 2 has a field `negative_1`"), "{}", mixed.stderr);
    let plan = |more: &str| {
        let said =
            sandbox.run(&format!("plan --model bert-base --seq-len 64 --global-batch 8 --device cpu --json {more}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.json()["breakdown"]["activations_bytes"].as_u64().expect("bytes")
    };
    assert!(plan("--negative-column 3 --negative-column 4") > plan(""));
}

#[test]
fn a_byt5_folder_trains_and_generates() {
    let sandbox = Sandbox::new();
    let config = json!({
        "model_type": "t5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
        "relative_attention_num_buckets": 8, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
        "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    });
    sandbox.write("byt5/config.json", config.to_string());
    sandbox
        .write("byt5/tokenizer_config.json", json!({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}).to_string());
    sandbox.write("pairs.tsv", (0..40).map(|n| format!("number {n}\t\u{e9}{n}\n")).collect::<String>());
    let flags = "--data pairs.tsv --source-len 16 --target-len 16 --bucket 16 --global-batch 4 --max-steps 2";
    let said = sandbox
        .run(&format!("train --model byt5 {flags} --sample-tokens 0 --name byt5 --cache-dir cache --device cpu"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let saved = std::fs::read_to_string(sandbox.path("runs/byt5/model/tokenizer_config.json")).expect("a file");
    assert!(saved.contains("ByT5Tokenizer"), "{saved}");
    let said = sandbox.run("generate --checkpoint runs/byt5 --prompt word --max-tokens 4 --json --device cpu");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
fn what_encoders_are_not_trained_with_is_refused() {
    let sandbox = sandbox();
    sandbox.write("bad.jsonl", "{\"anchor\": \"a\", \"positive\": \"b\"}\n{\"anchor\": \"a\"}\n");
    for (flags, code, words) in [
        ("--model bert-nano --tokenizer bytes --data bad.jsonl", 4, "positive"),
        (&*format!("--model bert-nano {DATA} --global-batch 8 --micro-batch 4"), 2, "--micro-batch 8"),
        (&*format!("--model bert-nano {DATA} --r-drop 1"), 2, "R-Drop"),
        (&*format!("--model bert-nano {DATA} --label-smoothing 0.1"), 2, "label smoothing"),
        ("--model bert-nano --tokenizer bytes", 2, "anchor"),
    ] {
        let said = sandbox.run(&format!("train {flags} --max-steps 1 --cache-dir cache --device cpu"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
    for command in ["plan --model bert-base --seq-len 64", "bench --model bert-nano --seq-len 16 --steps 1"] {
        for (flags, words) in [("--r-drop 1", "R-Drop"), ("--label-smoothing 0.1", "label smoothing")] {
            let said = sandbox.run(&format!("{command} {flags} --device cpu"));
            assert_eq!(said.code, Some(2), "{command} {flags}: {}", said.stderr);
            assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{command}: {}", said.stderr);
        }
    }
    let said = sandbox.run("plan --model gpt2 --negative-column negative --device cpu");
    assert_eq!((said.code, said.stderr.contains("not an encoder")), (Some(2), true), "{}", said.stderr);
    let said = sandbox.run("estimate --model bert-base --gpu h100 --seq-len 128");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let shown = String::from_utf8_lossy(&said.stdout).into_owned() + &said.stderr;
    assert!(shown.contains("two texts per sample"), "{shown}");
    let said = sandbox.run("estimate --model bert-base --gpu h100 --seq-len 128 --sharding ddp --cards 2");
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("encoders are modeled on one GPU"), "{}", said.stderr);
    let said = sandbox.run("plan --model bert-base --seq-len 128 --global-batch 32 --gpu h100");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}
