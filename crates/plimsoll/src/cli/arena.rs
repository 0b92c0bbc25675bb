//! `plimsoll arena`: packs a lifetime problem in the public benchmark's format, `id,lower,upper,size`.

use super::Failure;
use super::failure::{exit_code, io_failure};
use crate::streams::write_data;
use clap::Args;
use plimsoll_arena::{Status, lower_bound, read_csv, solve, validate, write_csv};
use plimsoll_files::write_whole;
use plimsoll_units::{Bytes, Seconds};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct ArenaArgs {
    /// Problem file: CSV with the columns id,lower,upper,size
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Capacity in bytes; stop at the first packing that fits [default: minimize the peak]
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// Time limit; the best packing found by then is used
    #[arg(long, value_name = "TIME", default_value = "10s")]
    time_limit: Seconds,
    /// Write the problem with an `offset` column to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A hundred times the largest of the public benchmark's problems.
const CSV_BYTES_MAX: Bytes = Bytes::mib(64);
const FORMAT: &str = "the format is a header `id,lower,upper,size` and one line per buffer";

pub(super) fn run(args: ArenaArgs) -> Result<u8, Failure> {
    let name = args.file.display();
    let text = plimsoll_files::read_any_text(&args.file, CSV_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{name} can't be read: {e}")));
    let text = text.map_err(|failure| failure.hint(FORMAT))?;
    let csv = read_csv(&text).map_err(|e| Failure::bad_input(format!("{name}: {e}")).hint(FORMAT))?;
    let start = Instant::now();
    let outcome = solve(&csv.problem, args.capacity, &mut || start.elapsed().as_secs_f64() >= args.time_limit.0);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let (peak, bound) = (outcome.solution.peak, lower_bound(&csv.problem).bytes);
    validate(&csv.problem, &outcome.solution, None).map_err(|e| {
        Failure::device(format!("the packing is invalid: {e}")).hint("this is a bug in plimsoll; please report it")
    })?;
    let optimal = peak == bound || outcome.status == Status::Optimal;
    if let Some(path) = &args.out {
        let text = write_csv(&csv, Some(&outcome.solution)).map_err(|e| Failure::bad_input(e.to_string()))?;
        write_whole(path, text.as_bytes()).map_err(io_failure(path.display()))?;
    }
    if args.json {
        let value = json!({
            "peak": peak,
            "lower_bound": bound,
            "optimal": optimal,
            "milliseconds": milliseconds,
            "buffers": csv.problem.buffers.len(),
            "steps": outcome.steps,
            "fits": args.capacity.map(|capacity| peak <= capacity),
        });
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
    } else {
        let proof = if optimal { "optimal" } else { "not proven optimal" };
        write_data(format_args!(
            "{} buffers: peak {peak}, lower bound {bound}, {proof}, {milliseconds:.1} ms",
            csv.problem.buffers.len()
        ))?;
    }
    match args.capacity {
        Some(capacity) if peak > capacity => {
            let (reason, hint) = match outcome.status {
                Status::Infeasible => ("no packing fits it".to_owned(), "use a larger `--capacity`"),
                _ => {
                    let reason = format!("found no packing that fits in {} s", args.time_limit.0);
                    (reason, "use a longer `--time-limit` or a larger `--capacity`")
                }
            };
            let message =
                format!("{name} needs {peak}, the capacity is {capacity} (short {}); {reason}", peak - capacity);
            Err(Failure::new(exit_code::DOES_NOT_FIT, message).hint(hint))
        }
        _ => Ok(exit_code::DONE),
    }
}
