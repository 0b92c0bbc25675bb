//! Adopts a run whose supervisor is gone and continues it as that supervisor would have.

use super::{Job, SuperviseError, Supervised, Supervisor};
use crate::child::Running;
use crate::keeper::KeeperConnection;
use crate::pace::release_left;
use crate::repair::Ending;
use crate::worker::Phase;
use plimsoll_registry::{AttemptReport, Entry, JOURNAL, Process, ProgramEnd, Record, SupervisorEvent, WorkerEntry};
use plimsoll_telemetry::now_s;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

/// Supervises a run that lost its supervisor until it ends. Calls `on_event` for every event as it happens.
/// Errors: as [`supervise`](super::supervise).
pub fn adopt(
    job: Job,
    entry: &Entry,
    on_event: &mut dyn FnMut(&SupervisorEvent),
) -> Result<Supervised, SuperviseError> {
    let attempts = attempts_before(&job.folder.path().join(JOURNAL));
    let mut supervisor = Supervisor::new(job, on_event)?;
    let arguments = std::mem::take(&mut supervisor.entry.arguments);
    supervisor.entry = Entry { process: Process::own(), arguments, ..entry.clone() };
    supervisor.peaks.resume(&entry.cards);
    supervisor.report.attempts = attempts;
    supervisor.has_started = true;
    let ran_for = Duration::from_secs_f64((now_s() - entry.started_s).clamp(0.0, 1e9));
    supervisor.began = supervisor.began.checked_sub(ran_for).unwrap_or(supervisor.began);
    supervisor.enter();
    for worker in 0..supervisor.workers.len() {
        match entry.workers.iter().find(|entry| entry.worker == worker) {
            Some(entered) => supervisor.resume(entered, entry),
            // The worker was not started yet.
            None => {
                let worker = &mut supervisor.workers[worker];
                worker.attempt = worker.repair.start();
            }
        }
    }
    supervisor.run();
    Ok(supervisor.end())
}

impl Supervisor<'_> {
    /// Continues a worker that was started.
    fn resume(&mut self, entered: &WorkerEntry, entry: &Entry) {
        let index = entered.worker;
        let worker = &mut self.workers[index];
        worker.attempt_number = entered.attempt;
        worker.attempt = entered.command.clone();
        worker.restarts.resume(&entered.seen);
        worker.repair.resume(&entered.past);
        worker.first_started = Some(self.began);
        if let Some(outcome) = entered.outcome {
            worker.phase = Phase::Done(outcome);
            return;
        }
        let started = KeeperConnection::reconnect(self.folder.path(), index)
            .ok()
            .filter(|kept| kept.program.attempt == entered.attempt);
        let end = match &started {
            Some(_) => None,
            None => ProgramEnd::complete(self.folder.path(), index, entered.attempt, entered.keeper.as_ref()),
        };
        let leader = entry.leader(entered);
        if let Some(leader) = &leader {
            release_left(self.folder.path(), index, leader);
        }
        let running = match (started, end, leader) {
            (Some(started), ..) => Running::kept(started, self.attempt_setup(index)).map(|running| (running, true)),
            // Its keeper is gone. Leftover processes are cleaned up as after any end.
            (None, end, Some(leader)) => {
                let logged_bytes = end.and_then(|end| end.logged_bytes);
                self.workers[index].output.recall_logged(logged_bytes.unwrap_or(0));
                let (pipes, keeper) = (entered.pipes.clone(), entered.keeper.clone());
                Running::unkept(leader, pipes, keeper, self.attempt_setup(index)).map(|running| (running, false))
            }
            (None, Some(ProgramEnd { status, logged_bytes, .. }), None) => {
                let output = &self.workers[index].output;
                output.recall_logged(logged_bytes.unwrap_or(0));
                let (tail, progress) = output.finish();
                let ending = Ending { code: status.code, signal: status.signal, tail, progress, ..Ending::default() };
                self.judge(index, &ending);
                return;
            }
            (None, None, None) => {
                // The old supervisor recorded the start but never made it.
                let worker = &mut self.workers[index];
                worker.attempt_number -= 1;
                worker.phase = Phase::Pausing(Instant::now());
                return;
            }
        };
        match running {
            Ok((running, is_kept)) => {
                let (pid, is_mute) = (running.group.leader.pid, running.is_mute);
                self.watch(index, running);
                self.emit(SupervisorEvent::Adopted { worker: index, pid, is_kept, is_mute });
            }
            Err(error) => self.start_failed(index, error),
        }
    }
}

/// Attempts that ended, read from a journal. Skips lines that can't be parsed.
fn attempts_before(journal: &Path) -> Vec<AttemptReport> {
    let mut attempts = Vec::new();
    let mut notes_of = BTreeMap::new();
    let lines = File::open(journal).map(|file| BufReader::new(file).split(b'\n')).into_iter().flatten();
    for record in lines.map_while(Result::ok).filter_map(|line| serde_json::from_slice::<Record>(&line).ok()) {
        match record.event {
            SupervisorEvent::AttemptStarted { worker, attempt, notes, .. } => {
                drop(notes_of.insert((worker, attempt), notes))
            }
            SupervisorEvent::AttemptEnded { worker, attempt, code, signal, kind, ran_s, progress, .. } => {
                let notes = notes_of.remove(&(worker, attempt)).unwrap_or_default();
                attempts.push(AttemptReport { worker, attempt, code, signal, kind, ran_s, progress, notes });
            }
            _ => {}
        }
    }
    attempts
}
