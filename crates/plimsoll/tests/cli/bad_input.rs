//! Bad input: each case has the documented exit code, an error with numbers, and a hint, and nothing is lost.

use crate::support::{Said, Sandbox, tiny_config};
use serde_json::{Map, Value, json};

const USAGE: i32 = 2;
const DOES_NOT_FIT: i32 = 3;
const BAD_INPUT: i32 = 4;
const DEVICE_FAILED: i32 = 5;

/// Prefixes of hints: ours and clap's.
const WAYS_OUT: &[&str] = &["hint: ", "tip: ", "[possible values: ", "; write for example ", "try '--help'"];

/// A sandbox with a finished run that no command may change.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name kept");
    sandbox
}

/// Panics unless a command is refused with this code and all of these words.
fn assert_refused(sandbox: &Sandbox, what: &str, run: impl FnOnce() -> Said, code: i32, expected: &[&str]) {
    let before = sandbox.tree("runs/kept");
    let said = run();
    assert_eq!(said.code, Some(code), "{what}: {}", said.stderr);
    assert_eq!(said.stdout_text(), "", "{what}: stdout is for data");
    assert!(said.stderr.contains("error: "), "{what}: {}", said.stderr);
    assert!(WAYS_OUT.iter().any(|way| said.stderr.contains(way)), "{what} shows no way out: {}", said.stderr);
    for words in expected {
        assert!(said.stderr.contains(words), "{what} lacks `{words}`: {}", said.stderr);
    }
    assert!(sandbox.tree("runs/kept") == before, "{what} changed a run");
}

/// Flags of `train`, each of which must be refused.
fn check_train(sandbox: &Sandbox, cases: &[(&str, i32, &[&str])]) {
    for (flags, code, expected) in cases {
        assert_refused(sandbox, flags, || sandbox.train(flags), *code, expected);
    }
}

/// Command lines, each of which must be refused.
fn check(sandbox: &Sandbox, cases: &[(&str, i32, &[&str])]) {
    for (arguments, code, expected) in cases {
        assert_refused(sandbox, arguments, || sandbox.run(arguments), *code, expected);
    }
}

#[test]
fn data() {
    let sandbox = sandbox();
    sandbox.write("words/config.json", tiny_config(&json!({"vocab_size": 50257})));
    sandbox.write("empty.txt", "");
    sandbox.write("short.txt", "ten bytes.");
    sandbox.write("latin1.txt", b"Die Stra\xdfe und der Fluss. ".repeat(40));
    sandbox.write("binary.txt", (0..4000u32).map(|i| ((i * 37) >> 3) as u8).collect::<Vec<_>>());
    sandbox.write("weights.bin", [0; 100]);
    sandbox.write("table.parquet", "PAR1");
    sandbox.write("pictures/a.png", [0; 100]);
    sandbox.write("words.jsonl", "{\"body\": \"some words\", \"id\": 3}\n");
    sandbox.write("broken.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"\n");
    sandbox.write("number.jsonl", "{\"text\": 3}\n");
    sandbox.write("cut.txt.gz", b"\x1f\x8b\x08\0\0\0\0\0");
    sandbox.write("no.txt.zst", "this is not zstd");
    std::fs::create_dir(sandbox.path("nothing")).expect("a new folder");
    check_train(
        &sandbox,
        &[
            ("--data missing.txt", BAD_INPUT, &["missing.txt does not exist"]),
            ("--data texd.txt", BAD_INPUT, &["texd.txt does not exist", "did you mean text.txt?"]),
            ("--data=", BAD_INPUT, &["does not exist"]),
            ("--data empty.txt", BAD_INPUT, &["the data is empty", "empty.txt", "`--data PATH`"]),
            ("--data short.txt", BAD_INPUT, &["the data has only 11 tokens, but one sample needs 17", "at most 10"]),
            (
                "--data latin1.txt --tokenizer gpt2 --model words",
                BAD_INPUT,
                &["latin1.txt is not UTF-8 at byte 8", "iconv"],
            ),
            ("--data binary.txt --tokenizer gpt2 --model words", BAD_INPUT, &["binary.txt is not UTF-8 at byte"]),
            ("--data weights.bin", BAD_INPUT, &["weights.bin is a .bin file, which is not read as text"]),
            ("--data table.parquet", BAD_INPUT, &["table.parquet can't be read as Parquet", "download it again"]),
            ("--data pictures", BAD_INPUT, &["no text file in pictures (1 other files)"]),
            ("--data nothing", BAD_INPUT, &["no text file in nothing"]),
            ("--data *.none", BAD_INPUT, &["no text file matches `*.none`"]),
            ("--data [x", BAD_INPUT, &["`[x` is not a valid pattern"]),
            ("--data words.jsonl", BAD_INPUT, &["words.jsonl line 1 has no field `text`", "`body`"]),
            ("--data broken.jsonl", BAD_INPUT, &["broken.jsonl line 2 is not a JSON object"]),
            ("--data number.jsonl", BAD_INPUT, &["number.jsonl line 1: field `text` is a number"]),
            ("--data words.jsonl --text-field boby", BAD_INPUT, &["no field `boby`", "`body`"]),
            ("--data cut.txt.gz", BAD_INPUT, &["cut.txt.gz can't be decompressed"]),
            ("--data no.txt.zst", BAD_INPUT, &["no.txt.zst can't be decompressed"]),
        ],
    );
    if cfg!(unix) {
        check_train(&sandbox, &[("--data /dev/null", BAD_INPUT, &["/dev/null is a device, not a file"])]);
    }
    // No data is named, and cargo has no downloads.
    check(&sandbox, &[("train --cache-dir cache", BAD_INPUT, &["no data was given", "`--data PATH`"])]);
    assert!(!sandbox.path("runs/tiny-2").exists(), "a refused run must not use up a number");
}

#[test]
fn tokenizers() {
    let sandbox = sandbox();
    sandbox.write("broken/tokenizer.json", "{\"version\": \"1.0\", \"model\": {");
    sandbox.write("other.json", "{}");
    std::fs::create_dir(sandbox.path("nothing")).expect("a new folder");
    check_train(
        &sandbox,
        &[
            ("--tokenizer gtp2", BAD_INPUT, &["`gtp2` is not a tokenizer", "did you mean `gpt2`?"]),
            ("--tokenizer llama", BAD_INPUT, &["`llama` is not a tokenizer", "tokenizer.json"]),
            ("--tokenizer missing.json", BAD_INPUT, &["missing.json does not exist"]),
            ("--tokenizer nothing", BAD_INPUT, &["nothing has no tokenizer.json"]),
            ("--tokenizer broken", BAD_INPUT, &["broken/tokenizer.json is not a usable tokenizer"]),
            ("--tokenizer other.json", BAD_INPUT, &["other.json is not a usable tokenizer"]),
            (
                "--tokenizer gpt2",
                BAD_INPUT,
                &["the tokenizer has 50257 ids, the model's vocabulary has 256", "larger `vocab_size`"],
            ),
        ],
    );
    let prompt = "generate --checkpoint runs/kept --tokenizer gpt2 --prompt antidisestablishmentarianism";
    check(&sandbox, &[(prompt, BAD_INPUT, &["of the prompt is outside the model's 256 ids"])]);
}

#[test]
fn budgets() {
    let sandbox = sandbox();
    let short = [
        "tiny needs 152 ",
        "KiB with a micro-batch of 1 and sequences of 16",
        "the budget is 60.0 KiB (short ",
        "` is enough",
    ];
    check_train(
        &sandbox,
        &[
            ("--vram 60KiB", DOES_NOT_FIT, &short),
            (
                "--vram 180KiB --micro-batch 4 --recompute cheap --optimizer-offload 0",
                DOES_NOT_FIT,
                &["micro-batch of 4", "` fits in", "` is enough"],
            ),
            ("--vram 0", USAGE, &["the budget is 0 B"]),
            ("--vram=-3", USAGE, &["`-3` is not a size"]),
            ("--vram -3", USAGE, &["`-3` is not a size"]),
            ("--vram nan", USAGE, &["`nan` is not a size"]),
            ("--vram 12parsecs", USAGE, &["`parsecs` in `12parsecs` is not a unit of size", "600MiB"]),
            ("--vram 99999999t", USAGE, &["too large"]),
            (
                "--vram 12288",
                USAGE,
                &["`--vram` is 12.0 TiB; a bare number is GiB", "did you mean `--vram 12288MiB` or `--vram 12GiB`?"],
            ),
            ("--vram 1 --vram-margin 2gb", USAGE, &["nothing is left of 1.00 GiB after a margin of 2.00 GiB"]),
            ("--bf16 --fp16", USAGE, &["`--bf16` and `--fp16` exclude each other", "omit one of them"]),
            ("--bf16 --precision fp32", USAGE, &["`--bf16` and `--precision fp32` exclude each other"]),
            ("--vram 1 --vram-auto", USAGE, &["'--vram <SIZE>' cannot be used with '--vram-auto"]),
            ("--threads 0", USAGE, &["must be at least 1"]),
            ("--threads 100000", USAGE, &["100000 threads are too many"]),
        ],
    );
    check(
        &sandbox,
        &[
            ("plan --model gpt2 --vram 1.2", DOES_NOT_FIT, &["gpt2 needs", "(short ", "` fits in", "` is enough"]),
            (
                "plan --model gpt2 --gpu 3060 --vram 0.1 --vram-margin 0 --weight-offload off",
                DOES_NOT_FIT,
                &["the weights alone are 237 MiB", "MiB` is enough"],
            ),
            ("plan --seq-len 268435456", USAGE, &["the sequence length is too large: 268435456"]),
            ("plan --global-batch 99999999999", USAGE, &["the global batch is too large: 99999999999"]),
            ("plan --seq-len 0", USAGE, &["must be at least 1"]),
            ("plan --gpu 3060 --vram-margin 12gb", USAGE, &["nothing is left of 12.0 GiB after a margin of 12.0 GiB"]),
            ("plan --gpu 3060 --vram 200", USAGE, &["`--vram` is 200 GiB", "did you mean `--vram 200MiB`?"]),
            ("plan --gpu 3060 --host-ram 65536", USAGE, &["`--host-ram 65536MiB` or `--host-ram 64GiB`?"]),
            ("estimate --model gpt2 --vram 24576", USAGE, &["did you mean `--vram 24576MiB` or `--vram 24GiB`?"]),
            ("plan --gpu 3006", USAGE, &["unknown GPU `3006`", "did you mean `RTX 3060"]),
            ("bench --model gpt2 --vram 0.4", DOES_NOT_FIT, &["gpt2 needs", "(short "]),
            ("generate --checkpoint runs/kept --vram 9KiB", DOES_NOT_FIT, &["the budget is 9.00 KiB (short "]),
        ],
    );
    assert!(!sandbox.path("runs/tiny-1").exists(), "a run that does not fit leaves no folder");
}

/// Memory that was free when the run was planned, and is not free when it is reserved.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_refuses() {
    let sandbox = sandbox();
    let script = "ulimit -v 600000; exec \"$0\" bench --model gpt2 --seq-len 64 --vram 8 --steps 1 --threads 1";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_plimsoll")]);
    sandbox.confine(&mut command);
    let said = Said::of(command.output().expect("a shell"));
    assert_eq!((said.code, said.stdout_text()), (Some(DOES_NOT_FIT), ""), "{}", said.stderr);
    assert!(said.stderr.contains("is available (left under the address space limit, `ulimit -v`)"), "{}", said.stderr);
}

#[test]
fn models() {
    let sandbox = sandbox();
    std::fs::create_dir(sandbox.path("nothing")).expect("a new folder");
    check_train(
        &sandbox,
        &[
            ("--model gpt3", USAGE, &["unknown model `gpt3`", "did you mean `gpt2`?", "`plimsoll models` lists"]),
            ("--model flan-t5", USAGE, &["unknown model `flan-t5`", "`plimsoll models`"]),
            ("--model google/flan-t5-bse", USAGE, &["did you mean `flan-t5-base`?"]),
            ("--model no-one/has-this", USAGE, &["unknown model `no-one/has-this`", "`plimsoll models`"]),
            ("--model GPT2-medum", USAGE, &["did you mean `gpt2-medium`?"]),
            ("--model zebra", USAGE, &["unknown model `zebra`", "`plimsoll models` lists"]),
            (
                "--model missing/config.json",
                BAD_INPUT,
                &["missing/config.json can't be read", "`--model` takes a name"],
            ),
            ("--model nothing", BAD_INPUT, &["nothing/config.json can't be read"]),
            ("--seq-len 33", USAGE, &["33 tokens", "32 positions", "`--seq-len 32` or less"]),
            ("--model gpt2 --seq-len 2000", USAGE, &["1024 positions"]),
        ],
    );
    let cases: &[(&str, Value, &[&str])] = &[
        ("a missing size", json!({"n_layer": null}), &["`n_layer` is missing"]),
        ("no family", json!({"model_type": null}), &["`model_type` is missing", "gpt2"]),
        ("another family", json!({"model_type": "mamba"}), &["`model_type` is `mamba`", "llama"]),
        ("a zero", json!({"n_layer": 0}), &["`n_layer` is 0"]),
        ("a negative size", json!({"n_head": -2}), &["`n_head` is -2", "whole number above 0"]),
        ("half a channel", json!({"n_embd": 16.5}), &["`n_embd` is 16.5"]),
        ("a word for a size", json!({"vocab_size": "many"}), &["`vocab_size` is \"many\""]),
        ("heads that don't divide", json!({"n_head": 3}), &["`n_head` is 3, which does not divide n_embd = 16"]),
        ("a rate of 1", json!({"attn_pdrop": 1.0}), &["`attn_pdrop` is 1"]),
        ("a huge size", json!({"n_positions": 1u64 << 63}), &["`n_positions` is 9223372036854775808"]),
        ("many layers", json!({"n_layer": 20_000}), &["`n_layer` is 20000"]),
        ("another activation", json!({"activation_function": "relu"}), &["`activation_function` is \"relu\"; only"]),
        ("an untied head", json!({"tie_word_embeddings": false}), &["`tie_word_embeddings` is false; only true"]),
        ("a word for a switch", json!({"bias": "yes"}), &["expected a boolean"]),
    ];
    for (what, changes, expected) in cases {
        sandbox.write("other/config.json", tiny_config(changes));
        assert_refused(&sandbox, what, || sandbox.train("--model other"), BAD_INPUT, expected);
        assert!(
            sandbox.train("--model other").stderr.contains("hint: the configuration is other/config.json"),
            "{what}"
        );
    }
    for text in ["", "{", "null", "[]", "\"gpt2\"", "\u{feff}{}"] {
        sandbox.write("other/config.json", text);
        assert_refused(&sandbox, text, || sandbox.train("--model other/config.json"), BAD_INPUT, &["config: `"]);
    }
    check(&sandbox, &[("bench --model tiny --hidden 7", BAD_INPUT, &["does not divide n_embd = 7"])]);
}

/// Files of a repository that was cloned without Git LFS.
#[test]
fn git_lfs_pointers_are_rejected() {
    let sandbox = sandbox();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 988097824\n";
    sandbox.write("clone/config.json", tiny_config(&json!({})));
    for file in ["clone/model.safetensors", "a.jsonl", "a.txt", "a.csv", "a.parquet", "a.json", "folder/b.txt"] {
        sandbox.write(file, pointer);
    }
    for file in ["bare/config.json", "tokenizer.json", "snapshot.pickle", "plimsoll.toml"] {
        sandbox.write(file, pointer);
    }
    let words: &[&str] = &["is a Git LFS pointer, not the file itself", "`git lfs pull`"];
    check(
        &sandbox,
        &[
            ("generate --checkpoint clone --tokenizer bytes --prompt a", BAD_INPUT, words),
            ("replay snapshot.pickle", BAD_INPUT, words),
            ("plan --model bare --gpu 4090", BAD_INPUT, words),
        ],
    );
    check_train(
        &sandbox,
        &[
            ("--init clone", BAD_INPUT, words),
            ("--data a.jsonl", BAD_INPUT, words),
            ("--data a.txt", BAD_INPUT, words),
            ("--data a.csv", BAD_INPUT, words),
            ("--data a.json", BAD_INPUT, words),
            ("--data a.parquet", BAD_INPUT, words),
            ("--data folder", BAD_INPUT, words),
            ("--tokenizer tokenizer.json", BAD_INPUT, words),
            ("--config plimsoll.toml", BAD_INPUT, words),
        ],
    );
}

/// UTF-16, as written by `>` in Windows PowerShell, in every file that a user can name, with and without a byte order
/// mark.
#[test]
fn b_utf16() {
    let sandbox = sandbox();
    let encode = |text: &str, bytes: fn(u16) -> [u8; 2]| {
        "\u{feff}".chars().chain(text.chars()).flat_map(|c| bytes(c as u16)).collect::<Vec<_>>()
    };
    sandbox.write("a.txt", encode("some text", u16::to_le_bytes));
    sandbox.write("b.txt", encode("some text", u16::to_be_bytes));
    sandbox.write("a.jsonl", encode("{\"text\": \"a\"}\n", u16::to_le_bytes));
    sandbox.write("a.json", encode("[{\"text\": \"a\"}]\n", u16::to_le_bytes));
    let words: &[&str] = &["is UTF-16; text must be UTF-8", "`iconv -f utf-16 -t utf-8"];
    for file in ["a.txt", "b.txt", "a.jsonl", "a.json"] {
        check_train(&sandbox, &[(&format!("--data {file}"), BAD_INPUT, words)]);
    }
    sandbox.write("a.csv", encode("source,target\na,b\n", u16::to_le_bytes));
    check(&sandbox, &[("train --model t5-nano --tokenizer bytes --data a.csv --max-steps 1", BAD_INPUT, words)]);

    let without_mark = |text: &str, bytes: fn(u16) -> [u8; 2]| encode(text, bytes)[2..].to_vec();
    sandbox.write("le.txt", without_mark("some text", u16::to_le_bytes));
    sandbox.write("be.jsonl", without_mark("{\"text\": \"a\"}\n", u16::to_be_bytes));
    sandbox.write("run.yml", encode("seed: 1\n", u16::to_le_bytes));
    sandbox.write("le.yml", without_mark("seed: 1\n", u16::to_le_bytes));
    sandbox.write("tokenizer.json", encode("{}", u16::to_le_bytes));
    sandbox.write("chat.jinja", encode("{{ messages }}", u16::to_be_bytes));
    sandbox.write(
        "chat.jsonl",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
    );
    sandbox.write("wide/config.json", encode(&tiny_config(&json!({})), u16::to_le_bytes));
    for (flags, encoding) in [
        ("--data le.txt", "utf-16le"),
        ("--data be.jsonl", "utf-16be"),
        ("--config run.yml", "utf-16"),
        ("--config le.yml", "utf-16le"),
        ("--tokenizer tokenizer.json", "utf-16"),
        ("--data chat.jsonl --chat-template chat.jinja", "utf-16"),
        ("--model wide", "utf-16"),
    ] {
        let said = sandbox.train(flags);
        assert_eq!(said.code, Some(BAD_INPUT), "{flags}: {}", said.stderr);
        let advice = format!("iconv -f {encoding} -t utf-8");
        assert!(said.stderr.to_lowercase().contains(&advice), "{flags}: {}", said.stderr);
    }
    sandbox.write("prompts.txt", encode("a\n", u16::to_le_bytes));
    let prompts = "generate --checkpoint runs/kept --prompt-file prompts.txt --tokenizer bytes";
    check(&sandbox, &[(prompts, BAD_INPUT, &["it is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8"])]);
    // UTF-8 with a byte order mark is accepted.
    sandbox.write("run.yml", "\u{feff}seed: 1\n");
    assert_eq!(sandbox.train("--config run.yml --name marked").code, Some(0));
}

/// The meaning of a duplicate column is ambiguous.
#[test]
fn duplicate_columns_are_rejected() {
    let sandbox = sandbox();
    sandbox.write("a.csv", "source,target,target\na,b,c\n");
    let flags =
        "--model t5-nano --tokenizer bytes --data a.csv --max-steps 1 --source-column source --target-column target";
    let words: &[&str] = &["a.csv has more than one column `target`", "rename one of them"];
    check(&sandbox, &[(&format!("train {flags}"), BAD_INPUT, words)]);
}

/// A model is not trained for tokens beyond its positions.
#[test]
fn prompts_and_texts_longer_than_the_model() {
    let sandbox = sandbox();
    let prompt = "a".repeat(40);
    let short = "a".repeat(32);
    let generate = |more: &str| sandbox.run(&format!("generate --checkpoint runs/kept --temperature 0 {more}"));
    let words: &[&str] = &["the prompt has 40 tokens, but ", "32 positions", "shorten the prompt to 32 tokens or less"];
    let logits = || generate(&format!("--prompt {prompt} --logits out.json"));
    assert_refused(&sandbox, "a long prompt", logits, BAD_INPUT, words);
    assert!(!sandbox.path("out.json").exists());
    let whole = generate(&format!("--prompt {short} --logits out.json"));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    for (prompt, answer, more) in [(&short, 1, ""), (&short, 5, "--json"), (&prompt, 1, "")] {
        let said = generate(&format!("--prompt {prompt} --max-tokens {answer} {more}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let tokens = prompt.len();
        let warning = format!("a prompt of {tokens} tokens and its answer of {answer} exceed the model's 32 positions");
        assert!(said.stderr.contains(&warning), "{}", said.stderr);
    }
    let fits = generate("--prompt a --max-tokens 31");
    assert!(!fits.stderr.contains("warning"), "{}", fits.stderr);
}

#[test]
fn numbers() {
    let sandbox = sandbox();
    let above = "must be above 0";
    let from = "must be 0 or more";
    check_train(
        &sandbox,
        &[
            ("--learning-rate nan", USAGE, &["`nan`", above]),
            ("--learning-rate -0.001", USAGE, &["`-0.001`", above]),
            ("--learning-rate 0", USAGE, &[above]),
            ("--learning-rate inf", USAGE, &[above]),
            ("--learning-rate fast", USAGE, &["`fast` is not a number"]),
            ("--weight-decay -0.1", USAGE, &[from]),
            ("--grad-clip nan", USAGE, &[from]),
            ("--final-lr-part 7", USAGE, &["must be from 0 to 1"]),
            ("--beta1 1", USAGE, &["from 0 to below 1"]),
            ("--beta2 -0.5", USAGE, &["from 0 to below 1"]),
            ("--adam-eps 0", USAGE, &[above]),
            ("--dropout 1", USAGE, &["from 0 to below 1"]),
            ("--global-batch 0", USAGE, &["must be at least 1"]),
            ("--global-batch -4", USAGE, &["`-4` is not a whole count"]),
            ("--global-batch 1000000000000", USAGE, &["the global batch is too large"]),
            ("--micro-batch 0", USAGE, &["must be at least 1"]),
            ("--micro-batch half", USAGE, &["`half` is not a whole count"]),
            (
                "--global-batch 8 --micro-batch 3",
                USAGE,
                &["a micro-batch of 3 does not divide the global batch of 8", "that divide 8: 1, 2, 4, 8"],
            ),
            ("--gradient-accumulation-steps 0", USAGE, &["must be at least 1"]),
            ("--gradient-accumulation-steps 2 --global-batch 4", USAGE, &["cannot be used with"]),
            ("--seq-len 0", USAGE, &["must be at least 1"]),
            ("--seq-len 1.5", USAGE, &["`1.5` is not a whole count"]),
            ("--seq-len 99999999999999999999", USAGE, &["is not a whole count"]),
            ("--max-steps 0", USAGE, &["must be at least 1"]),
            ("--max-steps 5 --epochs 1", USAGE, &["cannot be used with"]),
            ("--max-steps 5 --duration 5m", USAGE, &["cannot be used with"]),
            ("--epochs 0", USAGE, &[above]),
            ("--epochs nan", USAGE, &[above]),
            ("--duration 0", USAGE, &[above]),
            ("--duration 5parsecs", USAGE, &["`parsecs` in `5parsecs` is not a unit of duration", "1h30m"]),
            ("--warmup-steps 1.5", USAGE, &["is not a whole count"]),
            ("--keep-checkpoints 0", USAGE, &["must be at least 1"]),
            ("--checkpoint-every often", USAGE, &["is not a whole count"]),
            ("--eval-every -1", USAGE, &["is not a whole count"]),
            ("--seed -1", USAGE, &["`-1` is not a whole number from 0 to 18446744073709551615"]),
            ("--seed 18446744073709551616", USAGE, &["is not a whole number"]),
            ("--recompute 0", USAGE, &["must be auto, none"]),
            (
                "--activation-offload 1.5",
                USAGE,
                &["must be auto, off, blocks, or a fraction of the blocks from 0 to 1"],
            ),
            ("--activation-offload -1", USAGE, &["must be auto, off, blocks"]),
            ("--activation-offload some", USAGE, &["must be auto, off, blocks"]),
            ("--optimizer-offload 1.5", USAGE, &["`1.5` must be from 0 to 1"]),
            ("--optimizer-offload some", USAGE, &["`some` is not a number"]),
            ("--weight-offload 1.5", USAGE, &["must be auto, off, or a fraction of the weights from 0 to 1"]),
            ("--host-ram lots", USAGE, &["`lots` is not a size"]),
            ("--precision fp4", USAGE, &["[possible values: auto, fp32, bf16, fp16, bf16-pure, fp8]"]),
            ("--optimizer adam", USAGE, &["[possible values: adamw, lion]"]),
            ("--optimizer lion --adam-eps 1e-6", USAGE, &["`--adam-eps` does not apply to lion", "hint: "]),
            (
                "--freeze h.0.*",
                BAD_INPUT,
                &["`--freeze h.0.*` matches no parameter of the model", "such as `transformer."],
            ),
            ("--freeze *", BAD_INPUT, &["parameters are frozen; nothing is left to train", "hint: narrow `--freeze`"]),
            ("--optimizer-state 4bit", USAGE, &["[possible values: fp32, bf16, 8bit]"]),
            ("--gradient-precision 8bit", USAGE, &["[possible values: fp32, bf16]"]),
            (
                "--update-in-backward on --micro-batch 4",
                USAGE,
                &["can't be used: clipping needs the norm", "`--update-in-backward auto`"],
            ),
            ("--update-in-backward on --micro-batch 2", USAGE, &["can't be used: a step has several micro-batches"]),
            ("--head-chunk 0", USAGE, &["must be at least 1"]),
            ("--attention-rows -1", USAGE, &["`-1` is not a whole count"]),
            ("--ema 1", USAGE, &["`1` must be above 0 and below 1"]),
            ("--ema-space disk", USAGE, &["[possible values: device, host]"]),
            ("--loss-scale 3", USAGE, &["3 is not a power of two"]),
            ("--recompute everything", USAGE, &["must be auto, none, cheap, attention, blocks, or a number of blocks"]),
        ],
    );
    check(
        &sandbox,
        &[
            ("bench --layers 0", USAGE, &["must be at least 1"]),
            ("bench --bias maybe", USAGE, &["[possible values: true, false]"]),
            ("bench --steps 0", USAGE, &["must be at least 1"]),
            ("generate --checkpoint runs/kept --max-tokens 0", USAGE, &["must be at least 1"]),
            ("generate --checkpoint runs/kept --temperature -1", USAGE, &[from]),
            ("generate --checkpoint runs/kept --temperature nan", USAGE, &[from]),
            ("generate --checkpoint runs/kept --top-p 2", USAGE, &["above 0 and at most 1"]),
            ("generate --checkpoint runs/kept --top-p 0", USAGE, &["above 0 and at most 1"]),
            ("generate --checkpoint runs/kept --top-k 0", USAGE, &["must be at least 1"]),
        ],
    );
}

#[test]
fn flags_and_commands() {
    let sandbox = sandbox();
    check_train(
        &sandbox,
        &[
            ("--modle nano", USAGE, &["'--modle'", "`--model`"]),
            ("--learnin-rate 1", USAGE, &["`--learning-rate`"]),
            ("--seq_len 16 --seq_len 8", USAGE, &["cannot be used multiple times"]),
            ("nano", USAGE, &["unexpected argument 'nano'"]),
            ("--name a/b", USAGE, &["`--name a/b` is not a folder name", "`--runs-dir`"]),
            ("--name ..", USAGE, &["is not a folder name"]),
            ("--name=", USAGE, &["is not a folder name"]),
            ("--name a/", USAGE, &["is not a folder name"]),
            ("--name kept", USAGE, &["runs/kept already holds a run", "`--resume auto` continues it"]),
            ("--runs-dir text.txt", DEVICE_FAILED, &["text.txt/tiny-1/checkpoints: "]),
            ("--cache-dir text.txt", BAD_INPUT, &["can't write the token cache in text.txt"]),
        ],
    );
    check(
        &sandbox,
        &[
            ("trian", USAGE, &["'trian'", "'train'"]),
            ("plan extra", USAGE, &["unexpected argument 'extra'"]),
            ("plan --json yes", USAGE, &["unexpected argument 'yes'"]),
            ("plan --seq-len", USAGE, &["a value is required for '--seq-len <N|auto>'"]),
            ("generate", USAGE, &["--checkpoint <PATH|NAME>"]),
            (
                "train --batchsize 4",
                USAGE,
                &["argument '--batchsize'", "hint: did you mean `--batch-size`, which is `--micro-batch` here?"],
            ),
            ("plan --learning-rat 1", USAGE, &["hint: did you mean `--learning-rate`?"]),
            ("train --samples-in-batch 4", USAGE, &["hint: did you mean `--micro-batch`?"]),
            ("bench --nosuch", USAGE, &["unexpected argument '--nosuch'"]),
        ],
    );
}

#[test]
fn files_of_settings() {
    let sandbox = sandbox();
    let in_the_file = "settings.yaml";
    let cases: &[(&[u8], i32, &[&str])] = &[
        (b"lerning_rate: 1", USAGE, &["unknown setting `lerning_rate`", "did you mean `learning_rate`?", in_the_file]),
        (b"per_device_train_batchsize: 1", USAGE, &["did you mean `per_device_train_batch_size`?"]),
        (b"zebra: 1", USAGE, &["unknown setting `zebra`", "--help"]),
        (b"config: other.yaml", USAGE, &["unknown setting `config`"]),
        (b"learning_rate: fast", USAGE, &["`fast` is not a number", in_the_file]),
        (b"learning_rate: -1", USAGE, &["must be above 0", in_the_file]),
        (b"learning_rate: .nan", USAGE, &["not valid YAML", in_the_file]),
        (b"learning_rate: [1, 2]", USAGE, &["'--learning-rate <X>' cannot be used multiple times", in_the_file]),
        (b"learning_rate: {a: 1}", USAGE, &["`learning_rate` must be a plain value"]),
        (b"lr: 1\nlearning_rate: 2", USAGE, &["`learning_rate` is set twice"]),
        (b"seed: 1\nseed: 2", USAGE, &["duplicate", in_the_file]),
        (b"epochs: 1\nduration: 5m", USAGE, &["cannot be used with", in_the_file]),
        (b"bf16: maybe", USAGE, &["`bf16: maybe` is not supported; supported: `true`, `full`, `false`, `auto`"]),
        (b"adapter: ia3", USAGE, &["`adapter: ia3` is not supported; supported: `full`, `none`, `lora`, `qlora`"]),
        (b"optim: adafactor", USAGE, &["supported: `adamw`"]),
        (b"optim: sgd", USAGE, &["`optim: sgd` is not supported", "`adamw_8bit`"]),
        // All problems at once, by line; problems with the same hint are grouped.
        (
            b"lerning_rate: 1\nseed: x\n\npissa_init: true\nmax_steps: 0\nloraplus_lr_embedding: 8\nlogging_steps: 5\n",
            USAGE,
            &[
                "error: settings.yaml has 5 problems\n  line 1: unknown setting `lerning_rate`\n    did you mean `learning_rate`?\n",
                "  line 2: `seed: x`: `x` is not a whole number",
                "  line 4: `pissa_init: true` is not supported\n  line 6: `loraplus_lr_embedding: 8` is not supported\n    adapters are LoRA's",
                "  line 5: `max_steps: 0`: must be at least 1\n",
            ],
        ),
        (b"model: [", USAGE, &["not valid YAML", "line 1", in_the_file]),
        (b"model: 'tiny", USAGE, &["not valid YAML", in_the_file]),
        (b"- model\n- tiny", USAGE, &["not valid YAML", in_the_file]),
        (b"just words", USAGE, &["not valid YAML", in_the_file]),
        (b"data: &a [*a]", USAGE, &["not valid YAML", in_the_file]),
        (b"\xff\xfe\0", BAD_INPUT, &["settings.yaml can't be read"]),
        (b"micro_batch_size: 3", USAGE, &["a micro-batch of 3 does not divide the global batch of 4"]),
    ];
    for (yaml, code, expected) in cases {
        sandbox.write("settings.yaml", yaml);
        let what = String::from_utf8_lossy(yaml);
        let run =
            || sandbox.run("train --config settings.yaml --data text.txt --model tiny --global-batch 4 --cache-dir c");
        assert_refused(&sandbox, &what, run, *code, expected);
    }
    // Files of other trainers start from the weights that they name.
    sandbox.write("settings.yaml", "base_model: google/flan-t5-base\ndatasets: [{path: someone/something}]\n");
    let run = |flags: &str| sandbox.run(&format!("train --config settings.yaml {flags}"));
    let expected =
        &["settings.yaml, line 2: `datasets.path: someone/something` names a data set that is not on this machine"];
    assert_refused(&sandbox, "data elsewhere", || run(""), USAGE, expected);
    let expected = &["the weights of google/flan-t5-base are not in", "`--download` downloads them"];
    assert_refused(&sandbox, "weights elsewhere", || run("--data text.txt"), BAD_INPUT, expected);
    check_train(&sandbox, &[("--config missing.yaml", BAD_INPUT, &["missing.yaml can't be read"])]);
}

/// Weights with a changed header before the same bytes.
fn with_header(weights: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let length = u64::from_le_bytes(weights[..8].try_into().expect("8 bytes")) as usize;
    let mut header = serde_json::from_slice(&weights[8..8 + length]).expect("a header is JSON");
    change(&mut header);
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &weights[8 + length..]].concat()
}

#[test]
fn weights() {
    let sandbox = sandbox();
    let checkpoint = "runs/kept/checkpoints/step-000020";
    let weights = sandbox.read(&format!("{checkpoint}/model.safetensors"));
    let name = "transformer.h.0.mlp.c_fc.bias";
    let damaged = "model.safetensors is damaged: ";
    let mut flipped = weights.clone();
    *flipped.last_mut().expect("bytes") ^= 4;
    // Weights that other programs save have no file that describes them.
    sandbox.write("foreign/config.json", tiny_config(&json!({})));
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("empty", vec![], &[damaged]),
        ("cut in its length", weights[..4].to_vec(), &[damaged]),
        ("cut in its header", weights[..100].to_vec(), &[damaged]),
        ("cut in its tensors", weights[..weights.len() / 2].to_vec(), &[damaged]),
        ("longer than it says", [&weights[..], b"more"].concat(), &[damaged]),
        ("not weights at all", b"<html>404 not found</html>".to_vec(), &[damaged]),
        ("a header of exabytes", [&[0xff; 8], &weights[8..]].concat(), &[damaged]),
        ("a header that is no JSON", [&5u64.to_le_bytes()[..], b"{\"x\":", &weights[8..]].concat(), &[damaged]),
        (
            "offsets beyond the end",
            with_header(&weights, |h| h[name]["data_offsets"] = json!([0, 1u64 << 40])),
            &[damaged],
        ),
        ("offsets in reverse", with_header(&weights, |h| h[name]["data_offsets"] = json!([256, 0])), &[damaged]),
        (
            "a shape that overflows",
            with_header(&weights, |h| h[name]["shape"] = json!([1u64 << 40, 1u64 << 40])),
            &[damaged],
        ),
        (
            "another shape of the same size",
            with_header(&weights, |h| h[name]["shape"] = json!([32, 2])),
            &[name, "F32 [32, 2]", "the model needs F32 [64]", "`--model`"],
        ),
        (
            "another dtype of the same size",
            with_header(&weights, |h| h[name]["dtype"] = json!("I32")),
            &[name, "I32 [64]"],
        ),
        (
            "a tensor under another name",
            with_header(&weights, |h| {
                let tensor = h[name].take();
                h.as_object_mut().expect("a header is an object").remove(name);
                h["transformer.h.0.mlp.c_fc.bios"] = tensor;
            }),
            &["has no tensor `transformer.h.0.mlp.c_fc.bias`"],
        ),
    ];
    for (what, file, expected) in cases {
        sandbox.write("foreign/model.safetensors", file);
        assert_refused(&sandbox, what, || sandbox.train("--init foreign --name new"), BAD_INPUT, expected);
        assert_refused(&sandbox, what, || sandbox.run("generate --checkpoint foreign"), BAD_INPUT, expected);
    }
    // A flipped bit is undetectable in foreign weights, but Plimsoll's have a checksum.
    sandbox.copy(checkpoint, "ours");
    sandbox.write("ours/model.safetensors", &flipped);
    let changed = &["ours/model.safetensors is damaged: its contents changed since it was written"][..];
    check_train(&sandbox, &[("--init ours --name new", BAD_INPUT, changed)]);
    check(&sandbox, &[("generate --checkpoint ours", BAD_INPUT, changed)]);
    sandbox.write("foreign/model.safetensors", &weights);
    let needs_data = &["`--init` needs `--data`", "`--data PATH` takes text or chats"][..];
    check(
        &sandbox,
        &[
            ("train --init foreign", USAGE, needs_data),
            ("train --init foreign --resume auto --name other", USAGE, needs_data),
        ],
    );
    // The rejected start did not take the name.
    sandbox.must_train("--init foreign --name new --max-steps 1");

    std::fs::create_dir(sandbox.path("nothing")).expect("a new folder");
    sandbox.write("wide/config.json", tiny_config(&json!({"n_embd": 32})));
    sandbox.write("wide/model.safetensors", &weights);
    check_train(
        &sandbox,
        &[
            ("--init missing --name x", BAD_INPUT, &["missing has no model.safetensors", "`--init` takes"]),
            ("--init nothing --name x", BAD_INPUT, &["nothing has no model.safetensors"]),
            ("--init runs/kept --name x", BAD_INPUT, &["runs/kept has no model.safetensors", "step-N"]),
            ("--init foreign --model gpt3 --name x", USAGE, &["unknown model `gpt3`"]),
            (
                "--init foreign --model t5-small --name x",
                BAD_INPUT,
                &["the weights in foreign are of another family than t5-small", "omit `--model`"],
            ),
            (
                "--init wide --model wide --name x",
                BAD_INPUT,
                &["the model needs F32 [", "the weights belong to another model"],
            ),
        ],
    );
    check(
        &sandbox,
        &[
            ("generate --checkpoint missing", BAD_INPUT, &["missing is neither a run nor", "runs/NAME"]),
            ("generate --checkpoint nothing", BAD_INPUT, &["nothing is neither a run nor"]),
            ("generate --checkpoint text.txt", BAD_INPUT, &["text.txt is neither a run nor"]),
            ("generate --checkpoint runs", BAD_INPUT, &["runs is neither a run nor"]),
            ("generate --checkpoint tiny", BAD_INPUT, &["tiny/model.safetensors: "]),
        ],
    );
}

/// Sharded weights, and weights for other programs: each has its own message and hint.
#[test]
fn weights_of_other_programs() {
    let sandbox = sandbox();
    let weights = sandbox.read("runs/kept/checkpoints/step-000020/model.safetensors");
    let name = "transformer.h.0.mlp.c_fc.bias";
    let shard = "model-00001-of-00001.safetensors";
    let index_of = |file: &str| {
        let mut map = Map::new();
        with_header(&weights, |header| {
            let names =
                header.as_object().expect("a header is an object").keys().filter(|name| *name != "__metadata__");
            map.extend(names.map(|name| (name.clone(), json!(file))));
        });
        json!({ "weight_map": map })
    };
    for (what, file, expected) in [
        (
            "eight bits",
            with_header(&weights, |h| {
                h[name] = json!({"dtype": "F8_E4M3", "shape": [256], "data_offsets": h[name]["data_offsets"]})
            }),
            &[name, "is F8_E4M3 [256]; only F32, F16 and BF16 weights are supported", "float32 or bfloat16"][..],
        ),
        (
            "another family",
            with_header(&weights, |h| {
                let header = std::mem::take(h.as_object_mut().expect("a header is an object"));
                let renamed = header.into_iter().map(|(name, info)| (name.replace("transformer.", "bert."), info));
                *h = Value::Object(renamed.collect());
            }),
            &["holds another kind of model", "names like `bert.", "names like `transformer.wte.weight`", "family"],
        ),
        (
            "tensors too many",
            with_header(&weights, |h| {
                for layer in 7..9 {
                    let empty = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
                    h[format!("transformer.h.{layer}.ln_1.weight")] = empty;
                }
            }),
            &["`transformer.h.7.ln_1.weight` and 1 more that the model does not have", "belong to another model"],
        ),
    ] {
        sandbox.write("other/config.json", tiny_config(&json!({})));
        sandbox.write("other/model.safetensors", &file);
        assert_refused(&sandbox, what, || sandbox.train("--init other --name new"), BAD_INPUT, expected);
        assert_refused(&sandbox, what, || sandbox.run("generate --checkpoint other"), BAD_INPUT, expected);
    }
    sandbox.write("shards/config.json", tiny_config(&json!({})));
    for (what, index, file, expected) in [
        (
            "an index that is no JSON",
            "{\"weight_map\"".to_owned(),
            &weights[..],
            &["is not a shard index: ", "`weight_map`"][..],
        ),
        ("an index of nothing", "{}".to_owned(), &weights, &["is not a shard index: missing field `weight_map`"]),
        (
            "a shard elsewhere",
            index_of("../elsewhere.safetensors").to_string(),
            &weights,
            &["in `../elsewhere.safetensors`, which is outside its folder", "without a path"],
        ),
        (
            "a shard that is not there",
            index_of("model-00002-of-00002.safetensors").to_string(),
            &weights,
            &["model-00002-of-00002.safetensors is missing; it holds `", " more", "put it next to them"],
        ),
        (
            "half a shard",
            index_of(shard).to_string(),
            &weights[..weights.len() / 2],
            &["model-00001-of-00001.safetensors is damaged: ", "copy it again"],
        ),
    ] {
        sandbox.write("shards/model.safetensors.index.json", index);
        sandbox.write(&format!("shards/{shard}"), file);
        assert_refused(&sandbox, what, || sandbox.train("--init shards --name new"), BAD_INPUT, expected);
        assert_refused(&sandbox, what, || sandbox.run("generate --checkpoint shards"), BAD_INPUT, expected);
    }
    sandbox.write(&format!("shards/{shard}"), &weights);
    sandbox.must_train("--init shards --name new --max-steps 1");
}

#[test]
fn resuming() {
    let sandbox = sandbox();
    sandbox.write("more.txt", "more text\n");
    sandbox.write("wide/config.json", tiny_config(&json!({"n_embd": 32})));
    check(
        &sandbox,
        &[
            (
                "train --resume missing",
                BAD_INPUT,
                &["missing is neither a run nor a checkpoint of one", "`--init PATH`"],
            ),
            ("train --resume=", BAD_INPUT, &["is neither a run nor a checkpoint"]),
            ("train --resume runs", BAD_INPUT, &["runs is neither a run nor a checkpoint of one"]),
            ("train --resume runs/kept/checkpoints/step-000099", BAD_INPUT, &["step-000099/state.json"]),
            (
                "train --resume runs/kept/checkpoints/step-000020 --name other",
                USAGE,
                &["continues runs/kept, but `--name` is other", "`--init CHECKPOINT --name NAME`"],
            ),
            ("train --resume runs/kept --name other", USAGE, &["continues runs/kept, but `--name` is other"]),
            ("train --resume runs/kept --init runs/kept", USAGE, &["`--init` has no effect"]),
            ("train --resume runs/kept --seed 3", BAD_INPUT, &["was made with a seed of 1337, but this run has 3"]),
            ("train --resume runs/kept --global-batch 8", BAD_INPUT, &["a global batch of 4, but this run has 8"]),
            ("train --resume runs/kept --seq-len 8", BAD_INPUT, &["a sequence length of 16, but this run has 8"]),
            (
                "train --resume runs/kept --data text.txt more.txt",
                BAD_INPUT,
                &["was trained on other data, or on the same data"],
            ),
            (
                "train --resume runs/kept --model wide",
                BAD_INPUT,
                &["runs/kept/checkpoints/step-000020 is of another model than this run's: hidden size 16 instead of "],
            ),
            ("train --resume runs/kept --tokenizer gpt2", BAD_INPUT, &["50257 ids"]),
        ],
    );
    // A finished run says so, and how to continue it.
    let said = sandbox.run("train --resume runs/kept --name kept");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(
        said.stderr.contains("the run is finished: it has made its 20 steps\nhint: a larger `--max-steps`"),
        "{}",
        said.stderr
    );
    // The run that refused all of these can still be resumed.
    let said = sandbox.run("train --resume runs/kept --name kept --max-steps 21");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("resumed after step 20"), "{}", said.stderr);
}

/// Flags that name a run or its starting point, combined with a path to a run or a run with a checkpoint.
#[test]
fn flags_that_contradict_the_resumed_run_are_rejected() {
    let sandbox = sandbox();
    sandbox.write("elsewhere/x", "");
    sandbox.write("run.yaml", "runs_dir: elsewhere\nresume: runs/kept\n");
    let checkpoint = "runs/kept/checkpoints/step-000020";
    let other_folder = "continues runs/kept, but `--runs-dir` is elsewhere";
    check(
        &sandbox,
        &[
            (
                &format!("train --resume {checkpoint} --name zz"),
                USAGE,
                &["continues runs/kept, but `--name` is zz", "`--init CHECKPOINT --name NAME`"],
            ),
            (&format!("train --resume {checkpoint} --runs-dir elsewhere"), USAGE, &[other_folder]),
            ("train --resume runs/kept --runs-dir elsewhere", USAGE, &[other_folder, "omit `--name`"]),
            ("train --resume runs/kept --runs-dir missing", USAGE, &["but `--runs-dir` is missing"]),
            ("train --config run.yaml", USAGE, &[other_folder]),
        ],
    );
    let resume = |flags: &str, step: u64| {
        let said = sandbox.run(&format!("train {flags} --max-steps {step}"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(&format!("resumed after step {}", step - 1)), "{flags}: {}", said.stderr);
        said.stderr
    };
    resume("--resume runs/kept --name kept --runs-dir ./runs/../runs", 21);
    let said = resume("--resume auto --name kept --init runs/kept/checkpoints/step-000020", 22);
    assert!(said.contains("so `--init runs/kept/checkpoints/step-000020` is not used"), "{said}");
    let said = resume("--resume runs/kept --loss-scale 1024", 23);
    assert!(said.contains("a resumed run continues with the loss scale of its checkpoint"), "{said}");
}

#[test]
fn checkpoints_that_are_all_damaged_are_kept() {
    let sandbox = sandbox();
    sandbox.copy("runs/kept", "runs/sick");
    for step in [10, 15, 20] {
        sandbox.write(&format!("runs/sick/checkpoints/step-{step:06}/optimizer.safetensors"), "cut");
    }
    let files = |sandbox: &Sandbox| sandbox.tree("runs/sick/checkpoints");
    let before = files(&sandbox);
    let none = &[
        "skipping checkpoint runs/sick/checkpoints/step-000020",
        "skipping checkpoint runs/sick/checkpoints/step-000010",
        "runs/sick holds no complete checkpoint",
    ][..];
    check(
        &sandbox,
        &[("train --resume runs/sick", BAD_INPUT, none), ("generate --checkpoint runs/sick", BAD_INPUT, none)],
    );
    check_train(&sandbox, &[("--resume auto --name sick", BAD_INPUT, none)]);
    assert!(files(&sandbox) == before, "a checkpoint was deleted");
    // A checkpoint that is named explicitly is an error if damaged, not skipped.
    let named = "train --resume runs/sick/checkpoints/step-000015";
    check(&sandbox, &[(named, BAD_INPUT, &["step-000015/optimizer.safetensors is damaged: it has 3 bytes"])]);
}

/// A limit on file sizes stands in for a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_keeps_the_files_that_were_to_be_replaced() {
    let sandbox = Sandbox::new();
    let buffers = (0..100).map(|n| format!("{n},{n},{},64\n", n + 2)).collect::<String>();
    sandbox.write("buffers.csv", format!("id,lower,upper,size\n{buffers}"));
    for written in
        ["plan --model tiny --vram 0.1 --html", "plan --model tiny --vram 0.1 --svg", "arena buffers.csv --out"]
    {
        for before in [None, Some("what was there")] {
            before.iter().for_each(|text| sandbox.write("folder/picture", text));
            std::fs::create_dir_all(sandbox.path("folder")).expect("a folder");
            let mut command = std::process::Command::new("sh");
            let script = format!("trap '' XFSZ; ulimit -f 1; exec \"$0\" {written} folder/picture");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_plimsoll")]);
            sandbox.confine(&mut command);
            let said = Said::of(command.output().expect("a shell"));
            assert_eq!(said.code, Some(DEVICE_FAILED), "{written}: {}", said.stderr);
            assert!(said.stderr.contains("error: folder/picture: File too large"), "{written}: {}", said.stderr);
            let left = std::fs::read_dir(sandbox.path("folder")).expect("a folder").count();
            assert_eq!(left, usize::from(before.is_some()), "{written} left something");
            before.iter().for_each(|&text| assert_eq!(sandbox.text("folder/picture"), text, "{written}"));
        }
        std::fs::remove_dir_all(sandbox.path("folder")).expect("removed");
    }
}

#[test]
fn packing_problems() {
    let sandbox = sandbox();
    sandbox.write("bad.csv", "id,lower,upper,size\na,5,3,10\n");
    sandbox.write("empty.csv", "");
    check(
        &sandbox,
        &[
            ("arena missing.csv", BAD_INPUT, &["missing.csv can't be read"]),
            ("arena bad.csv", BAD_INPUT, &["bad.csv: "]),
            ("arena empty.csv", BAD_INPUT, &["empty.csv: "]),
            ("arena bad.csv --capacity -1", USAGE, &["'-1'"]),
        ],
    );
}

#[test]
fn pairs_and_packed_rows() {
    let sandbox = sandbox();
    let good = (0..200).map(|n| format!("number {n}\tthe {n}th\n")).collect::<String>();
    for (name, contents) in [
        ("pairs.tsv", good.as_str()),
        ("short.tsv", "a\tb\nonly one column\n"),
        ("empty.tsv", "a\tb\n\tan empty source\n"),
        ("named.csv", "article,summary\nx,y\n"),
    ] {
        sandbox.write(name, contents);
    }
    let t5 = |flags: &str| format!("train --model t5-nano --tokenizer bytes --max-steps 1 {flags}");
    let cases: &[(String, i32, &[&str])] = &[
        (t5("--data short.tsv"), BAD_INPUT, &["short.tsv line 2 has 1 column, not 2"]),
        (t5("--data empty.tsv"), BAD_INPUT, &["empty.tsv line 2: the source is empty"]),
        (t5("--data named.csv --source-column sumary"), BAD_INPUT, &["no column `sumary`", "`summary`"]),
        (t5(""), USAGE, &["pairs of sources and targets", "--source-column"]),
        (t5("--data pairs.tsv --packing"), USAGE, &["`--packing` is not for models that are trained on pairs"]),
        (t5("--data pairs.tsv --bucket 0"), USAGE, &["must be at least 1"]),
        (t5("--data pairs.tsv --label-smoothing 1"), USAGE, &["from 0 to below 1"]),
        (t5("--data pairs.tsv --layer-decay 0"), USAGE, &["above 0"]),
        ("train --model t5-small --data pairs.tsv".into(), USAGE, &["needs its own tokenizer"]),
        ("train --data pairs.tsv --source-column 1".into(), USAGE, &["is not an encoder-decoder"]),
        ("plan --model gpt2 --target-len 12".into(), USAGE, &["is not an encoder-decoder"]),
        ("plan --model gpt2 --recompute 13".into(), USAGE, &["13 blocks", "the model has 12", "`--recompute 12`"]),
    ];
    for (arguments, code, expected) in cases {
        assert_refused(&sandbox, arguments, || sandbox.run(arguments), *code, expected);
    }
}

/// Names of other tools have a hint with Plimsoll's name; only near spellings have a suggestion.
#[test]
fn names_of_other_tools_have_hints() {
    let sandbox = Sandbox::new();
    let adapters = "`plimsoll train --method lora` trains LoRA adapters";
    for (arguments, words) in [
        ("train --lora", adapters),
        ("plan --use-lora", adapters),
        ("estimate --qlora", adapters),
        ("run --peft -- python a.py", adapters),
        ("lora", adapters),
        ("train --onnx", "`transformers` and vLLM open runs/NAME/model"),
        ("train --gguf", "`plimsoll export --checkpoint runs/NAME --gguf"),
        ("generate --merge-adapters", "`plimsoll merge --checkpoint runs/NAME"),
        ("generate --wandb", "`plimsoll train --log-to wandb`"),
        ("train --grpo", "training on rewards (GRPO, PPO) is not supported"),
        ("train --lerning-rate 1", "did you mean `--learning-rate`?"),
        ("gpuz", "a similar subcommand exists: 'gpus'"),
    ] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(USAGE), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments} lacks `{words}`: {}", said.stderr);
        let suggests = said.stderr.contains("did you mean") || said.stderr.contains("a similar");
        assert_eq!(suggests, words.contains("did you mean") || words.contains("a similar"), "{}", said.stderr);
    }
    for arguments in ["plan --hoist-arm 3", "stats", "estimate --attach"] {
        let said = sandbox.run(arguments);
        assert!(said.code == Some(USAGE) && !said.stderr.contains("a similar"), "{}", said.stderr);
    }
}

/// Without the weights, sizes come from the model's name, with a note.
#[test]
fn hub_names_have_the_shape_of_their_family() {
    let sandbox = Sandbox::new();
    for command in ["plan --gpu 4090 --seq-len 128", "estimate"] {
        let said = sandbox.run(&format!("{command} --model unsloth/Qwen2.5-0.5B-Instruct-GGUF"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let note = "note: unsloth/Qwen2.5-0.5B-Instruct-GGUF has the shape of qwen2.5-0.5b, by its name\n";
        assert_eq!(said.stderr.matches(note).count(), 1, "{}", said.stderr);
        let known = sandbox.run(&format!("{command} --model Qwen/Qwen2.5-0.5B"));
        assert!(known.code == Some(0) && !known.stderr.contains("has the shape of"), "{}", known.stderr);
        let said = sandbox.run(&format!("{command} --model Qwen/Qwen4-8B-Instruct"));
        assert!(said.code == Some(USAGE) && !said.stderr.contains("did you mean"), "{}", said.stderr);
    }
}
