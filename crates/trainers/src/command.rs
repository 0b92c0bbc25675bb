//! Command lines that start a trainer: which trainer, which settings file, and where the trainer's own arguments start.
//! Not here: parsing the arguments (`flags.rs`), and arguments of other programs, which stay unchanged.

use crate::detect::{is_certain, telltales};
use crate::document::Document;
use crate::flags::{self, Style};
use crate::kind::TrainerKind;

/// A command line that starts a trainer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The trainer.
    pub kind: TrainerKind,
    /// The trainer's settings file, if any.
    pub config: Option<FileArgument>,
    /// Files of layers, such as DeepSpeed's.
    pub layers: Vec<(TrainerKind, FileArgument)>,
    /// The index of the trainer's first own argument.
    pub own: usize,
    /// Processes that a launcher starts per machine, one per card; `None` if the launcher has no such argument.
    pub cards: Option<u64>,
    /// Whether the trainer was recognized by the settings of a script, not by a program's name.
    by_keys: bool,
    pub(crate) style: Style,
    /// Whether it is the program of TRL, whose defaults differ from those of `TrainingArguments`.
    pub(crate) of_trl: bool,
}

/// An argument that names a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileArgument {
    /// Its index.
    pub at: usize,
    /// The text before the path in the same argument, such as `--deepspeed=`.
    pub before: String,
    /// The path as written.
    pub path: String,
}

impl FileArgument {
    /// The argument with another path.
    pub fn naming(&self, path: &str) -> String {
        format!("{}{path}", self.before)
    }
}

impl Command {
    /// Whether the trainer is recognized with certainty: by its program, or by keys that no other program has. Only
    /// then may new settings be added to the command. `file`: the text of `config`.
    pub fn is_certain(&self, argv: &[String], file: Option<&str>) -> bool {
        let below = file.and_then(|text| Document::parse(text).ok()).unwrap_or_default();
        let given = flags::overlay(&below, &flags::read(argv, self.own, self.style));
        // Hugging Face's examples without the Trainer use its names for their own flags.
        let is_without = argv[..self.own.min(argv.len())].iter().any(|word| word.contains("no_trainer"));
        !self.by_keys || !is_without && is_certain(&given, self.kind)
    }
}

/// Recognizes a known trainer in a command line. `argv`: the program first.
pub fn command(argv: &[String]) -> Option<Command> {
    let base = |word: &str| word.rsplit(['/', '\\']).next().unwrap_or_default().trim_end_matches(".exe").to_owned();
    let program = |name: &str| argv.iter().position(|word| base(word) == name);
    let followed_by = |at: usize, word: &str| argv.get(at + 1).is_some_and(|next| next == word);
    if let Some(at) = program("axolotl").filter(|at| followed_by(*at, "train")) {
        return Some(with_first_file(TrainerKind::Axolotl, Style::Click, argv, at + 2));
    }
    if let Some(at) = argv.iter().position(|word| word == "axolotl.cli.train") {
        return Some(with_first_file(TrainerKind::Axolotl, Style::Argparse, argv, at + 1));
    }
    let factory = program("llamafactory-cli").or_else(|| program("lmf"));
    if let Some(at) = factory.filter(|at| followed_by(*at, "train")) {
        return Some(of_factory(argv, at + 2));
    }
    if let Some(at) = program("tune").filter(|at| followed_by(*at, "run")) {
        return Some(of_torchtune(argv, at + 2));
    }
    if let Some(at) = program("trl") {
        return Some(Command { of_trl: true, by_keys: false, ..of_script(TrainerKind::HuggingFace, argv, at + 2) });
    }
    let own = 1 + argv.iter().position(|word| word.ends_with(".py")).or_else(|| module(argv))?;
    let given = flags::read(argv, own, Style::Argparse);
    let has = |key: &str| given.0.iter().any(|entry| entry.key == key);
    if has("finetuning_type") || has("stage") && has("template") {
        return Some(of_script(TrainerKind::LlamaFactory, argv, own));
    }
    let of_file = argv.get(own).filter(|_| argv.len() == own + 1).is_some_and(|word| is_file_of_settings(word));
    let is_known =
        of_file || telltales(&given, TrainerKind::HuggingFace) > 0 || is_certain(&given, TrainerKind::HuggingFace);
    is_known.then(|| of_script(TrainerKind::HuggingFace, argv, own))
}

/// The index of the module that `-m` names.
fn module(argv: &[String]) -> Option<usize> {
    argv.iter().position(|word| word == "-m" || word == "--module").map(|at| at + 1).filter(|at| *at < argv.len())
}

fn is_file_of_settings(word: &str) -> bool {
    !word.starts_with('-') && [".yaml", ".yml", ".json"].iter().any(|extension| word.ends_with(extension))
}

/// A trainer that takes its settings file as the first argument.
fn with_first_file(kind: TrainerKind, style: Style, argv: &[String], own: usize) -> Command {
    let plain = (own..argv.len()).find(|at| !argv[*at].starts_with('-'));
    let config = plain.map(|at| FileArgument { at, before: String::new(), path: argv[at].clone() });
    finish(Command { kind, config, layers: vec![], own, cards: None, by_keys: false, style, of_trl: false }, argv)
}

/// LLaMA-Factory takes a file followed by `key=value` arguments, or flags.
fn of_factory(argv: &[String], own: usize) -> Command {
    match argv.get(own).is_some_and(|word| is_file_of_settings(word)) {
        true => with_first_file(TrainerKind::LlamaFactory, Style::Assign, argv, own),
        false => Command { by_keys: false, ..of_script(TrainerKind::LlamaFactory, argv, own) },
    }
}

fn of_torchtune(argv: &[String], own: usize) -> Command {
    let config = file_flag(argv, own, "config");
    let from = config.as_ref().map_or(own, |config| config.at + 1);
    finish(
        Command {
            kind: TrainerKind::Torchtune,
            config,
            layers: vec![],
            own: from,
            cards: None,
            by_keys: false,
            style: Style::Assign,
            of_trl: false,
        },
        argv,
    )
}

/// A script that parses flags, or a file instead of them.
fn of_script(kind: TrainerKind, argv: &[String], own: usize) -> Command {
    let alone = argv.get(own).filter(|word| is_file_of_settings(word));
    let alone = alone.map(|path| FileArgument { at: own, before: String::new(), path: path.clone() });
    let config = alone.or_else(|| file_flag(argv, own, "config"));
    let command = Command {
        kind,
        config,
        layers: vec![],
        own,
        cards: None,
        by_keys: true,
        style: Style::Argparse,
        of_trl: false,
    };
    finish(command, argv)
}

/// Adds the layers and the process count from the launcher's and the trainer's arguments.
fn finish(mut command: Command, argv: &[String]) -> Command {
    let own = command.own;
    let deepspeed = file_flag(argv, own, "deepspeed").filter(|file| !file.path.starts_with('{'));
    command.layers.extend(deepspeed.map(|file| (TrainerKind::DeepSpeed, file)));
    let accelerate = file_flag(&argv[..own.min(argv.len())], 1, "config_file");
    command.layers.extend(accelerate.map(|file| (TrainerKind::Accelerate, file)));
    let launcher = ["num_processes", "nproc_per_node", "num_gpus"];
    let counts = launcher.iter().filter_map(|key| file_flag(&argv[..own.min(argv.len())], 1, key));
    command.cards = counts.filter_map(|count| count.path.parse().ok()).next();
    command
}

/// The value of a flag. The last duplicate wins.
fn file_flag(argv: &[String], from: usize, key: &str) -> Option<FileArgument> {
    let is_key = |word: &str| word.strip_prefix("--").is_some_and(|name| name.replace('-', "_") == key);
    (from..argv.len()).rev().find_map(|at| match argv[at].split_once('=') {
        Some((name, path)) if is_key(name) => {
            Some(FileArgument { at, before: format!("{name}="), path: path.to_owned() })
        }
        None if is_key(&argv[at]) => {
            let path = argv.get(at + 1)?.clone();
            Some(FileArgument { at: at + 1, before: String::new(), path })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Command> {
        command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn trainers_are_recognized_by_their_commands() {
        for (line, kind, config, cards) in [
            ("axolotl train a.yml --micro-batch-size 2", TrainerKind::Axolotl, Some("a.yml"), None),
            ("accelerate launch -m axolotl.cli.train a.yml", TrainerKind::Axolotl, Some("a.yml"), None),
            ("/opt/bin/llamafactory-cli train a.yaml bf16=true", TrainerKind::LlamaFactory, Some("a.yaml"), None),
            ("llamafactory-cli train --stage sft --template llama3", TrainerKind::LlamaFactory, None, None),
            (
                "python src/train.py --stage sft --finetuning_type lora --template x",
                TrainerKind::LlamaFactory,
                None,
                None,
            ),
            ("tune run full_finetune_single_device --config a.yaml x=1", TrainerKind::Torchtune, Some("a.yaml"), None),
            (
                "tune run --nproc_per_node 2 lora_distributed --config=a.yaml",
                TrainerKind::Torchtune,
                Some("a.yaml"),
                Some(2),
            ),
            ("python run_clm.py --output_dir out", TrainerKind::HuggingFace, None, None),
            ("python3 -m my.train --per-device-train-batch-size=8", TrainerKind::HuggingFace, None, None),
            ("torchrun --nproc_per_node=4 train.py --bf16 --optim sgd", TrainerKind::HuggingFace, None, Some(4)),
            ("accelerate launch --num_processes 8 t.py --output_dir x", TrainerKind::HuggingFace, None, Some(8)),
            ("python run_clm.py arguments.json", TrainerKind::HuggingFace, Some("arguments.json"), None),
            ("trl sft --config a.yaml --max_length 512", TrainerKind::HuggingFace, Some("a.yaml"), None),
        ] {
            let found = of(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(found.kind, kind, "{line}");
            assert_eq!(found.config.map(|config| config.path).as_deref(), config, "{line}");
            assert_eq!(found.cards, cards, "{line}");
        }
        for line in ["python train.py --epochs 3", "ls -l", "tune ls", "axolotl preprocess a.yml", "python", "-m"] {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(command(&[]), None);
    }

    #[test]
    fn a_script_is_certain_only_by_keys_that_no_other_has() {
        let file = "per_device_train_batch_size: 4\noutput_dir: out\n";
        for (line, text, certain) in [
            ("python train.py --per_device_train_batch_size 8", None, true),
            ("python run_clm.py --overwrite_output_dir --save_strategy epoch", None, true),
            ("python src/train.py --stage sft --finetuning_type lora", None, true),
            ("trl sft --max_length 512", None, true),
            ("axolotl train a.yml", None, true),
            ("python train.py config.yaml", Some(file), true),
            ("python train.py config.yaml", Some("batch_size: 4\noutput_dir: out\n"), false),
            ("python train.py config.yaml", None, false),
            ("python3 train.py --batch_size 3 --gradient_accumulation_steps 4", None, false),
            ("torchrun train.py --output_dir out --bf16 --optim sgd", None, false),
            ("python train.py --stage sft --template x", None, false),
            ("accelerate launch run_clm_no_trainer.py --per_device_train_batch_size 8", None, false),
        ] {
            let argv = line.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let found = command(&argv).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(found.is_certain(&argv, text), certain, "{line}");
        }
    }

    #[test]
    fn files_of_layers_are_found_with_their_flags() {
        let line = "accelerate launch --config_file=acc.yaml t.py --output_dir x --deepspeed ds.json";
        let found = of(line).expect("a command");
        let files = found.layers.iter().map(|(kind, file)| (*kind, file.naming("copy"))).collect::<Vec<_>>();
        assert_eq!(
            files,
            [(TrainerKind::DeepSpeed, "copy".to_owned()), (TrainerKind::Accelerate, "--config_file=copy".to_owned())]
        );
    }
}
