//! `plimsoll install-service`: a systemd unit of the user that starts a command of this program at each boot, so that a
//! run is resumed after a reboot or a crash.
//! Not here: the text of the unit (`unit.rs`), systemd (`systemd.rs`).

mod systemd;
mod unit;

use super::failure::exit_code;
use super::{Command, Failure, hyphenate, with_settings};
use crate::streams::{talk, write_data};
use clap::Args;
use std::env;
use std::ffi::OsString;
use unit::{Policy, Unit};

/// Variables of this shell that the service gets. Secrets are not among them: a unit is readable by others, and a `.env`
/// or `--secrets` serves them.
const VARIABLES: [&str; 22] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "PLIMSOLL_CUDA",
    "PLIMSOLL_NVML",
    "PLIMSOLL_CUBLAS",
    "PLIMSOLL_TRUSTED_FOLDERS",
    "CARGO_HOME",
];

/// Exit codes of this program that a restart would repeat: usage, does not fit, bad input, diverged.
const FINAL: &str = "2 3 4 7";

/// Seconds that a command has for its save after SIGTERM.
const SAVE_S: u64 = 300;

#[derive(Debug, Args)]
pub(super) struct ServiceArgs {
    /// Name of the service; its unit is plimsoll-NAME.service
    #[arg(value_parser = service_name)]
    name: String,
    /// The command to start at each boot, after `--`: `train …`, `run …` or `serve …`
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "uninstall")]
    command: Vec<OsString>,
    /// Print the unit instead of installing it
    #[arg(long, conflicts_with = "uninstall")]
    print: bool,
    /// Stop the service and remove its unit
    #[arg(long, conflicts_with = "command")]
    uninstall: bool,
}

/// A name without characters that systemd escapes.
fn service_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match (1..=100).contains(&text.len())
        && text.chars().all(is_plain)
        && text.starts_with(|c: char| c.is_alphanumeric())
    {
        true => Ok(text.to_owned()),
        false => {
            Err("must be up to 100 letters, digits, `.`, `_` and `-`, and begin with a letter or a digit".to_owned())
        }
    }
}

pub(super) fn run(args: &ServiceArgs) -> Result<u8, Failure> {
    let name = &args.name;
    if args.uninstall {
        let path = systemd::uninstall(name)?;
        talk(format_args!("{name} is stopped, and {} is removed", path.display()));
        return Ok(exit_code::DONE);
    }
    let text = unit_text(args)?;
    if args.print {
        write_data(text.trim_end())?;
        return Ok(exit_code::DONE);
    }
    let path = systemd::install(name, &text)?;
    talk(format_args!(
        "{name} runs, and starts again at each boot\n\
         `journalctl --user -fu plimsoll-{name}` shows its output, `systemctl --user stop plimsoll-{name}` stops it until \
         then, `plimsoll install-service {name} --uninstall` removes it"
    ));
    systemd::hint_at_lingering();
    write_data(path.display())?;
    Ok(exit_code::DONE)
}

/// The unit for a command. Errors: the command is not one for a service, or is rejected.
fn unit_text(args: &ServiceArgs) -> Result<String, Failure> {
    let words = args.command.iter().map(|word| word.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let mut words = words.ok_or_else(|| Failure::bad_flag("a unit can't contain words that are not UTF-8"))?;
    if words.first().is_some_and(|word| word == "plimsoll") {
        words.remove(0);
    }
    let policy = policy_of(&args.name, &mut words)?;
    let unfit = |what: String| move |error: std::io::Error| Failure::device(format!("{what}: {error}"));
    let program = env::current_exe().map_err(unfit("the path of this program".to_owned()))?;
    let folder = env::current_dir().map_err(unfit("the current folder".to_owned()))?;
    let (Some(program), Some(folder)) = (program.to_str(), folder.to_str()) else {
        return Err(Failure::bad_input("a unit can't contain paths that are not UTF-8"));
    };
    let variables = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?)));
    let variables = variables.collect::<Vec<_>>();
    let unit = Unit { name: &args.name, program, words: &words, folder, variables: &variables, policy };
    unit.text().map_err(Failure::bad_input)
}

/// When systemd restarts a command. Adds to `words` what makes the command resume. Errors: the command is not one for a
/// service, or is rejected.
fn policy_of(name: &str, words: &mut Vec<String>) -> Result<Policy, Failure> {
    let kinds = ["train", "run", "serve"];
    if !words.first().is_some_and(|word| kinds.contains(&word.as_str())) {
        let given = words.first().map_or("", String::as_str);
        return Err(Failure::bad_flag(format!("`{given}` is not a command for a service"))
            .hint("after `--`, use `train …`, `run …` or `serve …`; `run -- COMMAND` runs other programs"));
    }
    if words.iter().take_while(|word| *word != "--").any(|word| word == "--detach") {
        return Err(Failure::bad_flag("a service needs no `--detach`: systemd runs it in the background"));
    }
    let given = ["plimsoll".to_owned()].into_iter().chain(words.iter().cloned());
    let policy = Policy { restart: "on-failure", final_codes: FINAL, stopped_codes: "130", stop_s: SAVE_S, ends: true };
    match with_settings(hyphenate(given.map(OsString::from).collect()))?.command {
        Command::Train(args) => {
            words.extend(args.resuming(name)?);
            Ok(policy)
        }
        Command::Run(args) => {
            let grace_s = args.repeatable()?.as_secs();
            // It restarts its program itself, so systemd restarts only a supervisor that was killed.
            let stop_s = SAVE_S.max(grace_s + 60);
            Ok(Policy { restart: "on-abnormal", stopped_codes: "130 143", stop_s, ..policy })
        }
        _ => Ok(Policy { ends: false, ..policy }),
    }
}
