//! What a supervisor says: events as lines, and the last one about a run.

use crate::streams::talk;
use plimsoll_supervise::{Event, Report, STOPPED, SUCCESS, Status, TOO_HOT};
use plimsoll_units::{Bytes, Seconds, format_duration};

/// Says what people want to know while it happens.
pub(super) fn tell(event: &Event) {
    if let Some(line) = line(event) {
        talk(format_args!("plimsoll: {line}"));
    }
}

/// What is said of an event; nothing for what concerns nobody.
pub(super) fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::AttemptStarted { attempt: 1, notes, .. } if notes.is_empty() => return None,
        Event::AttemptStarted { worker, attempt, notes, .. } => {
            let notes = if notes.is_empty() { String::new() } else { format!(": {}", notes.join("; ")) };
            format!("{}attempt {attempt}{notes}", of(*worker))
        }
        Event::Adopted { worker, pid, is_kept, is_mute } => {
            let kept = if *is_kept { "" } else { "; its keeper is gone, so how it ends may stay unknown" };
            let mute = if *is_mute { "; its output can't be had" } else { "" };
            format!("{}supervising process group {pid}{kept}{mute}", of(*worker))
        }
        Event::NotStarted { worker, program, reason, .. } => {
            format!("{}{program} can't be started: {reason}", of(*worker))
        }
        Event::Hung { worker, idle_s, stacks } => {
            let stacks = stacks.as_ref().map_or(String::new(), |path| format!("; stacks are in {}", path.display()));
            format!("{}no output and nothing computed for {}{stacks}", of(*worker), duration(*idle_s))
        }
        Event::Signaled { worker, signal, why } => format!("{}{signal}: {why}", of(*worker)),
        Event::AttemptEnded { kind, .. } if kind == SUCCESS => return None,
        Event::AttemptEnded { worker, code, signal, kind, ran_s, .. } => {
            let how = match (code, signal) {
                (_, Some(signal)) => format!("signal {signal}"),
                (Some(code), None) => format!("exit code {code}"),
                (None, None) => "exit code unknown".to_owned(),
            };
            // What the system alone tells of an end is said already.
            let is_said = [STOPPED, TOO_HOT].contains(&kind.as_str())
                || ["exit_", "signal_"].iter().any(|plain| kind.starts_with(plain));
            let kind = if is_said { String::new() } else { format!(", {}", kind.replace('_', " ")) };
            format!("{}ended after {}: {how}{kind}", of(*worker), duration(*ran_s))
        }
        Event::Restarting { worker, pause_s, why, .. } => {
            format!("{}next attempt in {pause_s:.1} s: {why}", of(*worker))
        }
        Event::GaveUp { worker, why } => format!("{}no further attempt: {why}", of(*worker)),
        Event::Heat { card, what } => format!("{card}: {what}"),
        Event::SensorsSilent {} => "sensors no longer answer: half of the time is waited".to_owned(),
        Event::TimeOver { duration_s } => format!("{} are over", duration(*duration_s)),
        Event::RecordsLost { reason } => format!("warning: the run's records are incomplete: {reason}"),
        Event::OutputLost { worker, reason } => format!("warning: {}output is not kept: {reason}", of(*worker)),
        Event::ScreenGone { stream, reason } => format!("warning: {stream} is not passed on any more: {reason}"),
        Event::NotShown { stream, bytes } => {
            format!("warning: {} of output are in the log alone: nothing read {stream}", Bytes(*bytes))
        }
        Event::RunStarted { .. } | Event::Forwarded { .. } | Event::RunEnded { .. } => return None,
    })
}

/// The first worker needs no name where it is the only one.
fn of(worker: usize) -> String {
    if worker == 0 { String::new() } else { format!("worker {worker}: ") }
}

fn duration(seconds: f64) -> String {
    format_duration(Seconds(seconds))
}

/// What came of a run, in a line.
pub(super) fn summary(report: &Report) -> String {
    let attempts = report.attempts.len();
    let status = match (report.status, report.code) {
        (Status::Finished, _) => "finished".to_owned(),
        (Status::Failed, Some(code)) => format!("failed (exit code {code})"),
        (Status::Failed, None) => "failed".to_owned(),
        (Status::Stopped, _) => "stopped".to_owned(),
        (Status::TooHot, Some(code)) => format!("stopped for heat (exit code {code})"),
        (Status::TooHot, None) => "stopped for heat".to_owned(),
        (Status::TimeOver, _) => "its time was over".to_owned(),
        (Status::Unknown, _) => "ended, exit code unknown".to_owned(),
    };
    let mut parts = vec![format!("plimsoll: {}: {status} after {}", report.name, duration(report.ran_s))];
    if attempts > 1 {
        let rate =
            report.success_rate.map_or(String::new(), |rate| format!(", {:.0} % of them successful", rate * 100.0));
        parts.push(format!("{attempts} attempts{rate}"));
    }
    if report.workers > 1 {
        parts.push(format!("{} of {} workers succeeded", report.workers_succeeded, report.workers));
    }
    if !report.failures.is_empty() {
        let failures = report.failures.iter().map(|(kind, count)| format!("{count} × {}", kind.replace('_', " ")));
        parts.push(format!("failures: {}", failures.collect::<Vec<_>>().join(", ")));
    }
    parts.join("; ")
}
