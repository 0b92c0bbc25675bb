//! The state of a session between two steps, and its start: fresh, from weights, or from a checkpoint.

use crate::checkpoint::{self, CheckpointError, RunState, TrainingCounts, check_same_run};
use crate::sinks::Sinks;
use crate::start::load_first;
use crate::step::Expected;
use crate::undo::Undo;
use crate::{History, Pace, Position, Start, TrainError, Trainer};
use plimsoll_telemetry::{Branches, Event, Journal, Origin};
use std::mem;
use std::path::Path;
use std::time::Duration;

/// Bytes per second to save a checkpoint, until one was saved: those of a slow disk.
const SAVE_BYTES_PER_S: f64 = 1e8;

/// The state of a session.
pub(crate) struct Session<'a> {
    pub sinks: Sinks<'a>,
    pace: &'a dyn Pace,
    /// The time at which it began, by the pace's clock.
    started: Duration,
    /// Total duration of pauses.
    pub paused: Duration,
    /// Whether values that are not finite kept the state from being saved.
    pub is_corrupt: bool,
    pub position: Position,
}

impl Session<'_> {
    /// Training time, including earlier sessions, without pauses.
    pub fn seconds(&self) -> f64 {
        let time = self.pace.now().saturating_sub(self.started).saturating_sub(self.paused);
        self.position.seconds_before + time.as_secs_f64()
    }

    pub fn emit(&mut self, event: Event) {
        if let Event::Unpaused { seconds, .. } = event {
            self.paused += Duration::from_secs_f64(seconds);
        }
        self.sinks.emit(&event);
    }

    /// Where the run is, for a session that continues it.
    pub fn into_position(self) -> Position {
        let seconds_before = self.seconds();
        Position { seconds_before, ..self.position }
    }

    /// Whether the state after the last step is complete on disk.
    pub fn is_saved(&self) -> bool {
        self.position.saved.as_ref().is_some_and(|(step, _)| *step == self.position.step)
    }
}

impl<'a> Trainer<'a> {
    /// Loads the weights and starts a session. Nothing is written until everything that can be refused was accepted.
    pub(crate) fn begin(&mut self, start: &Start) -> Result<Session<'a>, TrainError> {
        let mut journal = Journal::open(self.folder.disk(), &self.folder.journal())?;
        let checkpoints = self.folder.checkpoints();
        let mut branches = Branches::read(&checkpoints).map_err(CheckpointError::from)?;
        let mut pending = Vec::new();
        let mut state = None;
        match start {
            Start::Resume(path) => state = Some(self.restore(path)?),
            first => load_first(self.engine, first, self.config.base.as_ref(), self.config.seed)?,
        }
        let mut evaluated = None;
        if let (Start::Resume(path), Some(state)) = (start, &state) {
            let origin = Origin { branch: state.branch, step: state.step };
            let lineage = branches.lineage();
            let later = checkpoint::later(&checkpoints, state.step)?;
            let is_newest = !later.iter().any(|(_, other)| lineage.has(other.branch, other.step));
            if !(lineage.has(origin.branch, origin.step) && is_newest) {
                branches.begin(Some(origin));
                let left_behind = later.into_iter().map(|(path, _)| path).collect();
                pending.push(Event::Branched { from_step: state.step, left_behind });
            }
            let history = History::read(&self.folder.journal(), &branches.lineage(), state.step, path)?;
            evaluated = history.eval.last().map(|evaluation| evaluation.step);
            pending.push(Event::Resumed { step: state.step, checkpoint: path.clone() });
        } else if branches.current() > 0 {
            branches.begin(None);
            pending.push(Event::Branched { from_step: 0, left_behind: vec![] });
        }
        if pending.iter().any(|event| matches!(event, Event::Branched { .. })) {
            branches.write(self.folder.disk(), &checkpoints).map_err(CheckpointError::from)?;
        }
        checkpoint::sweep(self.folder);
        journal.set_branch(branches.current());
        let bytes = checkpoint::room(self.engine, &self.config.model_folder);
        let mut position = Position {
            seconds_before: state.as_ref().map_or(0.0, |state| state.seconds),
            branch: branches.current(),
            base: self
                .config
                .base
                .as_ref()
                .and_then(|base| base.weights.as_deref())
                .map(checkpoint::fingerprint)
                .transpose()?,
            step: state.as_ref().map_or(0, |state| state.step),
            updates: state.as_ref().map_or(0, |state| state.updates),
            loss_scale: state.as_ref().map_or(self.config.loss_scale, |state| state.loss_scale),
            saved: None,
            save_failure: None,
            saved_at: None,
            expected: Expected {
                step: Duration::ZERO,
                save: Duration::from_secs_f64(bytes.0 as f64 / SAVE_BYTES_PER_S),
            },
            evaluated,
            seen: state.as_ref().map_or(TrainingCounts::default(), |state| state.seen),
            undo: None,
        };
        position.undo = Undo::of(self.engine.plan(), start.clone(), position.step, self.config);
        if let (Start::Resume(path), Some(state)) = (start, &state) {
            // The process that saved it may have ended before its name was durable. Unless it is now, the state is saved again.
            let settled = checkpoint::settle(self.folder.disk(), path, state);
            position.saved = settled.ok().map(|()| (state.step, path.clone()));
        }
        let mut session = self.session(journal, position);
        pending.into_iter().for_each(|event| session.emit(event));
        Ok(session)
    }

    /// Starts a session at a position whose state is in the engine.
    pub(crate) fn begin_at(&mut self, mut position: Position) -> Result<Session<'a>, TrainError> {
        let mut journal = Journal::open(self.folder.disk(), &self.folder.journal())?;
        journal.set_branch(position.branch);
        position.undo = position.undo.filter(|_| self.engine.plan().updates_early());
        Ok(self.session(journal, position))
    }

    fn session(&mut self, journal: Journal, position: Position) -> Session<'a> {
        Session {
            sinks: Sinks::new(journal, mem::take(&mut self.sinks)),
            pace: self.pace,
            started: self.pace.now(),
            paused: Duration::ZERO,
            is_corrupt: false,
            position,
        }
    }

    /// Loads the state of a checkpoint of this run. Errors: it is damaged, or belongs to another run.
    fn restore(&mut self, path: &Path) -> Result<RunState, TrainError> {
        let state = checkpoint::verify(path)?;
        check_same_run(path, &state, self.dataset.fingerprint(), self.engine.plan(), self.config)?;
        if let Some(base) = &self.config.base {
            base.load(self.engine, self.config.seed)?;
        }
        checkpoint::restore(self.engine, path)?;
        Ok(state)
    }
}
