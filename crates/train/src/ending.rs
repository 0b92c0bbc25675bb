//! The end of a session: its last checkpoint, its last event and report.json, and which of these are on disk.

use crate::session::Session;
use crate::{Ending, History, Measured, Outcome, PlanSummary, Report, RunFolder, TrainError, Trainer};
use plimsoll_telemetry::{Attempts, Branches, Event, Journal, Sink as _};

impl Trainer<'_> {
    /// Performs the work after the last step. A refusal by the disk is part of the outcome, not an error.
    /// Errors: the device fails.
    pub(crate) fn end(&mut self, mut session: Session<'_>, mut ending: Ending) -> Result<Outcome, TrainError> {
        self.engine.finish_update()?;
        let is_evaluated = session.position.evaluated == Some(session.position.step);
        if ending == Ending::Finished && !is_evaluated && !self.evaluate(&mut session)? {
            ending = Ending::Interrupted;
        }
        let stays = ending == Ending::Replanned && self.pace.keeps_state(self.engine);
        if ending != Ending::Diverged && !stays && !session.is_saved() {
            self.checkpoint(&mut session)?;
        }
        if session.is_corrupt {
            ending = Ending::Diverged;
        }
        for event in self.pace.take_events() {
            session.emit(event);
        }
        if let Some(energy) = self.pace.energy() {
            session.emit(Event::Energy(energy));
        }
        let is_lost = ending != Ending::Diverged && !stays && !session.is_saved();
        let unsaved = is_lost.then(|| session.position.save_failure.clone().unwrap_or_default());
        let step = session.position.step;
        match ending {
            _ if unsaved.is_some() => {
                let (saved_step, checkpoint) = session.position.saved.clone().unzip();
                session.emit(Event::Unsaved { step, saved_step, checkpoint });
            }
            Ending::Finished => session.emit(Event::Finished { step, seconds: session.seconds() }),
            Ending::Interrupted => session.emit(Event::Interrupted { step }),
            Ending::TooHot => session.emit(Event::StoppedForHeat { step }),
            // The event of the order was emitted already.
            Ending::Replanned | Ending::Diverged => {}
        }
        session.sinks.finish();
        let status = if unsaved.is_some() { "unsaved" } else { status(ending) };
        let report = self.report(&session, status);
        let text = serde_json::to_string_pretty(&report).expect("a report is plain data");
        let unreported = self.folder.write(&self.folder.report(), text.as_bytes()).err();
        let saved = session.position.saved.clone();
        let position = stays.then(|| session.into_position());
        Ok(Outcome { ending, report, saved, position, unsaved, unreported })
    }

    fn report(&self, session: &Session<'_>, status: &str) -> Report {
        let history = self.history(session);
        let energy = self.pace.energy();
        let tokens = session.position.seen.tokens;
        Report {
            energy_j_per_token: energy.as_ref().filter(|_| tokens > 0).map(|energy| energy.energy_j / tokens as f64),
            energy,
            name: self.config.name.clone(),
            status: status.to_owned(),
            branch: session.position.branch,
            saved_step: session.position.saved.as_ref().map(|(step, _)| *step),
            journal_events_lost: session.sinks.reported_lost(),
            attempts: Attempts::read(&self.folder.journal(), status == "replanned"),
            safe_settings: self.config.safe_settings.clone(),
            plan: PlanSummary::from(self.engine.plan()),
            measured: Measured::new(self.engine.memory(), &history.step_ms, &history.tokens_per_s),
            losses: history.losses,
            eval: history.eval,
            memory: history.memory,
            tokens_seen: session.position.seen.tokens,
            target_tokens: session.position.seen.targets,
            padding_tokens: session.position.seen.padding,
            truncated_samples: session.position.seen.truncated,
            updates_skipped: session.position.step - session.position.updates,
            seconds: session.seconds(),
        }
    }

    /// The journal's history of the run up to the last step. Lost events are missing; if the journal can't be read, all
    /// are.
    fn history(&self, session: &Session<'_>) -> History {
        let branches = Branches::read(&self.folder.checkpoints());
        let known = branches.ok().and_then(|branches| {
            History::read_known(&self.folder.journal(), &branches.lineage(), session.position.step).ok()
        });
        let mut history = known.unwrap_or_default();
        history.losses.resize(session.position.step as usize, None);
        history
    }
}

impl Outcome {
    /// Ends a run that saved its state and waited without a device, as an interrupt or heat does. `events`: what happened
    /// meanwhile.
    pub fn end_saved(
        mut self,
        ending: Ending,
        events: &[Event],
        folder: &RunFolder,
        sink: &mut dyn FnMut(&Event),
    ) -> Self {
        let step = self.saved.as_ref().map_or(0, |(step, _)| *step);
        self.emit(events, folder, sink);
        let last = match ending {
            Ending::TooHot => Event::StoppedForHeat { step },
            _ => Event::Interrupted { step },
        };
        self.emit(&[last], folder, sink);
        status(ending).clone_into(&mut self.report.status);
        self.report.attempts = Attempts::read(&folder.journal(), false);
        let text = serde_json::to_string_pretty(&self.report).expect("a report is plain data");
        self.unreported = folder.write(&folder.report(), text.as_bytes()).err();
        Self { ending, ..self }
    }

    /// Emits events of a run that waits without a device.
    pub fn emit(&self, events: &[Event], folder: &RunFolder, sink: &mut dyn FnMut(&Event)) {
        // Without a journal, the checkpoint and the report are still there.
        let mut journal = Journal::open(folder.disk(), &folder.journal()).ok();
        journal.iter_mut().for_each(|journal| journal.set_branch(self.report.branch));
        for event in events {
            journal.iter_mut().for_each(|journal| journal.take(event));
            sink(event);
        }
        journal.iter_mut().for_each(Journal::sync);
    }
}

fn status(ending: Ending) -> &'static str {
    match ending {
        Ending::Finished => "finished",
        Ending::Interrupted => "interrupted",
        Ending::TooHot => "too_hot",
        Ending::Replanned => "replanned",
        Ending::Diverged => "diverged",
    }
}
