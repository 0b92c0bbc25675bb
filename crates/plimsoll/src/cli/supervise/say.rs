//! Messages of a supervisor: one line per event, and a summary of the run.

use crate::streams::talk;
use plimsoll_registry::{Report, STOPPED, SUCCESS, Status, SupervisorEvent, TOO_HOT};
use plimsoll_units::{Bytes, Seconds, format_duration};

/// Prints an event as it happens.
pub(super) fn tell(event: &SupervisorEvent) {
    if let Some(line) = line(event) {
        talk(format_args!("plimsoll: {line}"));
    }
}

/// The message for an event; `None` for events that users need not see.
pub(super) fn line(event: &SupervisorEvent) -> Option<String> {
    Some(match event {
        SupervisorEvent::AttemptStarted { attempt: 1, notes, .. } if notes.is_empty() => return None,
        SupervisorEvent::AttemptStarted { worker, attempt, notes, .. } => {
            let notes = if notes.is_empty() { String::new() } else { format!(": {}", notes.join("; ")) };
            format!("{}attempt {attempt}{notes}", of(*worker))
        }
        SupervisorEvent::Adopted { worker, pid, is_kept, is_mute } => {
            let kept = if *is_kept { "" } else { "; its keeper is gone, so its exit code may stay unknown" };
            let mute = if *is_mute { "; its output can't be read" } else { "" };
            format!("{}supervising process group {pid}{kept}{mute}", of(*worker))
        }
        SupervisorEvent::NotStarted { worker, program, reason, .. } => {
            format!("{}{program} can't be started: {reason}", of(*worker))
        }
        SupervisorEvent::Hung { worker, idle_s, stacks } => {
            let stacks = stacks.as_ref().map_or(String::new(), |path| format!("; stacks are in {}", path.display()));
            format!("{}no output and nothing computed for {}{stacks}", of(*worker), duration(*idle_s))
        }
        SupervisorEvent::Signaled { worker, signal, why } => format!("{}{signal}: {why}", of(*worker)),
        SupervisorEvent::AttemptEnded { kind, .. } if kind == SUCCESS => return None,
        SupervisorEvent::AttemptEnded { worker, code, signal, kind, ran_s, .. } => {
            let how = match (code, signal) {
                (_, Some(signal)) => format!("signal {signal}"),
                (Some(code), None) => format!("exit code {code}"),
                (None, None) => "exit code unknown".to_owned(),
            };
            // Kinds that only repeat the exit code or the signal add nothing.
            let is_redundant = [STOPPED, TOO_HOT].contains(&kind.as_str())
                || ["exit_", "signal_"].iter().any(|plain| kind.starts_with(plain));
            let kind = if is_redundant { String::new() } else { format!(", {}", kind.replace('_', " ")) };
            format!("{}ended after {}: {how}{kind}", of(*worker), duration(*ran_s))
        }
        SupervisorEvent::Restarting { worker, pause_s, why, .. } => {
            format!("{}restarting in {pause_s} s: {why}", of(*worker))
        }
        SupervisorEvent::WaitingForMemory { worker, pause_s, why } => {
            format!("{}waiting {} for free memory: {why}", of(*worker), duration(*pause_s))
        }
        SupervisorEvent::GaveUp { worker, why } => format!("{}not restarting: {why}", of(*worker)),
        SupervisorEvent::Heat { card, what } => format!("{card}: {what}"),
        SupervisorEvent::SensorsSilent {} => "sensors no longer respond: running half of the time".to_owned(),
        SupervisorEvent::TimeOver { duration_s } => format!("reached the time limit of {}", duration(*duration_s)),
        SupervisorEvent::RecordsLost { reason } => format!("warning: the run's records are incomplete: {reason}"),
        SupervisorEvent::OutputLost { worker, reason } => {
            format!("warning: {}can't save output: {reason}", of(*worker))
        }
        SupervisorEvent::ScreenGone { stream, reason } => {
            format!("warning: no longer forwarding {stream}: {reason}")
        }
        SupervisorEvent::NotShown { stream, bytes } => {
            format!("warning: {} of output are only in the log: nothing read {stream}", Bytes(*bytes))
        }
        SupervisorEvent::RunStarted { .. } | SupervisorEvent::Forwarded { .. } | SupervisorEvent::RunEnded { .. } => {
            return None;
        }
    })
}

/// A prefix that names a worker. Empty for worker 0, which may be the only one.
fn of(worker: usize) -> String {
    if worker == 0 { String::new() } else { format!("worker {worker}: ") }
}

fn duration(seconds: f64) -> String {
    format_duration(Seconds(seconds))
}

/// A one-line summary of a run.
pub(super) fn summary(report: &Report) -> String {
    let attempts = report.attempts.len();
    let status = match (report.status, report.code) {
        (Status::Finished, _) => "finished".to_owned(),
        (Status::Failed, Some(code)) => format!("failed (exit code {code})"),
        (Status::Failed, None) => "failed".to_owned(),
        (Status::Stopped, _) => "stopped".to_owned(),
        (Status::TooHot, Some(code)) => format!("stopped for heat (exit code {code})"),
        (Status::TooHot, None) => "stopped for heat".to_owned(),
        (Status::TimeOver, _) => "reached its time limit".to_owned(),
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
