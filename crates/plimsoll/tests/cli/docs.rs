//! The commands of the manual and of the README: each runs unchanged in a folder with the files that they name and a
//! Hugging Face cache whose model names refer to tiny models. Long commands are shortened: a run makes two steps, and
//! training a large model from scratch is replaced by planning with the same flags.

use crate::support::torch::snapshot;
use crate::support::{Said, Sandbox, tiny_config};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Flags for durations, each with a short value; `None` for flags that are removed.
const LENGTHS: &[(&str, &str)] = &[("--epochs", ""), ("--duration", ""), ("--max-steps", ""), ("--steps", "1")];

/// Commands that are not run: `calibrate` measures for a minute, `notify` has no service, and the others need a GPU,
/// or Python and a script of the user's.
const LONG: &[&str] = &["notify test", "-- python train.py", "calibrate", "--self-test", "--device cuda", "cuda:1"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The README and the pages of the manual: names and texts.
pub(crate) fn pages() -> Vec<(String, String)> {
    let root = repository();
    let pages = fs::read_dir(root.join("docs/src")).expect("the manual").map(|entry| entry.expect("a page").path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let all = pages.chain([root.join("README.md")]);
    let read = |path: PathBuf| (path.file_name().expect("a file").to_string_lossy().into_owned(), text_of(&path));
    let mut all = all.map(read).collect::<Vec<_>>();
    all.sort();
    all
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands of a page, without their descriptions.
fn commands(text: &str) -> Vec<&str> {
    let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
    let commands = indented.filter(|line| line.starts_with("plimsoll "));
    commands.map(|line| line.split(" # ").next().expect("a part").trim_end_matches([' ', '…'])).collect()
}

/// The indented lines that follow a line of a page and an empty line.
fn block(text: &str, behind: &str) -> String {
    let begins = text.lines().position(|line| line.trim().ends_with(behind)).unwrap_or_else(|| panic!("no `{behind}`"));
    let lines = text.lines().skip(begins + 2).map_while(|line| line.strip_prefix("    "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The words of a command, split as a shell does.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in command.chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            other => words.last_mut().expect("a word").push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A folder with everything that the commands name.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let text = sandbox.text("text.txt");
    sandbox.write("notes/one.txt", &text);
    sandbox.write("text", &text);
    sandbox.write(".cargo/registry/src/index/crate/src/lib.rs", &text);
    let row = |n: u32| format!("{{\"text\": \"a document that counts to {n}, and has some words\"}}\n");
    sandbox.write("corpus/one.jsonl", (0..400).map(row).collect::<String>());
    let chat = |n: u32| {
        let turn = |role: &str, content: String| json!({ "role": role, "content": content });
        json!({ "messages": [turn("user", format!("What comes after {n}?")), turn("assistant", format!("{}.", n + 1))] })
    };
    sandbox.write("chats.jsonl", (0..400).map(|n| format!("{}\n", chat(n))).collect::<String>());
    let preference =
        |n: u32| json!({ "prompt": format!("{n} +"), "chosen": format!(" 1 is {}", n + 1), "rejected": " ?" });
    sandbox.write("preferences.jsonl", (0..300).map(|n| format!("{}\n", preference(n))).collect::<String>());
    let judged = |n: u32| json!({ "prompt": format!("{n} +"), "completion": format!(" 1 is {}", n % 7), "label": n.is_multiple_of(7) });
    sandbox.write("judged.jsonl", (0..300).map(|n| format!("{}\n", judged(n))).collect::<String>());
    sandbox.write("chat.json", r#"[{"role": "user", "content": "What comes after 7?"}]"#);
    let pair = |n: u32| format!("number {n}\tthe {n}th of the numbers\n");
    sandbox.write("pairs.tsv", (0..300).map(pair).collect::<String>());
    let pairs = (0..300).map(|n: u32| format!("number {n},the {n}th of the numbers\n")).collect::<String>();
    sandbox.write("pairs.csv", format!("article,summary\n{pairs}"));
    sandbox.write("sources.txt", "number 7\nnumber 9\n");
    sandbox.write("problem.csv", "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\n");
    sandbox.write("snapshot.pickle", snapshot());
    sandbox.write("run.yaml", "max_steps: 2\n");
    sandbox.write("axolotl.yml", block(&text_of(&repository().join("docs/src/estimate.md")), "This is `axolotl.yml`:"));
    must(&sandbox, "tokenizer train --data text --kind bpe --vocab-size 400 --output bpe.json");
    must(&sandbox, "tokenizer train --data pairs.tsv --kind unigram --vocab-size 300 --output unigram.json");
    let gpt2 = json!({ "vocab_size": 50_257, "n_positions": 1024, "n_embd": 8, "n_head": 1 });
    sandbox.write("gpt2.json", tiny_config(&gpt2));
    let llama = json!({
        "model_type": "llama", "vocab_size": 400, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "hidden_act": "silu",
    });
    sandbox.write("llama.json", llama.to_string());
    for (config, tokenizer, data, names) in [
        ("gpt2.json", "gpt2", "text", &["openai-community/gpt2", "openai-community/gpt2-medium"][..]),
        (
            "llama.json",
            "bpe.json",
            "text",
            &[
                "meta-llama/Llama-3.2-1B-Instruct",
                "meta-llama/Llama-3.1-8B-Instruct",
                "unsloth/Llama-3.2-1B-Instruct-bnb-4bit",
            ],
        ),
        ("t5-nano", "unigram.json", "pairs.tsv", &["google/flan-t5-base"]),
    ] {
        let lengths = if config == "t5-nano" { "--source-len 16 --target-len 16" } else { "--seq-len 16" };
        must(
            &sandbox,
            &format!(
                "train --model {config} --tokenizer {tokenizer} --data {data} {lengths} --global-batch 1 --max-steps 1 \
                 --eval-samples 1 --sample-tokens 0 --name tiny --runs-dir made --cache-dir cache"
            ),
        );
        for name in names {
            let model = format!(".cache/huggingface/hub/models--{}", name.replace('/', "--"));
            sandbox.copy("made/tiny/checkpoints/step-000001", &format!("{model}/snapshots/abc"));
            if tokenizer.ends_with(".json") {
                sandbox.write(&format!("{model}/snapshots/abc/tokenizer.json"), sandbox.read(tokenizer));
            }
            sandbox.write(&format!("{model}/refs/main"), "abc");
        }
        fs::remove_dir_all(sandbox.path("made")).expect("it was made");
    }
    must(
        &sandbox,
        "train --data notes/ --global-batch 1 --max-steps 200 --eval-every 0 --eval-samples 1 --sample-tokens 0 --name mine",
    );
    sandbox
}

fn must(sandbox: &Sandbox, arguments: &str) -> Said {
    let said = sandbox.run(arguments);
    assert_eq!(said.code, Some(0), "{arguments}: {}", said.stderr);
    said
}

/// The command as the test runs it: shortened, or planned instead of a long training.
fn shortened(mut words: Vec<String>) -> Vec<String> {
    words.remove(0);
    for (flag, value) in LENGTHS {
        while let Some(at) = words.iter().position(|word| word == flag) {
            let plans = words[0] == "plan";
            match (plans, *value) {
                (true, _) => break,
                (false, "") => drop(words.drain(at..at + 2)),
                (false, value) if words[at + 1] != value => words[at + 1] = value.to_owned(),
                _ => break,
            }
        }
    }
    let given = |flag: &str| words.iter().position(|word| word == flag).map(|at| words[at + 1].as_str());
    let model = given("--model").or(given("--model_size"));
    let is_toy = model.is_none_or(|model| ["nano", "t5-nano"].contains(&model));
    match words[0].as_str() {
        "train" if is_toy => {
            let short = match words.iter().any(|word| word == "--resume") {
                true => "--max-steps 202",
                false => "--max-steps 2 --eval-samples 1 --sample-tokens 4 --global-batch 1 --device cpu --vram 2",
            };
            let short = short.split(' ').map(str::to_owned).collect::<Vec<_>>();
            for pair in short.chunks(2) {
                if !words.contains(&pair[0]) {
                    words.extend_from_slice(pair);
                }
            }
        }
        "train" => "plan".clone_into(&mut words[0]),
        "stress" => {
            for (flag, value) in [("--vram", "8MiB"), ("--duration", "1s")] {
                if let Some(at) = words.iter().position(|word| word == flag) {
                    words.drain(at..at + 2);
                }
                words.extend([flag, value].map(str::to_owned));
            }
        }
        _ => {}
    }
    words
}

#[test]
fn commands_of_the_manual_work() {
    let sandbox = sandbox();
    let mut seen = BTreeSet::new();
    for (page, text) in pages() {
        for command in commands(&text) {
            if LONG.iter().any(|long| command.contains(long)) || !seen.insert(command.to_owned()) {
                continue;
            }
            let (command, into) =
                command.split_once(" > ").map_or((command, None), |(command, file)| (command, Some(file)));
            let words = shortened(words(command));
            let said = Said::of(sandbox.command(&words).output().expect("the binary runs"));
            // A misfit is shown as an example of one.
            let fits_not = text.contains("error: flan-t5-xl") && said.code == Some(3) && command.contains("flan-t5-xl");
            assert!(said.code == Some(0) || fits_not, "{page}: {command}\nas {}\n{}", words.join(" "), said.stderr);
            assert!(into.is_none() || !said.stdout.is_empty(), "{page}: {command}");
        }
    }
    assert!(seen.len() > 25, "the manual lost its commands: {seen:?}");
}

/// The exports in the manual are the command's output.
#[test]
fn exports_of_the_manual_are_real() {
    let page = text_of(&repository().join("docs/src/estimate.md"));
    let sandbox = Sandbox::new();
    sandbox.write("axolotl.yml", block(&page, "This is `axolotl.yml`:"));
    let begun = "estimate --config axolotl.yml --gpu 3070 --export";
    let own = sandbox.run(&format!("{begun} axolotl"));
    assert_eq!(own.stdout_text(), block(&page, "changed so that it fits: --gradient-checkpointing"));
    for line in own.stderr.lines() {
        assert!(page.contains(&format!("    {line}\n")), "{line}");
    }
    assert_eq!(sandbox.run(&format!("{begun} hf")).stdout_text(), block(&page, &format!("plimsoll {begun} hf")));
}

/// The anchors of a page's headings, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|&c| c.is_alphanumeric() || [' ', '-', '_'].contains(&c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn the_manual_has_all_its_pages_and_links_to_nothing_else() {
    let pages = pages();
    let root = repository();
    let summary = &pages.iter().find(|(name, _)| name == "SUMMARY.md").expect("a table of contents").1;
    for (name, text) in &pages {
        let is_listed = ["SUMMARY.md", "README.md"].contains(&name.as_str()) || summary.contains(&format!("]({name})"));
        assert!(is_listed, "{name} is not in SUMMARY.md");
        let folder = if name == "README.md" { root.clone() } else { root.join("docs/src") };
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
            let is_known = link.starts_with("http") || file.is_empty() || folder.join(file).exists();
            assert!(is_known, "{name}: {link}");
            let Some(heading) = heading else { continue };
            let target = if file.is_empty() { text.clone() } else { text_of(&folder.join(file)) };
            assert!(anchors(&target).contains(heading), "{name}: {link}");
        }
    }
    for name in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "crates/plimsoll/src/cli/recipe.rs"] {
        let text = text_of(&root.join(name));
        for rest in text.split("docs/src/").skip(1) {
            let page = rest.split(|c: char| !c.is_alphanumeric() && !"-_.".contains(c)).next().unwrap_or_default();
            // `x.md` stands for a new page.
            let page = page.trim_end_matches('.');
            assert!(page == "x.md" || root.join("docs/src").join(page).exists(), "{name}: docs/src/{page}");
        }
    }
}
