//! `plimsoll calibrate`: measures this machine's CPU or GPU, so that plans can predict step times.

use super::blas::BlasArgs;
use super::cards::{DeviceArgs, Reopening};
use super::failure::exit_code;
use super::machine::{self, known};
use super::options::positive_size;
use super::processor::{free_memory, guessed_rates, processor};
use super::speed::{Speed, speed_of};
use super::{Failure, in_pool};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::Sample;
use ::plimsoll_train::{
    Calibration, CalibrationSubject, MachineFile, Stage, agreement, calibrate, compare_predictions,
};
use clap::Args;
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::{Products, Targets};
use plimsoll_render::{comparison_json, comparison_table};
use plimsoll_units::{Seconds, format_duration};
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
    /// Start no further measurement after this long; completed measurements are kept
    #[arg(long, value_name = "TIME")]
    duration: Option<Seconds>,
    /// Write the measurements to this file, or with `--check` read them from it [default: the file in the user's cache
    /// folder that `plan` reads]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run one model under many plans and compare predicted with measured times, instead of measuring the machine
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

/// The measurements of both sessions; a new one replaces an old one of the same kind.
fn joined(before: &[Sample], now: &[Sample]) -> Vec<Sample> {
    let is_alike = |a: &Sample, b: &Sample| {
        (a.device, &a.op, a.dtype, a.flops, a.bytes, a.operands)
            == (b.device, &b.op, b.dtype, b.flops, b.bytes, b.operands)
    };
    let before = before.iter().filter(|old| !now.iter().any(|new| is_alike(old, new)));
    before.chain(now).cloned().collect()
}

/// `12 of 36 runs, about 40 s left`, from the mean time of this session's runs.
fn progress(Stage { done, all }: Stage, skipped: usize, elapsed: Seconds) -> String {
    // A resumed calibration repeats the first run.
    let here = done.saturating_sub(skipped) + usize::from(skipped > 1);
    let left = Seconds(elapsed.0 / here.max(1) as f64 * all.saturating_sub(done) as f64);
    let left = if done < all { format!(", about {} left", format_duration(left)) } else { String::new() };
    format!("{done} of {all} runs{left}")
}

/// The device to measure, and the flags.
struct Measured {
    /// The GPU; `None` for the processor.
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

    fn subject(&self) -> CalibrationSubject<'_> {
        let card = self.card.as_ref().map(|card| card.card().name.as_str());
        CalibrationSubject { threads: self.threads, card, tf32: self.args.device.tf32(), products: self.products() }
    }

    fn measure(&self) -> Result<u8, Failure> {
        let Self { threads, args, .. } = self;
        let start = Instant::now();
        let at_most = args.duration.map(|time| Duration::try_from_secs_f64(time.0).unwrap_or(Duration::MAX));
        let path = match &args.out {
            Some(path) => path.clone(),
            None => machine::path(self.subject())?,
        };
        machine::create_folder(&path)?;
        let (before, skipped) = MachineFile::unfinished(&path, self.subject());
        talk(match skipped {
            0 => "measuring; results are saved after each run, and `plimsoll calibrate` continues an interrupted calibration"
                .to_owned(),
            _ => format!("continuing after run {skipped} of the calibration in {}", path.display()),
        });
        let keep = |stage: Stage, samples: &[Sample]| {
            let runs = Some([stage.done, stage.all]);
            machine::write(&MachineFile::new(self.subject(), joined(&before, samples), runs), &path)
        };
        let mut kept = Ok(());
        let mut told = |stage: Stage, samples: Vec<Sample>| {
            talk(format_args!("measuring: {}", progress(stage, skipped, Seconds(start.elapsed().as_secs_f64()))));
            if kept.is_ok() {
                kept = keep(stage, &samples);
            }
        };
        let measured = calibrate(&self.targets(), &|| self.device(), at_most, skipped, &mut told)?;
        kept?;
        let Calibration { samples, stage, footprint } = measured;
        // Runs that do not fit in memory count as done without a callback.
        keep(stage, &samples)?;
        let (count, seconds) = (joined(&before, &samples).len(), start.elapsed().as_secs_f64());
        if args.json {
            let value = json!({
                "file": path, "device": self.subject().card.unwrap_or("CPU"), "samples": count, "threads": threads,
                "seconds": seconds, "measured": footprint,
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
        } else {
            write_data(format_args!("measured {count} kinds of operations in {seconds:.0} s: {}", path.display()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, DeviceKind};

    #[test]
    fn a_new_measurement_replaces_an_old_one_of_the_same_kind() {
        let sample = |op: &str, seconds| Sample {
            device: DeviceKind::Cpu,
            op: op.to_owned(),
            dtype: DType::F32,
            flops: 1,
            bytes: 1,
            operands: 1,
            seconds,
        };
        let all = joined(&[sample("add", 1.0), sample("gelu", 2.0)], &[sample("gelu", 3.0), sample("norm", 4.0)]);
        assert_eq!(all, [sample("add", 1.0), sample("gelu", 3.0), sample("norm", 4.0)]);
    }

    #[test]
    fn time_left_follows_from_the_runs_of_this_session() {
        let said = |done, skipped, seconds| progress(Stage { done, all: 36 }, skipped, Seconds(seconds));
        assert_eq!(said(9, 0, 18.0), "9 of 36 runs, about 54 s left");
        assert_eq!(said(21, 20, 4.0), "21 of 36 runs, about 30 s left");
        assert_eq!(said(36, 20, 60.0), "36 of 36 runs");
    }
}
