//! Chats, from rows to weights: formats, templates, trained tokens, resuming, and refusals.

use crate::support::{Said, Sandbox, tiny_config};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const BAD_INPUT: Option<i32> = Some(4);
const USAGE: Option<i32> = Some(2);

/// Short, because a tiny model reads 32 bytes.
const TEMPLATE: &str = "{% for m in messages %}{{ '<' if m.role == 'user' else '>' }}{{ m.content }};{% endfor %}\
                        {% if add_generation_prompt %}>{% endif %}";

const RUN: &str = "--tokenizer bytes --chat-template short.jinja --seq-len 32 --max-steps 4 --checkpoint-every 2 \
                   --eval-every 0 --dropout 0.1 --json";

/// Questions, and answers of different lengths.
fn lines(row: impl Fn(String, String) -> Value) -> String {
    (0..60).map(|n: u64| format!("{}\n", row(format!("{n}?"), (n * n * n).to_string()))).collect()
}

/// A sandbox with the same chats in three formats.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("short.jinja", TEMPLATE);
    let turns = |role: &str, content: &str, names: [&str; 2], texts: [String; 2]| {
        let turn = |at: usize| json!({ role: names[at], content: texts[at] });
        json!([turn(0), turn(1)])
    };
    sandbox.write(
        "messages.jsonl",
        lines(|q, a| json!({"id": 7, "messages": turns("role", "content", ["user", "assistant"], [q, a])})),
    );
    sandbox.write(
        "sharegpt.jsonl",
        lines(|q, a| json!({"conversations": turns("from", "value", ["human", "gpt"], [q, a])})),
    );
    sandbox.write("alpaca.jsonl", lines(|q, a| json!({"instruction": q, "input": "", "output": a})));
    sandbox
}

fn report(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()
}

fn losses(report: &Value) -> Vec<f64> {
    report["losses"].as_array().expect("losses").iter().map(|loss| loss.as_f64().expect("a number")).collect()
}

/// Names as in axolotl's files: ChatML, or the tokenizer's template, which for bytes is ChatML too.
#[test]
fn templates_have_names() {
    let sandbox = sandbox();
    let run = RUN.replace("--chat-template short.jinja --seq-len 32", "--seq-len 32 --data messages.jsonl");
    let losses_with = |flag: &str, name: &str| losses(&report(&sandbox.train(&format!("{run} {flag} --name {name}"))));
    let usual = losses_with("", "usual");
    assert_eq!(losses_with("--chat-template chatml", "chatml"), usual);
    assert_eq!(losses_with("--chat-template tokenizer_default", "tokenizers"), usual);
    sandbox.write("chatml", TEMPLATE);
    assert_ne!(losses_with("--chat-template chatml", "file"), usual, "the name means a file");
}

/// A template that asks for an answer with `<think>`, as DeepSeek's do, but does not write it before answers: the run
/// trains without it and says so.
#[test]
fn a_generation_prompt_that_answers_lack_is_reported() {
    let sandbox = sandbox();
    let thinks =
        TEMPLATE.replace("%}>{% endif", "%}>T{% endif").replace("m.content", "m.content.split('</think>')[-1]");
    sandbox.write("short.jinja", &thinks);
    let said = sandbox.train(&format!("--data messages.jsonl {RUN}"));
    let answers: usize = (0..60u64).map(|n| (n * n * n).to_string().len() + 1).sum();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains(&format!(" {answers} of them")), "{}", said.stderr);
    let note =
        "note: the chat template prompts for an answer with \"T\", but omits it before answers: training leaves it out";
    assert!(said.stderr.contains(note), "{}", said.stderr);
    assert!(said.stderr.contains("removes `<think>…</think>` from all answers but the last"), "{}", said.stderr);
}

#[test]
fn chats_give_the_same_run_in_every_format() {
    let sandbox = sandbox();
    let train = |format: &str, flags: &str| {
        let said = sandbox.train(&format!("--data {format}.jsonl {RUN} --name {format}{} {flags}", flags.len()));
        (report(&said), said.stderr)
    };
    let (messages, said) = train("messages", "");
    // Each answer and the `;` that ends it, for 60 chats.
    let answers: usize = (0..60u64).map(|n| (n * n * n).to_string().len() + 1).sum();
    let all: usize = (0..60u64).map(|n| format!("<{n}?;>").len()).sum::<usize>() + answers;
    let percent = (100.0 * answers as f64 / all as f64).round();
    assert!(said.contains(&format!("60 chats of {all} tokens, {answers} of them ({percent} %) trained on")), "{said}");
    assert!(said.contains("57 training samples, 3 held out"), "{said}");
    for format in ["sharegpt", "alpaca"] {
        assert_eq!(losses(&train(format, "").0), losses(&messages), "{format}");
    }
    let count = |report: &Value, key: &str| report[key].as_u64().expect("a count");
    assert!(count(&messages, "target_tokens") < count(&messages, "tokens_seen"), "{messages}");
    // Packed rows have several chats; everything in a chat except its first byte can be trained on.
    let (packed, said) = train("messages", "--packing");
    assert!(said.contains("packed into rows"), "{said}");
    assert!(count(&packed, "target_tokens") > 2 * count(&messages, "target_tokens"), "{packed}");
    assert!(count(&packed, "padding_tokens") < count(&messages, "padding_tokens") / 4, "{packed}");
    let (whole, _) = train("messages", "--train-on all");
    assert_eq!(count(&whole, "tokens_seen") - count(&whole, "target_tokens"), 16, "{whole}");
    assert_eq!(count(&whole, "tokens_seen"), count(&messages, "tokens_seen"));
}

#[test]
fn arrays_and_lines_of_json_and_folders_of_tables_are_data() {
    let sandbox = sandbox();
    let lines = sandbox.text("messages.jsonl");
    sandbox.write("array.json", format!("[{}]", lines.trim().replace('\n', ",")));
    sandbox.write("lines.json", &lines);
    let train = |data: &str| {
        let name = data.replace(['.', '/'], "-");
        losses(&report(&sandbox.train(&format!("--data {data} {RUN} --name {name}"))))
    };
    let expected = train("messages.jsonl");
    assert_eq!([train("array.json"), train("lines.json")], [expected.clone(), expected]);

    // A data set in the layout of Hugging Face.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/golden");
    let table = |codec: &str| fs::read(golden.join(format!("chats-{codec}.parquet"))).expect("it is committed");
    sandbox.write("set/README.md", "---\nlicense: mit\n---\nNo data.");
    sandbox.write("set/data/train-00000-of-00002.parquet", table("snappy"));
    sandbox.write("set/data/train-00001-of-00002.parquet", table("zstd"));
    sandbox.write("set/data/test-00000-of-00001.parquet", table("gzip"));
    let said = sandbox.must_train(&format!("--data set {RUN}"));
    assert!(said.stderr.contains("data: 12 chats of"), "{}", said.stderr);
    assert!(said.stderr.contains("1 files of validation and test splits are not trained on"), "{}", said.stderr);
    for file in ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"] {
        sandbox.write(&format!("saved/{file}"), "{}");
    }
    let said = sandbox.train(&format!("--data saved {RUN}"));
    assert_eq!(said.code, BAD_INPUT, "{}", said.stderr);
    assert!(said.stderr.contains("load_from_disk(FOLDER).to_parquet"), "{}", said.stderr);
}

/// The loss is a mean over the targets of a global batch, not a mean of the means of micro-batches.
#[test]
fn invariant_5_losses_are_means_over_the_trained_tokens_of_all_micro_batches() {
    let sandbox = sandbox();
    let train = |micro: usize| {
        let flags = format!("--data messages.jsonl {RUN} --micro-batch {micro} --name m{micro}");
        losses(&report(&sandbox.train(&flags.replace("--dropout 0.1", "--dropout 0"))))
    };
    let whole = train(4);
    for micro in [1, 2] {
        for (a, b) in train(micro).iter().zip(&whole) {
            assert!((a - b).abs() < 2e-6, "micro-batches of {micro}: {a}, not {b}");
        }
    }
}

#[test]
fn invariant_5_a_card_leaves_out_the_same_targets() {
    let sandbox = sandbox();
    let flags = format!("--data messages.jsonl {RUN} --packing --global-batch 2 --precision fp32")
        .replace("--dropout 0.1", "--dropout 0")
        .replace("--max-steps 4", "--max-steps 2");
    let arguments = Sandbox::train_arguments(&format!("{flags} --device cuda --vram 2 --name card"));
    let mut command = sandbox.command(&arguments);
    Sandbox::with_card(&mut command, "execution=late");
    let card = losses(&report(&Said::of(command.output().expect("the binary runs"))));
    let processor = losses(&report(&sandbox.train(&format!("{flags} --device cpu --name processor"))));
    for (a, b) in card.iter().zip(&processor) {
        assert!((a - b).abs() < 1e-4, "{a} on the GPU, {b} on the processor");
    }
}

#[test]
fn invariant_7_a_run_on_answers_resumes_to_the_bit() {
    let sandbox = sandbox();
    sandbox.must_train(&format!("--data sharegpt.jsonl {RUN} --packing --name whole"));
    sandbox.copy("runs/whole", "runs/cut");
    fs::remove_dir_all(sandbox.path("runs/cut/checkpoints/step-000004")).expect("it is there");
    // The row format, the template and the date are settings of the run.
    let config = sandbox.text("runs/cut/config.yaml");
    for setting in ["data_format: sharegpt", "train_on: answers", "chat_template: short.jinja", "chat_date: "] {
        assert!(config.contains(setting), "{config}");
    }
    let resumed = sandbox.run("train --resume runs/cut --max-steps 4 --json");
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    sandbox.assert_same_run("runs/cut", "runs/whole", 4);
    assert_eq!(resumed.json()["target_tokens"], sandbox.json("runs/whole/report.json")["target_tokens"]);
    // Different tokens or a different mask are different data.
    let other = sandbox.run("train --resume runs/cut --max-steps 6 --train-on all");
    assert_ne!(other.code, Some(0), "{}", other.stderr);
    sandbox.write("short.jinja", TEMPLATE.replace(';', "."));
    let other = sandbox.run("train --resume runs/cut --max-steps 6");
    assert_ne!(other.code, Some(0), "{}", other.stderr);
}

#[test]
fn tokens_are_cached_by_template_and_mask() {
    let sandbox = sandbox();
    let caches = |flags: &str| {
        let run = format!("--data messages.jsonl {RUN} {flags}").replace("--max-steps 4", "--max-steps 1");
        sandbox.must_train(&run);
        sandbox.tree("cache").keys().filter(|path| path.extension().is_some_and(|e| e == "chats")).count()
    };
    assert_eq!([caches(""), caches("--packing"), caches("--chat-date 2020-02-02")], [1, 1, 1]);
    assert_eq!(caches("--train-on all"), 2);
    sandbox.write("short.jinja", TEMPLATE.to_owned() + "{# a remark #}");
    assert_eq!(caches(""), 3);
    sandbox.write("short.jinja", TEMPLATE.to_owned() + "{% set today = strftime_now('%Y') %}");
    assert_eq!([caches("--chat-date 2020-02-02"), caches("--chat-date 2021-02-02")], [4, 5]);
}

#[test]
fn the_tokenizers_template_is_used_and_a_sample_answers() {
    let sandbox = sandbox();
    let tokenizer =
        "tokenizer train --data messages.jsonl --text-field id --kind bpe --vocab-size 300 --output tok/tokenizer.json";
    sandbox.write("words.txt", "<0?;>123456789;".repeat(40));
    let said = sandbox.run(&tokenizer.replace("messages.jsonl --text-field id", "words.txt"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    sandbox.write("tiny/config.json", tiny_config(&json!({ "vocab_size": 300 })));
    let config = json!({ "chat_template": TEMPLATE.replace(';', "{{ eos_token }}"), "eos_token": {"content": "!"} });
    sandbox.write("tok/tokenizer_config.json", config.to_string());
    let run = RUN.replace("--tokenizer bytes --chat-template short.jinja", "--tokenizer tok/tokenizer.json");
    let run = run.replace("--checkpoint-every 2", "--sample-tokens 4 --model tiny");
    let said = sandbox.must_train(&format!("--data messages.jsonl {run}"));
    let prompt = said.stderr.lines().find(|line| line.contains("?!>")).unwrap_or_else(|| panic!("{}", said.stderr));
    assert!(!prompt.contains(';'), "{prompt}");
}

/// Prompts with completions: as texts, and as lists of messages that the template formats.
#[test]
fn only_completions_are_trained_on() {
    let sandbox = sandbox();
    sandbox.write("texts.jsonl", lines(|q, a| json!({"prompt": q, "completion": a, "id": 7})));
    let list = |role: &str, text: String| json!([{"role": role, "content": text}]);
    sandbox.write("lists.jsonl", lines(|q, a| json!({"prompt": list("user", q), "completion": list("assistant", a)})));
    let run = RUN.replace("--chat-template short.jinja ", "");
    let said = sandbox.train(&format!("--data texts.jsonl {run} --name texts"));
    let report_of_texts = report(&said);
    // Each completion and the tokenizer's end token.
    let completions: usize = (0..60u64).map(|n| (n * n * n).to_string().len() + 1).sum();
    let prompts: usize = (0..60u64).map(|n| format!("{n}?").len()).sum();
    let expected = format!("60 prompts with completions of {} tokens, {completions} of them", prompts + completions);
    assert!(said.stderr.contains(&expected), "{}", said.stderr);
    assert!(!sandbox.path("runs/texts/model/chat_template.jinja").exists(), "no template was used");
    assert!(report_of_texts["target_tokens"].as_u64() < report_of_texts["tokens_seen"].as_u64());
    assert!(sandbox.text("runs/texts/config.yaml").contains("data_format: completion"));
    let resumed = sandbox.run("train --resume runs/texts --max-steps 5");
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    // The same chats in another format are the same run.
    let messages = losses(&report(&sandbox.train(&format!("--data messages.jsonl {RUN} --name messages"))));
    assert_eq!(losses(&report(&sandbox.train(&format!("--data lists.jsonl {RUN} --name lists")))), messages);
}

/// The error names the kind of data that a decoder cannot train on, and a hint.
#[test]
fn preferences_and_pairs_are_refused() {
    let sandbox = sandbox();
    sandbox.write("dpo.jsonl", lines(|q, a| json!({"prompt": q, "chosen": a, "rejected": "no"})));
    sandbox.write("kto.json", json!([{"prompt": "a", "completion": "b", "label": true}]).to_string());
    sandbox.write("pairs.csv", "source,target\na,b\n".repeat(30));
    sandbox.write("named.csv", "article,summary\na,b\n".repeat(30));
    sandbox.write("plain.csv", "1,one\n2,two\n".repeat(200));
    for (data, words) in [
        ("dpo.jsonl", "dpo.jsonl is a preference file (DPO: its rows have `chosen` and `rejected`)"),
        ("kto.json", "kto.json is a preference file (KTO: its rows have `completion` and `label`)"),
        ("pairs.csv", "pairs.csv contains pairs, in the columns source and target, but the model continues text"),
        ("named.csv", "named.csv contains pairs, in the columns article and summary"),
        ("dpo.jsonl --model t5-nano --source-len 16 --target-len 16", "dpo.jsonl is a preference file (DPO"),
    ] {
        let arguments = Sandbox::train_arguments(&format!("--data {data} --tokenizer bytes --max-steps 1")).join(" ");
        let arguments = if data.contains("t5") { arguments.replace("--seq-len 16 ", "") } else { arguments };
        let said = sandbox.run(&arguments);
        assert_eq!(said.code, BAD_INPUT, "{data}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{data}: {}", said.stderr);
    }
    // Chats next to preferences can be trained on; so can the chosen texts, and a table as text.
    let both = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "chosen": "b", "rejected": "c"});
    sandbox.write("both.jsonl", format!("{both}\n").repeat(8));
    sandbox.must_train(&format!("--data both.jsonl {RUN} --name both"));
    sandbox.must_train("--data dpo.jsonl --text-field chosen --tokenizer bytes --max-steps 1 --name chosen");
    sandbox.must_train("--data pairs.csv --data-format text --tokenizer bytes --max-steps 1 --name text");
    let said = sandbox.must_train("--data plain.csv --tokenizer bytes --max-steps 1 --name plain");
    assert!(said.stderr.contains("warning: training on plain.csv as text, with its separators"), "{}", said.stderr);
}

#[test]
fn invalid_chats_are_refused_with_file_and_row() {
    let sandbox = sandbox();
    let chats = sandbox.text("messages.jsonl");
    let sharegpt = sandbox.text("sharegpt.jsonl");
    sandbox.write("mixed.jsonl", chats.clone() + &sharegpt);
    sandbox.write("text.jsonl", chats.clone() + "{\"text\":\"a\"}\n");
    sandbox.write("last.jsonl", chats.clone() + "{\"messages\":");
    sandbox.write("empty.jsonl", "{\"messages\":[]}\n");
    sandbox.write("user.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n".repeat(3));
    sandbox.write("deep.jsonl", format!("{}{{\"messages\":{}}}", chats, "[".repeat(100_000)));
    sandbox.write("raises.jinja", "{{ raise_exception('no such role') }}");
    sandbox.write("unstable.jinja", "{{ messages | length }}{{ messages[-1].content | length }}");
    sandbox.write("endless.jinja", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    sandbox.write(
        "huge.jinja",
        "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    );
    sandbox.write("broken.jinja", "{% if %}");
    for (code, flags, words) in [
        (
            BAD_INPUT,
            "--data mixed.jsonl",
            "mixed.jsonl line 61 is not a chat of the data's format: it has `conversations`",
        ),
        (BAD_INPUT, "--data text.jsonl", "text.jsonl line 61 is not a chat"),
        (BAD_INPUT, "--data last.jsonl", "last.jsonl line 61 is not a JSON object"),
        (BAD_INPUT, "--data deep.jsonl", "deep.jsonl line 61 is not a JSON object: recursion limit"),
        (BAD_INPUT, "--data messages.jsonl text.txt", "text.txt is a text file, but the other files hold chats"),
        (BAD_INPUT, "--data user.jsonl", "no chat has an answer to train on"),
        (BAD_INPUT, "--data messages.jsonl --data-format alpaca", "line 1 is not a chat of the data's format"),
        (BAD_INPUT, "--data empty.jsonl --data-format messages", "it has no `messages`"),
        (BAD_INPUT, "--data messages.jsonl --chat-template none.jinja", "none.jinja does not exist"),
        (
            BAD_INPUT,
            "--data messages.jsonl --chat-template broken.jinja",
            "the chat template in broken.jinja can't be used",
        ),
        (
            BAD_INPUT,
            "--data messages.jsonl --chat-template raises.jinja",
            "line 1: no such role (line 1 of the template)",
        ),
        (BAD_INPUT, "--data messages.jsonl --chat-template unstable.jinja", "where the answer in message 2 begins"),
        (BAD_INPUT, "--data messages.jsonl --chat-template endless.jinja", "more steps or memory"),
        (BAD_INPUT, "--data messages.jsonl --chat-template huge.jinja", "more steps or memory"),
        (USAGE, "--data text.txt --train-on answers", "`--train-on answers` is for chats, but the data is text"),
        (USAGE, "--data text.txt --chat-template short.jinja", "`--chat-template` is for chats"),
        (USAGE, "--data messages.jsonl --chat-date 2024-02-30", "`2024-02-30` is not a date"),
        (BAD_INPUT, "--data messages.jsonl --text-field body", "line 1 has no field `body`"),
    ] {
        let said = sandbox.train(&format!("{flags} --tokenizer bytes --seq-len 32 --max-steps 1"));
        assert_eq!(said.code, code, "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags} lacks `{words}`: {}", said.stderr);
    }
}

/// Fifty-five chats are several steps, rows are as long as the longest chat, and the learning rate is for fine-tuning.
#[test]
fn defaults_depend_on_the_weights_and_the_data() {
    let sandbox = sandbox();
    sandbox.must_train("--model nano --name base --max-steps 1 --seq-len 256 --global-batch 1");
    let chats = sandbox.text("messages.jsonl").lines().take(55).map(|line| format!("{line}\n")).collect::<String>();
    sandbox.write("few.jsonl", chats);
    let run = |flags: &str| {
        let said = sandbox.run(&format!(
            "train --init runs/base/model --data few.jsonl --sample-tokens 0 --eval-samples 1 --vram 1 {flags}"
        ));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        said.stderr
    };
    let said = run("--name all");
    let parameters = sandbox.json("runs/all/plan.json")["parameters"].as_u64().expect("a count");
    let rate = (2e-5 * (7e9 / parameters as f64).sqrt()).min(4e-3);
    let defaults = format!(
        "defaults: learning rate {rate:.1e} (for the model's size, from trained weights), 4 of 53 samples per step, 3 epochs (40 \
         steps), warm-up for 4 steps\n"
    );
    assert!(said.contains(&defaults), "{defaults}{said}");
    let row = said.split("one in each row of ").nth(1).and_then(|rest| rest.split(' ').next());
    let row = row.and_then(|tokens| tokens.parse::<u64>().ok()).expect("the length of a row");
    assert!(row % 64 == 0 && row < 256, "{row}");
    assert!(!said.contains("update the weights"), "{said}");
    assert_eq!(losses(&sandbox.json("runs/all/report.json")).len(), 40);
    // Values from flags are not defaults, and a run with few updates has a warning.
    let said = run("--name given --learning-rate 1e-3 --global-batch 16 --epochs 2 --warmup-steps 1 --seq-len 256");
    assert!(!said.contains("defaults:") && said.contains("one in each row of 256 tokens"), "{said}");
    let warning = "warning: 2 epochs of 53 samples, 16 per step, update the weights only 7 times";
    assert!(said.contains(warning) && said.contains("hint: a smaller `--global-batch` or more `--epochs`"), "{said}");
}
