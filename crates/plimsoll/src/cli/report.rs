//! `plimsoll report`: the page of a run, made again from its folder; of one that crashed or is still going too.

use super::Failure;
use super::failure::{exit_code, io_failure};
use super::train::newest_run;
use crate::report::run_html;
use crate::streams::write_data;
use ::plimsoll_train::RunRecord;
use clap::Args;
use plimsoll_files::{Disk, is_there, write_whole};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// The run's folder [default: that which was written to last in `runs`]
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Write the page here [default: report.html in the run's folder]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(args: &ReportArgs) -> Result<u8, Failure> {
    let run = match &args.run {
        Some(run) => run.clone(),
        None => newest_run(Path::new("runs"))?
            .ok_or_else(|| Failure::bad_flag("there is no run in `runs`").hint("name the folder of a run"))?,
    };
    let journal = run.join("journal.jsonl");
    if !is_there(&journal).map_err(io_failure(journal.display()))? {
        let message = format!("{} is not the folder of a run: it has no journal.jsonl", run.display());
        return Err(
            Failure::bad_input(message).hint("`plimsoll train` leaves its runs in `runs`, each in a folder of its own")
        );
    }
    let page = run_html(&RunRecord::read(&run)?);
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
