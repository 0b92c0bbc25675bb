//! Files of settings. Each key is a flag: a YAML file is turned into flags that are laid under those of the command
//! line, so that a setting has one name, one parser and one meaning. Keys that people know from other trainers are
//! accepted too.

use super::Failure;
use super::blas::is_harmless;
use super::model::CONFIG_BYTES_MAX;
use super::train::resumed_config;
use super::words::{self, Meaning};
use crate::streams::talk;
use ::plimsoll_train::checkpoint::CONFIG_FILE;
use clap::{ArgMatches, CommandFactory, parser::ValueSource};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Settings that are spellings of one: where any of them is set, it replaces all of them in the layers below.
const SPELLINGS: &[&[&str]] = &[
    &["max_steps", "epochs", "duration"],
    &["global_batch", "gradient_accumulation_steps"],
    &["vram", "vram_auto"],
    &["warmup_steps", "warmup_ratio"],
];

/// Flags and their values.
type Settings = BTreeMap<String, Vec<String>>;

/// The arguments with the settings of `--config`, and under these those of a resumed run, laid under them.
/// Errors: a file can't be read, or is no file of settings, or its values are refused as those of flags are.
pub(super) fn underlay(arguments: &[OsString], given: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let mut files = Vec::new();
    let mut settings = Settings::new();
    if let Some(path) = given.get_one::<PathBuf>("config") {
        settings = read(path)?;
        files.push(path.clone());
    }
    let on_command_line = |flag: &str| {
        given.try_contains_id(flag).unwrap_or(false) && given.value_source(flag) == Some(ValueSource::CommandLine)
    };
    settings.retain(|flag, _| !spellings(flag).iter().any(|spelling| on_command_line(spelling)));
    let chosen = |flag: &str| match given.get_one::<String>(flag) {
        Some(on_command_line) => Some(on_command_line.clone()),
        None => settings.get(flag).and_then(|values| values.last().cloned()),
    };
    if let Some(resume) = chosen("resume") {
        let default = given.get_one::<PathBuf>("runs_dir").expect("the flag has a default");
        let runs_dir = settings.get("runs_dir").and_then(|values| values.last()).map_or(default.clone(), PathBuf::from);
        if let Some(path) = resumed_config(&resume, chosen("name").as_deref(), &runs_dir)? {
            let mut below = read(&path)?;
            if let Some(model) = below.get_mut("model").filter(|model| model[0].ends_with(CONFIG_FILE)) {
                // The run's own, wherever the run has been moved to.
                *model = vec![path.with_file_name(CONFIG_FILE).to_string_lossy().into_owned()];
            }
            let is_set = |flag: &str| on_command_line(flag) || settings.contains_key(flag);
            below.retain(|flag, _| !spellings(flag).iter().any(|spelling| is_set(spelling)));
            leave_out_code(&mut below, &path);
            settings.extend(below);
            files.push(path);
        }
    }
    let (program, rest) = arguments.split_at(2.min(arguments.len()));
    let mut all = program.to_vec();
    for (flag, values) in settings {
        let flag = format!("--{}", flag.replace('_', "-"));
        all.extend(values.into_iter().map(|value| OsString::from(format!("{flag}={value}"))));
    }
    all.extend_from_slice(rest);
    // The command line alone was accepted, so whatever is wrong now came out of the files.
    if let Err(error) = super::Cli::command().try_get_matches_from(&all) {
        let names = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and in ");
        return Err(Failure::usage(error).hint(format!("the settings in {names} act as flags")));
    }
    Ok(all)
}

/// Takes out of a run's own settings what would load code: the run may have come from somebody else.
fn leave_out_code(settings: &mut Settings, path: &Path) {
    for (flag, library, instead) in [
        ("blas", "a BLAS", "the built-in products"),
        ("cublas", "a cuBLASLt", "the one that `auto` finds, or the built-in kernels"),
    ] {
        let Some(values) = settings.get(flag).filter(|values| !values.iter().all(|value| is_harmless(value))) else {
            continue;
        };
        let named = values.last().map_or("", String::as_str).escape_debug();
        talk(format_args!(
            "warning: {} names {library}, which only the command line may; using {instead}, which may round differently\n\
             hint: `--{flag} {named}` uses it again",
            path.display()
        ));
        settings.remove(flag);
    }
}

/// A flag and those that it can't be given with.
fn spellings(flag: &str) -> Vec<&str> {
    SPELLINGS.iter().find(|spellings| spellings.contains(&flag)).map_or(vec![flag], |spellings| spellings.to_vec())
}

/// Reads a file of settings as flags and their values.
fn read(path: &Path) -> Result<Settings, Failure> {
    let text = plimsoll_files::read_text(path, CONFIG_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", path.display())))
        .map_err(|failure| failure.hint("`--config` takes a YAML file whose keys are the flags of `plimsoll train`"))?;
    parse(&text).map_err(|failure| failure.hint(format!("the settings are in {}", path.display())))
}

fn parse(text: &str) -> Result<Settings, Failure> {
    let map: Option<Map<String, Value>> =
        serde_saphyr::from_str(text).map_err(|e| Failure::bad_flag(invalid(&e.to_string())))?;
    let known = flags();
    let (mut settings, mut written) = (Settings::new(), Vec::new());
    for (key, value) in map.unwrap_or_default() {
        let name = key.replace('-', "_");
        let named = match (words::meaning(&name), scalar(&key, &value)) {
            (Some(Meaning::Name(flag)), _) => vec![(flag.to_owned(), values(flag, &key, &value)?)],
            (Some(meaning), Ok(Some(value))) => {
                let meant = meaning.settings(&key, &value)?.into_iter();
                meant.map(|(flag, value)| (flag.to_owned(), vec![value])).collect()
            }
            (Some(_), Ok(None)) => vec![],
            (Some(_), Err(failure)) => return Err(failure),
            (None, _) if known.contains(&name) => vec![(name.clone(), values(&name, &key, &value)?)],
            (None, _) => return Err(unknown_key(&key, &name, &known)),
        };
        for (flag, values) in named.into_iter().filter(|(_, values)| !values.is_empty()) {
            if settings.contains_key(&flag) {
                return Err(Failure::bad_flag(format!("`{flag}` is set twice, under two of its names")));
            }
            settings.insert(flag, values);
        }
        written.push(name);
    }
    if words::is_one_micro_batch(written.iter().map(String::as_str), settings.keys().map(String::as_str)) {
        let (flag, value) = words::ONE_MICRO_BATCH;
        settings.insert(flag.to_owned(), vec![value.to_owned()]);
    }
    Ok(settings)
}

/// The values of a flag; none where that is what is done without it.
fn values(flag: &str, key: &str, value: &Value) -> Result<Vec<String>, Failure> {
    match value {
        Value::Bool(false) if ["vram_auto", "resume"].contains(&flag) => Ok(vec![]),
        Value::Bool(true) if flag == "resume" => Ok(vec!["auto".to_owned()]),
        Value::Array(items) => items.iter().filter_map(|item| scalar(key, item).transpose()).collect(),
        single => scalar(key, single).map(|value| value.into_iter().collect()),
    }
}

fn invalid(message: &str) -> String {
    format!("settings are not valid YAML: {}", message.trim_start_matches("error: "))
}

/// A plain value as it would be written behind a flag; none for null.
fn scalar(key: &str, value: &Value) -> Result<Option<String>, Failure> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(b) => Ok(Some(b.to_string())),
        Value::Number(n) => Ok(Some(n.to_string())),
        Value::String(s) => Ok(Some(s.clone())),
        Value::Array(_) | Value::Object(_) => {
            Err(Failure::bad_flag(format!("`{key}` must be a plain value, not {value}")))
        }
    }
}

/// The flags of `train`, with underscores.
fn flags() -> Vec<String> {
    let command = super::Cli::command();
    let train = command.find_subcommand("train").expect("the command exists");
    let long = train.get_arguments().filter_map(|a| a.get_long());
    long.filter(|flag| !["help", "version", "config", "json"].contains(flag))
        .map(|flag| flag.replace('-', "_"))
        .collect()
}

fn unknown_key(key: &str, name: &str, known: &[String]) -> Failure {
    let names = known.iter().map(String::as_str).chain(words::words().map(|word| word as &str));
    let nearest = names.map(|n| (strsim::damerau_levenshtein(n, name), n)).min();
    let failure = Failure::bad_flag(format!("unknown setting `{key}`"));
    match nearest.filter(|(distance, _)| *distance <= 1 + name.len() / 4) {
        Some((_, near)) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("`plimsoll train --help` lists all settings"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_trainers_become_flags() {
        let text = "per_device_train_batch_size: 4\nlearning-rate: 3e-4\nnum_train_epochs: 2\nbf16: true\nfp16: false\noptim: adamw_bnb_8bit\ngradient_checkpointing: true\ndata: [a, b]\nname:\n";
        let settings = parse(text).expect("known keys");
        let expected = [
            ("data", vec!["a", "b"]),
            ("epochs", vec!["2"]),
            ("gradient_accumulation_steps", vec!["1"]),
            ("learning_rate", vec!["0.0003"]),
            ("micro_batch", vec!["4"]),
            ("optimizer", vec!["adamw"]),
            ("optimizer_state", vec!["8bit"]),
            ("precision", vec!["bf16"]),
            ("recompute", vec!["blocks"]),
        ];
        let expected = expected.map(|(k, v)| (k.to_owned(), v.into_iter().map(str::to_owned).collect()));
        assert_eq!(settings, BTreeMap::from(expected));
    }

    #[test]
    fn unknown_keys_and_what_is_not_built_are_refused() {
        for (text, expected) in [
            ("lerning_rate: 1", "did you mean `learning_rate`"),
            ("bf16: maybe", "supported: `true`, `false`, `auto`"),
            ("optim: sgd", "`lion_8bit`"),
            ("optim: lion_8bit\noptimizer: adamw", "`optimizer` is set twice"),
            ("bf16: true\nprecision: fp32", "`precision` is set twice"),
            ("data: {a: 1}", "must be a plain value"),
            ("- 1\n- 2", "not valid YAML"),
            ("a: [", "not valid YAML"),
            ("lr: 1\nlearning-rate: 2", "`learning_rate` is set twice"),
        ] {
            let failure = format!("{:?}", parse(text).unwrap_err());
            assert!(failure.contains(expected), "{text}: {failure}");
        }
        assert!(parse("").expect("an empty file sets nothing").is_empty());
    }
}
