//! Words that people know from other trainers and from guides, as flags and as keys of files of settings, and what they
//! mean here. One table, so that a word means the same wherever it is written.

use super::Failure;
use crate::streams::talk;
use clap::{Arg, Command};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::optimizers::Rule;
use std::collections::BTreeSet;
use std::ffi::OsString;

/// A setting and its value, the setting with underscores.
pub(super) type Setting = (&'static str, &'static str);

/// What a word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The setting of this name, with the word's value.
    Name(&'static str),
    /// Other settings by the word's value, none where that is what is done anyway. No other value is known; a flag without a
    /// value is `true`.
    Choice(&'static [(&'static str, &'static [Setting])]),
    /// The model, of which GPT-2's may be named by their sizes alone.
    Size,
    /// The optimizer and how its state is kept, by Hugging Face's name for both.
    Optimizer,
    /// Nothing: why. Its value does not matter.
    Nothing(&'static str),
    /// What is not built, unless its value says that it isn't wanted: what does the same here.
    Missing(&'static str),
}

use Meaning::{Choice, Missing, Name, Nothing, Optimizer, Size};

const READ_AHEAD: &str = "batches are prepared and sent ahead of the step that needs them";
const NOTHING_COMPILED: &str = "kernels are compiled already";
const OWN_ATTENTION: &str = "attention is always computed in tiles, without its quadratic buffer";
const OWN_REPORTS: &str = "progress, events and a report are always written to the run's folder";
const ONE_DEVICE: &str = "a run has one device";
const SMALL_MEMORY: &str = "`--precision bf16-pure --optimizer-state 8bit` trains all weights in the least memory; `plimsoll plan` shows how much";
const OWN_OFFLOAD: &str =
    "`--optimizer-offload` keeps a part of the optimizer on the host; without it the plan does where it must";

/// Words of guides, Hugging Face's TrainingArguments, axolotl, LLaMA-Factory, torchtune and nanoGPT, in alphabetical order.
const WORDS: &[(&str, Meaning)] = &[
    ("adam_beta1", Name("beta1")),
    ("adam_beta2", Name("beta2")),
    ("adam_epsilon", Name("adam_eps")),
    ("adapter", Missing(SMALL_MEMORY)),
    ("assistant_only_loss", Choice(TRAIN_ON_ANSWERS)),
    ("attn_implementation", Nothing(OWN_ATTENTION)),
    ("base_model", Name("model")),
    ("batch_size", Name("micro_batch")),
    ("bf16", Choice(&[("true", &[("precision", "bf16")]), ("false", &[]), ("auto", &[])])),
    ("block_size", Name("seq_len")),
    ("compile", Nothing(NOTHING_COMPILED)),
    ("cpu_offload_fraction", Name("optimizer_offload")),
    ("cutoff_len", Name("seq_len")),
    ("data_dir", Name("data")),
    ("dataloader_num_workers", Nothing(READ_AHEAD)),
    ("dataloader_pin_memory", Nothing(READ_AHEAD)),
    ("dataset", Name("data")),
    ("ddp_find_unused_parameters", Nothing(ONE_DEVICE)),
    ("deepspeed", Missing(OWN_OFFLOAD)),
    ("disable_compilation", Nothing(NOTHING_COMPILED)),
    ("ema_decay", Name("ema")),
    ("eval_interval", Name("eval_every")),
    ("eval_steps", Name("eval_every")),
    ("flash_attention", Nothing(OWN_ATTENTION)),
    ("fp16", Choice(&[("true", &[("precision", "fp16")]), ("false", &[]), ("auto", &[])])),
    ("fp32", Choice(&[("true", &[("precision", "fp32")]), ("false", &[])])),
    ("fsdp", Missing(OWN_OFFLOAD)),
    ("global_batch_size", Name("global_batch")),
    ("gradient_checkpointing", Choice(&[("true", &[("recompute", "blocks")]), ("false", &[])])),
    ("label_smoothing_factor", Name("label_smoothing")),
    ("load_in_4bit", Missing(SMALL_MEMORY)),
    ("load_in_8bit", Missing(SMALL_MEMORY)),
    ("local_rank", Nothing(ONE_DEVICE)),
    ("log_interval", Name("log_every")),
    ("logging_steps", Name("log_every")),
    ("lora_rank", Missing(SMALL_MEMORY)),
    ("lr", Name("learning_rate")),
    ("lr_scheduler_type", Choice(SCHEDULES)),
    ("max_grad_norm", Name("grad_clip")),
    ("max_iters", Name("max_steps")),
    ("max_length", Name("seq_len")),
    ("max_seq_length", Name("seq_len")),
    ("max_source_length", Name("source_len")),
    ("max_target_length", Name("target_len")),
    ("micro_batch_size", Name("micro_batch")),
    ("mixed_precision", Choice(&[("no", &[]), ("bf16", &[("precision", "bf16")]), ("fp16", &[("precision", "fp16")])])),
    ("model_name_or_path", Name("model")),
    ("model_output", Name("runs_dir")),
    ("model_size", Size),
    ("no_rdrop", Choice(&[("true", &[("r_drop", "0")]), ("false", &[])])),
    ("num_epochs", Name("epochs")),
    ("num_train_epochs", Name("epochs")),
    ("num_workers", Nothing(READ_AHEAD)),
    ("optim", Optimizer),
    ("output_dir", Name("runs_dir")),
    ("per_device_train_batch_size", Name("micro_batch")),
    ("pin_memory", Nothing(READ_AHEAD)),
    ("pretrained_model", Name("init")),
    ("report_to", Nothing(OWN_REPORTS)),
    ("resume_from_checkpoint", Name("resume")),
    ("run_name", Name("name")),
    ("sample_packing", Name("packing")),
    ("save_steps", Name("checkpoint_every")),
    ("save_total_limit", Name("keep_checkpoints")),
    ("sequence_len", Name("seq_len")),
    ("source_prefix", Name("prefix")),
    ("summary_column", Name("target_column")),
    ("text_column", Name("source_column")),
    ("torch_compile", Nothing(NOTHING_COMPILED)),
    ("train_batch_size", Name("global_batch")),
    ("train_file", Name("data")),
    ("train_on_inputs", Choice(TRAIN_ON_ALL)),
    ("train_on_prompt", Choice(TRAIN_ON_ALL)),
    ("use_cpu_offload", Choice(&[("true", &[]), ("false", &[("optimizer_offload", "0")])])),
    ("vram_safety_margin", Name("vram_margin")),
    ("warmup_iters", Name("warmup_steps")),
];

/// Of chats, whether the assistant's turns alone are trained on.
const TRAIN_ON_ANSWERS: &[(&str, &[Setting])] =
    &[("true", &[("train_on", "answers")]), ("false", &[("train_on", "all")])];
/// Whether all of a chat is, or else what is without the word.
const TRAIN_ON_ALL: &[(&str, &[Setting])] = &[("true", &[("train_on", "all")]), ("false", &[])];

/// Hugging Face's schedules, which end at zero.
const SCHEDULES: &[(&str, &[Setting])] = &[
    ("cosine", &[("scheduler", "cosine"), ("final_lr_part", "0")]),
    ("linear", &[("scheduler", "linear"), ("final_lr_part", "0")]),
    ("constant", &[("scheduler", "constant"), ("warmup_steps", "0")]),
    ("constant_with_warmup", &[("scheduler", "constant")]),
    ("warmup_stable_decay", &[("scheduler", "wsd"), ("final_lr_part", "0")]),
];

/// Words for the micro-batch of trainers that make a step of each, unless they are told to accumulate several.
const MICRO_BATCHES: &[&str] = &["batch_size", "micro_batch_size", "per_device_train_batch_size"];

/// The settings that say how many samples a step has.
const STEP_SIZES: &[&str] = &["global_batch", "gradient_accumulation_steps"];

/// What says that a step is one micro-batch.
pub(super) const ONE_MICRO_BATCH: Setting = ("gradient_accumulation_steps", "1");

/// Values that say that something is not wanted.
const UNWANTED: &[&str] = &["false", "no", "none", "off", "null", "0", ""];

/// All words, with underscores.
pub(super) fn words() -> impl Iterator<Item = &'static str> {
    WORDS.iter().map(|(word, _)| *word)
}

/// What a word means, if it is known; written with underscores.
pub(super) fn meaning(word: &str) -> Option<Meaning> {
    WORDS.iter().find(|(known, _)| *known == word).map(|(_, meaning)| *meaning)
}

/// Whether these words ask for steps of one micro-batch. `settings`: all that is set, with underscores.
pub(super) fn is_one_micro_batch<'a>(
    mut words: impl Iterator<Item = &'a str>,
    mut settings: impl Iterator<Item = &'a str>,
) -> bool {
    words.any(|word| MICRO_BATCHES.contains(&word)) && !settings.any(|setting| STEP_SIZES.contains(&setting))
}

impl Meaning {
    /// The settings that the word means with this value; says it in a line where that is none. `shown`: the word as it was
    /// written. Errors: a value that is not known, something that is not built.
    pub(super) fn settings(self, shown: &str, value: &str) -> Result<Vec<(&'static str, String)>, Failure> {
        let unknown = |known: &mut dyn Iterator<Item = &str>| {
            let known = known.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Failure::bad_flag(format!("`{shown}: {value}` is not supported; supported: {known}"))
        };
        let owned = |settings: &[Setting]| settings.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        match self {
            Name(name) => Ok(vec![(name, value.to_owned())]),
            Size => {
                let size = ["medium", "large", "xl"].contains(&value).then(|| format!("gpt2-{value}"));
                let model = if value == "small" { "gpt2".to_owned() } else { size.unwrap_or(value.to_owned()) };
                Ok(vec![("model", model)])
            }
            Choice(choices) => match choices.iter().find(|(choice, _)| choice.eq_ignore_ascii_case(value)) {
                Some((_, settings)) => Ok(owned(settings)),
                None => Err(unknown(&mut choices.iter().map(|(choice, _)| *choice))),
            },
            Optimizer => {
                let Some((rule, state)) = Rule::known_elsewhere_as(value) else {
                    let all = Rule::all().into_iter().flat_map(|rule| rule.known_as()).map(|(name, _)| *name);
                    return Err(unknown(&mut all.collect::<Vec<_>>().into_iter()));
                };
                let state = match state {
                    StateFormat::F32 => None,
                    StateFormat::Bf16 => Some(("optimizer_state", "bf16")),
                    StateFormat::Blockwise8 => Some(("optimizer_state", "8bit")),
                };
                Ok(owned(&[("optimizer", rule.name())].into_iter().chain(state).collect::<Vec<_>>()))
            }
            Nothing(because) => {
                talk(format_args!("`{shown}` changes nothing: {because}"));
                Ok(vec![])
            }
            Missing(_) if UNWANTED.contains(&value.to_ascii_lowercase().as_str()) => Ok(vec![]),
            Missing(instead) => Err(Failure::bad_flag(format!("`{shown}: {value}` is not supported")).hint(instead)),
        }
    }

    /// Whether a flag of this meaning takes `next`, which stands behind it without `=`.
    fn takes(self, next: &str) -> bool {
        let is_flag = next.starts_with('-') && next.parse::<f64>().is_err();
        match self {
            // Behind our own flag stands what stood behind theirs.
            Name(_) => false,
            Size | Optimizer => true,
            // A switch may stand alone; what stands behind it may be something else.
            Choice(choices) if choices.iter().any(|(choice, _)| *choice == "true") => {
                choices.iter().any(|(choice, _)| choice.eq_ignore_ascii_case(next))
            }
            Choice(_) => !is_flag,
            Nothing(_) | Missing(_) => !is_flag,
        }
    }
}

/// The arguments of a command in its own words. What only `train` knows is left out of those of `plan` and `bench`, in a
/// line, so that the flags of a run can be given to them as they are. `commands`: the definition of all flags.
/// Errors: those of [`Meaning::settings`].
pub(super) fn translate(arguments: Vec<OsString>, mut commands: Command) -> Result<Vec<OsString>, Failure> {
    commands.build();
    let name = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let Some(command) = commands.find_subcommand(name).filter(|_| ["train", "plan", "bench"].contains(&name)) else {
        return Ok(arguments);
    };
    let train = commands.find_subcommand("train").expect("the command exists");
    let mut written = Written { left_out: BTreeSet::new(), words: Vec::new(), settings: Vec::new(), all: Vec::new() };
    let mut rest = arguments.iter().skip(2).peekable();
    written.all.extend(arguments.iter().take(2).cloned());
    while let Some(argument) = rest.next() {
        let flag = argument.to_str().and_then(|text| text.strip_prefix("--")).filter(|flag| !flag.is_empty());
        let Some(flag) = flag else {
            written.all.push(argument.clone());
            if argument == "--" {
                written.all.extend(rest.by_ref().cloned());
            }
            continue;
        };
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let word = name.replace('-', "_");
        if let Some(meaning) = meaning(&word) {
            let mut next = || rest.next_if(|next| next.to_str().is_some_and(|next| meaning.takes(next)));
            let value = inline.map(OsString::from).or_else(|| next().cloned());
            written.translate(&word, meaning, value)?;
        } else if option(command, name).is_none() && option(train, name).is_some() {
            let option = option(train, name).expect("just found");
            written.left_out.insert(format!("`--{name}`"));
            let most = if inline.is_some() { 0 } else { values_of(option) };
            for _ in 0..most {
                if rest.next_if(|next| !next.to_string_lossy().starts_with("--")).is_none() {
                    break;
                }
            }
        } else {
            written.settings.push(word);
            written.all.push(argument.clone());
        }
    }
    Ok(written.finish(name))
}

/// Arguments as they become.
struct Written {
    /// Flags of `train` alone.
    left_out: BTreeSet<String>,
    /// Words of others that were written.
    words: Vec<String>,
    /// What is set, with underscores.
    settings: Vec<String>,
    all: Vec<OsString>,
}

impl Written {
    fn translate(&mut self, word: &str, meaning: Meaning, value: Option<OsString>) -> Result<(), Failure> {
        self.words.push(word.to_owned());
        match (meaning, &value) {
            (Name(name), _) => {
                self.settings.push(name.to_owned());
                let flag = format!("--{}", name.replace('_', "-"));
                self.all.push(value.map_or(flag.clone().into(), |value| {
                    let mut all = OsString::from(format!("{flag}="));
                    all.push(value);
                    all
                }));
            }
            _ => {
                let value = value.as_ref().map_or("true".into(), |value| value.to_string_lossy());
                for (name, value) in meaning.settings(&format!("--{}", word.replace('_', "-")), &value)? {
                    self.settings.push(name.to_owned());
                    self.all.push(format!("--{}={value}", name.replace('_', "-")).into());
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, command: &str) -> Vec<OsString> {
        let (words, settings) = (self.words.iter(), self.settings.iter());
        let is_settled_by_files = self.settings.iter().any(|setting| ["config", "resume"].contains(&setting.as_str()));
        if is_one_micro_batch(words.map(String::as_str), settings.map(String::as_str)) && !is_settled_by_files {
            let (name, value) = ONE_MICRO_BATCH;
            self.all.push(format!("--{}={value}", name.replace('_', "-")).into());
        }
        if !self.left_out.is_empty() {
            let flags = self.left_out.into_iter().collect::<Vec<_>>().join(", ");
            talk(format_args!("{flags}: for `plimsoll train`; `plimsoll {command}` does not depend on it"));
        }
        self.all
    }
}

/// A command's flag of this name or alias.
fn option<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let is_it = |option: &&Arg| {
        option.get_long() == Some(name) || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(is_it)
}

/// How many values may stand behind a flag.
fn values_of(option: &Arg) -> usize {
    if option.is_require_equals_set() { 0 } else { option.get_num_args().map_or(0, |range| range.max_values()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn translated(command: &str) -> Result<String, String> {
        let arguments = command.split(' ').map(OsString::from).collect();
        let translated = translate(arguments, crate::cli::Cli::command()).map_err(|failure| failure.message())?;
        Ok(translated.iter().skip(1).map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn words_are_in_order_and_mean_settings_that_exist() {
        assert!(WORDS.is_sorted_by(|(a, _), (b, _)| a < b), "a binary search would miss some, and so do readers");
        let commands = crate::cli::Cli::command();
        let train = commands.find_subcommand("train").expect("the command exists");
        let exists = |name: &str| train.get_arguments().any(|arg| arg.get_long() == Some(&name.replace('_', "-")));
        for (word, meaning) in WORDS {
            match meaning {
                Name(name) => assert!(exists(name), "{word} -> {name}"),
                Choice(choices) => {
                    let names = choices.iter().flat_map(|(_, settings)| settings.iter()).map(|(name, _)| name);
                    names.for_each(|name| assert!(exists(name), "{word} -> {name}"));
                }
                Size | Optimizer | Nothing(_) | Missing(_) => {}
            }
            assert!(!exists(word), "{word} is a flag of its own");
        }
    }

    #[test]
    fn what_guides_write_becomes_our_flags() {
        for (theirs, ours) in [
            ("--model-size small --vram-auto", "--model=gpt2 --vram-auto"),
            ("--model-size=xl", "--model=gpt2-xl"),
            ("--model-size llama-3.2-1b", "--model=llama-3.2-1b"),
            ("--batch-size 3 --gradient-accumulation-steps 4", "--micro-batch 3 --gradient-accumulation-steps 4"),
            ("--batch-size 3", "--micro-batch 3 --gradient-accumulation-steps=1"),
            ("--batch-size 3 --global-batch 12", "--micro-batch 3 --global-batch 12"),
            ("--batch-size 3 --config a.yaml", "--micro-batch 3 --config a.yaml"),
            ("--fp16 --epochs 3", "--precision=fp16 --epochs 3"),
            ("--fp16 true --bf16 false --epochs 3", "--precision=fp16 --epochs 3"),
            ("--use-cpu-offload --cpu-offload-fraction 0.5", "--optimizer-offload 0.5"),
            ("--gradient-checkpointing --no-rdrop", "--recompute=blocks --r-drop=0"),
            ("--dataloader-num-workers 2 --epochs 1", "--epochs 1"),
            ("--disable-compilation --epochs 1", "--epochs 1"),
            ("--local-rank -1 --epochs 1", "--epochs 1"),
            ("--model-output out --optim adamw_bnb_8bit", "--runs-dir out --optimizer=adamw --optimizer-state=8bit"),
            ("--load-in-8bit false --lora-rank 0 --epochs 1", "--epochs 1"),
            ("--lr-scheduler-type linear", "--scheduler=linear --final-lr-part=0"),
            ("--name a -- --batch-size 3", "--name a -- --batch-size 3"),
            ("--batch-size", "--micro-batch --gradient-accumulation-steps=1"),
        ] {
            assert_eq!(translated(&format!("plimsoll train {theirs}")).as_deref(), Ok(&*format!("train {ours}")));
        }
        for (theirs, words) in [
            ("--load-in-4bit", "`--load-in-4bit: true` is not supported"),
            ("--optim sgd", "`lion_8bit`"),
            ("--lr-scheduler-type polynomial", "`--lr-scheduler-type: polynomial` is not supported"),
            ("--gradient-checkpointing=perhaps", "supported: `true`, `false`"),
        ] {
            let failure = translated(&format!("plimsoll train {theirs}")).expect_err("not built");
            assert!(failure.contains(words), "{failure}");
        }
    }

    #[test]
    fn a_plan_takes_the_flags_of_a_run() {
        for (theirs, ours) in [
            ("--data a b c --max-steps 10 --vram 8", "--vram 8"),
            ("--learning-rate=1e-3 --name x --json", "--json"),
            ("--autotune --seq-len 64", "--seq-len 64"),
            ("--nosuch 3", "--nosuch 3"),
        ] {
            assert_eq!(translated(&format!("plimsoll plan {theirs}")).as_deref(), Ok(&*format!("plan {ours}")));
        }
        assert_eq!(translated("plimsoll gpus --batch-size 3").as_deref(), Ok("gpus --batch-size 3"));
    }
}
