//! Settings of other trainers and of guides, as flags and as keys of files of settings, and what they mean in Plimsoll.
//! One table serves both, so that a word means the same in a command line and in a file.
//! Not here: the table (`table.rs`), values that are names elsewhere (`names.rs`), command lines (`arguments.rs`), and
//! files (`cli/settings`).

mod arguments;
mod names;
mod table;

pub(super) use arguments::{Arguments, translate};
pub(super) use names::{model as torchtune_model, without_adapters};
pub(super) use table::{NO_PREFERENCES, planned_without};

use plimsoll_graph::models::ModelConfig;
use plimsoll_hub::{has_weights, is_hub_name};
use std::path::Path;
use table::{NO_ADAPTERS, WORDS};

/// A setting and its value, the setting with underscores.
pub(super) type Setting = (&'static str, &'static str);

/// What a word means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The setting of this name, with the word's value.
    Name(&'static str),
    /// The same, except for these values (`null` for no value), which mean other settings.
    Or(&'static str, &'static [(&'static str, &'static [Setting])]),
    /// The setting of this name, if the value is a fraction. A count of samples, which the word may also hold, means
    /// nothing, for this reason.
    Part(&'static str, &'static str),
    /// Other settings, chosen by the word's value; no settings if the value asks for the default. Other values are
    /// unknown. A flag without a value is `true`.
    Choice(&'static [(&'static str, &'static [Setting])]),
    /// When to evaluate or save: a disabling value sets the setting of this name to 0, `steps` is the default, and
    /// other values become steps.
    Strategy(&'static str),
    /// Nothing for these values, in any case; other values are not supported. The string names the alternative here.
    Only(&'static [&'static str], &'static str),
    /// The model; GPT-2 models may be named by their size alone.
    Size,
    /// The weights to start from, or the model if only its sizes are known here.
    Weights,
    /// The folder of the weights to start from, given in addition to a key for the model.
    Folder,
    /// The model, by the name of torchtune's builder function.
    Model,
    /// The optimizer and the format of its state, by Hugging Face's name for both or by the name of its class.
    Optimizer,
    /// The project of W&B; naming one switches on logging for W&B.
    Project,
    /// β₁ and β₂, in a list.
    Betas,
    /// Files to train on.
    Data,
    /// A detail of adapters, which only the training of adapters uses.
    Adapter,
    /// Nothing, for this reason. The value does not matter.
    Nothing(&'static str),
    /// Nothing for these values, in any case, which ask for what Plimsoll does; for any other value, Plimsoll does what
    /// the string says instead.
    Instead(&'static [&'static str], &'static str),
    /// Not supported, unless the value disables it. The string names the alternative here.
    Missing(&'static str),
}

use Meaning::{
    Adapter, Betas, Choice, Data, Folder, Instead, Missing, Model, Name, Nothing, Only, Optimizer, Or, Part, Project,
    Size, Strategy, Weights,
};

/// The result of a word with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meant {
    /// Settings and their values; empty if they ask for the default.
    Settings(Vec<(&'static str, String)>),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Plimsoll does something else instead: what.
    Instead(&'static str),
}

/// Why a word can't be used with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The predicate of the message, after the word and its value: "is not supported".
    pub(super) what: String,
    /// What to do instead; equal reasons have equal words.
    pub(super) instead: Option<String>,
}

/// Words for the micro-batch in trainers whose step is one micro-batch unless they accumulate several.
const MICRO_BATCHES: &[&str] = &["batch_size", "micro_batch_size", "per_device_train_batch_size"];

/// The settings that determine the samples per step.
const STEP_SIZES: &[&str] = &["global_batch", "gradient_accumulation_steps"];

/// The setting for steps of one micro-batch.
pub(super) const ONE_MICRO_BATCH: Setting = ("gradient_accumulation_steps", "1");

/// Values that disable a setting.
const UNWANTED: &[&str] = &["false", "no", "none", "off", "null", "0", "", "[]", "{}"];

/// The words that mean settings, with underscores.
pub(super) fn words() -> impl Iterator<Item = &'static str> {
    let is_used = |meaning: &Meaning| !matches!(meaning, Nothing(_) | Instead(..) | Missing(_) | Adapter);
    WORDS.iter().filter(move |(_, meaning)| is_used(meaning)).map(|(word, _)| *word)
}

/// The meaning of a word (written with underscores), if it is known.
pub(super) fn meaning(word: &str) -> Option<Meaning> {
    let begins =
        |(known, _): &&(&str, Meaning)| known.strip_suffix('*').is_some_and(|beginning| word.starts_with(beginning));
    let exact = WORDS.iter().find(|(known, _)| *known == word);
    let longest = || WORDS.iter().filter(begins).max_by_key(|(known, _)| known.len());
    exact.or_else(longest).map(|(_, meaning)| *meaning)
}

/// Whether the table has words within this one, as in `optimizer.lr`.
pub(super) fn has_parts(word: &str) -> bool {
    WORDS.iter().any(|(known, _)| known.strip_prefix(word).is_some_and(|rest| rest.starts_with('.')))
}

/// Whether a value disables a setting.
pub(super) fn is_unwanted(value: &str) -> bool {
    UNWANTED.contains(&value.to_ascii_lowercase().as_str())
}

/// Whether these words ask for steps of one micro-batch. `settings`: all that are set, with underscores.
pub(super) fn is_one_micro_batch<'a>(
    mut words: impl Iterator<Item = &'a str>,
    mut settings: impl Iterator<Item = &'a str>,
) -> bool {
    words.any(|word| MICRO_BATCHES.contains(&word)) && !settings.any(|setting| STEP_SIZES.contains(&setting))
}

impl Meaning {
    /// The setting that takes the word's own value, if any.
    pub(in crate::cli) fn setting(self) -> Option<&'static str> {
        match self {
            Name(name) | Or(name, _) | Part(name, _) => Some(name),
            Data => Some("data"),
            _ => None,
        }
    }

    /// The settings that the word means with this value. `starts`: whether the command starts a run, which needs its
    /// weights.
    /// Errors: an unknown value, or a feature that is not built.
    pub(super) fn meant(self, value: &str, starts: bool) -> Result<Meant, Refusal> {
        let owned = |settings: &[Setting]| settings.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let chosen = |choices: &[(&str, &[Setting])]| {
            let found = choices.iter().find(|(choice, _)| choice.eq_ignore_ascii_case(value));
            found.map(|(_, settings)| Meant::Settings(owned(settings)))
        };
        let one = |name: &'static str, value: &str| Ok(Meant::Settings(vec![(name, value.to_owned())]));
        match self {
            Name(name) => one(name, value),
            Part(_, counted) if value.parse::<f64>().is_ok_and(|n| n >= 1.0 && n.fract() == 0.0) => {
                Ok(Meant::Instead(counted))
            }
            Part(name, _) => one(name, value),
            Data => one("data", value),
            Or(name, choices) => chosen(choices).map_or_else(|| one(name, value), Ok),
            Choice(choices) => chosen(choices).ok_or_else(|| unknown(choices.iter().map(|(choice, _)| *choice))),
            Strategy(name) if is_unwanted(value) => one(name, "0"),
            Strategy(_) if value == "steps" => Ok(Meant::Settings(vec![])),
            Strategy(_) => Ok(Meant::Instead(table::BY_STEPS)),
            Size => match value {
                "small" => one("model", "gpt2"),
                "medium" | "large" | "xl" => one("model", &format!("gpt2-{value}")),
                other => one("model", other),
            },
            Weights if is_start(value, starts) => one("init", value),
            Weights => one("model", value),
            Folder if starts || has_weights(value) => one("init", value),
            Model if starts => one("model", &names::model(value)?),
            Model => one("model", &names::model(&names::without_adapters(value))?),
            Optimizer => names::optimizer(value).map(|settings| Meant::Settings(owned(&settings))),
            Project if is_unwanted(value) => Ok(Meant::Settings(vec![])),
            Project => Ok(Meant::Settings(vec![("log_to", "wandb".to_owned()), ("log_project", value.to_owned())])),
            Betas => Err(refused("must be a list of two numbers")),
            Nothing(because) => Ok(Meant::Nothing(because)),
            Instead(same, _) if is_unwanted(value) || same.iter().any(|same| same.eq_ignore_ascii_case(value)) => {
                Ok(Meant::Settings(vec![]))
            }
            Instead(_, instead) => Ok(Meant::Instead(instead)),
            Only(values, instead) if !values.iter().any(|known| known.eq_ignore_ascii_case(value)) => {
                Err(Refusal { instead: Some(instead.to_owned()), ..refused("is not supported") })
            }
            Missing(instead) if !is_unwanted(value) => {
                Err(Refusal { instead: Some(instead.to_owned()), ..refused("is not supported") })
            }
            Adapter if !is_unwanted(value) => {
                Err(Refusal { instead: Some(NO_ADAPTERS.to_owned()), ..refused("is not supported") })
            }
            Folder | Only(..) | Missing(_) | Adapter => Ok(Meant::Settings(vec![])),
        }
    }
}

/// Whether to start from the weights of this name: they are on this machine, or the command starts a run and no preset
/// has this name.
fn is_start(name: &str, starts: bool) -> bool {
    let is_elsewhere = !Path::new(name).exists() && (is_hub_name(name) || ModelConfig::preset_name(name).is_some());
    has_weights(name) || (starts && is_elsewhere)
}

fn refused(what: impl Into<String>) -> Refusal {
    Refusal { what: what.into(), instead: None }
}

/// The refusal of an unknown value; it lists the known ones, without paths of classes.
fn unknown<'a>(known: impl Iterator<Item = &'a str>) -> Refusal {
    let known = known.filter(|name| !name.contains('.')).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    refused(format!("is not supported; supported: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn words_are_in_order_and_mean_settings_that_exist() {
        assert!(WORDS.is_sorted_by(|(a, _), (b, _)| a < b), "a binary search would miss some, and so do readers");
        let commands = crate::cli::Cli::command();
        let train = commands.find_subcommand("train").expect("the command exists");
        let exists = |name: &str| train.get_arguments().any(|arg| arg.get_long() == Some(&name.replace('_', "-")));
        for (word, meaning) in WORDS {
            match meaning {
                Name(name) | Part(name, _) => assert!(exists(name), "{word} -> {name}"),
                Choice(choices) => {
                    let names = choices.iter().flat_map(|(_, settings)| settings.iter()).map(|(name, _)| name);
                    names.for_each(|name| assert!(exists(name), "{word} -> {name}"));
                }
                Or(name, choices) => {
                    let others = choices.iter().flat_map(|(_, settings)| settings.iter()).map(|(name, _)| name);
                    others.chain([name]).for_each(|name| assert!(exists(name), "{word} -> {name}"));
                }
                _ => {}
            }
            assert!(!exists(word), "{word} is a flag of its own");
        }
    }
}
