//! Hostile input: small files that expand to gigabytes, pipes and devices in place of files, tokenizers that panic,
//! names with escape codes. Each is refused with the documented exit code, within a limit of memory and time.
#![cfg(target_os = "linux")]

mod support;

use crate::support::{Said, Sandbox, tiny_config};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const BAD_INPUT: i32 = 4;
/// Resident memory that a command may use in addition to its input: the program, a line or row of the maximum length,
/// and its tokens.
const PEAK_BYTES_MAX: u64 = 192 << 20;
/// Time limit of a refusal, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

/// Result of a command, and its peak resident memory from the kernel. Panics if it does not end in time.
fn measured(mut command: Command) -> (Option<i32>, String, u64) {
    let mut stderr = tempfile::tempfile().expect("a temporary file");
    let child = command.stdout(Stdio::null()).stderr(stderr.try_clone().expect("the same file")).spawn();
    let pid = child.expect("the binary runs").id() as libc::pid_t;
    let (done, waited) = channel();
    std::thread::spawn(move || {
        let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: both pointers are to local variables of the types that the call fills; an all-zero `rusage` is valid.
        let usage = unsafe {
            assert_eq!(libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()), pid, "our child ends once");
            usage.assume_init()
        };
        let _ = done.send((libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)), usage.ru_maxrss as u64 * 1024));
    });
    let Ok((code, peak_bytes)) = waited.recv_timeout(DEADLINE) else {
        // SAFETY: the thread above has not reaped this child, so the pid is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("it hangs");
    };
    let mut said = String::new();
    std::io::Seek::rewind(&mut stderr).and_then(|()| stderr.read_to_string(&mut said)).expect("stderr is UTF-8");
    (code, said, peak_bytes)
}

/// Panics unless a command is refused with these words, in time and within the memory. The words may contain escaped
/// control characters, which must not be printed raw.
fn assert_refused(sandbox: &Sandbox, arguments: &[String], words: &str) {
    let (code, said, peak_bytes) = measured(sandbox.command(arguments));
    assert_eq!(code, Some(BAD_INPUT), "{arguments:?}: {said}");
    assert!(said.contains(words) && said.contains("hint: "), "{arguments:?} lacks `{words}`: {said}");
    assert!(!said.contains("panicked at") && !said.contains('\u{1b}'), "{said}");
    assert!(peak_bytes < PEAK_BYTES_MAX, "{arguments:?}: {peak_bytes} bytes");
}

fn train(given: &str) -> Vec<String> {
    Sandbox::train_arguments(given)
}

fn train_pairs(data: &str) -> Vec<String> {
    let given = format!("train --model t5-nano --tokenizer bytes --max-steps 1 --cache-dir cache --data {data}");
    given.split(' ').map(str::to_owned).collect()
}

/// `start`, then `repeated` until `bytes` are reached, in .gz members of one mebibyte.
fn gzip_bomb(start: &str, repeated: &str, bytes: usize) -> Vec<u8> {
    let member = |text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).expect("memory takes all bytes");
        encoder.finish().expect("memory takes all bytes")
    };
    let block = repeated.repeat((1 << 20) / repeated.len());
    [member(start.as_bytes()), member(block.as_bytes()).repeat(bytes >> 20)].concat()
}

/// A .zst frame with a window of 1 MiB: `start` as a raw block, then blocks of 128 KiB of the letter a, four bytes
/// each. Source: RFC 8878, section 3.1.1.
fn zstd_bomb(start: &str, bytes: usize) -> Vec<u8> {
    let block = |last: u32, kind: u32, size: usize| {
        let header = last | kind << 1 | (size as u32) << 3;
        header.to_le_bytes()[..3].to_vec()
    };
    let repeat = [block(0, 1, 1 << 17), b"a".to_vec()].concat().repeat(bytes >> 17);
    let end = [block(1, 1, 1), b"a".to_vec()].concat();
    let header = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 10 << 3].to_vec();
    [header, block(0, 0, start.len()), start.as_bytes().to_vec(), repeat, end].concat()
}

#[test]
fn a_line_of_gigabytes_is_refused_within_its_memory() {
    let sandbox = Sandbox::new();
    let gigabyte = 1 << 30;
    let line = "{\"text\":\"";
    for (name, contents) in
        [("a.jsonl.gz", gzip_bomb(line, "a", gigabyte)), ("a.jsonl.zst", zstd_bomb(line, 3 * gigabyte))]
    {
        assert!(contents.len() < 2 << 20, "{name} is small");
        sandbox.write(name, contents);
        let words = format!("{name} line 1 is longer than 16.0 MiB");
        assert_refused(&sandbox, &train(&format!("--data {name}")), &words);
        assert_refused(&sandbox, &train_pairs(name), &words);
        let tokenizer = format!("tokenizer train --kind bpe --vocab-size 300 --output t.json --data {name}");
        assert_refused(&sandbox, &tokenizer.split(' ').map(str::to_owned).collect::<Vec<_>>(), &words);
    }
    for (name, start, repeated, words) in [
        ("cell.tsv.gz", "a\tb\nc\t", "a", "cell.tsv.gz line 2 is longer than 16.0 MiB"),
        ("quote.csv.gz", "a,b\nc,\"", "a\n", "quote.csv.gz line 2 is longer than 16.0 MiB"),
        ("cells.tsv.gz", "a\tb\nc", "\t", "cells.tsv.gz line 2 can't be read: it has more than 1048576 cells"),
    ] {
        sandbox.write(name, gzip_bomb(start, repeated, gigabyte));
        assert_refused(&sandbox, &train_pairs(name), words);
    }
}

/// Ten kilobytes of Parquet that declare a text of 300 MB, and half a table with a row of 60 million messages.
#[test]
fn tables_that_declare_large_contents_are_refused_within_the_same_memory() {
    let sandbox = Sandbox::new();
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/golden");
    for (name, words) in [("bomb-page.parquet", "a page of 30000"), ("bomb-row.parquet", "a row with too many values")]
    {
        sandbox.write(name, fs::read(golden.join(name)).expect("it is committed"));
        assert_refused(&sandbox, &Sandbox::train_arguments(&format!("--data {name}")), words);
    }
    let deep = format!("[{{\"messages\":{}", "[".repeat(10 << 20));
    sandbox.write("deep.json", deep);
    assert_refused(&sandbox, &Sandbox::train_arguments("--data deep.json --data-format messages"), "deep.json");
}

/// A line of the maximum length whose other fields would parse to a tree of many times its size, and a deeply nested
/// one.
#[test]
fn other_fields_of_a_line_use_no_memory() {
    let sandbox = Sandbox::new();
    let fields = format!("{}0", "0,".repeat(7 << 20));
    let depth = 7 << 20;
    for noise in [format!("[{fields}]"), "[".repeat(depth) + &"]".repeat(depth)] {
        sandbox.write("a.jsonl", format!("{{\"noise\":{noise},\"text\":\"ten bytes.\"}}"));
        assert_refused(&sandbox, &train("--data a.jsonl"), "the data has only 11 tokens, but one sample needs 17");
    }
}

/// A huge text file without line feeds is read in pieces, and its tokens stay on disk.
#[test]
fn a_long_text_is_trained_on_within_the_same_memory() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt.gz", gzip_bomb("", "many words ", 104 << 20));
    let (code, said, peak_bytes) = measured(sandbox.command(train("--data a.txt.gz --max-steps 1 --eval-every 1")));
    assert_eq!(code, Some(0), "{said}");
    assert!(peak_bytes < PEAK_BYTES_MAX, "{peak_bytes} bytes");
}

/// Pairs of four bytes each: memory per pair must not add up.
#[test]
fn many_small_pairs_are_read_within_the_same_memory() {
    let sandbox = Sandbox::new();
    sandbox.write("a.tsv.gz", gzip_bomb("a\t", "b\na\t", 8 << 20));
    let (_, said, peak_bytes) = measured(sandbox.command(train_pairs("a.tsv.gz")));
    assert!(said.contains("line 2097153: the target is empty"), "{said}");
    assert!(peak_bytes < PEAK_BYTES_MAX, "{peak_bytes} bytes");
}

#[test]
fn only_regular_files_are_read_and_nothing_blocks() {
    let sandbox = Sandbox::new();
    for name in ["pipe.txt", "pipe.jsonl.gz", "pipe.tsv", "tokenizer/tokenizer.json", "model/config.json", "c.yaml"] {
        let path = sandbox.path(name);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders");
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    }
    let pipe = "is a named pipe, not a";
    let it_is = "it is a named pipe, not a regular file";
    for (flags, words) in [
        ("--data pipe.txt", pipe),
        ("--data pipe.jsonl.gz", pipe),
        ("--data pipe*", "no text file matches `pipe*` (3 other files do)"),
        ("--data /dev/zero", "/dev/zero is a device, not a file"),
        ("--data /proc/self/pagemap", "/proc/self/pagemap is a file of /proc, not a file"),
        ("--data /proc/kmsg", "/proc/kmsg"),
        ("--data /sys/kernel/profiling", "/sys/kernel/profiling"),
        ("--tokenizer tokenizer", "tokenizer has no tokenizer.json"),
        ("--tokenizer tokenizer/tokenizer.json", pipe),
        ("--tokenizer /dev/zero", "/dev/zero is a device, not a file"),
        ("--tokenizer /proc/self/environ", "/proc/self/environ is a file of /proc, not a file"),
        ("--model model", it_is),
        ("--model /dev/zero", "/dev/zero"),
        ("--config c.yaml", it_is),
        ("--config /dev/zero", "it is a device, not a regular file"),
    ] {
        assert_refused(&sandbox, &train(flags), words);
    }
    assert_refused(&sandbox, &train_pairs("pipe.tsv"), pipe);
    let arena = ["arena", "/dev/zero"].map(str::to_owned);
    assert_refused(&sandbox, &arena, "/dev/zero can't be read: it is longer than 64.0 MiB");
}

#[test]
fn files_that_are_read_whole_have_a_maximum_size() {
    let sandbox = Sandbox::new();
    for (name, flags) in
        [("long.json", "--tokenizer long.json"), ("long/config.json", "--model long"), ("l.yaml", "--config l.yaml")]
    {
        sandbox.write(name, "");
        File::options().write(true).open(sandbox.path(name)).and_then(|file| file.set_len(1 << 40)).expect("a hole");
        assert_refused(&sandbox, &train(flags), "is longer than ");
    }
    // Ten names for nine of the next, ten times: the parser counts the expanded size.
    let laughs = (1..10).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", ")));
    sandbox.write("laughs.yaml", format!("a0: &a0 [lol, lol]\n{}", laughs.collect::<String>()));
    let (code, said, peak_bytes) = measured(sandbox.command(train("--config laughs.yaml")));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not valid YAML") && peak_bytes < PEAK_BYTES_MAX, "{peak_bytes} bytes: {said}");
}

#[test]
fn tokenizers_that_panic_or_grow_texts_are_refused_by_name() {
    let sandbox = Sandbox::new();
    sandbox.write("words/config.json", tiny_config(&json!({"vocab_size": 50257})));
    sandbox.write("a.txt", "a".repeat(1 << 20));
    let model = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
    let ten = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
    let chain = |times: usize| json!({"type": "Sequence", "normalizers": vec![&ten; times]});
    let unknown = json!({"type": "Unigram", "unk_id": 7, "vocab": [["b", -1.0], ["c", -2.0]]});
    for (what, tokenizer, words) in [
        ("an id that is not in it", json!({ "model": unknown }), "bad.json"),
        ("gigabytes", json!({"normalizer": chain(9), "model": model}), "could make text 1000000000 times as long"),
        ("many megabytes", json!({"normalizer": chain(4), "model": model}), "`bad.json` failed on a.txt"),
        (
            "a token that grows when it is read",
            json!({"normalizer": chain(4), "model": model, "added_tokens": [{"id": 0, "content": "a".repeat(1 << 16),
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}]}),
            "bad.json is not a usable tokenizer: ",
        ),
        (
            "a table that says it has gigabytes",
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, "model": model}),
            "bad.json is not a usable tokenizer: its table of characters is broken",
        ),
        (
            "a table whose index points nowhere",
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}, "model": model}),
            "bad.json",
        ),
    ] {
        sandbox.write("bad.json", tokenizer.to_string());
        eprintln!("{what}");
        assert_refused(&sandbox, &train("--data a.txt --model words --tokenizer bad.json"), words);
    }
}

/// An escape code in any name never reaches the terminal.
#[test]
fn escape_codes_in_names_are_shown_not_obeyed() {
    let sandbox = Sandbox::new();
    let name = "a\u{1b}]0;b\u{7}\u{9b}2J\u{202e}\r";
    // Clap removes the first code; all other messages show it escaped.
    let shown = "\\u009b2J\\u202e\\u000d";
    let said = |arguments: &[&str]| {
        let said = Said::of(sandbox.command(arguments).output().expect("the binary runs"));
        assert!(said.code != Some(0), "{arguments:?}");
        let all = said.stdout_text().to_owned() + &said.stderr;
        assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{arguments:?}: {all:?}");
        assert!(all.contains(shown), "{arguments:?} does not name it: {all}");
    };
    for flag in ["--data", "--tokenizer", "--model", "--config", "--resume", "--init", "--name", "--vram"] {
        let given = if flag == "--name" { format!("{name}/") } else { format!("{name}.json") };
        let usual = [("--data", "text.txt"), ("--model", "tiny")].into_iter().filter(|(usual, _)| *usual != flag);
        let arguments = usual.flat_map(|(flag, value)| [flag, value]).chain([flag, &given]);
        said(&["train"].into_iter().chain(arguments).collect::<Vec<_>>());
    }
    said(&["generate", "--checkpoint", name]);
    said(&["plan", "--gpu", name]);
    said(&["arena", name]);
    said(&[name]);
    // YAML does not allow raw control characters.
    let quoted = name.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>();
    sandbox.write("settings.yaml", format!("learning_rate: \"{quoted}\"\n"));
    said(&["train", "--config", "settings.yaml"]);
    sandbox.write("lines.jsonl", format!("{{{}: \"x\"}}\n", json!(name)));
    said(&["train", "--data", "lines.jsonl", "--cache-dir", "c", "--model", "tiny"]);
    sandbox.write(name, "a\tb\n");
    said(&["train", "--model", "t5-nano", "--tokenizer", "bytes", "--cache-dir", "c", "--data", name]);
}

/// A line feed in a name must not start a new line, which could fake a message.
#[test]
fn a_line_feed_in_a_name_is_shown() {
    let sandbox = Sandbox::new();
    let said = Said::of(sandbox.command(["train", "--data", "x\nfinished: all is well"]).output().expect("it runs"));
    assert!(said.stderr.contains("error: x\\u000afinished: all is well does not exist"), "{}", said.stderr);
}
