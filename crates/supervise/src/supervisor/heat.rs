//! What the supervisor does about heat: programs are stopped and let go on by turns, or asked to end.

use super::Supervisor;
use crate::event::Event;
use crate::report::Status;
use crate::worker::Phase;
use rustix::process::Signal;
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// Does what orders say, and lets go on whatever is to end: who is stopped hears no signal.
    pub(super) fn check_heat(&mut self) {
        let Some(pacing) = &mut self.pacing else { return };
        let pace = pacing.look(Instant::now());
        for (card, what) in pace.notes {
            self.emit(Event::Heat { card, what });
        }
        if pace.has_become_silent {
            self.emit(Event::SensorsSilent {});
        }
        if let Some(code) = pace.ends.filter(|_| self.asked.is_none() && self.has_more_to_do()) {
            self.end_for_heat(code);
        }
        let is_ending = self.asked.is_some();
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
            self.tell_loss(&error.to_string());
        }
    }

    /// Whether a program runs, or is to be started: a run that came to its end by itself did not end for heat.
    fn has_more_to_do(&self) -> bool {
        self.workers.iter().any(|worker| match &worker.phase {
            Phase::Live(live) => !live.has_ended(),
            Phase::Waiting | Phase::Pausing(_) => true,
            Phase::Done(_) => false,
        })
    }

    fn end_for_heat(&mut self, code: i32) {
        self.asked = Some(Status::TooHot);
        self.asked_code = code;
        let signals = [
            (Duration::ZERO, Signal::TERM, "its card is too hot"),
            (self.settings.grace, Signal::KILL, "it did not end when it was asked to"),
        ];
        self.lives().for_each(|live| live.schedule(&signals));
    }
}
