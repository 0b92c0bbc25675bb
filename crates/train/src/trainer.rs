//! The training loop: steps, and the work between them. Not here: the start (`session.rs`) and end (`ending.rs`) of a
//! session, and saving (`saving.rs`).

use crate::rewards::rewards_event;
use crate::session::Session;
use crate::step::run_paced_step;
use crate::{
    Ending, HeldOutLoss, Length, LossScale, MicroBatch, Outcome, Position, Progress, Start, TrainError, Trainer,
    evaluate,
};
use plimsoll_data::{Loader, StepBatches};
use plimsoll_graph::{MemoryId, ProgramKind, Scalars};
use plimsoll_telemetry::Event;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Batches prepared ahead of the step that uses them.
const STEPS_AHEAD: usize = 4;

/// How a step ended.
enum StepEnd {
    /// It is complete.
    Made,
    /// It was dropped, since the run must stop before it would be complete.
    Dropped,
    /// Its loss or gradient is not finite.
    Diverged,
}

/// A run that has loaded its weights and has not made a step yet.
pub struct Started<'a> {
    trainer: Trainer<'a>,
    session: Session<'a>,
}

impl Started<'_> {
    /// Runs to the end, an interrupt or a divergence, and writes report.json.
    /// Errors: the device or the data fails. A refusal by the disk is part of the outcome.
    pub fn run(self) -> Result<Outcome, TrainError> {
        self.trainer.run_steps(self.session)
    }
}

impl<'a> Trainer<'a> {
    /// [`Trainer::start`] and [`Started::run`].
    pub fn run(self, start: &Start) -> Result<Outcome, TrainError> {
        self.start(start)?.run()
    }

    /// Continues a run whose state is in the engine, after a session that ended at this position.
    /// Errors: the journal can't be opened.
    pub fn start_at(mut self, position: Position) -> Result<Started<'a>, TrainError> {
        let session = self.begin_at(position)?;
        Ok(Started { trainer: self, session })
    }

    /// Loads the weights, or the full state of an earlier session. A refused start leaves the run's folder unchanged.
    /// Errors: the start can't be used, or there is nothing to train on.
    pub fn start(mut self, start: &Start) -> Result<Started<'a>, TrainError> {
        if self.dataset.training() == 0 {
            return Err(TrainError::NothingToTrainOn { tokens: self.dataset.tokens() });
        }
        let (tokenizer, model) = (self.dataset.vocab_size(), self.config.model.vocab_size());
        if tokenizer > model {
            return Err(TrainError::Vocabulary { tokenizer, model });
        }
        let session = self.begin(start)?;
        Ok(Started { trainer: self, session })
    }

    fn run_steps(mut self, mut session: Session<'a>) -> Result<Outcome, TrainError> {
        let steps_per_epoch = self.dataset.training() as f64 / self.engine.plan().global_batch as f64;
        let last_step = self.config.length.last_step(steps_per_epoch);
        let plan = self.engine.plan();
        let started = Event::RunStarted {
            name: self.config.name.clone(),
            model: self.config.model_name.clone(),
            parameters: plan.parameters,
            planned_bytes: plan.needed()[MemoryId::DEVICE].0,
            budget_bytes: plan.budget().device().0,
            first_step: session.position.step + 1,
            last_step,
        };
        session.emit(started);
        let ending = self.steps(&mut session, last_step)?;
        self.end(session, ending)
    }

    /// Whether the run may end for another plan after the session's step: that plan takes over the state on the device, or
    /// resumes from a checkpoint. Errors: the device fails.
    fn can_change_plan(&mut self, session: &mut Session<'_>) -> Result<bool, TrainError> {
        Ok(self.pace.keeps_state(self.engine) || self.is_saved_for_another_plan(session)? || session.is_corrupt)
    }

    fn steps(&mut self, session: &mut Session<'_>, last_step: Option<u64>) -> Result<Ending, TrainError> {
        let (micro_batch, global_batch) = (self.engine.plan().micro_batch, self.engine.plan().global_batch);
        let dataset = Arc::clone(self.dataset);
        let mut loader = Loader::start(dataset, session.position.step, global_batch, micro_batch, STEPS_AHEAD);
        self.evaluate_late(session)?;
        loop {
            let part = match self.config.length {
                Length::Duration(limit) => session.seconds() / limit.0,
                Length::MaxSteps(_) | Length::Epochs(_) => 0.0,
            };
            if last_step.is_some_and(|last| session.position.step >= last) || part >= 1.0 {
                return self.all_made(session);
            }
            self.pace.before_step(session.position.step + 1, self.stop, &mut |event| session.emit(event));
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ending::Interrupted);
            }
            if let Some(ending) = self.pace.ends(session.position.step)
                && (ending != Ending::Replanned || self.can_change_plan(session)?)
            {
                return Ok(ending);
            }
            for event in self.pace.take_events() {
                session.emit(event);
            }
            let asked = self.pace.now();
            let batches = loader.next_step()?;
            self.pace.waited_for_data(self.pace.now().saturating_sub(asked));
            match self.step(session, &batches, part, last_step)? {
                StepEnd::Made => {}
                StepEnd::Dropped => return Ok(Ending::Interrupted),
                StepEnd::Diverged => return Ok(Ending::Diverged),
            }
            self.pace.step_made();
            loader.give_back(batches);
            if self.evaluation_is_due(session) {
                self.evaluate(session)?;
            }
            self.checkpoint_if_due(session)?;
            if session.is_corrupt {
                return Ok(Ending::Diverged);
            }
        }
    }

    /// The ending of a run that made all its steps. If every step's scaled gradients overflowed, the run has trained
    /// nothing and counts as diverged.
    fn all_made(&mut self, session: &mut Session<'_>) -> Result<Ending, TrainError> {
        if session.position.step == 0 || session.position.updates > 0 {
            return Ok(Ending::Finished);
        }
        let loss = self.engine.ports(ProgramKind::MicroStep).loss.expect("a micro-step yields a loss");
        let loss = Some(f64::from(self.engine.read_one(loss)?)).filter(|loss| loss.is_finite());
        session.emit(Event::Diverged {
            step: session.position.step,
            loss,
            grad_norm: None,
            weights_whole: true,
            tensor: None,
        });
        Ok(Ending::Diverged)
    }

    /// Makes a step. It diverged if its loss or gradient is not finite; the weights then stay those before it. With scaled
    /// gradients, an overflow only skips the update, unless the scale can't be lowered further.
    fn step(
        &mut self,
        session: &mut Session<'_>,
        batches: &StepBatches,
        part: f64,
        last_step: Option<u64>,
    ) -> Result<StepEnd, TrainError> {
        let (start, paused_before) = (self.pace.now(), session.paused);
        let step = session.position.step + 1;
        let learning_rate = self.config.schedule.at(Progress { step, part }, last_step);
        let scalars = Scalars {
            seed: self.config.seed,
            step,
            update: session.position.updates + 1,
            learning_rate: learning_rate as f32,
            loss_scale: 1.0 / batches.targets.max(1) as f32,
            gradient_scale: session.position.loss_scale.map_or(1.0, |s| s.scale),
            ..Scalars::default()
        };
        let expected = session.position.expected;
        let emit = &mut |event| session.emit(event);
        if !run_paced_step(self.engine, &batches.micro, scalars, expected, self.pace, self.stop, emit)? {
            return Ok(StepEnd::Dropped);
        }
        let loss = self.engine.ports(ProgramKind::MicroStep).loss.expect("a micro-step yields a loss");
        let norm = self.engine.ports(ProgramKind::Update).grad_norm.expect("an update yields a norm");
        let (loss, scaled_norm) = (f64::from(self.engine.read_one(loss)?), f64::from(self.engine.read_one(norm)?));
        let grad_norm = scaled_norm / f64::from(scalars.gradient_scale);
        let overflowed = loss.is_finite() && !grad_norm.is_finite();
        if overflowed && session.position.loss_scale.as_mut().is_some_and(LossScale::overflowed) {
            session.position.step = step;
            session.position.seen.add(batches);
            let loss_scale = session.position.loss_scale.map_or(1.0, |s| s.scale);
            session.emit(Event::UpdateSkipped { step, loss, loss_scale });
            return Ok(StepEnd::Made);
        }
        if !(loss.is_finite() && grad_norm.is_finite()) {
            let finite = |x: f64| x.is_finite().then_some(x);
            let weights_whole = self.undo(session, loss);
            let (loss, grad_norm) = (finite(loss), finite(grad_norm));
            session.emit(Event::Diverged { step, loss, grad_norm, weights_whole, tensor: None });
            return Ok(StepEnd::Diverged);
        }
        self.engine.first_step_is_done();
        // Exclude pauses from the step time.
        let paused = session.paused - paused_before;
        session.position.expected.step = self.pace.now().saturating_sub(start).saturating_sub(paused);
        let step_ms = session.position.expected.step.as_secs_f64() * 1e3;
        session.position.step = step;
        session.position.updates += 1;
        session.position.seen.add(batches);
        if let Some(undo) = &mut session.position.undo {
            undo.made(&scalars);
        }
        if let Some(scale) = &mut session.position.loss_scale {
            scale.good();
        }
        let event = Event::Step {
            step,
            loss,
            learning_rate,
            grad_norm,
            step_ms,
            tokens_per_s: batches.tokens as f64 * 1e3 / step_ms,
            memory_bytes: self.engine.held_bytes(),
        };
        session.emit(event);
        if let Some(rewards) = self.engine.rewards(ProgramKind::MicroStep)? {
            session.emit(rewards_event(step, false, rewards, self.engine.plan().judges()));
        }
        Ok(StepEnd::Made)
    }

    /// Restores the weights before a step that diverged with this loss. Returns whether the weights are those. They are
    /// unchanged unless updates were made early; if the loss is not finite, no gradient is finite, so nothing was
    /// updated.
    fn undo(&mut self, session: &mut Session<'_>, loss: f64) -> bool {
        let Some(undo) = session.position.undo.take().filter(|_| !loss.is_nan()) else { return true };
        session.emit(Event::Undoing { from: undo.first_step(), to: session.position.step });
        undo.undo(self.engine, self.dataset, self.stop).unwrap_or(false)
    }

    fn evaluation_is_due(&self, session: &Session<'_>) -> bool {
        self.config.eval_every.is_some_and(|every| session.position.step.is_multiple_of(every))
    }

    /// Evaluates the restored state if the session before was stopped before it did.
    fn evaluate_late(&mut self, session: &mut Session<'_>) -> Result<(), TrainError> {
        if session.position.step > 0
            && self.evaluation_is_due(session)
            && session.position.evaluated != Some(session.position.step)
        {
            self.evaluate(session)?;
        }
        Ok(())
    }

    /// Evaluates the state after the session's step. Returns false if the run is asked to stop before it ends.
    pub(crate) fn evaluate(&mut self, session: &mut Session<'_>) -> Result<bool, TrainError> {
        let (step, samples, pace, stop) = (session.position.step, self.config.eval_samples, self.pace, self.stop);
        let mut since = pace.now();
        let mut made = || {
            if pace.watches() {
                let took = pace.now().saturating_sub(since);
                pace.micro_batch(MicroBatch { step, took }, stop, &mut |event| session.emit(event));
                since = pace.now();
            }
        };
        let mut loss_of = |kind| evaluate(self.engine, kind, self.dataset, samples, stop, &mut made);
        let (plain, average) = (loss_of(ProgramKind::Evaluate)?, loss_of(ProgramKind::EvaluateAverage)?);
        let (loss, tokens, rewards) = match (plain, &average) {
            (HeldOutLoss::Stopped, _) | (_, HeldOutLoss::Stopped) => return Ok(false),
            (HeldOutLoss::Nothing, _) => return Ok(true),
            (HeldOutLoss::Mean { loss, targets, rewards }, _) => (loss, targets, rewards),
        };
        let average_loss = if let HeldOutLoss::Mean { loss, .. } = average { Some(loss) } else { None };
        session.position.evaluated = Some(step);
        session.emit(Event::Evaluated { step, loss, average_loss, tokens });
        if let Some(rewards) = rewards {
            session.emit(rewards_event(step, true, rewards, self.engine.plan().judges()));
        }
        Ok(true)
    }
}
