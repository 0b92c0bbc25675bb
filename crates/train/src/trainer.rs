//! The loop: steps, evaluation, checkpoints, and how a run ends.

use crate::checkpoint::{self, CheckpointError, Seen, State};
use crate::undo::{Undo, run_step};
use crate::{
    EVALUATE, Engine, Evaluation, Length, LossScale, Measured, PlanSummary, Progress, Report, RunFolder, Schedule,
    TrainError,
};
use data::{Dataset, Loader, StepBatches};
use graph::Scalars;
use graph::models::ModelConfig;
use plan::EVALUATE_AVERAGE;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use telemetry::{Event, Journal, Sink, read_journal};

/// What a run needs to know beside its plan.
#[derive(Debug, Clone)]
pub struct TrainerConfig {
    /// Name of the run.
    pub name: String,
    /// The model's name or path, for people.
    pub model_name: String,
    /// The model.
    pub model: ModelConfig,
    /// How long.
    pub length: Length,
    /// The learning rate along it.
    pub schedule: Schedule,
    /// Seed of weights, data order and dropout.
    pub seed: u64,
    /// Steps between evaluations; none: only at the end.
    pub eval_every: Option<u64>,
    /// Held-out samples that an evaluation takes at most.
    pub eval_samples: u64,
    /// Steps between checkpoints; none: only at the end.
    pub checkpoint_every: Option<u64>,
    /// Checkpoints that stay.
    pub keep_checkpoints: usize,
    /// The tokenizer, for writing text later.
    pub tokenizer: String,
    /// Precision of weights and activations, as the flag names it.
    pub precision: String,
    /// Where loss scaling starts, if gradients are in half precision.
    pub loss_scale: Option<LossScale>,
}

/// Where the weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// From the seed.
    Fresh,
    /// From a folder with `model.safetensors`.
    Weights(PathBuf),
    /// From a checkpoint of this run.
    Resume(PathBuf),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It made all its steps.
    Finished,
    /// It was asked to stop and can be resumed.
    Interrupted,
    /// Loss or gradient stopped being numbers.
    Diverged,
}

impl Ending {
    fn status(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::Diverged => "diverged",
        }
    }
}

/// A run.
pub struct Trainer<'a> {
    /// The device with the plan.
    pub engine: &'a mut Engine,
    /// The data.
    pub dataset: &'a Arc<Dataset>,
    /// The run's folder.
    pub folder: &'a RunFolder,
    /// Everything else.
    pub config: &'a TrainerConfig,
    /// Told every event beside the journal.
    pub view: &'a mut dyn Sink,
    /// Set from outside to stop after the current step.
    pub stop: &'a AtomicBool,
}

/// Where a session stands.
struct Session {
    journal: Journal,
    started: Instant,
    seconds_before: f64,
    step: u64,
    /// Updates made: steps less those whose update was skipped.
    updates: u64,
    loss_scale: Option<LossScale>,
    last_checkpoint: Option<(u64, PathBuf)>,
    losses: Vec<Option<f64>>,
    eval: Vec<Evaluation>,
    step_ms: Vec<f64>,
    /// Tokens of each of this session's steps.
    step_tokens: Vec<u64>,
    /// What has passed through the model so far.
    seen: Seen,
    /// For plans some of whose updates are made before all gradients are known.
    undo: Option<Undo>,
}

/// Batches that are made ahead of the step that takes them.
const STEPS_AHEAD: usize = 4;

impl Session {
    fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }
}

/// A run whose weights are in place and which has made no step yet.
pub struct Started<'a> {
    trainer: Trainer<'a>,
    session: Session,
}

impl Started<'_> {
    /// Runs to the end, to an interrupt or to a divergence; writes report.json; returns the newest checkpoint too.
    /// Errors: the device fails. A checkpoint that can't be written is an event, not an error.
    pub fn run(self) -> Result<(Ending, Report, Option<PathBuf>), TrainError> {
        self.trainer.go_on(self.session)
    }
}

impl<'a> Trainer<'a> {
    /// [`Trainer::start`] and [`Started::run`].
    pub fn run(self, start: &Start) -> Result<(Ending, Report, Option<PathBuf>), TrainError> {
        self.start(start)?.run()
    }

    /// Puts the weights in place, or all of an earlier session's state. A start that is refused leaves the run's folder
    /// as it is. Errors: the start can't be used, there is nothing to train on.
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

    fn go_on(mut self, mut session: Session) -> Result<(Ending, Report, Option<PathBuf>), TrainError> {
        let steps_per_epoch = self.dataset.training() as f64 / self.engine.plan().global_batch as f64;
        let last_step = self.config.length.last_step(steps_per_epoch);
        let plan = self.engine.plan();
        let started = Event::RunStarted {
            name: self.config.name.clone(),
            model: self.config.model_name.clone(),
            parameters: plan.parameters,
            planned_bytes: plan.peak_bytes,
            budget_bytes: plan.budget_bytes,
            first_step: session.step + 1,
            last_step,
        };
        self.emit(&mut session, started);
        let ending = self.steps(&mut session, last_step)?;
        let event = match ending {
            Ending::Finished => Some(Event::Finished { step: session.step, seconds: session.seconds() }),
            Ending::Interrupted => Some(Event::Interrupted { step: session.step }),
            Ending::Diverged => None,
        };
        if ending != Ending::Diverged {
            if ending == Ending::Finished && session.eval.last().is_none_or(|e| e.step != session.step) {
                self.evaluate(&mut session)?;
            }
            if session.last_checkpoint.as_ref().is_none_or(|(step, _)| *step != session.step) {
                self.checkpoint(&mut session);
            }
        }
        if let Some(event) = event {
            self.emit(&mut session, event);
        }
        let report = self.report(&session, ending);
        let text = serde_json::to_string_pretty(&report).expect("a report is plain data");
        self.folder.write(&self.folder.report(), text.as_bytes())?;
        Ok((ending, report, session.last_checkpoint.map(|(_, path)| path)))
    }

    fn emit(&mut self, session: &mut Session, event: Event) {
        session.journal.take(&event);
        self.view.take(&event);
    }

    fn begin(&mut self, start: &Start) -> Result<Session, TrainError> {
        let mut session = Session {
            journal: Journal::open(&self.folder.journal())?,
            started: Instant::now(),
            seconds_before: 0.0,
            step: 0,
            updates: 0,
            loss_scale: self.config.loss_scale,
            last_checkpoint: None,
            losses: Vec::new(),
            eval: Vec::new(),
            step_ms: Vec::new(),
            step_tokens: Vec::new(),
            seen: Seen::default(),
            undo: None,
        };
        match start {
            Start::Fresh => self.engine.initialise(self.config.seed)?,
            Start::Weights(path) => checkpoint::load_weights(self.engine, path)?,
            Start::Resume(path) => {
                let state = checkpoint::verify(path)?;
                self.check_same_run(path, &state)?;
                checkpoint::restore(self.engine, path)?;
                session.step = state.step;
                session.updates = state.updates;
                session.loss_scale = state.loss_scale;
                session.seconds_before = state.seconds;
                session.seen = state.seen;
                session.last_checkpoint = Some((state.step, path.clone()));
                self.recall(&mut session)?;
                self.emit(&mut session, Event::Resumed { step: state.step, checkpoint: path.clone() });
            }
        }
        session.undo = Undo::of(self.engine.plan(), start.clone(), session.step, self.config.seed);
        Ok(session)
    }

    /// A resumed run is the run only if these are the same.
    fn check_same_run(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        let plan = self.engine.plan();
        let length = |tokens: Option<usize>| tokens.map_or("none".to_owned(), |n| n.to_string());
        for (what, found, expected) in [
            ("data", state.data_fingerprint.clone(), self.dataset.fingerprint()),
            ("a precision of", state.precision.clone(), self.config.precision.clone()),
            ("a seed of", state.seed.to_string(), self.config.seed.to_string()),
            ("a global batch of", state.global_batch.to_string(), plan.global_batch.to_string()),
            ("a sequence length of", state.seq_len.to_string(), plan.seq_len.to_string()),
            ("targets of", length(state.target_len), length(plan.target_len)),
        ] {
            if found != expected {
                return Err(CheckpointError::OtherRun { path: path.to_owned(), what, found, expected });
            }
        }
        Ok(())
    }

    /// Losses up to the step that is resumed from, out of the journal.
    fn recall(&self, session: &mut Session) -> Result<(), TrainError> {
        session.losses = vec![None; session.step as usize];
        for record in read_journal(&self.folder.journal())? {
            match record.event {
                Event::Step { step, loss, .. } if (1..=session.step).contains(&step) => {
                    session.losses[step as usize - 1] = Some(loss);
                }
                Event::UpdateSkipped { step, loss, .. } if (1..=session.step).contains(&step) => {
                    session.losses[step as usize - 1] = Some(loss);
                }
                Event::Evaluated { step, loss, average_loss, .. } if step <= session.step => {
                    session.eval.retain(|e| e.step != step);
                    session.eval.push(Evaluation { step, loss, average_loss });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn steps(&mut self, session: &mut Session, last_step: Option<u64>) -> Result<Ending, TrainError> {
        let (micro_batch, global_batch) = (self.engine.plan().micro_batch, self.engine.plan().global_batch);
        let dataset = Arc::clone(self.dataset);
        let loader = Loader::start(dataset, session.step, global_batch, micro_batch, STEPS_AHEAD)?;
        loop {
            let part = match self.config.length {
                Length::Duration(limit) => session.seconds() / limit.0,
                Length::MaxSteps(_) | Length::Epochs(_) => 0.0,
            };
            if last_step.is_some_and(|last| session.step >= last) || part >= 1.0 {
                return Ok(Ending::Finished);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ending::Interrupted);
            }
            let batches = loader.next_step()?;
            if !self.step(session, &batches, part, last_step)? {
                return Ok(Ending::Diverged);
            }
            loader.give_back(batches);
            let due = |every: Option<u64>| every.is_some_and(|n| session.step.is_multiple_of(n));
            let (evaluate, checkpoint) = (due(self.config.eval_every), due(self.config.checkpoint_every));
            if evaluate {
                self.evaluate(session)?;
            }
            if checkpoint {
                self.checkpoint(session);
            }
        }
    }

    /// Makes a step; false if its loss or gradient is not a number, in which case the weights are those before it.
    /// Where gradients are scaled, one that overflowed only costs its update, until there is no scale left to lower.
    fn step(
        &mut self,
        session: &mut Session,
        batches: &StepBatches,
        part: f64,
        last_step: Option<u64>,
    ) -> Result<bool, TrainError> {
        let start = Instant::now();
        let step = session.step + 1;
        let learning_rate = self.config.schedule.at(Progress { step, part }, last_step);
        let scalars = Scalars {
            seed: self.config.seed,
            step,
            update: session.updates + 1,
            learning_rate: learning_rate as f32,
            loss_scale: 1.0 / batches.targets.max(1) as f32,
            gradient_scale: session.loss_scale.map_or(1.0, |s| s.scale),
            ..Scalars::default()
        };
        run_step(self.engine, batches, scalars)?;
        let loss = self.engine.ports("micro_step").loss.expect("a micro-step gives a loss");
        let norm = self.engine.ports("update").grad_norm.expect("an update gives a norm");
        let (loss, scaled_norm) = (f64::from(self.engine.read_one(loss)?), f64::from(self.engine.read_one(norm)?));
        let grad_norm = scaled_norm / f64::from(scalars.gradient_scale);
        let overflowed = loss.is_finite() && !grad_norm.is_finite();
        if overflowed && session.loss_scale.as_mut().is_some_and(LossScale::overflowed) {
            session.step = step;
            session.seen.add(batches);
            session.losses.push(Some(loss));
            let loss_scale = session.loss_scale.map_or(1.0, |s| s.scale);
            self.emit(session, Event::UpdateSkipped { step, loss, loss_scale });
            return Ok(true);
        }
        if !(loss.is_finite() && grad_norm.is_finite()) {
            let finite = |x: f64| x.is_finite().then_some(x);
            let weights_whole = self.undo(session, loss);
            let (loss, grad_norm) = (finite(loss), finite(grad_norm));
            self.emit(session, Event::Diverged { step, loss, grad_norm, weights_whole });
            return Ok(false);
        }
        self.engine.first_step_is_done();
        let step_ms = start.elapsed().as_secs_f64() * 1e3;
        session.step = step;
        session.updates += 1;
        session.seen.add(batches);
        if let Some(undo) = &mut session.undo {
            undo.made(&scalars);
        }
        if let Some(scale) = &mut session.loss_scale {
            scale.good();
        }
        session.losses.push(Some(loss));
        session.step_ms.push(step_ms);
        session.step_tokens.push(batches.tokens);
        let event = Event::Step {
            step,
            loss,
            learning_rate,
            grad_norm,
            step_ms,
            tokens_per_s: batches.tokens as f64 * 1e3 / step_ms,
            memory_bytes: self.engine.held_bytes(),
        };
        self.emit(session, event);
        Ok(true)
    }

    /// Brings the weights back to where they were before a step that diverged with this loss. Returns whether they are
    /// there: they are already unless updates were made early, and nothing is written where the loss is not a number,
    /// since no gradient is one then.
    fn undo(&mut self, session: &mut Session, loss: f64) -> bool {
        let Some(undo) = session.undo.take().filter(|_| !loss.is_nan()) else { return true };
        self.emit(session, Event::Undoing { from: undo.first_step(), to: session.step });
        undo.undo(self.engine, self.dataset, self.stop).unwrap_or(false)
    }

    fn evaluate(&mut self, session: &mut Session) -> Result<(), TrainError> {
        let samples = self.config.eval_samples;
        if let Some((loss, tokens)) = crate::evaluate(self.engine, EVALUATE, self.dataset, samples)? {
            let average = crate::evaluate(self.engine, EVALUATE_AVERAGE, self.dataset, samples)?;
            let (step, average_loss) = (session.step, average.map(|(loss, _)| loss));
            session.eval.push(Evaluation { step, loss, average_loss });
            self.emit(session, Event::Evaluated { step, loss, average_loss, tokens });
        }
        Ok(())
    }

    /// Saves a checkpoint. If that fails, training goes on and the older checkpoints stay.
    fn checkpoint(&mut self, session: &mut Session) {
        let start = Instant::now();
        let plan = self.engine.plan();
        let state = State {
            version: State::VERSION,
            step: session.step,
            samples_seen: session.step * plan.global_batch as u64,
            seen: session.seen,
            seconds: session.seconds(),
            updates: session.updates,
            loss_scale: session.loss_scale,
            precision: self.config.precision.clone(),
            seed: self.config.seed,
            global_batch: plan.global_batch,
            seq_len: plan.seq_len,
            target_len: plan.target_len,
            data_fingerprint: self.dataset.fingerprint(),
            tokenizer: self.config.tokenizer.clone(),
            files: vec![],
            checksum: String::new(),
        };
        let folder = self.folder.checkpoints();
        let config = self.config.model.to_json();
        let event = match checkpoint::save(self.engine, &folder, &config, state, self.config.keep_checkpoints) {
            Ok(saved) => {
                session.last_checkpoint = Some((session.step, saved.path.clone()));
                if let Some(undo) = &mut session.undo {
                    undo.saved(Start::Resume(saved.path.clone()), session.step);
                }
                let milliseconds = start.elapsed().as_secs_f64() * 1e3;
                Event::CheckpointSaved { step: session.step, checkpoint: saved.path, bytes: saved.bytes, milliseconds }
            }
            Err(error) => Event::CheckpointFailed { step: session.step, reason: error.to_string() },
        };
        self.emit(session, event);
    }

    fn report(&self, session: &Session, ending: Ending) -> Report {
        let plan = self.engine.plan();
        Report {
            name: self.config.name.clone(),
            status: ending.status().to_owned(),
            plan: PlanSummary::from(plan),
            measured: Measured::new(self.engine.memory(), &session.step_ms, &session.step_tokens),
            losses: session.losses.clone(),
            eval: session.eval.clone(),
            tokens_seen: session.seen.tokens,
            padding_tokens: session.seen.padding,
            truncated_samples: session.seen.truncated,
            seconds: session.seconds(),
        }
    }
}
