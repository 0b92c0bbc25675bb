//! `plimsoll pause`, `resume` and `budget`: orders to a running run. A run of `plimsoll train` reads an order from its
//! folder and answers with an event. Another program is stopped and continued by signals, as Ctrl-Z does.

use super::run::elsewhere;
use super::{RunsArgs, distrusted, unproved, untrusted};
use crate::cli::Failure;
use crate::cli::failure::{exit_code, io_failure, line};
use crate::streams::talk;
use clap::Args;
use plimsoll_files::is_locked;
use plimsoll_orders::{GiveError, Order, give};
use plimsoll_registry::{Entry, Follower, PauseError, RunKind, pause, resume};
use plimsoll_telemetry::{Event, Record};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::time::{Duration, Instant};

/// How often to look for the run's answer.
const TICK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(in crate::cli) struct PauseArgs {
    /// The runs' names or folders
    #[arg(required = true)]
    run: Vec<String>,
    #[command(flatten)]
    order: OrderArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct BudgetArgs {
    /// The run's name or folder
    run: String,
    /// The new memory budget, as for `train --vram`: `12` (GiB), `600MiB`
    #[arg(value_name = "SIZE")]
    size: Bytes,
    #[command(flatten)]
    order: OrderArgs,
}

#[derive(Debug, Args)]
struct OrderArgs {
    /// Time to wait for the run's answer, which comes after its current micro-batch or step; `0` does not wait
    #[arg(long, value_name = "TIME", default_value = "60s")]
    wait: Seconds,
    #[command(flatten)]
    runs: RunsArgs,
}

pub(in crate::cli) fn run_pause(args: &PauseArgs) -> Result<u8, Failure> {
    args.order.give_all(&args.run, Order::Pause)
}

pub(in crate::cli) fn run_resume(args: &PauseArgs) -> Result<u8, Failure> {
    args.order.give_all(&args.run, Order::Resume)
}

pub(in crate::cli) fn run_budget(args: &BudgetArgs) -> Result<u8, Failure> {
    args.order.give_all(std::slice::from_ref(&args.run), Order::Budget { bytes: args.size.0 })
}

impl OrderArgs {
    /// Gives an order to each of the runs. Errors: a run does not exist, or refuses.
    fn give_all(&self, runs: &[String], order: Order) -> Result<u8, Failure> {
        let entries = runs.iter().map(|name| self.runs.find(name)).collect::<Result<Vec<_>, _>>()?;
        for entry in entries {
            match entry.kind {
                RunKind::Own => self.give(&entry, order)?,
                RunKind::Supervised => signal(&entry, order)?,
            }
        }
        Ok(exit_code::DONE)
    }

    fn give(&self, entry: &Entry, order: Order) -> Result<(), Failure> {
        let (name, journal) = (entry.name(), entry.folder.join("journal.jsonl"));
        let follow = || Follower::new(&journal, 0).map_err(io_failure(journal.display()));
        let mut answers = Answers { journal: follow()?, line: vec![] };
        let number = give(&entry.folder, order).map_err(|error| refused(entry, &error))?;
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < self.wait.0 {
            // Test this before reading, so that the read covers everything written before the end.
            let is_over = !is_locked(&entry.folder);
            if let Some(answer) = answers.to(number).map_err(io_failure(journal.display()))? {
                return report_answer(&name, order, answer);
            }
            if is_over {
                return Err(Failure::bad_input(format!("{name} has ended")).hint(resume_hint(entry)));
            }
            std::thread::sleep(TICK);
        }
        talk(format_args!("{name}: order sent; `plimsoll logs {name}` shows the answer, which may take a step"));
        Ok(())
    }
}

/// The answers in a growing journal.
struct Answers {
    journal: Follower,
    /// The start of an incomplete line.
    line: Vec<u8>,
}

impl Answers {
    /// The answer to an order, if the journal has it.
    fn to(&mut self, number: u64) -> std::io::Result<Option<Event>> {
        let mut buffer = vec![0; 64 << 10];
        while let count @ 1.. = self.journal.read(&mut buffer)? {
            self.line.extend_from_slice(&buffer[..count]);
            let whole = self.line.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let lines = self.line.drain(..whole).collect::<Vec<_>>();
            let records = lines.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            let answer = records.map(|record: Record| record.event).find(|event| answers(event) == Some(number));
            if answer.is_some() {
                return Ok(answer);
            }
        }
        Ok(None)
    }
}

/// The number of the order that an event answers.
fn answers(event: &Event) -> Option<u64> {
    match event {
        Event::Paused { order, .. } | Event::Replanned { order, .. } => Some(*order),
        Event::Unpaused { order, .. } | Event::OrderRefused { order, .. } => *order,
        _ => None,
    }
}

fn report_answer(name: &str, order: Order, answer: Event) -> Result<(), Failure> {
    match answer {
        Event::Paused { step, .. } => {
            talk(format_args!("{name}: paused in step {step}; `plimsoll resume {name}` continues it"))
        }
        Event::Unpaused { step, seconds, .. } => {
            talk(format_args!(
                "{name}: continues in step {step} after a pause of {}",
                format_duration(Seconds(seconds))
            ));
        }
        Event::Replanned { step, planned_bytes, budget_bytes, .. } => talk(format_args!(
            "{name}: saved after step {step}; continues with a plan of {} within {}",
            Bytes(planned_bytes),
            Bytes(budget_bytes)
        )),
        Event::OrderRefused { reason, .. } => {
            let code = if matches!(order, Order::Budget { .. }) { exit_code::DOES_NOT_FIT } else { exit_code::USAGE };
            return Err(Failure::new(code, format!("{name}: {}; it continues as before", line(&reason))));
        }
        _ => {}
    }
    Ok(())
}

/// Pauses another program, or continues it.
fn signal(entry: &Entry, order: Order) -> Result<(), Failure> {
    let name = entry.name();
    let (done, words) = match order {
        Order::Pause => (pause(entry), format!("paused; `plimsoll resume {name}` continues it")),
        Order::Resume => (resume(entry), "continues".to_owned()),
        Order::Stop | Order::Budget { .. } => {
            return Err(Failure::bad_flag(format!(
                "{name} is not a run of `plimsoll train`; only those can change their budget"
            ))
            .hint("`plimsoll run --memory-fraction` limits the memory of other programs at their start"));
        }
    };
    match done {
        Ok(()) => talk(format_args!("{name}: {words}")),
        Err(PauseError::Elsewhere) => return Err(elsewhere(entry)),
        Err(PauseError::Untrusted(error)) => return Err(untrusted(&name, &error)),
        Err(PauseError::Unproved { .. }) => return Err(unproved(entry)),
        Err(error @ PauseError::HasEnded) => return Err(Failure::bad_input(format!("{name}: {error}"))),
        Err(error) => return Err(Failure::bad_flag(format!("{name}: {error}"))),
    }
    Ok(())
}

/// The error for an order that was not given.
fn refused(entry: &Entry, error: &GiveError) -> Failure {
    let message = format!("{}: {}", entry.name(), line(error));
    match error {
        GiveError::NotTraining => Failure::bad_input(message).hint(resume_hint(entry)),
        GiveError::TakesNone => {
            Failure::bad_input(message).hint("`plimsoll stop` ends it; a resumed run accepts orders")
        }
        GiveError::Distrusted(distrust) => distrusted(&entry.name(), distrust),
        GiveError::Full => Failure::bad_input(message).hint("a resumed run accepts orders again"),
        GiveError::Io(_) => Failure::device(message).hint("is the disk full, or the folder read-only?"),
    }
}

fn resume_hint(entry: &Entry) -> String {
    format!("`plimsoll train --resume {}` continues it", entry.folder.display())
}
