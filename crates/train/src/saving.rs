//! Decides when a run is saved, and collects its state.

use crate::checkpoint::{self, CheckpointError, Keep, RunState};
use crate::session::Session;
use crate::{Start, TrainError, Trainer};
use plimsoll_telemetry::Event;

impl Trainer<'_> {
    /// Saves a checkpoint if one is due after the session's step. Errors: the device fails.
    pub(crate) fn checkpoint_if_due(&mut self, session: &mut Session<'_>) -> Result<(), TrainError> {
        match self.config.checkpoint_every {
            Some(every) if session.position.step.is_multiple_of(every) && self.is_worth_its_time(session) => {
                self.checkpoint(session)
            }
            _ if self.pace.wants_checkpoint() && !session.is_saved() => self.checkpoint(session),
            _ => Ok(()),
        }
    }

    /// Whether enough time has passed since the last checkpoint for another one that takes as long.
    fn is_worth_its_time(&self, session: &Session<'_>) -> bool {
        let (Some(part), Some(saved_at)) = (self.config.checkpoint_time_part, session.position.saved_at) else {
            return true;
        };
        session.position.expected.save.as_secs_f64() <= part * self.pace.now().saturating_sub(saved_at).as_secs_f64()
    }

    /// Whether the state after the session's step is on disk, so that another plan can resume from it; saves it if
    /// necessary. If the disk refuses, the run keeps its plan. Errors: the device fails.
    pub(crate) fn is_saved_for_another_plan(&mut self, session: &mut Session<'_>) -> Result<bool, TrainError> {
        if !session.is_saved() {
            self.checkpoint(session)?;
        }
        if !session.is_saved() && !session.is_corrupt {
            self.pace.keeps_plan(
                session.position.step,
                session.position.save_failure.as_deref().unwrap_or("it could not be saved"),
            );
        }
        Ok(session.is_saved())
    }

    /// Saves a checkpoint. If the disk refuses, training continues and the older checkpoints are kept. If the state has values
    /// that are not finite, the session is marked as corrupt, and nothing is saved.
    /// Errors: the device fails.
    pub(crate) fn checkpoint(&mut self, session: &mut Session<'_>) -> Result<(), TrainError> {
        let start = self.pace.now();
        // A checkpoint relies on the losses before it, which only the journal stores.
        session.sinks.sync();
        let state = self.state(session);
        let whole = session.position.saved.as_ref().map(|(_, path)| path.as_path());
        let keep = Keep { most: self.config.keep_checkpoints, whole };
        let saved = checkpoint::save(self.engine, self.folder, &self.config.model_folder, state, keep);
        let event = match saved {
            Ok(saved) => {
                session.position.saved = Some((session.position.step, saved.path.clone()));
                session.position.save_failure = None;
                session.position.expected.save = self.pace.now().saturating_sub(start);
                session.position.saved_at = Some(self.pace.now());
                if let Some(undo) = &mut session.position.undo {
                    undo.saved(Start::Resume(saved.path.clone()), session.position.step);
                }
                let milliseconds = self.pace.now().saturating_sub(start).as_secs_f64() * 1e3;
                Event::CheckpointSaved {
                    step: session.position.step,
                    checkpoint: saved.path,
                    bytes: saved.bytes,
                    milliseconds,
                }
            }
            Err(error @ TrainError::Device(_)) => return Err(error),
            Err(TrainError::Checkpoint(CheckpointError::NotFinite { tensor })) => {
                session.is_corrupt = true;
                let (step, tensor) = (session.position.step, Some(tensor));
                Event::Diverged { step, loss: None, grad_norm: None, weights_whole: false, tensor }
            }
            Err(error) => {
                session.position.save_failure = Some(error.to_string());
                Event::CheckpointFailed { step: session.position.step, reason: error.to_string() }
            }
        };
        session.emit(event);
        Ok(())
    }

    /// The state of the session, without tensors and checksums of files.
    fn state(&self, session: &Session<'_>) -> RunState {
        let plan = self.engine.plan();
        RunState {
            version: RunState::VERSION,
            branch: session.position.branch,
            base: session.position.base.clone(),
            base_codes: self.engine.codes(),
            step: session.position.step,
            samples_seen: session.position.step * plan.global_batch as u64,
            seen: session.position.seen,
            seconds: session.seconds(),
            updates: session.position.updates,
            loss_scale: session.position.loss_scale,
            precision: self.config.precision.clone(),
            seed: self.config.seed,
            global_batch: plan.global_batch,
            seq_len: plan.seq_len,
            target_len: plan.target_len,
            data_fingerprint: self.dataset.fingerprint(),
            tokenizer: self.config.tokenizer.clone(),
            files: vec![],
            checksum: String::new(),
        }
    }
}
