//! Translates command lines with words of other trainers, and flags of a run for the commands that share its
//! vocabulary.

use super::{Meant, ONE_MICRO_BATCH, is_one_micro_batch, meant, sentence, setting};
use crate::cli::Failure;
use crate::streams::talk;
use clap::{Arg, Command};
use plimsoll_trainers::words::{Meaning, meaning};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::iter::Peekable;
use std::slice::Iter;

/// The commands that accept every flag of `train`.
const SHARING: &[&str] = &["train", "plan", "bench", "generate"];

/// Flags of a run that these commands read although they do not define them.
const READ: &[&str] = &["config", "resume"];

/// A command line in Plimsoll's words.
#[derive(Debug)]
pub(in crate::cli) struct Arguments {
    /// The arguments that the command itself knows.
    pub(in crate::cli) own: Vec<OsString>,
    /// The arguments as `train` would get them, for commands that share its vocabulary.
    pub(in crate::cli) of_run: Option<Vec<OsString>>,
}

/// The arguments of a command in its own words. Flags that only `train` knows are omitted for other commands, with a
/// message, so that the flags of a run work with them unchanged. `commands`: the definition of all flags.
/// Errors: a value that a word does not accept, a feature that is not built.
pub(in crate::cli) fn translate(arguments: Vec<OsString>, mut commands: Command) -> Result<Arguments, Failure> {
    commands.build();
    let name = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let Some(command) = commands.find_subcommand(name).filter(|_| SHARING.contains(&name)) else {
        return Ok(Arguments { own: arguments, of_run: None });
    };
    let train = commands.find_subcommand("train").expect("the command exists");
    let mut written = Written {
        name,
        command,
        train,
        left_out: BTreeSet::new(),
        words: vec![],
        settings: vec![],
        values: BTreeMap::new(),
        own: vec![],
        of_run: vec![],
    };
    written.own.extend(arguments.iter().take(2).cloned());
    written.of_run.extend([arguments[0].clone(), "train".into()]);
    let mut rest = arguments.get(2..).unwrap_or_default().iter().peekable();
    while let Some(argument) = rest.next() {
        let flag = argument.to_str().and_then(|text| text.strip_prefix("--")).filter(|flag| !flag.is_empty());
        match flag {
            Some(flag) => written.flag(flag, argument, &mut rest)?,
            None => {
                written.own.push(argument.clone());
                if argument == "--" {
                    written.own.extend(rest.by_ref().cloned());
                }
            }
        }
    }
    Ok(written.finish())
}

/// Arguments during the translation.
struct Written<'c> {
    /// The command's name.
    name: &'c str,
    command: &'c Command,
    train: &'c Command,
    /// Flags that only `train` has.
    left_out: BTreeSet<String>,
    /// Words of other trainers in the command line.
    words: Vec<String>,
    /// The settings that are set, with underscores.
    settings: Vec<String>,
    /// Values by their flag, each with the argument that set it, if that is known.
    values: BTreeMap<String, (String, String)>,
    own: Vec<OsString>,
    of_run: Vec<OsString>,
}

impl Written<'_> {
    fn flag(&mut self, flag: &str, argument: &OsStr, rest: &mut Peekable<Iter<OsString>>) -> Result<(), Failure> {
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let word = name.replace('-', "_");
        let is_named = |command: &Command| command.get_arguments().any(|option| option.get_long() == Some(name));
        let is_known = is_named(self.command) || is_named(self.train);
        match meaning(&word).filter(|_| !is_known) {
            Some(meaning) => self.word(&word, meaning, inline, rest),
            None => {
                let value = inline.map(OsStr::new).or_else(|| rest.peek().map(|next| next.as_os_str()));
                let value = value.and_then(OsStr::to_str).filter(|value| !value.starts_with("--"));
                if let Some(value) = value
                    && self.note(name, value, &format!("--{name} {value}"))?
                {
                    // Another trainer's word has set the same value.
                    if inline.is_none() {
                        rest.next();
                    }
                    return Ok(());
                }
                self.known(name, inline.is_some(), argument.to_owned(), rest);
                Ok(())
            }
        }
    }

    /// Records the argument that sets a flag. Returns whether a word of another trainer has set that value already.
    /// Errors: such a word has set another value.
    fn note(&mut self, flag: &str, value: &str, by: &str) -> Result<bool, Failure> {
        let is_ours = by.starts_with(&format!("--{flag} "));
        match self.values.insert(flag.to_owned(), (value.to_owned(), by.to_owned())) {
            // clap checks Plimsoll's flags for duplicates.
            Some((_, earlier)) if is_ours && earlier.starts_with(&format!("--{flag} ")) => Ok(false),
            Some((other, earlier)) if other != value => {
                let message =
                    format!("`{earlier}` and `{by}` exclude each other: `--{flag}` can't be {other} and {value}");
                Err(Failure::bad_flag(message).hint("omit one of them"))
            }
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// A flag of Plimsoll, or an unknown one.
    fn known(&mut self, name: &str, has_value: bool, argument: OsString, rest: &mut Peekable<Iter<OsString>>) {
        let [own, of_run] = [self.command, self.train].map(|command| option(command, name).map(values_of));
        let most = if has_value { 0 } else { own.max(of_run).unwrap_or(0) };
        // If only the run's flag has a value, as `--ema` does for `generate`, a number after the flag is that value.
        let is_number = |next: &OsStr| next.to_str().is_some_and(|next| next.parse::<f64>().is_ok());
        let is_value = |next: &OsStr| match own {
            Some(0) => is_number(next),
            _ => !next.to_string_lossy().starts_with("--"),
        };
        let mut values = Vec::new();
        while values.len() < most
            && let Some(value) = rest.next_if(|next| is_value(next))
        {
            values.push(value.clone());
        }
        self.settings.push(name.replace('-', "_"));
        if of_run.is_some() && (own != Some(0) || of_run == Some(0) || !values.is_empty()) {
            self.of_run.push(argument.clone());
            self.of_run.extend(values.iter().cloned());
        }
        match (own, of_run) {
            (None, Some(_)) if READ.contains(&name) => {}
            (None, Some(_)) => {
                self.left_out.insert(format!("`--{name}`"));
            }
            _ => {
                self.own.push(argument);
                self.own.extend(values.into_iter().filter(|_| own != Some(0)));
            }
        }
    }

    /// A word of another trainer.
    fn word(
        &mut self,
        word: &str,
        meaning: Meaning,
        inline: Option<&str>,
        rest: &mut Peekable<Iter<OsString>>,
    ) -> Result<(), Failure> {
        self.words.push(word.to_owned());
        let is_choice = |value: &str| match meaning {
            Meaning::Or(_, choices) => choices.iter().any(|(choice, _)| choice.eq_ignore_ascii_case(value)),
            _ => false,
        };
        let next = rest.peek().and_then(|next| next.to_str());
        let is_chosen = inline.or(next).is_some_and(is_choice);
        if let Some(setting) = setting(meaning).filter(|_| !is_chosen) {
            // Plimsoll's flag gets the values that followed the other flag.
            let flag = format!("--{}", setting.replace('_', "-"));
            let argument = inline.map_or(flag.clone(), |value| format!("{flag}={value}"));
            self.known(&flag[2..], inline.is_some(), argument.into(), rest);
            return Ok(());
        }
        let next = inline.map(str::to_owned).or_else(|| {
            let taken = rest.next_if(|next| next.to_str().is_some_and(|next| takes(meaning, next)))?;
            Some(taken.to_string_lossy().into_owned())
        });
        let value = next.as_deref().unwrap_or("true");
        let shown = format!("--{}", word.replace('_', "-"));
        match meant(meaning, value, self.name == "train") {
            Ok(Meant::Settings(settings)) => {
                for (name, value) in settings {
                    let flag = name.replace('_', "-");
                    if self.note(&flag, &value, &shown)? {
                        continue;
                    }
                    self.known(&flag, true, format!("--{flag}={value}").into(), rest);
                }
                Ok(())
            }
            Ok(Meant::Nothing(because)) => {
                talk(format_args!("`{shown}` changes nothing: {}", sentence(because)));
                Ok(())
            }
            Ok(Meant::Instead(instead)) => {
                talk(format_args!("`{shown}: {value}` is not supported; instead: {}", sentence(instead)));
                Ok(())
            }
            Err(refusal) => {
                let failure = Failure::bad_flag(format!("`{shown}: {value}` {}", refusal.what));
                Err(refusal.instead.map(sentence).into_iter().fold(failure, Failure::hint))
            }
        }
    }

    fn finish(mut self) -> Arguments {
        let (words, settings) = (self.words.iter(), self.settings.iter());
        let is_settled_by_files = self.settings.iter().any(|setting| ["config", "resume"].contains(&setting.as_str()));
        if is_one_micro_batch(words.map(String::as_str), settings.map(String::as_str)) && !is_settled_by_files {
            let (name, value) = ONE_MICRO_BATCH;
            let flag = name.replace('_', "-");
            self.known(&flag, true, format!("--{flag}={value}").into(), &mut [].iter().peekable());
        }
        if !self.left_out.is_empty() {
            let flags = self.left_out.into_iter().collect::<Vec<_>>().join(", ");
            talk(format_args!("{flags}: only for `plimsoll train`; ignored by `plimsoll {}`", self.name));
        }
        Arguments { own: self.own, of_run: Some(self.of_run) }
    }
}

/// Whether a flag of this meaning takes `next`, the argument after it, as its value.
fn takes(meaning: Meaning, next: &str) -> bool {
    let is_flag = next.starts_with('-') && next.parse::<f64>().is_err();
    match meaning {
        // A switch may have no value; the next argument may be something else.
        Meaning::Choice(choices) if choices.iter().any(|(choice, _)| *choice == "true") => {
            choices.iter().any(|(choice, _)| choice.eq_ignore_ascii_case(next))
        }
        Meaning::Choice(_)
        | Meaning::Only(..)
        | Meaning::Supported(..)
        | Meaning::Instead(..)
        | Meaning::Missing(_)
        | Meaning::Adapter
        | Meaning::Nothing(_) => !is_flag,
        _ => true,
    }
}

/// A command's flag of this name or alias.
fn option<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let is_it = |option: &&Arg| {
        option.get_long() == Some(name) || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(is_it)
}

/// The most values after a flag.
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
        Ok(translated.own.iter().skip(1).map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn words_of_guides_become_flags() {
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
            ("--disable-cudagraphs --epochs 1", "--cuda-graph=off --epochs 1"),
            ("--local-rank -1 --epochs 1", "--epochs 1"),
            ("--model-output out --optim adamw_bnb_8bit", "--runs-dir out --optimizer=adamw --optimizer-state=8bit"),
            ("--load-in-8bit false --lora-r 0 --epochs 1", "--epochs 1"),
            ("--lora-target all --finetuning-type lora", "--lora-targets=all-linear --method=lora"),
            ("--load-in-4bit --use-peft --lora-r 8", "--base-weights=nf4 --method=lora --lora-rank 8"),
            ("--lr-scheduler-type linear", "--scheduler=linear --final-lr-part=0"),
            ("--stage dpo --pref-beta 0.2", "--objective=dpo --beta 0.2"),
            ("--loss-type ipo --beta 0.2", "--objective=dpo --dpo-loss=ipo --beta 0.2"),
            ("--name a -- --batch-size 3", "--name a -- --batch-size 3"),
            ("--batch-size", "--micro-batch --gradient-accumulation-steps=1"),
        ] {
            assert_eq!(translated(&format!("plimsoll train {theirs}")).as_deref(), Ok(&*format!("train {ours}")));
        }
        for (theirs, words) in [
            ("--bnb-4bit-quant-type fp4", "`--bnb-4bit-quant-type: fp4` is not supported"),
            ("--optim sgd", "`lion_8bit`"),
            ("--pref-loss simpo", "`--pref-loss: simpo` is not supported"),
            ("--lr-scheduler-type polynomial", "`--lr-scheduler-type: polynomial` is not supported"),
            ("--gradient-checkpointing=perhaps", "supported: `true`, `unsloth`, `offload`, `false`"),
        ] {
            let failure = translated(&format!("plimsoll train {theirs}")).expect_err("not built");
            assert!(failure.contains(words), "{failure}");
        }
    }

    #[test]
    fn plan_accepts_the_flags_of_a_run() {
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
