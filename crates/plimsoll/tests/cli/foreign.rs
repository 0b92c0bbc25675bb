//! Models, tokenizers and data in the forms that other programs write.

use crate::support::{Said, Sandbox, tiny_config};
use serde_json::{Value, json};

/// Writes a one-layer Mistral whose tokens are bytes.
fn write_mistral(sandbox: &Sandbox, name: &str, window: &Value) {
    let config = json!({
        "model_type": "mistral", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "sliding_window": window,
    });
    sandbox.write(&format!("{name}/config.json"), config.to_string());
}

/// With one layer, logits depend only on the last tokens within the window. `golden.rs` of the crate `train` compares
/// logits with those of `transformers`.
#[test]
fn a_prompt_may_exceed_the_attention_window() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(40));
    let train = |name: &str, seq_len: usize| {
        sandbox.run(&format!(
            "train --model {name} --tokenizer bytes --data text.txt --seq-len {seq_len} --max-steps 2 --held-out 0 \
             --sample-tokens 0 --cache-dir cache --name {name} --device cpu"
        ))
    };
    // For each token, whether the logits after it depend on the first token.
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

/// Writes a tokenizer whose tokens are characters, after these special ones, and its configuration file.
fn write_tokenizer(sandbox: &Sandbox, special: &[&str], post_processor: &Value, config: &Value) {
    let characters = (' '..='~').chain(['\n']).map(String::from);
    let tokens = special.iter().map(|&token| token.to_owned()).chain(characters);
    let vocab = tokens.zip(0..).map(|(token, id)| (token, json!(id))).collect::<serde_json::Map<_, _>>();
    let added = special.iter().zip(0..).map(|(token, id): (_, u32)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "decoder": {"type": "Fuse"}, "post_processor": post_processor,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s)."}, "behavior": "Isolated", "invert": false},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": special[0]},
    });
    sandbox.write("tok/tokenizer.json", file.to_string());
    sandbox.write("tok/tokenizer_config.json", config.to_string());
    sandbox.write("model/config.json", tiny_config(&json!({"vocab_size": 128})));
}

/// Trains one step on this data; returns the output.
fn train(sandbox: &Sandbox, flags: &str) -> Said {
    sandbox.run(&format!(
        "train --model model --tokenizer tok --seq-len 8 --max-steps 1 --held-out 0 --sample-tokens 0 --cache-dir cache \
         --device cpu {flags}"
    ))
}

fn assert_says(said: &Said, words: &[&str]) {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    words.iter().for_each(|words| assert!(said.stderr.contains(words), "no `{words}` in {}", said.stderr));
}

/// Ids of prompts and documents start with what the post-processor adds, as in `transformers` 5, which ignores
/// `add_bos_token` and `add_eos_token` if there is a tokenizer.json. Chats start with what their template writes.
#[test]
fn start_tokens_are_those_of_the_post_processor() {
    let sandbox = Sandbox::new();
    let first = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    });
    sandbox.write("d.jsonl", "{\"text\":\"one ship\"}\n{\"text\":\"two ships\"}\n");
    let chat = json!({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]});
    sandbox.write("c.jsonl", format!("{chat}\n"));
    let turns = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ eos_token }}{% endfor %}";
    sandbox.write("with.jinja", format!("{{{{ bos_token }}}}{turns}"));
    sandbox.write("without.jinja", turns);
    for (post_processor, added) in [(&first, 1), (&Value::Null, 0)] {
        for adds in [None, Some(false), Some(true)] {
            let mut config = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"});
            if let Some(adds) = adds {
                (config["add_bos_token"], config["add_eos_token"]) = (json!(adds), json!(adds));
            }
            write_tokenizer(&sandbox, &["<unk>", "<s>", "</s>"], post_processor, &config);
            let name = format!("r{added}-{adds:?}").replace(['(', ')'], "");
            let tokens = format!("{} tokens", 8 + 9 + 2 + 2 * added);
            assert_says(&train(&sandbox, &format!("--data d.jsonl --name {name}")), &[&tokens]);
            let ids = |prompt: &str| {
                let more = format!("--checkpoint runs/{name} --prompt {prompt} --logits out.json");
                let said = sandbox.run(&format!("generate {more}"));
                assert_eq!(said.code, Some(0), "{}", said.stderr);
                sandbox.json("out.json")["tokens"].as_array().expect("ids").len()
            };
            assert_eq!([ids("one"), ids("<s>one")], [3 + added, 4], "a begin token in the text is not doubled");
            for (template, tokens) in [("with", 11), ("without", 10)] {
                let said = train(
                    &sandbox,
                    &format!("--data c.jsonl --chat-template {template}.jinja --name {name}{template}"),
                );
                assert_says(&said, &[&format!("1 chats of {tokens} tokens")]);
            }
        }
    }
}

/// A tokenizer whose end token has an uncommon name.
#[test]
fn an_uncommon_end_token_is_used() {
    let sandbox = Sandbox::new();
    write_tokenizer(&sandbox, &["<unk>", "<|end|>"], &Value::Null, &json!({"eos_token": "<|end|>"}));
    sandbox.write("d.jsonl", "{\"text\":\"one ship\"}\n{\"text\":\"two ships\"}\n");
    let said = train(&sandbox, "--data d.jsonl");
    assert_says(&said, &["documents end with `<|end|>` (tokenizer_config.json)", "19 tokens"]);
}

/// A template that writes only the end of the chat after an answer: the whole answer and that end are trained on.
#[test]
fn the_whole_answer_and_the_end_of_the_chat_are_trained_on() {
    let sandbox = Sandbox::new();
    write_tokenizer(&sandbox, &["<unk>", "</s>"], &Value::Null, &json!({"eos_token": "</s>"}));
    let template = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}";
    sandbox.write("t.jinja", template);
    for (name, answer) in [("words", "To the line."), ("lines", "I think that it is\n\n4"), ("word", "4")] {
        let chat =
            json!({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]});
        sandbox.write(&format!("{name}.jsonl"), format!("{chat}\n"));
        let said = train(&sandbox, &format!("--data {name}.jsonl --chat-template t.jinja --name {name}"));
        assert_says(&said, &[&format!(" tokens, {} of them", answer.len() + 1)]);
    }
}

/// A file that is one JSON object: its rows are used if they are unambiguous; otherwise it is refused with its keys.
#[test]
fn a_json_object_is_read_if_its_rows_are_unambiguous() {
    let sandbox = Sandbox::new();
    let rows = json!([{"text": "The ship is loaded."}, {"text": "Salt water is dense."}]);
    let data = |name: &str, file: &Value| {
        sandbox.write(&format!("{name}.json"), serde_json::to_string_pretty(file).expect("JSON"));
        sandbox.run(&format!(
            "train --model model --tokenizer bytes --data {name}.json --seq-len 8 --max-steps 1 --held-out 0 \
             --sample-tokens 0 --cache-dir cache --device cpu --name {name}"
        ))
    };
    sandbox.write("model/config.json", tiny_config(&json!({"vocab_size": 257})));
    let text = "data: 39 B of text in 1 files";
    let key = |name: &str, key: &str| format!("note: the rows of {name}.json are those under its key `{key}`");
    for (name, of, file) in [
        ("field", "data", json!({"version": "1.0", "data": rows})),
        ("splits", "train", json!({"test": [{"text": "held back"}], "train": rows})),
        ("columns", "text", json!({"text": ["The ship is loaded.", "Salt water is dense."], "id": [1, 2]})),
    ] {
        assert_says(&data(name, &file), &[text, &key(name, of)]);
    }
    assert_says(&data("alone", &json!({"text": "Salt water is dense."})), &["data: 20 B of text in 1 files"]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    assert_says(&data("chat", &chat), &["data: 1 chats of "]);
    assert_says(&data("chats", &json!({"conversations": [chat]})), &["data: 1 chats of "]);
    for (name, file, words) in [
        (
            "squad",
            json!({"version": "1.1", "data": [{"title": "Tides", "paragraphs": []}]}),
            "no field `text`; it has `title`",
        ),
        (
            "tables",
            json!({"images": [{"id": 1}], "labels": [{"id": 2}]}),
            "one object with the keys `images`, `labels`",
        ),
        ("pairs", json!({"question": ["a"], "answer": ["b"]}), "one object with the keys `answer`, `question`"),
        ("settings", json!({"name": "a", "sizes": [1, 2]}), "one object with the keys `name`, `sizes`"),
        ("numbers", json!([1, 2]), "neither an array of objects nor objects in lines"),
    ] {
        let said = data(name, &file);
        assert_eq!(said.code, Some(4), "{name}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{name}: {}", said.stderr);
    }
}

/// A header with the default names is not a pair; other names that are often used for columns cause a warning.
#[test]
fn a_header_is_not_a_pair() {
    let sandbox = Sandbox::new();
    let train = |file: &str, text: &str, flags: &str| {
        sandbox.write(file, text);
        sandbox.run(&format!(
            "train --model t5-nano --tokenizer bytes --data {file} --max-steps 1 --global-batch 1 --held-out 0 \
             --sample-tokens 0 --cache-dir cache --device cpu {flags}"
        ))
    };
    let header = ["names its columns and is not a pair", "data: pairs of 9 tokens"];
    for (file, text) in [
        ("a.csv", "source,target\na ship,one\n"),
        ("b.csv", "\u{feff}\"source\",\"target\"\r\n\"a ship\",one\r\n"),
        ("c.tsv", "Source\tTarget\na ship\tone\n"),
    ] {
        assert_says(&train(file, text, ""), &header);
    }
    let named = train("a.csv", "source,target\na ship,one\n", "--source-column source --target-column target");
    assert_says(&named, &["data: pairs of 9 tokens"]);
    assert!(!named.stderr.contains("is not a pair"), "{}", named.stderr);
    let likely = train("d.csv", "question,answer\na ship,one\n", "");
    let hint = "hint: if it names the columns, use `--source-column 'question' --target-column 'answer'`";
    assert_says(&likely, &["warning: training on the first row of d.csv as a pair, `question` and `answer`", hint]);
    let plain = train("e.csv", "a ship,one\n", "");
    assert_says(&plain, &["data: pairs of 9 tokens"]);
    assert!(!plain.stderr.contains("first row"), "{}", plain.stderr);
}

/// Two data sets with different fields cannot share the setting; a data set that is listed twice is read twice.
#[test]
fn data_sets_share_one_text_field() {
    let sandbox = Sandbox::new();
    sandbox.write("model/config.json", tiny_config(&json!({"vocab_size": 257})));
    sandbox.write("al.jsonl", "{\"instruction\":\"How deep?\",\"input\":\"\",\"output\":\"To the line.\"}\n");
    let file = |sets: &str| {
        format!("base_model: model\ndatasets:\n{sets}sequence_len: 32\nmicro_batch_size: 1\nmax_steps: 1\n")
    };
    let fields =
        ["story", "body"].map(|field| format!("  - path: {field}.jsonl\n    type: completion\n    field: {field}\n"));
    sandbox.write("fields.yml", file(&fields.concat()));
    sandbox.write("twice.yml", file(&"  - path: al.jsonl\n    type: alpaca\n".repeat(2)));
    let run = |config: &str| {
        sandbox.run(&format!(
            "train --config {config} --tokenizer bytes --held-out 0 --sample-tokens 0 --cache-dir cache --device cpu"
        ))
    };
    for field in ["story", "body"] {
        sandbox.write(&format!("{field}.jsonl"), format!("{{\"{field}\":\"a ship\"}}\n"));
    }
    let refused = run("fields.yml");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let words = "`text_field` is one setting for all data sets, but has two values";
    assert!(refused.stderr.contains(words) && refused.stderr.contains("hint: "), "{}", refused.stderr);
    assert_says(&run("twice.yml"), &["data: 2 chats of "]);
}
