//! Where a session of a run stands between two steps, and how one begins: fresh, from weights, or where a checkpoint
//! left off.

use crate::checkpoint::{self, CheckpointError, Seen, State, check_same_run};
use crate::sinks::Sinks;
use crate::undo::Undo;
use crate::{History, LossScale, Start, TrainError, Trainer};
use plimsoll_telemetry::{Branches, Event, Journal, Origin};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a session stands.
pub(crate) struct Session<'a> {
    pub sinks: Sinks<'a>,
    started: Instant,
    seconds_before: f64,
    /// How long it was paused by somebody.
    pub paused: Duration,
    /// Which branch of the run this is.
    pub branch: u64,
    pub step: u64,
    /// Updates made: steps less those whose update was skipped.
    pub updates: u64,
    pub loss_scale: Option<LossScale>,
    /// The newest checkpoint that is whole on disk, and its step.
    pub saved: Option<(u64, PathBuf)>,
    /// Why the last checkpoint that was tried is not.
    pub save_failure: Option<String>,
    /// The step after which the model was evaluated last.
    pub evaluated: Option<u64>,
    /// What has passed through the model so far.
    pub seen: Seen,
    /// For plans some of whose updates are made before all gradients are known.
    pub undo: Option<Undo>,
}

impl Session<'_> {
    /// Time spent training, earlier sessions included and pauses not.
    pub fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().saturating_sub(self.paused).as_secs_f64()
    }

    pub fn emit(&mut self, event: Event) {
        if let Event::Unpaused { seconds, .. } = event {
            self.paused += Duration::from_secs_f64(seconds);
        }
        self.sinks.tell(&event);
    }

    /// Whether the state after the last step is whole on disk.
    pub fn is_saved(&self) -> bool {
        self.saved.as_ref().is_some_and(|(step, _)| *step == self.step)
    }
}

impl<'a> Trainer<'a> {
    /// Puts the weights in place and begins a session. Nothing is written before all that can be refused was accepted.
    pub(crate) fn begin(&mut self, start: &Start) -> Result<Session<'a>, TrainError> {
        let mut journal = Journal::open(self.folder.disk(), &self.folder.journal())?;
        let checkpoints = self.folder.checkpoints();
        let mut branches = Branches::read(&checkpoints).map_err(CheckpointError::from)?;
        let mut told = Vec::new();
        let mut state = None;
        match start {
            Start::Fresh => self.engine.initialise(self.config.seed)?,
            Start::Weights(path) => checkpoint::load_weights(self.engine, path)?,
            Start::Resume(path) => state = Some(self.restore(path)?),
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
                told.push(Event::Branched { from_step: state.step, left_behind });
            }
            let history = History::read(&self.folder.journal(), &branches.lineage(), state.step, path)?;
            evaluated = history.eval.last().map(|evaluation| evaluation.step);
            told.push(Event::Resumed { step: state.step, checkpoint: path.clone() });
        } else if branches.current() > 0 {
            branches.begin(None);
            told.push(Event::Branched { from_step: 0, left_behind: vec![] });
        }
        if told.iter().any(|event| matches!(event, Event::Branched { .. })) {
            branches.write(self.folder.disk(), &checkpoints).map_err(CheckpointError::from)?;
        }
        checkpoint::sweep(self.folder);
        journal.set_branch(branches.current());
        let mut session = Session {
            sinks: Sinks::new(journal, mem::take(&mut self.sinks)),
            started: Instant::now(),
            paused: Duration::ZERO,
            seconds_before: state.as_ref().map_or(0.0, |state| state.seconds),
            branch: branches.current(),
            step: state.as_ref().map_or(0, |state| state.step),
            updates: state.as_ref().map_or(0, |state| state.updates),
            loss_scale: state.as_ref().map_or(self.config.loss_scale, |state| state.loss_scale),
            saved: None,
            save_failure: None,
            evaluated,
            seen: state.as_ref().map_or(Seen::default(), |state| state.seen),
            undo: None,
        };
        session.undo = Undo::of(self.engine.plan(), start.clone(), session.step, self.config.seed);
        if let (Start::Resume(path), Some(state)) = (start, &state) {
            session.saved = Some((state.step, path.clone()));
        }
        told.into_iter().for_each(|event| session.emit(event));
        Ok(session)
    }

    /// Fills the device from a checkpoint of this run. Errors: it is damaged, or of another run.
    fn restore(&mut self, path: &Path) -> Result<State, TrainError> {
        let state = checkpoint::verify(path)?;
        check_same_run(path, &state, self.dataset.fingerprint(), self.engine.plan(), self.config)?;
        checkpoint::restore(self.engine, path)?;
        Ok(state)
    }
}
