//! `generate`: chats with the checkpoint's own template, ends of answers, and printed text.

use crate::support::{Said, Sandbox};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tiny Llama with a ChatML template, trained until it knows two answers. Its tokenizer ends documents with another
/// token than turns.
fn chat_model() -> Sandbox {
    let sandbox = Sandbox::new();
    let chat = |asked: &str, answer: &str| {
        let messages = json!([{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]);
        format!("{}\n", json!({ "messages": messages }))
    };
    sandbox.write("chats.jsonl", [chat("red", "apple"), chat("blue", "sky")].concat().repeat(8));
    sandbox.write("words.txt", "user assistant red apple blue sky\n".repeat(40));
    let said = sandbox.run("tokenizer train --data words.txt --kind bpe --vocab-size 280 --output tok/tokenizer.json");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let mut tokenizer = sandbox.json("tok/tokenizer.json");
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    for (id, content) in (280..).zip(["<|im_start|>", "<|im_end|>"]) {
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        }));
    }
    sandbox.write("tok/tokenizer.json", tokenizer.to_string());
    sandbox.write("tok/tokenizer_config.json", json!({"eos_token": "<|endoftext|>"}).to_string());
    sandbox.write("tok/chat_template.jinja", TEMPLATE);
    let config = json!({
        "model_type": "llama", "vocab_size": 282, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": true,
    });
    sandbox.write("llama/config.json", config.to_string());
    sandbox.must_train(
        "--data chats.jsonl --model llama --tokenizer tok --seq-len 32 --max-steps 60 --checkpoint-every 60 --eval-every 0 \
         --learning-rate 1e-2 --name chat",
    );
    sandbox
}

fn text(said: &Said) -> String {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    String::from_utf8(said.stdout.clone()).expect("text")
}

#[test]
fn a_chat_model_answers_and_stops() {
    let sandbox = chat_model();
    let generate = |more: &str| sandbox.run(&format!("generate --checkpoint runs/chat --temperature 0 {more}"));
    let said = generate("--chat --prompt red");
    assert_eq!(text(&said), "apple\n", "{}", said.stderr);
    assert!(!said.stderr.contains("note: "), "{}", said.stderr);
    let chatted = sandbox.run("chat --checkpoint runs/chat --temperature 0 --prompt red");
    assert_eq!(text(&chatted), "apple\n", "{}", chatted.stderr);

    // A file of messages, and several questions at once.
    sandbox.write("one.json", r#"[{"role":"user","content":"blue"}]"#);
    sandbox.write("two.json", r#"{"messages":[{"role":"user","content":"blue"}]}"#);
    assert_eq!([text(&generate("--messages one.json")), text(&generate("--messages two.json"))], ["sky\n", "sky\n"]);
    sandbox.write("asked.txt", "red\nblue\n");
    assert_eq!(text(&generate("--chat --prompt-file asked.txt")), "apple\nsky\n");
    let line: Value = generate("--chat --prompt red --json").json();
    assert_eq!(line, json!({"prompt": "red", "text": "apple", "tokens": line["tokens"]}));
    let stopped = |line: &Value| line["tokens"].as_u64().is_some_and(|tokens| tokens <= "apple".len() as u64);
    assert!(stopped(&line), "{line}");

    // Without `--chat` the text is continued. It also ends with the turn, whose token is not printed; a line explains
    // how to chat.
    let asked = "<|im_start|>user\nred<|im_end|>\n<|im_start|>assistant\n";
    let continue_text = |more: &[&str]| {
        let arguments = ["generate", "--checkpoint", "runs/chat", "--temperature", "0", "--prompt", asked];
        Said::of(sandbox.command([&arguments, more].concat()).output().expect("the binary runs"))
    };
    let line = continue_text(&["--json"]).json();
    assert!(line["text"] == "apple" && stopped(&line), "{line}");
    let said = continue_text(&[]);
    assert_eq!(text(&said), format!("{asked}apple\n"));
    assert!(said.stderr.contains("note: this model has a chat template; `--chat` uses it"), "{}", said.stderr);

    // Ids in the checkpoint's generation_config.json end an answer, with any tokenizer.
    let first = generate("--chat --prompt red --logits out.json");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let logits = sandbox.json("out.json")["logits"].as_array().expect("rows").last().expect("a row").clone();
    let logits = logits.as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect::<Vec<_>>();
    let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("an id");
    sandbox.copy("runs/chat/model", "ended");
    sandbox.write("ended/generation_config.json", json!({"eos_token_id": [281, likeliest]}).to_string());
    for tokenizer in ["", "--tokenizer tok"] {
        let said = sandbox.run(&format!("generate --checkpoint ended --temperature 0 --chat --prompt red {tokenizer}"));
        assert_eq!(text(&said), "\n", "{}", said.stderr);
    }
}

#[test]
fn each_line_of_stdin_is_a_message() {
    let sandbox = chat_model();
    let converse = |lines: &str, more: &str| {
        let arguments = format!("generate --checkpoint runs/chat --temperature 0 --chat {more}");
        let mut command = sandbox.command(arguments.split_whitespace());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
        Said::of(child.wait_with_output().expect("it ends"))
    };
    let said = converse("red\n\nblue", "--max-tokens 6");
    let answers = text(&said);
    assert_eq!((answers.lines().next(), answers.lines().count()), (Some("apple"), 2), "{answers}");
    assert!(!said.stderr.contains("dropped"), "{}", said.stderr);
    // Three turns and an answer of 40 tokens exceed 64 positions: without the others, the last turn is answered as if
    // alone.
    let said = converse("red\nred\nblue\n", "--max-tokens 40 --json");
    let last: Value = serde_json::from_str(text(&said).lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["prompt"], &last["text"]), (&json!("blue"), &json!("sky")), "{}", said.stderr);
    assert!(said.stderr.contains("note: the chat is too long: its oldest 1 turn is dropped"), "{}", said.stderr);
    let said = converse("", "");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("`--chat` has no message to answer"), "{}", said.stderr);
}

#[test]
fn invalid_chats_are_refused() {
    let sandbox = chat_model();
    sandbox.must_train("--name plain --max-steps 1");
    sandbox.write("bad.json", r#"[{"content":"a"}]"#);
    sandbox.copy("runs/chat/model", "strict-model");
    sandbox.write("strict-model/chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
    for (arguments, code, words) in [
        ("runs/plain --chat --prompt a", 4, "has no chat template"),
        ("runs/chat --messages bad.json", 4, "bad.json is not a chat: it has no `messages` with `role` and `content`"),
        ("runs/chat --messages none.json", 4, "none.json can't be read"),
        ("strict-model --chat --prompt a", 4, "the chat template refuses the messages: roles must alternate"),
        ("runs/chat --system a --prompt a", 2, "--chat"),
        ("runs/chat --messages bad.json --prompt a", 2, "cannot be used with"),
    ] {
        let said = sandbox.run(&format!("generate --checkpoint {arguments}"));
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments} lacks `{words}`: {}", said.stderr);
    }
    // A template that refuses every chat does not prevent continuing a text.
    let said = sandbox.run("generate --checkpoint strict-model --prompt a --max-tokens 1");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

/// If the end of a turn is several tokens, its text ends the answer.
#[test]
fn the_text_that_ends_a_turn_ends_an_answer() {
    let sandbox = Sandbox::new();
    let chat = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]});
    sandbox.write("chats.jsonl", format!("{chat}\n").repeat(8));
    sandbox.write(
        "short.jinja",
        "{% for m in messages %}<{{ m.content }};.{% endfor %}{% if add_generation_prompt %}<{% endif %}",
    );
    let said = sandbox.must_train(
        "--data chats.jsonl --tokenizer bytes --chat-template short.jinja --seq-len 16 --max-steps 200 --eval-every 0 \
         --checkpoint-every 200 --learning-rate 1e-2 --name chat --sample-tokens 12 --dropout 0",
    );
    assert!(said.stderr.contains("try it: plimsoll generate --checkpoint runs/chat --chat\n"), "{}", said.stderr);
    assert_eq!(said.stderr.matches(";.").count(), 2, "the sample ends with its turn: {}", said.stderr);
    for more in ["", "--json"] {
        let said = sandbox.run(&format!("generate --checkpoint runs/chat --temperature 0 --chat --prompt a {more}"));
        let shown = text(&said);
        let expected = if more.is_empty() { "bc\n" } else { "{\"prompt\":\"a\",\"text\":\"bc\",\"tokens\":4}\n" };
        assert_eq!(shown, expected, "{}", said.stderr);
    }
}
