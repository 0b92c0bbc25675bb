//! Words of other trainers and of guides, in command lines and in files of settings, as Plimsoll's settings.
//! One table serves both, so that a word means the same in a command line and in a file.
//! Not here: the table (`plimsoll_trainers::words`), the names of settings (`settings.rs`), sentences (`reasons.rs`),
//! values that are names elsewhere (`names.rs`), command lines (`arguments.rs`), and files (`cli/settings`).

mod arguments;
mod names;
mod reasons;
mod settings;

pub(super) use arguments::{Arguments, translate};
pub(super) use names::{model as torchtune_model, without_adapters};
pub(super) use reasons::{planned_without, sentence};
pub(super) use settings::name;

use plimsoll_graph::models::ModelConfig;
use plimsoll_hub::{has_weights, is_hub_name};
use plimsoll_trainers::words::Meaning::{
    self, Adapter, Betas, Choice, Data, Folder, Instead, Missing, Model, Name, Nothing, Only, Optimizer, Or, Own, Part,
    Project, Size, Strategy, Supported, Unknown, Weights,
};
use plimsoll_trainers::words::{Assignment, Reason, Setting, meaning};
use std::path::Path;

/// The result of a word with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meant {
    /// Settings and their values; empty if they ask for the default.
    Settings(Vec<(&'static str, String)>),
    /// Nothing, for this reason.
    Nothing(Reason),
    /// Plimsoll does something else instead: what.
    Instead(Reason),
}

/// Why a word can't be used with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The predicate of the message, after the word and its value: "is not supported".
    pub(super) what: String,
    /// What to do instead.
    pub(super) instead: Option<Reason>,
}

/// The settings that determine the samples per step.
const STEP_SIZES: &[&str] = &["global_batch", "gradient_accumulation_steps"];

/// The setting for steps of one micro-batch.
pub(super) const ONE_MICRO_BATCH: (&str, &str) = ("gradient_accumulation_steps", "1");

/// Values that disable a setting.
const UNWANTED: &[&str] = &["false", "no", "none", "off", "null", "0", "", "[]", "{}"];

/// Whether a value disables a setting.
pub(super) fn is_unwanted(value: &str) -> bool {
    UNWANTED.contains(&value.to_ascii_lowercase().as_str())
}

/// Whether these words ask for steps of one micro-batch, as they do in trainers that accumulate micro-batches only on
/// request. `settings`: all that are set, with underscores.
pub(super) fn is_one_micro_batch<'a>(
    mut words: impl Iterator<Item = &'a str>,
    mut settings: impl Iterator<Item = &'a str>,
) -> bool {
    words.any(|word| meaning(word) == Some(Name(Setting::MicroBatch)))
        && !settings.any(|setting| STEP_SIZES.contains(&setting))
}

/// The setting that takes a word's own value, if any.
pub(in crate::cli) fn setting(meaning: Meaning) -> Option<&'static str> {
    match meaning {
        Name(setting) | Or(setting, _) | Part(setting, _) => Some(name(setting)),
        Data => Some("data"),
        _ => None,
    }
}

/// The settings that a word means with this value. `starts`: whether the command starts a run, which needs its weights.
/// Errors: an unknown value, or a feature that is not built.
pub(super) fn meant(meaning: Meaning, value: &str, starts: bool) -> Result<Meant, Refusal> {
    let named = |settings: &[Assignment]| {
        Meant::Settings(settings.iter().map(|&(setting, value)| (name(setting), value.to_owned())).collect())
    };
    let chosen = |choices: &[(&str, &'static [Assignment])]| {
        choices.iter().find(|(choice, _)| choice.eq_ignore_ascii_case(value)).map(|(_, settings)| named(settings))
    };
    let one = |name: &'static str, value: &str| Ok(Meant::Settings(vec![(name, value.to_owned())]));
    let is_in = |values: &[&str]| values.iter().any(|known| known.eq_ignore_ascii_case(value));
    match meaning {
        // Plimsoll's own names need no translation, and `meaning` returns neither.
        Own | Unknown => Err(refused("is not known")),
        Betas => Err(refused("must be a list of two numbers")),
        Name(setting) => one(name(setting), value),
        Part(_, counted) if value.parse::<f64>().is_ok_and(|n| n >= 1.0 && n.fract() == 0.0) => {
            Ok(Meant::Instead(counted))
        }
        Part(setting, _) => one(name(setting), value),
        Data => one("data", value),
        Or(setting, choices) => chosen(choices).map_or_else(|| one(name(setting), value), Ok),
        Choice(choices) => chosen(choices).ok_or_else(|| unknown(choices.iter().map(|(choice, _)| *choice))),
        Supported(..) if is_unwanted(value) => Ok(Meant::Settings(vec![])),
        Supported(choices, instead) => chosen(choices).ok_or_else(|| not_supported(instead)),
        Strategy(setting) if is_unwanted(value) => one(name(setting), "0"),
        Strategy(_) if value == "steps" => Ok(Meant::Settings(vec![])),
        Strategy(_) => Ok(Meant::Instead(Reason::StepIntervals)),
        Size => match value {
            "small" => one("model", "gpt2"),
            "medium" | "large" | "xl" => one("model", &format!("gpt2-{value}")),
            other => one("model", other),
        },
        Weights if is_start(value, starts) => one("init", value),
        Weights => one("model", value),
        Folder if starts || has_weights(value) => one("init", value),
        Model => names::built(value).map(Meant::Settings),
        Optimizer => names::optimizer(value).map(Meant::Settings),
        Project if is_unwanted(value) => Ok(Meant::Settings(vec![])),
        Project => Ok(Meant::Settings(vec![("log_to", "wandb".to_owned()), ("log_project", value.to_owned())])),
        Nothing(because) => Ok(Meant::Nothing(because)),
        Instead(same, _) if is_unwanted(value) || is_in(same) => Ok(Meant::Settings(vec![])),
        Instead(_, instead) => Ok(Meant::Instead(instead)),
        Only(values, instead) if !is_in(values) => Err(not_supported(instead)),
        Missing(instead) if !is_unwanted(value) => Err(not_supported(instead)),
        Adapter if !is_unwanted(value) => Err(not_supported(Reason::NoAdapters)),
        Folder | Only(..) | Missing(_) | Adapter => Ok(Meant::Settings(vec![])),
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

fn not_supported(instead: Reason) -> Refusal {
    Refusal { instead: Some(instead), ..refused("is not supported") }
}

/// The refusal of an unknown value; it lists the known ones, without paths of classes.
fn unknown<'a>(known: impl Iterator<Item = &'a str>) -> Refusal {
    let known = known.filter(|name| !name.contains('.')).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    refused(format!("is not supported; supported: {known}"))
}

#[cfg(test)]
mod tests {
    use crate::cli::settings::flags;
    use clap::CommandFactory;
    use plimsoll_trainers::words::{Meaning, meanings};

    /// A word that is a setting here must not have another meaning, and no setting may be called unknown.
    #[test]
    fn words_with_the_name_of_a_setting_are_that_setting() {
        let flags = flags();
        for (word, meaning) in meanings() {
            let is_own = flags.iter().any(|flag| flag == word);
            assert_eq!(is_own, meaning == Meaning::Own, "{word}: {meaning:?}");
        }
    }

    #[test]
    fn settings_that_words_mean_exist() {
        let commands = crate::cli::Cli::command();
        let train = commands.find_subcommand("train").expect("the command exists");
        let exists = |name: &str| train.get_arguments().any(|arg| arg.get_long() == Some(&name.replace('_', "-")));
        for (word, meaning) in meanings() {
            let settings = match meaning {
                Meaning::Name(setting) | Meaning::Part(setting, _) | Meaning::Strategy(setting) => vec![setting],
                Meaning::Or(setting, choices) => {
                    let others = choices.iter().flat_map(|(_, settings)| settings.iter()).map(|(setting, _)| *setting);
                    others.chain([setting]).collect()
                }
                Meaning::Choice(choices) => {
                    choices.iter().flat_map(|(_, settings)| settings.iter()).map(|(setting, _)| *setting).collect()
                }
                _ => vec![],
            };
            for setting in settings {
                assert!(exists(super::name(setting)), "{word} -> {setting:?}");
            }
        }
    }
}
