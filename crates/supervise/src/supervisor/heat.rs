//! How the supervisor reacts to heat: it stops and continues programs in turn, or ends the run.

use super::Supervisor;
use crate::worker::Phase;
use plimsoll_registry::{Status, SupervisorEvent};
use rustix::process::Signal;
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// Follows the pacer's orders. Continues programs that must end: a stopped process does not receive signals.
    pub(super) fn check_heat(&mut self) {
        let Some(pacing) = &mut self.pacing else { return };
        let pace = pacing.look(Instant::now());
        for (card, what) in pace.notes {
            self.emit(SupervisorEvent::Heat { card, what });
        }
        if pace.has_become_silent {
            self.emit(SupervisorEvent::SensorsSilent {});
        }
        if let Some(code) = pace.ends.filter(|_| self.early_end.is_none() && self.has_more_to_do()) {
            self.end_for_heat(code);
        }
        let is_ending = self.early_end.is_some();
        let folder = self.folder.path();
        let mut lost = None;
        for (index, worker) in self.workers.iter_mut().enumerate() {
            let Phase::Live(live) = &mut worker.phase else { continue };
            if is_ending || !pace.is_stopped[index] || live.is_held_up() {
                live.let_go();
            } else {
                lost = live.hold(folder, index).err().or(lost);
            }
        }
        if let Some(error) = lost {
            self.report_loss(&error.to_string());
        }
    }

    /// Whether a program runs or has yet to start. A run that finished on its own did not end because of heat.
    fn has_more_to_do(&self) -> bool {
        self.workers.iter().any(|worker| match &worker.phase {
            Phase::Live(live) => !live.has_ended(),
            Phase::Waiting | Phase::Pausing(_) | Phase::WaitingForMemory { .. } => true,
            Phase::Done(_) => false,
        })
    }

    fn end_for_heat(&mut self, code: i32) {
        self.early_end = Some(Status::TooHot);
        self.early_end_code = code;
        let signals = [
            (Duration::ZERO, Signal::TERM, "its GPU is too hot"),
            (self.settings.grace, Signal::KILL, "it ignored SIGTERM"),
        ];
        self.lives().for_each(|live| live.schedule(&signals));
    }
}
