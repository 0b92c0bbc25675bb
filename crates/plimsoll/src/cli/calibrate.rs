//! `plimsoll calibrate`: measures this machine, or a card of it, so that plans can tell their time.

use super::blas::BlasArgs;
use super::cards::{DeviceArgs, Reopening, Speed, speed_of};
use super::failure::exit_code;
use super::machine::{MachineFile, Subject, known};
use super::options::positive_size;
use super::processor::{free_memory, guessed_rates, processor};
use super::{Failure, in_pool};
use crate::report::{comparison_json, comparison_table};
use crate::streams::{talk, write_data};
use ::plimsoll_train::{Calibration, agreement, calibrate, compare_predictions};
use clap::Args;
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::{Products, Targets};
use plimsoll_units::Seconds;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Number of compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    threads: Option<usize>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    blas: BlasArgs,
    /// Begin no further run after this long; what was measured by then is kept
    #[arg(long, value_name = "TIME")]
    duration: Option<Seconds>,
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
    let opened = args.device.card()?;
    let card = opened.map(|opened| Reopening::new(opened.card().clone(), opened.library()));
    let measured = Measured { card, threads, args };
    in_pool(threads, || if measured.args.check { measured.compare() } else { measured.measure() })
}

/// What is measured, and how.
struct Measured {
    /// The processor, if there is none.
    card: Option<Reopening>,
    threads: usize,
    args: CalibrateArgs,
}

impl Measured {
    fn targets(&self) -> Targets {
        match &self.card {
            None => Targets::cpu(self.threads),
            Some(card) => Targets::cuda(card.card().compute_capability, self.threads).multiplying_by(self.products()),
        }
    }

    fn products(&self) -> Products {
        if self.card.as_ref().is_some_and(|card| card.library().is_some()) {
            Products::CublasLt
        } else {
            Products::Kernels
        }
    }

    fn device(&self) -> Result<Box<dyn Device>, DeviceError> {
        match &self.card {
            None => Ok(processor(None)),
            Some(card) => Ok(Box::new(self.args.device.again(card)?.within(free_memory(None)))),
        }
    }

    fn subject(&self) -> Subject<'_> {
        let card = self.card.as_ref().map(|card| card.card().name.as_str());
        Subject { threads: self.threads, card, tf32: self.args.device.tf32(), products: self.products() }
    }

    fn measure(&self) -> Result<u8, Failure> {
        let Self { threads, args, .. } = self;
        let start = Instant::now();
        let at_most = args.duration.map(|time| Duration::try_from_secs_f64(time.0).unwrap_or(Duration::MAX));
        let mut told = |done: usize, all: usize| talk(format_args!("measuring: {done} of {all} runs"));
        let Calibration { samples, footprint } = calibrate(&self.targets(), &|| self.device(), at_most, &mut told)?;
        let path = match &args.out {
            Some(path) => path.clone(),
            None => MachineFile::path(self.subject())?,
        };
        let (count, seconds) = (samples.len(), start.elapsed().as_secs_f64());
        MachineFile::new(self.subject(), samples).write(&path)?;
        if args.json {
            let value = json!({
                "file": path, "device": self.subject().card.unwrap_or("CPU"), "samples": count, "threads": threads,
                "seconds": seconds, "measured": footprint,
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            write_data(format_args!("measured {count} kinds of nodes in {seconds:.0} s: {}", path.display()))?;
        }
        Ok(exit_code::DONE)
    }

    fn compare(&self) -> Result<u8, Failure> {
        let asked = self.args.out.as_deref();
        let (machine, source) = match &self.card {
            None => known(self.subject(), (guessed_rates(self.threads), ""), asked)?,
            Some(card) => {
                let speed = Speed { tf32: self.args.device.tf32(), products: self.products(), measured: asked };
                speed_of(card.card(), self.threads, speed)?
            }
        };
        talk(source);
        let mut told = |done: usize, all: usize| {
            if done.is_multiple_of(14) {
                talk(format_args!("running: {done} of {all} plans"));
            }
        };
        let comparisons = compare_predictions(&machine, &self.targets(), &|| self.device(), &mut told)?;
        let judged = agreement(&comparisons);
        if self.args.json {
            write_data(comparison_json(&comparisons, &judged))?;
        } else {
            write_data(comparison_table(&comparisons, &judged))?;
        }
        Ok(exit_code::DONE)
    }
}
