//! `plimsoll top`: cards, processes and runs in a full-screen terminal view.

use super::Failure;
use super::failure::{line, no_threads};
use super::places::{PlacesArgs, run_folder};
use super::train::sample_time;
use clap::{Args, ValueEnum};
use plimsoll_telemetry::lower_thread_priority;
use plimsoll_top::{Options, Palette, TopError};
use plimsoll_units::Seconds;
use std::io::{IsTerminal, stdin, stdout};

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Show only these runs, by name or folder
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Replay a run, by name or folder, with a slider over its time
    #[arg(long, value_name = "RUN", conflicts_with_all = ["runs", "sample_every"])]
    replay: Option<String>,
    /// Colors; `auto` uses none if NO_COLOR is set
    #[arg(long, value_enum, default_value = "auto")]
    palette: PaletteArg,
    /// Time between two samples: `1s`, `0.5s`, `5m`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sample_time)]
    sample_every: Seconds,
    #[command(flatten)]
    places: PlacesArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaletteArg {
    Auto,
    Color,
    Mono,
    ColorBlind,
}

impl PaletteArg {
    fn palette(self) -> Palette {
        // Source: https://no-color.org
        let no_color = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Self::Auto if no_color() => Palette::Mono,
            Self::Auto | Self::Color => Palette::Color,
            Self::Mono => Palette::Mono,
            Self::ColorBlind => Palette::ColorBlind,
        }
    }
}

pub(super) fn run(args: &TopArgs) -> Result<u8, Failure> {
    let places = args.places.places();
    let folder = |name: &String| run_folder(name, &places);
    let named = args.runs.iter().map(folder).collect::<Result<Vec<_>, _>>()?;
    let replay = args.replay.as_ref().map(folder).transpose()?;
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if !stdin().is_terminal() || !stdout().is_terminal() || is_dumb {
        let failure = Failure::device("`plimsoll top` needs a terminal for its screen and keys");
        return Err(failure.hint("`plimsoll gpus --watch` prints GPUs repeatedly; add `--json` for scripts"));
    }
    let options = Options { palette: args.palette.palette(), every_s: args.sample_every.0, places, named, replay };
    // Training runs on this machine have priority.
    lower_thread_priority();
    match plimsoll_top::run(options) {
        // As in shells: 128 plus the signal's number.
        Ok(signal) => Ok(signal.and_then(|signal| u8::try_from(128 + signal).ok()).unwrap_or(0)),
        Err(error @ TopError::Run(_)) => Err(Failure::bad_input(line(&error))),
        Err(error @ TopError::Thread(_)) => Err(no_threads(1, line(&error))),
        Err(error) => Err(Failure::device(line(&error))),
    }
}
