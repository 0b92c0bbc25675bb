//! Classifies the end of a run: from its exit code, signal, OOM-killer count and last output to a typed cause. Pure.
//! Not here: watching a process (`../supervisor`), changes against running out of memory (`../ladder`).
//! Most mentions of memory in an output are harmless: libraries log errors that they caught, samples and help texts
//! contain the words, tracebacks show lines of source. So an error counts only by its form (the exception of a
//! traceback, the last message of C++ or a library before it exits) and only if the run did not continue after it. The
//! last such error wins.
//! Messages about the failure of another process count only if there is nothing else.

mod cause;
mod lines;
mod messages;
mod native;
mod sizes;
mod statement;
mod statements;
mod survival;

pub use cause::{CardAllocator, Cause, Fault, HostShortage};
pub use sizes::AllocatorSizes;

use crate::repair::Ending;
use lines::{Line, lines};
use messages::Meaning;
use statement::{Statement, Weight};
use statements::statements;
use std::collections::BTreeMap;
use survival::SurvivalSigns;

/// A caught error that a program printed counts only within this many last lines.
const LAST_LINES: usize = 12;

/// Why a run ended, and the line that shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reason {
    /// The cause.
    pub cause: Cause,
    /// The line of output that the cause was read from, if any.
    pub line: Option<String>,
}

impl Reason {
    /// The fault; `None` for a success or an out-of-memory error.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        match &self.cause {
            Cause::Fault(fault) => Some(fault),
            _ => None,
        }
    }

    /// The line after a colon; empty if there is none.
    pub(crate) fn said(&self) -> String {
        self.line.as_deref().map(|line| format!(": {line}")).unwrap_or_default()
    }
}

/// Classifies why a run ended.
pub fn classify(end: &Ending) -> Reason {
    let (code, signal) = codes(end);
    let output = String::from_utf8_lossy(&end.tail);
    if let Some(cause) = by_code(end, code, signal, &output) {
        return Reason { cause, line: None };
    }
    let lines = lines(&output);
    let killed = Reason { cause: Cause::HostMemory(HostShortage::Killed), line: None };
    match said(&lines) {
        // A process that the OOM killer ended prints nothing, but the processes that waited for it complain.
        Said::Nothing | Said::ByOthers(..) if end.oom_kills > 0 => killed,
        Said::Cause(cause, at) => Reason { cause, line: Some(lines[at].text.clone()) },
        Said::ByOthers(fault, at) => Reason { cause: Cause::Fault(fault), line: Some(lines[at].text.clone()) },
        Said::Nothing => match usage(&lines).filter(|_| code == USAGE) {
            Some(line) => Reason { cause: Cause::Fault(Fault::Configuration), line: Some(line) },
            None => Reason { cause: Cause::Fault(silent(code, signal)), line: None },
        },
    }
}

/// Exit code and signal. Shells and containers report a signal as exit code 128 plus its number.
fn codes(end: &Ending) -> (i32, Option<i32>) {
    const FIRST: i32 = 128;
    const LAST: i32 = FIRST + 64;
    match (end.code, end.signal) {
        (code, Some(signal)) => (code.unwrap_or(FIRST + signal), Some(signal)),
        (Some(code), None) if (FIRST + 1..=LAST).contains(&code) => (code, Some(code - FIRST)),
        (code, None) => (code.unwrap_or(1), None),
    }
}

const INTERRUPT: i32 = 2;
const KILL: i32 = 9;
const TERMINATE: i32 = 15;

/// The cause of an end that needs little or no output to classify.
fn by_code(end: &Ending, code: i32, signal: Option<i32>, output: &str) -> Option<Cause> {
    match signal {
        _ if end.hung => Some(Cause::Fault(Fault::Hang)),
        None if code == 0 => Some(Cause::Done),
        Some(INTERRUPT) => Some(Cause::Fault(Fault::Interrupted)),
        Some(KILL) if end.oom_kills > 0 || reports_oom_kill(output) => Some(Cause::HostMemory(HostShortage::Killed)),
        Some(KILL) => Some(Cause::Fault(Fault::Killed)),
        _ => None,
    }
}

/// Whether the output contains a report of the OOM killer, from the kernel's log or from Slurm.
fn reports_oom_kill(output: &str) -> bool {
    let is_slurms = |line: &str| {
        line.split_once("slurmstepd: error: Detected ")
            .is_some_and(|(_, what)| ["oom_kill event", "oom-kill event"].iter().any(|event| what.contains(event)))
    };
    kernel_names_python(output) || output.lines().any(is_slurms)
}

/// Whether the kernel's log, which some programs print as they end, names a Python process as killed.
fn kernel_names_python(output: &str) -> bool {
    const NAMES: [&str; 4] = ["(python", "(pt_main_thread", "(pt_data_worker", "(ray::"];
    output.lines().filter_map(|line| line.split_once("ut of memory: Killed process ")).any(|(_, victim)| {
        let name = victim.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        NAMES.iter().any(|known| name.starts_with(known))
    })
}

/// The cause in an output, and the index of its line.
enum Said {
    Cause(Cause, usize),
    /// Another process of the run was killed, or is gone.
    ByOthers(Fault, usize),
    Nothing,
}

fn said(lines: &[Line]) -> Said {
    let mut streams: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        streams.entry(&line.source).or_default().push((at, &line.text));
    }
    let mut all: Vec<Statement> = streams.values().flat_map(|lines| statements(lines)).collect();
    all.sort_by_key(|statement| statement.at);
    let survival = SurvivalSigns::of(lines);
    let (past, last): (Vec<_>, Vec<_>) = all.into_iter().partition(|statement| survival.after(statement.at));
    let others = last_of(&last, by_others);
    // If processes fail one after the other, others may still log a step after the first failure.
    let others_complain = last.iter().any(|s| s.weight == Weight::Final);
    let recent: Vec<_> = past.into_iter().filter(|s| others_complain && !survival.surely_after(s.at)).collect();
    last_cause(&last, Weight::Final)
        .or_else(|| last_cause(&last, Weight::Thread))
        .or_else(|| last_cause(&recent, Weight::Final))
        .map(|(cause, at)| Said::Cause(cause, at))
        .or_else(|| others.map(|(fault, at)| Said::ByOthers(fault, at)))
        .or_else(|| {
            let (cause, at) = last_cause(&last[of_last_lines(&last, lines)..], Weight::Printed)?;
            Some(Said::Cause(cause, at))
        })
        .unwrap_or(Said::Nothing)
}

/// The exit code of command-line parsers for a usage error.
const USAGE: i32 = 2;

/// The message of a command-line parser that prints its usage: the error line or, without one, the usage line.
fn usage(lines: &[Line]) -> Option<String> {
    let begins = |line: &&Line, word: &str| line.text.get(..word.len()).is_some_and(|s| s.eq_ignore_ascii_case(word));
    let usage = lines.iter().rev().find(|line| begins(line, "usage:"))?;
    let error = lines.iter().rev().find(|line| begins(line, "error:"));
    Some(error.unwrap_or(usage).text.clone())
}

fn last_of<T>(statements: &[Statement], read: impl Fn(&Statement) -> Option<T>) -> Option<(T, usize)> {
    statements.iter().rev().find_map(|statement| Some((read(statement)?, statement.at)))
}

fn last_cause(statements: &[Statement], weight: Weight) -> Option<(Cause, usize)> {
    last_of(statements, |s| match &s.meaning {
        Meaning::Cause(cause) if s.weight == weight => Some(cause.clone()),
        Meaning::Cause(_) | Meaning::Consequence(_) | Meaning::Wrapper | Meaning::Signal(_) => None,
    })
}

fn by_others(statement: &Statement) -> Option<Fault> {
    match &statement.meaning {
        Meaning::Consequence(fault) => Some(fault.clone()),
        Meaning::Signal(signal) => Some(by_signal(*signal)),
        Meaning::Cause(_) | Meaning::Wrapper => None,
    }
}

/// The index of the first statement within the last non-empty lines.
fn of_last_lines(statements: &[Statement], lines: &[Line]) -> usize {
    let written = lines.iter().enumerate().rev().filter(|(_, line)| !line.text.is_empty());
    let first = written.map(|(at, _)| at).take(LAST_LINES).last().unwrap_or_default();
    statements.partition_point(|statement| statement.at < first)
}

fn silent(code: i32, signal: Option<i32>) -> Fault {
    signal.map_or(Fault::Exit { code }, by_signal)
}

fn by_signal(signal: i32) -> Fault {
    match signal {
        INTERRUPT => Fault::Interrupted,
        KILL | TERMINATE => Fault::Killed,
        signal => Fault::Crashed { signal },
    }
}
