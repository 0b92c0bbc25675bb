//! Every flag with a value, of every command that needs no network, with numbers that are too large for any allocation,
//! loop or list of processes.

use crate::support::{Sandbox, tiny_config};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const VALUES: [&str; 4] = ["0", "1000000000", "18446744073709551615", "NaN"];

/// The documented exit codes, and a shell's codes for a command.
const CODES: [i32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 126, 127];

/// Durations, which may be as long as requested.
const ENDLESS: [&str; 3] = ["--steps", "--warmup", "--max-steps"];

/// Commands with arguments with which they end quickly.
const COMMANDS: [(&str, &str); 7] = [
    (
        "train",
        "--model small --data text.txt --tokenizer bytes --seq-len 8 --global-batch 4 --max-steps 1 --sample-tokens 2 \
         --vram 1 --cache-dir cache --runs-dir trained --device cpu",
    ),
    ("plan", "--model nano --device cpu"),
    ("bench", "--model small --seq-len 8 --global-batch 4 --vram 1 --steps 1 --warmup 0 --device cpu"),
    ("generate", "--checkpoint trained/made --vram 1 --max-tokens 2 --device cpu"),
    ("tokenizer train", "--data text.txt --kind bpe --vocab-size 260 --output tokenizer.json"),
    ("run", "--max-restarts 0 --runs-dir kept -- true"),
    ("logs", "none"),
];

/// The flags of a command that take a value, from its help.
fn flags(sandbox: &Sandbox, command: &str) -> Vec<String> {
    let help = sandbox.run(&format!("{command} --help"));
    let taking = help.stdout_text().lines().filter_map(|line| {
        let (flag, value) = line.trim_start().trim_start_matches("-m, ").split_once(' ')?;
        (flag.starts_with("--") && value.starts_with('<')).then(|| flag.to_owned())
    });
    let flags = taking.filter(|flag| !ENDLESS.contains(&flag.as_str())).collect::<Vec<_>>();
    assert!(!flags.is_empty(), "{command}: {}", help.stdout_text());
    flags
}

#[test]
fn absurd_numbers_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("text.txt", "some words here\n".repeat(400));
    sandbox.write("small/config.json", tiny_config(&json!({"vocab_size": 257, "n_embd": 8})));
    let made = sandbox.run(&format!("train {} --name made", COMMANDS[0].1));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let mut jobs = Vec::new();
    for (command, usual) in COMMANDS {
        for flag in flags(&sandbox, command) {
            // Given once: the usual flag is omitted if it is the one under test.
            let (own, rest) = usual.split_once("-- ").map_or((usual, ""), |(own, _)| (own, &usual[own.len()..]));
            let words = own.split_whitespace().collect::<Vec<_>>();
            let kept = words.iter().enumerate().filter(|(n, word)| **word != flag && (*n == 0 || words[n - 1] != flag));
            let kept = kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ");
            let name = |n: usize| match (command, flag.as_str()) {
                ("train" | "run", other) if other != "--name" => format!("--name n{}-{n}", &flag[2..]),
                _ => String::new(),
            };
            jobs.extend(
                VALUES.iter().enumerate().map(|(n, v)| format!("{command} {flag}={v} {} {kept} {rest}", name(n))),
            );
        }
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let said = sandbox.run(job);
                    assert!(
                        said.code.is_some_and(|code| CODES.contains(&code)),
                        "{job}: {:?} {}",
                        said.code,
                        said.stderr
                    );
                    assert!(!said.stderr.contains("panicked"), "{job}: {}", said.stderr);
                }
            });
        }
    });
    eprintln!("{} command lines", jobs.len());
}
