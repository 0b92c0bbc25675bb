//! `plimsoll report`: writes the page of a run from its folder; the run may be finished, crashed or still running. Prints
//! Markdown or JSON on request, the only formats for programs of `plimsoll run`.

use super::Failure;
use super::failure::{exit_code, io_failure};
use super::story::read_story;
use super::train::newest_run;
use crate::streams::write_data;
use clap::Args;
#[cfg(unix)]
use plimsoll_files::read_text_inside;
use plimsoll_files::{Disk, is_there, write_whole};
#[cfg(unix)]
use plimsoll_registry::{Entry, RunKind};
use plimsoll_render::{CardStory, run_html, run_markdown};
#[cfg(unix)]
use plimsoll_render::{KeptRun, kept_run_json, kept_run_markdown};
#[cfg(unix)]
use plimsoll_telemetry::history;
#[cfg(unix)]
use plimsoll_units::Bytes;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Far more than the report of any run.
#[cfg(unix)]
const LONGEST_REPORT: Bytes = Bytes::mib(64);

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// The run's folder [default: the newest in `runs`]
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Write the page to this file [default: report.html in the run's folder]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print a report in Markdown instead
    #[arg(long, conflicts_with_all = ["html", "json"])]
    md: bool,
    /// Print JSON instead: all data of the run, with at most 400 points per curve
    #[arg(long, conflicts_with = "html")]
    json: bool,
}

fn card_json(card: &CardStory) -> Value {
    json!({
        "index": card.index,
        "uuid": card.uuid,
        "name": card.name,
        "temperature_c": card.temperature_c,
        "power_w": card.power_w,
        "energy_j": card.energy_j,
    })
}

/// The run of `plimsoll run` in this folder; `None` if the folder has no such run.
#[cfg(unix)]
fn kept_run(folder: &Path) -> Result<Option<KeptRun>, Failure> {
    let Ok(entry) = Entry::read(folder) else { return Ok(None) };
    if entry.kind != RunKind::Supervised {
        return Ok(None);
    }
    let text = read_text_inside(&folder.join("report.json"), 1, LONGEST_REPORT).ok();
    let report = text.and_then(|text| serde_json::from_str(&text).ok());
    let samples = history(folder, 0.0..f64::INFINITY).map_err(io_failure(folder.display()))?;
    Ok(Some(KeptRun { entry, report, samples }))
}

#[cfg(unix)]
fn report_kept(args: &ReportArgs, run: &KeptRun) -> Result<u8, Failure> {
    if args.html.is_some() {
        return Err(Failure::bad_flag(
            "only runs of `plimsoll train` have a page, but this is a run of another program",
        )
        .hint("use `--md` or `--json`"));
    }
    match args.json {
        true => write_data(serde_json::to_string_pretty(&kept_run_json(run)).expect("plain data"))?,
        false => write_data(kept_run_markdown(run).trim_end())?,
    }
    Ok(exit_code::DONE)
}

pub(super) fn run(args: &ReportArgs) -> Result<u8, Failure> {
    let run = match &args.run {
        Some(run) => run.clone(),
        None => newest_run(Path::new("runs"))?
            .ok_or_else(|| Failure::bad_flag("there is no run in `runs`").hint("give the folder of a run"))?,
    };
    let journal = run.join("journal.jsonl");
    #[cfg(unix)]
    if let Some(kept) = kept_run(&run)? {
        return report_kept(args, &kept);
    }
    if !is_there(&journal).map_err(io_failure(journal.display()))? {
        let message = format!("{} is not the folder of a run: it has no journal.jsonl", run.display());
        return Err(Failure::bad_input(message).hint("`plimsoll train` writes each run to a folder in `runs`"));
    }
    let story = read_story(&run)?;
    if args.md {
        write_data(run_markdown(&story).trim_end())?;
        return Ok(exit_code::DONE);
    }
    if args.json {
        let json = json!({
            "run": story.run,
            "energy_j": story.energy_j(),
            "attempts": story.attempts,
            "cards": story.cards.iter().map(card_json).collect::<Vec<_>>(),
        });
        write_data(serde_json::to_string_pretty(&json).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    let page = run_html(&story);
    let path = match &args.html {
        Some(path) => {
            write_whole(path, page.as_bytes()).map_err(io_failure(path.display()))?;
            path.clone()
        }
        None => {
            let path = run.join("report.html");
            Disk::default().replace(&path, page.as_bytes()).map_err(io_failure(path.display()))?;
            path
        }
    };
    write_data(path.display())?;
    Ok(exit_code::DONE)
}
