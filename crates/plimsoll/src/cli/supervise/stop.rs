//! `plimsoll stop`: asks runs to end, and kills those that do not.

use super::run::elsewhere;
use super::{RunsArgs, background, unproved, untrusted};
use crate::cli::Failure;
use crate::cli::failure::exit_code;
use crate::streams::talk;
use clap::Args;
use plimsoll_registry::{Stopped, stop};
use plimsoll_units::{Seconds, format_duration};
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(in crate::cli) struct StopArgs {
    /// The runs' names or folders
    #[arg(required = true)]
    run: Vec<String>,
    /// Time to wait after SIGINT, and again after SIGTERM, before SIGKILL
    #[arg(long, value_name = "TIME", default_value = "60s")]
    grace: Seconds,
    /// Kill the runs at once with SIGKILL
    #[arg(long, conflicts_with = "grace")]
    now: bool,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run(args: &StopArgs) -> Result<u8, Failure> {
    let entries = args.run.iter().map(|name| args.runs.find(name)).collect::<Result<Vec<_>, _>>()?;
    let grace = (!args.now).then(|| Duration::from_secs_f64(args.grace.0));
    for entry in entries {
        let name = entry.name();
        if background::is_own(&entry) {
            continue;
        }
        let start = Instant::now();
        let stopped = stop(&entry, grace, &mut |signal| talk(format_args!("{name}: {signal}")));
        let after = format_duration(Seconds(start.elapsed().as_secs_f64()));
        match stopped.map_err(|error| untrusted(&name, &error))? {
            Stopped::HadEnded => talk(format_args!("{name}: had already ended")),
            Stopped::ByInterrupt => talk(format_args!("{name}: ended after SIGINT, within {after}")),
            Stopped::ByRequest => talk(format_args!("{name}: ended after SIGTERM, within {after}")),
            Stopped::Killed => talk(format_args!("{name}: killed after {after}")),
            Stopped::Survives => {
                let message = format!("{name}: a process of it still runs {after} after SIGKILL");
                return Err(Failure::device(message).hint("the kernel ends the process when its disk or GPU responds"));
            }
            Stopped::Elsewhere => return Err(elsewhere(&entry)),
            Stopped::Unproved => return Err(unproved(&entry)),
        }
    }
    Ok(exit_code::DONE)
}
