//! `plimsoll calibrate`: measures this machine, so that plans can tell their time.

use super::blas::BlasArgs;
use super::failure::exit_code;
use super::machine::{MachineFile, known};
use super::options::positive_size;
use super::processor::processor;
use super::{Failure, in_pool};
use crate::report::{comparison_json, comparison_table};
use crate::streams::{talk, write_data};
use ::plimsoll_train::{Calibration, agreement, calibrate, compare_predictions};
use clap::Args;
use plimsoll_exec::Device;
use plimsoll_graph::Targets;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Number of compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    threads: Option<usize>,
    #[command(flatten)]
    blas: BlasArgs,
    /// Write the measurements to this file, or with `--check` read them from it [default: one in the user's cache
    /// folder, where plans look for it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure nothing new; run one model under many plans and compare predicted with measured times
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: CalibrateArgs) -> Result<u8, Failure> {
    let threads = super::budget::threads(args.threads)?;
    args.blas.choose()?;
    in_pool(threads, || if args.check { args.compare(threads) } else { args.measure(threads) })
}

fn device() -> Box<dyn Device> {
    processor(None)
}

impl CalibrateArgs {
    fn measure(&self, threads: usize) -> Result<u8, Failure> {
        let targets = Targets::cpu(threads);
        let start = Instant::now();
        let Calibration { samples, footprint } =
            calibrate(&targets, &device, &mut |done, all| talk(format_args!("measuring: {done} of {all} runs")))?;
        let path = match &self.out {
            Some(path) => path.clone(),
            None => MachineFile::path(threads)?,
        };
        let (count, seconds) = (samples.len(), start.elapsed().as_secs_f64());
        MachineFile::new(threads, samples).write(&path)?;
        if self.json {
            let value = json!({ "file": path, "samples": count, "threads": threads, "seconds": seconds, "measured": footprint });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            write_data(format_args!("measured {count} kinds of nodes in {seconds:.0} s: {}", path.display()))?;
        }
        Ok(exit_code::DONE)
    }

    fn compare(&self, threads: usize) -> Result<u8, Failure> {
        let targets = Targets::cpu(threads);
        let (machine, source) = known(threads, self.out.as_deref())?;
        talk(source);
        let mut told = |done: usize, all: usize| {
            if done.is_multiple_of(14) {
                talk(format_args!("running: {done} of {all} plans"));
            }
        };
        let comparisons = compare_predictions(&machine, &targets, &device, &mut told)?;
        let judged = agreement(&comparisons);
        if self.json {
            write_data(comparison_json(&comparisons, &judged))?;
        } else {
            write_data(comparison_table(&comparisons, &judged))?;
        }
        Ok(exit_code::DONE)
    }
}
