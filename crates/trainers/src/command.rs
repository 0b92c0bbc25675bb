//! Command lines that start a trainer: whose, which file they name, and where the trainer's own arguments begin.
//! Not here: what the arguments say (`flags.rs`), and other programs' arguments, which stay as they are.

use crate::document::Document;
use crate::flags::{self, Style};
use crate::kind::{Kind, is_certain, telltales};

/// A command line that starts a trainer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Whose settings its arguments are.
    pub kind: Kind,
    /// The trainer's own file, if it is given one.
    pub config: Option<FileArgument>,
    /// Files that lie beside it, such as DeepSpeed's.
    pub layers: Vec<(Kind, FileArgument)>,
    /// The place of the first argument that is the trainer's own.
    pub own: usize,
    /// Processes that a launcher starts on a machine, one a card, where it says how many.
    pub cards: Option<u64>,
    /// Whether the trainer is taken for this one by the keys of a script's settings, and not by a program's name.
    by_keys: bool,
    pub(crate) style: Style,
    /// Whether it is TRL's own program, whose defaults are not those of `TrainingArguments`.
    pub(crate) of_trl: bool,
}

/// An argument that names a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileArgument {
    /// Its place among the arguments.
    pub at: usize,
    /// What stands before the path in the same argument, such as `--deepspeed=`.
    pub before: String,
    /// The path as it was written.
    pub path: String,
}

impl FileArgument {
    /// The argument that names another file.
    pub fn naming(&self, path: &str) -> String {
        format!("{}{path}", self.before)
    }
}

impl Command {
    /// Whether the trainer is recognized with certainty: by its program, or by keys that no other program has. Only then may
    /// settings be written that the command does not have yet. `file`: the text of `config`.
    pub fn is_certain(&self, argv: &[String], file: Option<&str>) -> bool {
        let below = file.and_then(|text| Document::parse(text).ok()).unwrap_or_default();
        let given = flags::overlay(&below, &flags::read(argv, self.own, self.style));
        // Hugging Face's examples without the trainer have its names for flags of their own.
        let is_without = argv[..self.own.min(argv.len())].iter().any(|word| word.contains("no_trainer"));
        !self.by_keys || !is_without && is_certain(&given, self.kind)
    }
}

/// What starts a trainer in a command line, if it is one that is known. `argv`: the program first.
pub fn command(argv: &[String]) -> Option<Command> {
    let base = |word: &str| word.rsplit(['/', '\\']).next().unwrap_or_default().trim_end_matches(".exe").to_owned();
    let program = |name: &str| argv.iter().position(|word| base(word) == name);
    let behind = |at: usize, word: &str| argv.get(at + 1).is_some_and(|next| next == word);
    if let Some(at) = program("axolotl").filter(|at| behind(*at, "train")) {
        return Some(with_first_file(Kind::Axolotl, Style::Click, argv, at + 2));
    }
    if let Some(at) = argv.iter().position(|word| word == "axolotl.cli.train") {
        return Some(with_first_file(Kind::Axolotl, Style::Argparse, argv, at + 1));
    }
    let factory = program("llamafactory-cli").or_else(|| program("lmf"));
    if let Some(at) = factory.filter(|at| behind(*at, "train")) {
        return Some(of_factory(argv, at + 2));
    }
    if let Some(at) = program("tune").filter(|at| behind(*at, "run")) {
        return Some(of_torchtune(argv, at + 2));
    }
    if let Some(at) = program("trl") {
        return Some(Command { of_trl: true, by_keys: false, ..of_script(Kind::HuggingFace, argv, at + 2) });
    }
    let own = 1 + argv.iter().position(|word| word.ends_with(".py")).or_else(|| module(argv))?;
    let given = flags::read(argv, own, Style::Argparse);
    let has = |key: &str| given.0.iter().any(|entry| entry.key == key);
    if has("finetuning_type") || has("stage") && has("template") {
        return Some(of_script(Kind::LlamaFactory, argv, own));
    }
    let of_file = argv.get(own).filter(|_| argv.len() == own + 1).is_some_and(|word| is_file_of_settings(word));
    let is_known = of_file || telltales(&given, Kind::HuggingFace) > 0 || is_certain(&given, Kind::HuggingFace);
    is_known.then(|| of_script(Kind::HuggingFace, argv, own))
}

/// The place of the module that `-m` names.
fn module(argv: &[String]) -> Option<usize> {
    argv.iter().position(|word| word == "-m" || word == "--module").map(|at| at + 1).filter(|at| *at < argv.len())
}

fn is_file_of_settings(word: &str) -> bool {
    !word.starts_with('-') && [".yaml", ".yml", ".json"].iter().any(|extension| word.ends_with(extension))
}

/// A trainer whose file comes first.
fn with_first_file(kind: Kind, style: Style, argv: &[String], own: usize) -> Command {
    let plain = (own..argv.len()).find(|at| !argv[*at].starts_with('-'));
    let config = plain.map(|at| FileArgument { at, before: String::new(), path: argv[at].clone() });
    finish(Command { kind, config, layers: vec![], own, cards: None, by_keys: false, style, of_trl: false }, argv)
}

/// LLaMA-Factory takes a file with `key=value` behind it, or flags.
fn of_factory(argv: &[String], own: usize) -> Command {
    match argv.get(own).is_some_and(|word| is_file_of_settings(word)) {
        true => with_first_file(Kind::LlamaFactory, Style::Assign, argv, own),
        false => Command { by_keys: false, ..of_script(Kind::LlamaFactory, argv, own) },
    }
}

fn of_torchtune(argv: &[String], own: usize) -> Command {
    let config = file_flag(argv, own, "config");
    let from = config.as_ref().map_or(own, |config| config.at + 1);
    finish(
        Command {
            kind: Kind::Torchtune,
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

/// A script that parses flags, or a file in their place.
fn of_script(kind: Kind, argv: &[String], own: usize) -> Command {
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

/// The command with what launchers and the trainer itself name beside it.
fn finish(mut command: Command, argv: &[String]) -> Command {
    let own = command.own;
    let deepspeed = file_flag(argv, own, "deepspeed").filter(|file| !file.path.starts_with('{'));
    command.layers.extend(deepspeed.map(|file| (Kind::DeepSpeed, file)));
    let accelerate = file_flag(&argv[..own.min(argv.len())], 1, "config_file");
    command.layers.extend(accelerate.map(|file| (Kind::Accelerate, file)));
    let launcher = ["num_processes", "nproc_per_node", "num_gpus"];
    let counts = launcher.iter().filter_map(|key| file_flag(&argv[..own.min(argv.len())], 1, key));
    command.cards = counts.filter_map(|count| count.path.parse().ok()).next();
    command
}

/// The value of a flag, of which the last counts.
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
    fn commands_are_told_apart_by_what_starts_them() {
        for (line, kind, config, cards) in [
            ("axolotl train a.yml --micro-batch-size 2", Kind::Axolotl, Some("a.yml"), None),
            ("accelerate launch -m axolotl.cli.train a.yml", Kind::Axolotl, Some("a.yml"), None),
            ("/opt/bin/llamafactory-cli train a.yaml bf16=true", Kind::LlamaFactory, Some("a.yaml"), None),
            ("llamafactory-cli train --stage sft --template llama3", Kind::LlamaFactory, None, None),
            ("python src/train.py --stage sft --finetuning_type lora --template x", Kind::LlamaFactory, None, None),
            ("tune run full_finetune_single_device --config a.yaml x=1", Kind::Torchtune, Some("a.yaml"), None),
            ("tune run --nproc_per_node 2 lora_distributed --config=a.yaml", Kind::Torchtune, Some("a.yaml"), Some(2)),
            ("python run_clm.py --output_dir out", Kind::HuggingFace, None, None),
            ("python3 -m my.train --per-device-train-batch-size=8", Kind::HuggingFace, None, None),
            ("torchrun --nproc_per_node=4 train.py --bf16 --optim sgd", Kind::HuggingFace, None, Some(4)),
            ("accelerate launch --num_processes 8 t.py --output_dir x", Kind::HuggingFace, None, Some(8)),
            ("python run_clm.py arguments.json", Kind::HuggingFace, Some("arguments.json"), None),
            ("trl sft --config a.yaml --max_length 512", Kind::HuggingFace, Some("a.yaml"), None),
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
    fn a_script_is_a_trainers_only_by_keys_that_no_other_has() {
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
    fn files_beside_the_trainers_are_found_with_what_stands_before_them() {
        let line = "accelerate launch --config_file=acc.yaml t.py --output_dir x --deepspeed ds.json";
        let found = of(line).expect("a command");
        let files = found.layers.iter().map(|(kind, file)| (*kind, file.naming("copy"))).collect::<Vec<_>>();
        assert_eq!(files, [(Kind::DeepSpeed, "copy".to_owned()), (Kind::Accelerate, "--config_file=copy".to_owned())]);
    }
}
