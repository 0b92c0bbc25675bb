//! The view of a supervised program, from the files that its supervisor writes.

use crate::activity::activity;
use crate::events::push;
use crate::reader::heat_action;
use crate::run_view::{RunView, Standing};
use crate::text::{LINE, NAME, clean};
use plimsoll_registry::{Entry, JOURNAL, RunState, SCHEMA_VERSION, Status, SupervisorEvent, program_name, progress_of};
use plimsoll_telemetry::{JournalError, Level, Record, Tail};
use plimsoll_units::{Seconds, format_duration};
use std::path::Path;

/// Maximum number of words kept of a command.
const WORDS: usize = 100;

/// Follows a supervised run.
#[derive(Debug, Clone)]
pub(crate) struct Supervised {
    tail: Tail,
    view: RunView,
}

impl Supervised {
    /// Opens the run in a folder; `None` if there is none.
    pub fn open(folder: &Path, mut view: RunView) -> Option<Self> {
        let entry = Entry::read(folder).ok()?;
        view.command = entry.command.iter().take(WORDS).map(|word| clean(word, NAME)).collect();
        view.program = clean(&program_name(&entry.command), NAME);
        view.first_s = Some(entry.started_s);
        Some(Self { tail: Tail::new(&folder.join(JOURNAL), SCHEMA_VERSION), view })
    }

    pub fn refresh(&mut self, folder: &Path) -> Result<RunView, JournalError> {
        let view = &mut self.view;
        // The journal does not exist before the run begins, and events are added only once. If the journal was
        // replaced, reading continues at the previous end.
        let read = self.tail.read(|record: Record<SupervisorEvent>| take(view, &record));
        if read.is_ok_and(|change| change == plimsoll_telemetry::JournalChange::Replaced) {
            self.tail.read(|record: Record<SupervisorEvent>| take(view, &record))?;
        }
        if let Ok(entry) = Entry::read(folder) {
            view.standing = standing(&entry);
            view.is_paused = view.standing == Standing::Running && plimsoll_registry::is_paused(&entry);
            view.last_s = entry.ended.as_ref().map(|ended| ended.time_s).or(view.last_s);
            view.seconds = entry.ran_s(entry.state());
            if let Some(progress) = progress_of(&entry.folder, entry.worker_count.min(WORDS)) {
                (view.step, view.last_step) = (progress.step, progress.of);
            }
        }
        let activity = activity(folder);
        (view.process, view.process_uid, view.processes) = (activity.process, activity.uid, activity.processes);
        Ok(view.clone())
    }
}

fn standing(entry: &Entry) -> Standing {
    match (entry.state(), entry.ended.as_ref().map(|ended| ended.status)) {
        (RunState::Running | RunState::Orphaned | RunState::Elsewhere, _) => Standing::Running,
        (_, Some(Status::Finished)) => Standing::Finished,
        (_, Some(Status::Failed)) => Standing::Failed,
        (_, Some(Status::Stopped | Status::TimeOver)) => Standing::Interrupted,
        (_, Some(Status::TooHot)) => Standing::TooHot,
        _ => Standing::CutShort,
    }
}

fn take(view: &mut RunView, record: &Record<SupervisorEvent>) {
    let time_s = record.time_s;
    view.last_s = Some(time_s);
    if matches!(record.event, SupervisorEvent::AttemptStarted { .. }) {
        view.sessions += 1;
    }
    if let Some(line) = words(&record.event) {
        push(&mut view.events, time_s, line);
    }
    if let SupervisorEvent::Heat { card, what } = &record.event {
        heat_action(view, time_s, card, what);
    }
    if let SupervisorEvent::RecordsLost { reason } = &record.event {
        view.problems.push(clean(reason, LINE));
        view.problems.truncate(crate::reader::PROBLEMS);
    }
}

/// The message for an event; `None` for events that views do not show.
fn words(event: &SupervisorEvent) -> Option<(Level, String)> {
    use Level::{Error, Info, Warn};
    let of = |worker: &usize| if *worker == 0 { String::new() } else { format!("worker {worker}: ") };
    Some(match event {
        SupervisorEvent::RunStarted { .. } => return None,
        SupervisorEvent::AttemptStarted { worker, attempt, pid, .. } => {
            (Info, format!("{}attempt {attempt} started, process {pid}", of(worker)))
        }
        SupervisorEvent::Adopted { worker, pid, .. } => (Info, format!("{}now watching process {pid}", of(worker))),
        SupervisorEvent::NotStarted { worker, program, reason, .. } => {
            (Error, format!("{}cannot start {program}: {reason}", of(worker)))
        }
        SupervisorEvent::Hung { worker, idle_s, .. } => {
            (Error, format!("{}hangs: no progress for {}", of(worker), format_duration(Seconds(*idle_s))))
        }
        SupervisorEvent::Signaled { worker, signal, why } => (Warn, format!("{}{signal}: {why}", of(worker))),
        SupervisorEvent::Forwarded { signal } => (Info, format!("{signal} forwarded")),
        SupervisorEvent::AttemptEnded { worker, kind, cause, ran_s, .. } => {
            let level = if kind == plimsoll_registry::SUCCESS { Info } else { Error };
            (level, format!("{}ended after {}: {kind} {cause}", of(worker), format_duration(Seconds(*ran_s))))
        }
        SupervisorEvent::Restarting { worker, why, notes, .. } => {
            let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
            (Warn, format!("{}restarting: {why}{notes}", of(worker)))
        }
        SupervisorEvent::WaitingForMemory { worker, why, .. } => {
            (Warn, format!("{}waits for free memory: {why}", of(worker)))
        }
        SupervisorEvent::GaveUp { worker, why } => (Error, format!("{}not restarted: {why}", of(worker))),
        SupervisorEvent::Heat { card, what } => (Warn, format!("{card}: {what}")),
        SupervisorEvent::SensorsSilent {} => (Warn, "sensors no longer respond: running at half speed".to_owned()),
        SupervisorEvent::TimeOver { duration_s } => {
            (Warn, format!("time limit of {} reached", format_duration(Seconds(*duration_s))))
        }
        SupervisorEvent::RecordsLost { reason } => (Error, format!("cannot write journal or report: {reason}")),
        SupervisorEvent::OutputLost { worker, reason } => {
            (Error, format!("{}cannot save output: {reason}", of(worker)))
        }
        SupervisorEvent::ScreenGone { .. } | SupervisorEvent::NotShown { .. } => return None,
        SupervisorEvent::RunEnded { status, code } => {
            let level = if *status == Status::Finished { Info } else { Error };
            let code = code.map_or(String::new(), |code| format!(", exit code {code}"));
            (level, format!("ended: {}{code}", status_words(*status)))
        }
    })
}

fn status_words(status: Status) -> &'static str {
    match status {
        Status::Finished => "finished",
        Status::Failed => "failed",
        Status::Stopped => "stopped",
        Status::TooHot => "stopped for heat",
        Status::TimeOver => "time limit reached",
        Status::Unknown => "reason unknown",
    }
}
