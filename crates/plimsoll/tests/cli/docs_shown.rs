//! Output shown in the README and the manual: each `console` block runs in a folder with the files that it names, and
//! each line that it shows must be printed. `…` stands for omitted lines. With `PLIMSOLL_BLESS=1` the test writes the
//! current output into the blocks.

use crate::docs::pages;
use crate::support::{Said, Sandbox};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Commands whose output depends on the machine or the time: compared without numbers.
const VARYING: &[&str] = &["train", "generate", "doctor"];

/// A `console` block of a page.
struct Block<'a> {
    command: &'a str,
    lines: Vec<&'a str>,
    /// From `(exit code N)` after the block.
    code: i32,
}

/// The blocks of a page.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::<Block<'_>>::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(code) = line.strip_prefix("(exit code ").and_then(|rest| rest.strip_suffix(')')) {
            blocks.last_mut().expect("a block before its exit code").code = code.parse().expect("an exit code");
        } else if line == "```console" {
            let command = lines
                .next()
                .and_then(|line| line.strip_prefix("$ plimsoll "))
                .expect("a block begins with `$ plimsoll`");
            let lines = lines.by_ref().take_while(|line| *line != "```").filter(|line| *line != "…").collect();
            blocks.push(Block { command, lines, code: 0 });
        }
    }
    blocks
}

/// A folder with the files that the blocks name.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let ships = |n: u64| {
        format!("Line {n} counts {} ships, and {} of them are loaded to the line.\n", n * n % 977, n * 31 % 89)
    };
    sandbox.write("notes/ships.txt", (0..4000).map(ships).collect::<String>());
    sandbox.write(".cargo/registry/src/index/crate/src/lib.rs", (0..4000).map(ships).collect::<String>());
    sandbox.write("noise.txt", (0..60_000_u64).map(|n| (n * n % 251 * 7919 % 251) as u8).collect::<Vec<_>>());
    let turn = |role: &str, content: String| json!({ "role": role, "content": content });
    let chat = |n: u64| {
        let turns = [turn("user", format!("What comes after {n}?")), turn("assistant", format!("{}.", n + 1))];
        format!("{}\n", json!({ "messages": turns }))
    };
    sandbox.write("chats.jsonl", (0..2000).map(chat).collect::<String>());
    let rows =
        (0..2000).map(|n| json!({ "instruction": format!("Double {n}."), "input": "", "output": (2 * n).to_string() }));
    sandbox.write("alpaca.json", json!(rows.collect::<Vec<_>>()).to_string());
    sandbox.write(
        "axolotl.yaml",
        "base_model: HuggingFaceTB/SmolLM2-135M\ndatasets:\n  - path: notes\n    type: completion\nsequence_len: 1024\n\
         micro_batch_size: 2\nnum_epochs: 3\nlr_scheduler: cosinus\nlearning_rate: 2e-5\nloraplus_lr_embedding: 8\nwandb_project: mine\n\
         flash_attention: true\nwarmup_ration: 0.1\n",
    );
    sandbox
}

/// The command's words; a run makes few steps, and its numbers are not compared.
fn words(command: &str) -> Vec<String> {
    let mut words = command.split(' ').map(str::to_owned).collect::<Vec<_>>();
    if words[0] == "train" {
        for (flag, value) in
            [("--max-steps", "2"), ("--eval-every", "1"), ("--log-every", "1"), ("--global-batch", "8")]
        {
            match words.iter().position(|word| word == flag) {
                Some(at) => value.clone_into(&mut words[at + 1]),
                None => words.extend([flag.to_owned(), value.to_owned()]),
            }
        }
    }
    words
}

/// The command's output, stderr first.
fn printed(sandbox: &Sandbox, block: &Block<'_>, page: &str) -> Vec<String> {
    let mut command = sandbox.command(words(block.command));
    let said = Said::of(command.env("COLUMNS", "100").output().expect("the binary runs"));
    assert_eq!(said.code, Some(block.code), "{page}: {}\n{}", block.command, said.stderr);
    let text = said.stderr.clone() + said.stdout_text();
    text.replace(&*sandbox.root().to_string_lossy(), "~").lines().map(|line| line.trim_end().to_owned()).collect()
}

/// A line without its numbers, durations, units of memory and the widths of its columns.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split(|c: char| c.is_whitespace() || c == '│').filter(|word| !word.is_empty()) {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_unit =
            ["B", "KiB", "MiB", "GiB", "ms", "s", "min", "h", "d"].contains(&word.trim_end_matches([',', ')']));
        if !is_number && !is_unit {
            shape.extend([" ", word]);
        }
    }
    shape.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The line of a command's output from `from` on that a block shows, and its index.
fn find(printed: &[String], from: usize, is_shown: impl Fn(&str) -> bool) -> Option<usize> {
    (from..printed.len()).find(|&at| is_shown(&printed[at]))
}

/// Compares a block with its command's output. Returns the lines to show. Errors: a line that is not printed.
fn current(sandbox: &Sandbox, block: &Block<'_>, page: &str) -> Result<Vec<String>, String> {
    let printed = printed(sandbox, block, page);
    let varies = VARYING.iter().any(|command| block.command.starts_with(command));
    let mut at = 0;
    let mut lines = Vec::new();
    for line in &block.lines {
        let found = if varies {
            // The model's text varies, and so do widths of tables and defaults that the test replaces.
            let is_own = line.starts_with(['┃', '┌', '╞', '└'])
                || ["try it: ", "defaults: "].iter().any(|own| line.starts_with(own))
                || line.is_empty();
            (is_own || find(&printed, 0, |other| shape(other) == shape(line)).is_some()).then(|| (*line).to_owned())
        } else {
            let found = find(&printed, at, |other| other == *line)
                .or_else(|| find(&printed, at, |other| shape(other) == shape(line)).filter(|_| blesses()));
            at = found.map_or(at, |found| found + 1);
            found.map(|found| printed[found].clone())
        };
        let error = || format!("{page}: `{}` does not print\n{line}\nbut\n{}\n", block.command, printed.join("\n"));
        lines.push(found.ok_or_else(error)?);
    }
    Ok(lines)
}

fn blesses() -> bool {
    std::env::var_os("PLIMSOLL_BLESS").is_some()
}

#[test]
fn blocks_of_the_manual_show_real_output() {
    let sandbox = sandbox();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut checked, mut failures) = (0, String::new());
    for (name, text) in pages() {
        let mut blessed = text.clone();
        for block in blocks(&text) {
            checked += 1;
            let lines = current(&sandbox, &block, &name).unwrap_or_else(|failure| {
                failures += &failure;
                vec![]
            });
            for (old, new) in block.lines.iter().zip(&lines).filter(|(old, new)| *old != new) {
                blessed = blessed.replacen(&format!("\n{old}\n"), &format!("\n{new}\n"), 1);
            }
        }
        if blessed != text {
            let path = if name == "README.md" { root.join(&name) } else { root.join("docs/src").join(&name) };
            fs::write(path, blessed).expect("the manual is written");
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(checked > 25, "the manual lost its blocks: {checked}");
}

#[test]
fn shapes_leave_out_what_varies() {
    for (line, other) in [
        ("│ weights           3.18 MiB        3,337,216         4.0 % │", "│ weights   3.18 GiB   7,216   14.0 % │"),
        (
            "step 5/15  loss 3.584  lr 3.3e-3  RAM 79.0/79.0 MiB  1 s left",
            "step 1/2  loss 3  lr 4e-3  RAM 7/9 KiB  1 min 3 s left",
        ),
    ] {
        assert_eq!(shape(line), shape(other));
    }
    assert_ne!(shape("the whole global batch fits at once"), shape("the whole batch fits at once"));
}
