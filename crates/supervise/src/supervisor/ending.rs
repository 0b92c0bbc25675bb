//! The end of a run: its status, exit code, report and registry entry.

use super::{Supervised, Supervisor};
use crate::keeper;
use crate::output::Screen;
use crate::worker::Phase;
use plimsoll_registry::{Ended, Status, SupervisorEvent, WorkerOutcome};
use plimsoll_telemetry::now_s;

impl Supervisor<'_> {
    pub(super) fn end(mut self) -> Supervised {
        let outcomes = self.workers.iter().map(|worker| match worker.phase {
            Phase::Done(outcome) => outcome,
            _ => WorkerOutcome { code: None, is_success: false },
        });
        let outcomes = outcomes.collect::<Vec<_>>();
        let all_succeeded = outcomes.iter().all(|outcome| outcome.is_success);
        let is_unknown = outcomes.iter().all(|outcome| outcome.is_success || outcome.code.is_none());
        self.report.status = match self.early_end {
            Some(status) => status,
            None if all_succeeded => Status::Finished,
            None if is_unknown => Status::Unknown,
            None => Status::Failed,
        };
        let failed = outcomes.iter().find(|outcome| !outcome.is_success);
        self.report.code = match self.interrupts {
            2.. => Some(130),
            _ if self.report.status == Status::TooHot => Some(self.early_end_code),
            _ => failed.map_or(Some(0), |outcome| outcome.code),
        };
        self.report.ran_s = self.began.elapsed().as_secs_f64();
        self.report.workers_succeeded = outcomes.iter().filter(|outcome| outcome.is_success).count();
        self.report.restarts = self.workers.iter().map(|worker| worker.restarts.made()).sum();
        self.report.cards = self.peaks.list();
        self.entry.cards.clone_from(&self.report.cards);
        self.report.count();
        self.report_losses();
        if self.refusal.is_none() {
            self.emit(SupervisorEvent::RunEnded { status: self.report.status, code: self.report.code });
            self.journal.sync();
            (0..self.workers.len()).for_each(|worker| keeper::remove(self.folder.path(), worker));
            let text = serde_json::to_vec_pretty(&self.report).expect("plain data");
            let ended = Ended { status: self.report.status, code: self.report.code, time_s: now_s() };
            self.entry.ended = Some(ended);
            let written = self.folder.disk().replace(&self.folder.report(), &text).and_then(|()| self.entry.write());
            if let Err(error) = written {
                self.report_loss(&error.to_string());
            }
        } else {
            self.folder.discard();
        } // After a second Ctrl-C, do not wait for readers of the output.
        if self.interrupts < 2 {
            self.screens.iter().for_each(Screen::finish);
        }
        Supervised { report: self.report, refusal: self.refusal }
    }
}
