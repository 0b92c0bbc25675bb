//! Runs the binary in a temporary folder with a tiny text and a tiny model, without network and without the user's
//! files.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod hub;
#[cfg(unix)]
pub mod pty;
pub mod receiver;
pub mod torch;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Default flags of a short run; [`Sandbox::train`] drops those that the caller gives.
const SHORT_RUN: &[(&str, &str)] = &[
    ("--data", "text.txt"),
    ("--model", "tiny"),
    ("--seq-len", "16"),
    ("--global-batch", "4"),
    ("--max-steps", "20"),
    ("--checkpoint-every", "5"),
    ("--sample-tokens", "0"),
    ("--vram", "0.1"),
    ("--threads", "1"),
    ("--cache-dir", "cache"),
    ("--runs-dir", "runs"),
];

/// A temporary folder with `text.txt`, about 20 KB, and `tiny/config.json`, a GPT-2 with 8 thousand parameters.
pub struct Sandbox {
    folder: TempDir,
}

/// Result of a command.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Self {
        let sandbox = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let lines = (0..800).map(|i| format!("line {i} has {} in it\n", i * i)).collect::<String>();
        sandbox.write("text.txt", lines);
        sandbox.write("tiny/config.json", tiny_config(&json!({})));
        sandbox
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Writes a file, and creates its folders.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("folders");
        fs::write(path, contents).expect("written");
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).expect("text")
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).expect("JSON")
    }

    /// All files below a folder with their contents; does not follow links to folders.
    pub fn tree(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.path(name)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.extend((!path.is_symlink()).then_some(path));
                } else {
                    let contents = fs::read(&path).expect("a file");
                    files.insert(path, contents);
                }
            }
        }
        files
    }

    /// Copies a folder recursively.
    pub fn copy(&self, from: &str, to: &str) {
        for (path, contents) in self.tree(from) {
            let below = path.strip_prefix(self.path(from)).expect("it was found there");
            self.write(&Path::new(to).join(below).to_string_lossy(), contents);
        }
    }

    /// The binary with these arguments, in the sandbox.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(arguments);
        self.confine(&mut command);
        command
    }

    /// Sets a command up to run in the sandbox without the user's files and settings.
    pub fn confine(&self, command: &mut Command) {
        command.current_dir(self.root()).stdin(Stdio::null()).env("HOME", self.root());
        for variable in [
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "CARGO_HOME",
            "HF_HOME",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_ENDPOINT",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HF_HUB_DOWNLOAD_TIMEOUT",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "PLIMSOLL_SMTP_USER",
            "PLIMSOLL_SMTP_PASSWORD",
            "PLIMSOLL_DISCORD_WEBHOOK",
            "DISCORD_WEBHOOK",
            "DISCORD_WEBHOOK_URL",
            "OMP_NUM_THREADS",
            "NVIDIA_TF32_OVERRIDE",
            "PLIMSOLL_SLACK_WEBHOOK",
            "PLIMSOLL_TELEGRAM_TOKEN",
            "PLIMSOLL_TELEGRAM_CHAT",
            "PLIMSOLL_TELEGRAM_SERVER",
            "PLIMSOLL_NTFY_TOPIC",
            "PLIMSOLL_NTFY_TOKEN",
            "PLIMSOLL_NTFY_SERVER",
            "PLIMSOLL_WEBHOOK_URL",
            "NO_COLOR",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
            "PLIMSOLL_INSTRUCTIONS",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
        ] {
            command.env_remove(variable);
        }
        // Tests must not depend on this machine's cards.
        let nothing = self.path("no-driver.so");
        command.env("PLIMSOLL_NVML", &nothing).env("PLIMSOLL_CUDA", &nothing).env("PLIMSOLL_CUBLAS", &nothing);
    }

    /// Runs the binary with arguments that are separated by spaces.
    pub fn run(&self, arguments: &str) -> Said {
        Said::of(self.command(arguments.split_whitespace()).output().expect("the binary runs"))
    }

    /// Like [`run`](Self::run), on a CPU without half-precision arithmetic, so that predictions are the same on every
    /// machine.
    pub fn run_without_half(&self, arguments: &str) -> Said {
        let mut command = self.command(arguments.split_whitespace());
        command.env("PLIMSOLL_INSTRUCTIONS", "baseline");
        Said::of(command.output().expect("the binary runs"))
    }

    /// Like [`run`](Self::run), on a machine with these NVIDIA cards: name, UUID, and total, reserved and used MiB.
    pub fn run_with_cards(&self, cards: &str, arguments: &str) -> Said {
        let mut command = self.command(arguments.split_whitespace());
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, cards);
        Said::of(command.output().expect("the binary runs"))
    }

    /// The binary on a machine with a card of the CUDA stand-in, with this description.
    pub fn command_on_card<S: AsRef<std::ffi::OsStr>>(
        &self,
        card: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = self.command(arguments);
        Self::with_card(&mut command, card);
        command
    }

    /// Sets a command up to find such a card.
    pub fn with_card(command: &mut Command, card: &str) {
        command.env("PLIMSOLL_CUDA", plimsoll_fake_cuda::library()).env(plimsoll_fake_cuda::MACHINE, card);
    }

    /// Like [`run`](Self::run), on such a machine.
    pub fn run_on_card(&self, card: &str, arguments: &str) -> Said {
        let mut command = self.command_on_card(card, arguments.split_whitespace());
        Said::of(command.output().expect("the binary runs"))
    }

    /// Arguments of `train` for a short run, with these flags in place of the defaults.
    pub fn train_arguments(given: &str) -> Vec<String> {
        let given = given.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let has = |flag: &str| given.iter().any(|g| g.split('=').next() == Some(flag));
        let is_said_otherwise = |flag: &str| match flag {
            "--max-steps" => has("--epochs") || has("--duration"),
            "--global-batch" => has("--gradient-accumulation-steps"),
            "--vram" => has("--vram-auto"),
            _ => false,
        };
        let usual = SHORT_RUN.iter().filter(|(flag, _)| !has(flag) && !is_said_otherwise(flag));
        let usual = usual.flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]).collect::<Vec<_>>();
        [vec!["train".to_owned()], usual, given].concat()
    }

    /// Runs `train` for a short run, with these flags in place of the defaults.
    pub fn train(&self, given: &str) -> Said {
        Said::of(self.command(Self::train_arguments(given)).output().expect("the binary runs"))
    }

    /// Runs `train`, which must succeed.
    pub fn must_train(&self, given: &str) -> Said {
        let said = self.train(given);
        assert_eq!(said.code, Some(0), "train {given}: {}", said.stderr);
        said
    }

    /// Runs a command, which must succeed. Returns its stdout.
    #[track_caller]
    pub fn must(&self, arguments: &str) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments}: {}", said.stderr);
        String::from_utf8(said.stdout).expect("text")
    }

    /// Runs a command, which must end with this code and these words in stderr.
    #[track_caller]
    pub fn refused(&self, arguments: &str, code: i32, words: &[&str]) {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        for word in words {
            assert!(said.stderr.contains(word), "{arguments}: `{word}` is not in {}", said.stderr);
        }
    }

    /// Weights and moments of a checkpoint.
    pub fn tensors(&self, run: &str, step: u64) -> [Vec<u8>; 2] {
        let folder = format!("{run}/checkpoints/step-{step:06}");
        ["model.safetensors", "optimizer.safetensors"].map(|file| self.read(&format!("{folder}/{file}")))
    }

    /// Panics unless two finished runs have the same weights, moments and losses, bit for bit.
    pub fn assert_same_run(&self, run: &str, other: &str, last_step: u64) {
        assert!(self.tensors(run, last_step) == self.tensors(other, last_step), "{run} and {other} differ in weights");
        let [report, expected] = [run, other].map(|run| self.json(&format!("{run}/report.json")));
        for key in ["losses", "eval", "tokens_seen", "status"] {
            assert_eq!(report[key], expected[key], "{key} of {run} and {other}");
        }
        assert_eq!(report["losses"].as_array().map(Vec::len), Some(last_step as usize));
    }
}

impl Said {
    /// Panics if a rule for all commands is violated.
    pub fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("stderr is UTF-8");
        assert!(!stderr.contains("panicked at"), "{stderr}");
        assert!(!stderr.contains('\u{1b}'), "an escape code outside a terminal: {stderr}");
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }

    pub fn stdout_text(&self) -> &str {
        str::from_utf8(&self.stdout).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {:?} {}", self.stdout_text(), self.stderr))
    }
}

/// A tiny GPT-2's config.json with changed keys; null removes a key.
pub fn tiny_config(changes: &Value) -> String {
    let mut config = json!({
        "model_type": "gpt2",
        "vocab_size": 256,
        "n_positions": 32,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
    });
    let keys = config.as_object_mut().expect("an object literal");
    for (key, value) in changes.as_object().expect("changes are an object") {
        if value.is_null() {
            keys.remove(key)
        } else {
            keys.insert(key.clone(), value.clone())
        };
    }
    config.to_string()
}

/// Reproducible pseudorandom numbers. Source: SplitMix64, Steele et al. 2014.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
