//! `plimsoll stress`: stresses a GPU or the processor, and gives each metric a verdict. Not here: the protocol
//! (`plimsoll-stress`), and how its report looks (`plimsoll-render`).

use super::budget::{BudgetArgs, threads};
use super::cards::{Choice, Opened, Reopening};
use super::cublas::{Cublas, products_of};
use super::failure::{exit_code, io_failure, no_thread};
use super::heat::checked;
use super::processor::{free_memory, processor};
use super::signals::end_on_signals;
use super::train::sample_time;
use super::{Failure, in_pool};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::Precision;
use ::plimsoll_stress::{
    Criteria, DeviceUnderTest, Ending, MatrixUnits, Metric, PhaseRange, Protocol, StressError, StressOutcome,
    WatchSettings, judge,
};
use clap::Args;
use plimsoll_exec::cuda::{CudaDevice, CudaError, CudaOptions, Driver, OLDEST_WITH_TF32};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_files::write_whole;
use plimsoll_graph::Targets;
use plimsoll_heat::Settings;
use plimsoll_render::{StressReport, metric_name, stress_html, stress_json, stress_text};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The part of the memory to fill.
const FILLED: f64 = 0.95;

/// The most of the processor's memory to fill by default, which is also at most half of what is available.
const PROCESSOR_MEMORY: Bytes = Bytes::gib(4);

#[derive(Debug, Args)]
pub(super) struct StressArgs {
    /// Phases to run, which share the duration: 1 runs one kind of work at a time, 2 runs all kinds at a rising load, 3
    /// trains with full memory between the other kinds
    #[arg(long, value_name = "N|N..M", default_value = "1..3")]
    phase: PhaseRange,
    /// Time of all phases together, without the preparation and the last check of the memory: `90s`, `60m`, `1h30m`
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    duration: Duration,
    /// Device to test: `cpu`, a GPU (`cuda`, `cuda:1`), or `auto`: the GPU with the most free memory if one can be used,
    /// otherwise the CPU
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Choice,
    /// Multiply matrices on a GPU with NVIDIA's cuBLASLt: the newest one found (`auto`), the library at this path, or
    /// only the built-in kernels (`off`)
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto")]
    cublas: Cublas,
    #[command(flatten)]
    budget: BudgetArgs,
    /// GPU temperature in degrees Celsius above which the test ends, with exit code 6; the GPU's own limit applies if it
    /// is lower
    #[arg(long, value_name = "C", default_value = "83")]
    max_temp: f64,
    /// Temperature to hold by pauses between pieces of work
    #[arg(long, value_name = "C", default_value = "78")]
    throttle_temp: f64,
    /// Temperature below which the work continues at full speed
    #[arg(long, value_name = "C", default_value = "70")]
    resume_temp: f64,
    /// As `--max-temp`, for the GPU's memory if the GPU reports its temperature
    #[arg(long, value_name = "C", default_value = "100")]
    memory_temp: f64,
    /// Time between two samples of the GPU: `1s`, `0.5s`, `1m`
    #[arg(long, value_name = "TIME", value_parser = sample_time, default_value = "1s")]
    sample_every: Seconds,
    /// Write the report as a web page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// From a second to 30 days.
fn duration(text: &str) -> Result<Duration, String> {
    let time = text.parse::<Seconds>().map_err(|error| error.to_string())?;
    let range = 1.0..=30.0 * 86_400.0;
    if range.contains(&time.0) { Ok(Duration::from_secs_f64(time.0)) } else { Err("from 1s to 30d".to_owned()) }
}

pub(super) fn run(args: &StressArgs) -> Result<u8, Failure> {
    args.budget.refuse_range("stress")?;
    let heat = args.heat()?;
    let subject = Subject::open(args)?;
    let stop = Arc::new(AtomicBool::new(false));
    let theirs = stop.clone();
    end_on_signals(move || {
        theirs.store(true, Ordering::Relaxed);
        talk("\nstopping after this piece of work; Ctrl-C again quits immediately");
    })?;
    let protocol = Protocol {
        phases: args.phase,
        duration: args.duration,
        memory: subject.memory,
        budget: subject.budget,
        watch: subject.card.as_ref().map(|card| WatchSettings {
            uuid: card.card().uuid.clone(),
            every: Duration::from_secs_f64(args.sample_every.0),
            heat,
            messages: Arc::new(|message| talk(format_args!("{}: {}", message.card, message.what))),
        }),
    };
    talk(format_args!("on {}: preparing the work, and filling {}", subject.name, subject.memory));
    let outcome = in_pool(threads(args.budget.threads)?, || subject.stress(&protocol, &stop))?;
    let StressOutcome { findings, error } = outcome;
    let verdicts = judge(&findings, &Criteria { matrix_units: subject.matrix_units });
    let is_stand_in = subject.matrix_units == MatrixUnits::StandIn;
    let report = StressReport { device: subject.name, is_stand_in, findings, verdicts };
    if args.json {
        write_data(serde_json::to_string_pretty(&stress_json(&report)).expect("plain data"))?;
    } else {
        write_data(stress_text(&report))?;
    }
    if let Some(path) = &args.html {
        write_whole(path, stress_html(&report).as_bytes()).map_err(io_failure(path.display()))?;
    }
    match error {
        Some(error) => Err(error.into()),
        None => conclude(&report),
    }
}

/// The exit code of a test without an error. Errors: a metric failed.
fn conclude(report: &StressReport) -> Result<u8, Failure> {
    if report.findings.ending == Ending::Interrupted {
        return Ok(exit_code::INTERRUPTED);
    }
    let failed = report.failed().collect::<Vec<_>>();
    let names = failed.iter().map(|metric| metric_name(*metric)).collect::<Vec<_>>().join(", ");
    let worst = failed.iter().copied().min_by_key(|metric| SEVERITY.iter().position(|other| other == metric));
    let Some(worst) = worst else { return Ok(exit_code::DONE) };
    let (code, hint) = consequence(worst);
    let code = if report.findings.ending == Ending::TooHot && code != exit_code::DEVICE_FAILED {
        exit_code::TOO_HOT
    } else {
        code
    };
    Err(Failure::new(code, format!("the device failed the stress test: {names}")).hint(hint))
}

/// The metrics in the order in which they decide the exit code.
const SEVERITY: [Metric; 7] = [
    Metric::WrongBits,
    Metric::CardErrors,
    Metric::Temperature,
    Metric::MemoryUse,
    Metric::SteadySpeed,
    Metric::Speedup,
    Metric::Uninterrupted,
];

/// The exit code of a failed metric, and what to do.
fn consequence(metric: Metric) -> (u8, &'static str) {
    match metric {
        Metric::WrongBits => (
            exit_code::DEVICE_FAILED,
            "do not train on this device: undo overclocking and undervolting, check its power and memory, and test it again",
        ),
        Metric::CardErrors => (
            exit_code::DEVICE_FAILED,
            "`dmesg | grep Xid` and `nvidia-smi -q` have the details; restart the machine, and replace the GPU if it happens again",
        ),
        Metric::Temperature => {
            (exit_code::TOO_HOT, "check fans and airflow; `plimsoll train --power-limit 80%` lowers the heat of a run")
        }
        Metric::MemoryUse => (
            exit_code::DOES_NOT_FIT,
            "end other processes that use the memory, or use a smaller `--vram-margin`; on a GPU of 4 GiB or less, try \
             `--vram-margin 256`",
        ),
        Metric::SteadySpeed => {
            (exit_code::DEVICE_FAILED, "check for other programs on the device, its power limit, and its cooling")
        }
        Metric::Speedup => (
            exit_code::DEVICE_FAILED,
            "`plimsoll doctor` shows whether cuBLASLt is found, which computes products faster",
        ),
        Metric::Uninterrupted => (exit_code::DEVICE_FAILED, "run the test again, for the whole duration"),
    }
}

impl StressArgs {
    /// The requested limits. Errors: they contradict each other.
    fn heat(&self) -> Result<Settings, Failure> {
        checked(Settings {
            max_c: self.max_temp,
            throttle_c: self.throttle_temp,
            resume_c: self.resume_temp,
            memory_max_c: self.memory_temp,
        })
    }
}

/// The device under test.
struct Subject {
    name: String,
    card: Option<Reopening>,
    targets: Targets,
    precision: Precision,
    /// Bytes to fill, and the memory of which they are a part; `None` for all of a GPU's.
    memory: Bytes,
    budget: Option<Bytes>,
    matrix_units: MatrixUnits,
}

/// The part of a memory to fill.
fn filled(bytes: Bytes) -> Bytes {
    Bytes((bytes.as_f64() * FILLED) as u64)
}

impl Subject {
    /// Finds the requested device. Errors: it can't be used; nothing is left of its memory.
    fn open(args: &StressArgs) -> Result<Self, Failure> {
        match args.device.look(CudaOptions::default())?.said() {
            Some(card) => Self::gpu(card, args),
            None if matches!(args.cublas, Cublas::Library(_)) => {
                Err(Failure::bad_flag("`--cublas PATH` is for GPUs, but this runs on the CPU"))
            }
            None => Self::processor(args),
        }
    }

    fn processor(args: &StressArgs) -> Result<Self, Failure> {
        let bytes = args.budget.budget()?.bytes;
        let bytes = if args.budget.vram.is_some() { bytes } else { Bytes(bytes.0 / 2).min(PROCESSOR_MEMORY) };
        let memory = filled(bytes);
        args.budget.check_room(memory)?;
        Ok(Self {
            name: "CPU".to_owned(),
            card: None,
            targets: Targets::cpu(args.budget.threads()?),
            precision: Precision::Fp32,
            memory,
            budget: Some(bytes),
            matrix_units: MatrixUnits::None,
        })
    }

    fn gpu(mut card: CudaDevice, args: &StressArgs) -> Result<Self, Failure> {
        args.cublas.give_to(&mut card)?;
        let reopening = Reopening::new(card.card().clone(), card.library());
        let products = products_of(&card);
        let opened = Opened::of(card, &args.budget, false, None)?;
        let bytes = opened.device.budget.bytes;
        let (memory, budget) = match args.budget.vram {
            Some(_) => (filled(bytes), Some(bytes)),
            // The driver's own memory is part of what is used.
            None => (bytes.min(filled(opened.device.budget.total())), None),
        };
        let capability = reopening.card().compute_capability;
        let paper = opened.on_paper().expect("a GPU has the data sheet of a similar one");
        Ok(Self {
            name: opened.device.name.clone(),
            targets: Targets::cuda(capability, args.budget.threads()?).multiplying_by(products),
            precision: if opened.device.precision == Precision::Bf16 { Precision::Bf16 } else { Precision::Fp32 },
            memory,
            budget,
            matrix_units: match Driver::find()?.is_stand_in() {
                true => MatrixUnits::StandIn,
                false => MatrixUnits::OnPaper(paper.fp16_tflops / paper.fp32_tflops),
            },
            card: Some(reopening),
        })
    }

    fn opened(&self, tf32: bool) -> Result<Box<dyn Device>, DeviceError> {
        let Some(reopening) = &self.card else { return Ok(processor(None)) };
        let opened = || -> Result<CudaDevice, CudaError> {
            let options = CudaOptions { tf32, ..CudaOptions::default() };
            let mut card = CudaDevice::open(Driver::find()?, reopening.card().clone(), options)?;
            if let Some(library) = reopening.library() {
                card.use_library(library)?;
            }
            Ok(card)
        };
        Ok(Box::new(opened()?.within(free_memory(None))))
    }

    fn stress(&self, protocol: &Protocol, stop: &AtomicBool) -> Result<StressOutcome, Failure> {
        let device = DeviceUnderTest {
            open: &|tf32| self.opened(tf32),
            targets: self.targets,
            precision: self.precision,
            has_tf32: self.card.as_ref().is_some_and(|card| card.card().compute_capability >= OLDEST_WITH_TF32),
        };
        let outcome = ::plimsoll_stress::run(protocol, device, stop, &mut |phase, time| {
            let time = format_duration(Seconds(time.as_secs_f64()));
            talk(format_args!("phase {}, {}: {time}: {}", phase.number, phase.name, phase.what));
        });
        outcome.map_err(Failure::from)
    }
}

impl From<StressError> for Failure {
    fn from(error: StressError) -> Self {
        let message = error.to_string();
        match error {
            StressError::DoesNotFit { needed, .. } => {
                let mib = filled_by(needed).0.div_ceil(Bytes::mib(1).0);
                Self::new(exit_code::DOES_NOT_FIT, message)
                    .hint(format!("`--vram {mib}MiB` is enough on the CPU; on a GPU, add its `--vram-margin`"))
            }
            StressError::Train(error) => error.into(),
            StressError::Plan(error) => error.into(),
            StressError::NoSampler(error) => no_thread("can't watch the GPU")(error),
        }
    }
}

/// The memory of which `bytes` is the part to fill.
fn filled_by(bytes: Bytes) -> Bytes {
    Bytes((bytes.as_f64() / FILLED) as u64)
}
