//! Files of settings. Each key is a flag: a YAML file becomes flags that the command line overrides, so that a setting
//! has one name, one parser and one meaning. Keys of other trainers are accepted too.
//! Not here: the contents of a file (`file.rs`, from `plimsoll_trainers::document`), and the settings that a resumed
//! run adds (`underlay`, below, reads them).

mod data;
mod file;
mod problems;
mod settle;
mod suggest;

pub(super) use suggest::unknown_flag;

use super::blas::is_harmless;
use super::model::CONFIG_BYTES_MAX;
use super::named::{NAMED, Named, unknown};
use super::notify::warn_of_unknown;
use super::train::{check_run_of_path, resumed_config};
use super::{Cli, Failure};
use crate::streams::talk;
use ::plimsoll_train::checkpoint::CONFIG_FILE;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, CommandFactory, parser::ValueSource};
use file::{File, Set};
use plimsoll_files::{open_inside, read_text_inside};
use plimsoll_units::Bytes;
use problems::{Problem, failure, keys_by_reason};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Settings that are spellings of one setting: any of them replaces all of them in the layers below.
const SPELLINGS: &[&[&str]] = &[
    &["max_steps", "epochs", "duration"],
    &["global_batch", "gradient_accumulation_steps"],
    &["vram", "vram_auto"],
    &["warmup_steps", "warmup_ratio"],
];

/// Notebooks contain pictures, too.
const NOTEBOOK_BYTES_MAX: Bytes = Bytes::mib(64);

/// Flags and their values.
type Settings = BTreeMap<String, Vec<String>>;

/// Adds the settings of `--config`, and below these the settings of a resumed run, to the arguments of a command: those
/// for which the command has a flag and which no given flag excludes. `given`: the parsed arguments; `of_run`: the
/// arguments as `train` would get them.
/// Errors: flags that `train` refuses; a file can't be read or is not a file of settings; its values are refused as
/// those of flags are.
pub(super) fn underlay(
    arguments: Vec<OsString>,
    given: &ArgMatches,
    of_run: &[OsString],
) -> Result<Vec<OsString>, Failure> {
    let Some((name, given)) = given.subcommand() else { return Ok(arguments) };
    let mut commands = Cli::command();
    let as_of_run = commands.try_get_matches_from_mut(of_run).map_err(Failure::usage)?;
    let Some((_, as_of_run)) = as_of_run.subcommand() else { return Ok(arguments) };
    let (settings, files) = settings(as_of_run, name == "train")?;
    if settings.is_empty() {
        return Ok(arguments);
    }
    let command = commands.find_subcommand(name).expect("it was found before");
    let is_given = |arg: &&Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let excluded = command.get_arguments().filter(is_given).flat_map(|arg| command.get_arg_conflicts_with(arg));
    let excluded = excluded.filter_map(Arg::get_long).collect::<Vec<_>>();
    let is_known = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    let mut all = arguments[..2].to_vec();
    for (flag, values) in settings {
        let flag = flag.replace('_', "-");
        if is_known(&flag) && !excluded.contains(&flag.as_str()) {
            all.extend(values.into_iter().map(|value| OsString::from(format!("--{flag}={value}"))));
        }
    }
    all.extend_from_slice(&arguments[2..]);
    // The command line alone was accepted, so the error comes from the files.
    if let Err(error) = Cli::command().try_get_matches_from(&all) {
        let names = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and in ");
        return Err(Failure::usage(error).hint(format!("the settings in {names} act as flags")));
    }
    Ok(all)
}

/// The settings of the files that a run's flags name, and these files. `starts`: whether the command starts a run.
fn settings(given: &ArgMatches, starts: bool) -> Result<(Settings, Vec<PathBuf>), Failure> {
    let mut files = Vec::new();
    let mut settings = Settings::new();
    let on_command_line = |flag: &str| {
        given.try_contains_id(flag).unwrap_or(false) && given.value_source(flag) == Some(ValueSource::CommandLine)
    };
    if let Some(path) = given.get_one::<PathBuf>("config") {
        settings = read(path, plimsoll_files::read_text, starts, on_command_line)?;
        files.push(path.clone());
    }
    let chosen = |flag: &str| match given.get_one::<String>(flag) {
        Some(on_command_line) => Some(on_command_line.clone()),
        None => settings.get(flag).and_then(|values| values.last().cloned()),
    };
    let is_set = |flag: &str| on_command_line(flag) || settings.contains_key(flag);
    if let Some(resume) = chosen("resume") {
        let default = given.get_one::<PathBuf>("runs_dir").expect("the flag has a default");
        let runs_dir = settings.get("runs_dir").and_then(|values| values.last()).map_or(default.clone(), PathBuf::from);
        // The run has its own weights; `auto` may start a new one.
        if resume != "auto" && is_set("init") {
            return Err(Failure::bad_flag(
                "`--resume PATH` continues a run with its own weights, so `--init` has no effect",
            )
            .hint("omit one of them: `--init` starts a new run, `--resume` continues one"));
        }
        let given_runs_dir = is_set("runs_dir").then_some(runs_dir.as_path());
        if resume != "auto" {
            check_run_of_path(&resume, chosen("name").as_deref(), given_runs_dir)?;
        }
        if starts && on_command_line("loss_scale") {
            talk(
                "note: a resumed run continues with the loss scale of its checkpoint; `--loss-scale` sets only the initial one",
            );
        }
        if let Some(path) = resumed_config(&resume, chosen("name").as_deref(), &runs_dir)? {
            // The run may have come from another person, with links to files of this user.
            let read_text = |path: &Path, limit| read_text_inside(path, 1, limit);
            let mut below = read(&path, read_text, starts, is_set)?;
            if let Some(model) = below.get_mut("model").filter(|model| model[0].ends_with(CONFIG_FILE)) {
                // The run's own config.json, even if the run was moved.
                let own = path.with_file_name(CONFIG_FILE);
                open_inside(&own, 1).map_err(|error| unreadable(&own, &error))?;
                *model = vec![own.to_string_lossy().into_owned()];
            }
            leave_out_code(&mut below, &path);
            leave_out_unknown(&mut below, &path, starts);
            settings.extend(below);
            files.push(path);
        }
    }
    Ok((settings, files))
}

/// Removes settings that load code from a run's own settings: the run may have come from another person.
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
            "warning: {} names {library}, which only the command line may do; using {instead}, which may round differently\n\
             hint: `--{flag} {named}` uses it again",
            path.display()
        ));
        settings.remove(flag);
    }
}

/// Removes the mail server, its recipients and files of secrets that this user never named from a run's own settings:
/// the run may have come from another person, and secrets would go where that person wants them.
fn leave_out_unknown(settings: &mut Settings, path: &Path, starts: bool) {
    let values = |flag: &&str| settings.get(*flag).into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    let unknown = unknown(&NAMED.iter().flat_map(|flag| Named::of(flag, values(flag))).collect::<Vec<_>>());
    if unknown.is_empty() {
        return;
    }
    // Other commands send no messages.
    if starts {
        warn_of_unknown(path, &unknown);
    }
    if unknown.iter().any(|named| named.flag == "secrets") {
        settings.remove("secrets");
    }
    if unknown.iter().any(|named| named.flag != "secrets") {
        for flag in ["smtp", "mail_to", "mail_from", "smtp_ca", "smtp_encryption"] {
            settings.remove(flag);
        }
        let services = settings.get_mut("notify").into_iter().flatten();
        services.for_each(|names| {
            *names = names.split(',').filter(|name| name.trim() != "mail").collect::<Vec<_>>().join(",")
        });
        settings.retain(|flag, values| flag != "notify" || values.iter().any(|names| !names.is_empty()));
    }
}

/// A flag and the flags that exclude it.
fn spellings(flag: &str) -> Vec<&str> {
    SPELLINGS.iter().find(|spellings| spellings.contains(&flag)).map_or(vec![flag], |spellings| spellings.to_vec())
}

/// Reads a file of settings as flags and their values, without those that a higher layer sets; reports settings that
/// change nothing. Errors: it can't be read, or all problems of the file.
fn read(
    path: &Path,
    read_text: impl Fn(&Path, Bytes) -> io::Result<String>,
    starts: bool,
    is_set: impl Fn(&str) -> bool,
) -> Result<Settings, Failure> {
    let is_notebook = path.extension().is_some_and(|extension| extension == "ipynb");
    let most = if is_notebook { NOTEBOOK_BYTES_MAX } else { CONFIG_BYTES_MAX };
    let text = read_text(path, most)
        .map_err(|error| unreadable(path, &error))
        .map_err(|failure| failure.hint("`--config` takes a YAML file whose keys are the flags of `plimsoll train`"))?;
    let file = if is_notebook { File::of_notebook(&text, starts) } else { File::parse(&text, starts) };
    let mut file = file.map_err(|failure| failure.hint(format!("the settings are in {}", path.display())))?;
    let gives_way = |to: &[&str]| to.iter().any(|flag| is_set(flag));
    file.sets.retain(|set| !gives_way(&spellings(&set.flag)) && !gives_way(&set.gives_way_to));
    file.problems.retain(|problem| !gives_way(&problem.gives_way_to));
    file.problems.extend(file.sets.iter().filter_map(refused));
    if !file.problems.is_empty() {
        return Err(failure(path, file.problems));
    }
    for (what, keys) in [
        ("changes nothing", &file.ignored),
        ("not supported; what happens instead", &file.instead),
        ("not used here", &file.unused),
    ] {
        if !keys.is_empty() {
            talk(format_args!("{}: {what}: {}", path.display(), keys_by_reason(keys)));
        }
    }
    Ok(file.sets.into_iter().map(|set| (set.flag, set.values)).collect())
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::bad_input(format!("{} can't be read: {error}", path.display()))
}

/// The problem with a setting's values, if any: the error of the flag's own parser.
fn refused(set: &Set) -> Option<Problem> {
    let flag = set.flag.replace('_', "-");
    let flags = set.values.iter().map(|value| format!("--{flag}={value}"));
    let error = train().try_get_matches_from(std::iter::once("train".to_owned()).chain(flags)).err()?;
    let why = error.source().filter(|_| error.kind() == ErrorKind::ValueValidation).map(ToString::to_string);
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let why = why.unwrap_or_else(|| lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned());
    let values = set.values.join(", ");
    let what = format!("`{}: {values}`: {why}", set.key);
    Some(Problem { line: set.line, what, hint: None, gives_way_to: vec![] })
}

/// The definition of `train`.
fn train() -> Command {
    Cli::command().find_subcommand("train").expect("the command exists").clone()
}

/// The flags of `train`, with underscores.
pub(super) fn flags() -> Vec<String> {
    let train = train();
    let long = train.get_arguments().filter_map(|a| a.get_long());
    long.filter(|flag| !["help", "version", "config", "detach", "detached", "json"].contains(flag))
        .map(|flag| flag.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests;
