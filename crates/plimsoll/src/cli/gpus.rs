//! `plimsoll gpus`: lists the NVIDIA GPUs of this machine, once or repeatedly.

use super::Failure;
use super::failure::{exit_code, no_thread};
use super::power::settle_leftovers;
use super::train::sample_time;
use crate::streams::{pass, talk, write_data};
use ::plimsoll_plan::cards;
use clap::Args;
use plimsoll_health::{Episode, Phase, Settings, Watcher};
use plimsoll_render::{GpusCsv, gpus_now, gpus_table, health_event, health_line, known_cards_table, printable};
use plimsoll_telemetry::{Event, GpuError, Gpus, Sample, Sampler, SamplerOptions, gpus, sample_once};
use plimsoll_units::{Seconds, spelling};
use serde_json::json;
use std::io::{IsTerminal, stdout};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(super) struct GpusArgs {
    /// List the GPUs that `plan --gpu` knows, with the figures of their data sheets
    #[arg(long, conflicts_with_all = ["watch", "once", "csv"])]
    known: bool,
    /// Print temperatures, power, clocks, memory and the processes that use it, repeatedly until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print the same once
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    /// Time between two samples of `--watch`: `1s`, `0.5s`, `5m`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sample_time)]
    sample_every: Seconds,
    /// Print CSV in the format of `nvidia-smi --query-gpu=COLUMNS --format=csv`
    #[arg(long, value_name = "COLUMNS", num_args = 0.., value_delimiter = ',', require_equals = true, conflicts_with = "json")]
    csv: Option<Vec<String>>,
    /// Omit the header of `--csv`, as nvidia-smi's `noheader` does
    #[arg(long, requires = "csv")]
    no_header: bool,
    /// Omit units in `--csv`, as nvidia-smi's `nounits` does
    #[arg(long, requires = "csv")]
    no_units: bool,
    /// Restore the power limits and clock offsets that crashed runs left behind
    #[arg(long, conflicts_with_all = ["known", "watch", "once", "csv", "json"])]
    restore: bool,
    /// Print JSON; with `--watch`, one line per sample
    #[arg(long)]
    json: bool,
}

/// The format of printed samples.
enum Format {
    Table,
    Json,
    Csv(GpusCsv),
}

pub(super) fn run(args: &GpusArgs) -> Result<u8, Failure> {
    if args.known {
        return list_known(args.json);
    }
    if args.restore {
        return if settle_leftovers(true) {
            Ok(exit_code::DONE)
        } else {
            Err(Failure::device("some settings were not restored"))
        };
    }
    if !args.watch && !args.once && args.csv.is_none() {
        return list(args.json);
    }
    let format = match &args.csv {
        None if args.json => Format::Json,
        None => Format::Table,
        Some(names) => Format::Csv(GpusCsv::new(names, !args.no_units).map_err(|name| unknown_column(&name))?),
    };
    if let (Format::Csv(csv), false) = (&format, args.no_header) {
        say(&csv.header())?;
    }
    if !args.watch {
        // This prints what is missing. A machine without a GPU still has samples of its own.
        found()?;
        show(&sample_once(None), &format)?;
        return Ok(exit_code::DONE);
    }
    watch(Duration::from_secs_f64(args.sample_every.0), &format)
}

fn unknown_column(name: &str) -> Failure {
    let failure = Failure::bad_flag(format!("`--csv`: unknown column `{name}`"));
    match spelling::nearest(name, GpusCsv::names()) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint(format!("columns are {}", GpusCsv::names().collect::<Vec<_>>().join(", "))),
    }
}

/// Prints samples until the process ends.
fn watch(every: Duration, format: &Format) -> Result<u8, Failure> {
    let (send, samples) = mpsc::sync_channel::<Arc<Sample>>(1);
    let options = SamplerOptions { every, folder: None };
    // A blocked terminal must not delay sampling, so drop the samples that it does not show in time.
    let each = move |sample: &Arc<Sample>| drop(send.try_send(sample.clone()));
    let _sampler = Sampler::start(options, each).map_err(no_thread("can't start the sampling thread"))?;
    let is_screen = stdout().is_terminal() && matches!(format, Format::Table);
    let mut problems = Problems::new();
    for sample in samples {
        problems.observe(&sample);
        if is_screen {
            console::Term::stdout().clear_screen().map_err(|error| Failure::device(format!("stdout: {error}")))?;
        }
        show(&sample, format)?;
        if matches!(format, Format::Table) {
            problems.lines(is_screen).iter().try_for_each(|line| say(line))?;
        }
    }
    Ok(exit_code::DONE)
}

/// The GPUs' problems, printed below their table: on a terminal for as long as they last, in a log when they begin and end.
struct Problems {
    watcher: Watcher,
    began: Instant,
    lasting: Vec<(Episode, Instant)>,
    new: Vec<Episode>,
}

impl Problems {
    fn new() -> Self {
        Self { watcher: Watcher::new(Settings::default()), began: Instant::now(), lasting: vec![], new: vec![] }
    }

    fn observe(&mut self, sample: &Sample) {
        /// How long to show a problem that has no end.
        const SHOWN: Duration = Duration::from_secs(3600);
        self.new = self.watcher.observe(Seconds(self.began.elapsed().as_secs_f64()), sample, None);
        self.lasting.retain(|(_, since)| since.elapsed() < SHOWN);
        for episode in &self.new {
            let kind = episode.finding.kind();
            self.lasting.retain(|(other, _)| (&other.card, other.finding.kind()) != (&episode.card, kind));
            if episode.phase == Phase::Begins {
                self.lasting.push((episode.clone(), Instant::now()));
            }
        }
    }

    fn lines(&self, is_screen: bool) -> Vec<String> {
        let line = |episode: &Episode| match health_event(episode) {
            Event::Health { card, what, advice, level, .. } => {
                health_line(card.as_deref(), &what, advice.as_deref(), level)
            }
            _ => String::new(),
        };
        if is_screen {
            self.lasting.iter().map(|(episode, _)| line(episode)).collect()
        } else {
            self.new.iter().map(line).collect()
        }
    }
}

fn show(sample: &Sample, format: &Format) -> Result<(), Failure> {
    match format {
        Format::Table => say(&gpus_now(sample)),
        Format::Json => say(&serde_json::to_string(sample).expect("plain data")),
        Format::Csv(csv) => csv.lines(sample).iter().try_for_each(|line| say(line)),
    }
}

/// Prints a line of data. A closed pipe ends the process, since nothing else would end `--watch`.
fn say(line: &str) -> Result<(), Failure> {
    pass(format!("{}\n", printable(line)).as_bytes())
}

/// The GPUs of this machine. Without a driver there are none; this prints the reason.
fn found() -> Result<Gpus, Failure> {
    match gpus() {
        Err(error @ GpuError::NoDriver { .. }) => {
            talk(error);
            talk(
                "hint: `plimsoll doctor` shows what is missing; `plimsoll plan --gpu 3060` plans for a GPU of another machine",
            );
            Ok(Gpus { driver: None, cards: vec![], notes: vec![] })
        }
        found => Ok(found?),
    }
}

fn list(json: bool) -> Result<u8, Failure> {
    let found = found()?;
    if json {
        write_data(serde_json::to_string_pretty(&found).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    write_data(gpus_table(&found))?;
    for note in &found.notes {
        talk(format_args!("note: {note}"));
    }
    Ok(exit_code::DONE)
}

/// Lists the GPUs for which `plan` needs no such GPU in this machine.
pub(super) fn list_known(json: bool) -> Result<u8, Failure> {
    if json {
        let cards = cards().iter().map(|card| {
            let (major, minor) = card.compute_capability;
            json!({
                "name": card.name, "memory_bytes": card.memory.0, "bandwidth_gb_per_s": card.bandwidth_gb_per_s,
                "fp16_tflops": card.fp16_tflops, "bf16_tflops": card.bf16_tflops, "fp32_tflops": card.fp32_tflops,
                "compute_capability": format!("{major}.{minor}"), "source": card.source,
            })
        });
        let value = json!({ "cards": cards.collect::<Vec<_>>() });
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
    } else {
        write_data(known_cards_table(cards()))?;
    }
    Ok(exit_code::DONE)
}
