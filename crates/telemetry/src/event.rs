//! The one event type. Views, journals and alerts are all made from these, and from nothing else.

use crate::energy::EnergyUse;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the schema below; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Something that happened in a run. Units are in the names of the fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The arena is reserved and the first step is about to run.
    RunStarted {
        /// Name of the run.
        name: String,
        /// The model's name or path.
        model: String,
        /// Trained parameters.
        parameters: u64,
        /// Bytes of the plan on the device, and on the host where both are one memory.
        planned_bytes: u64,
        /// Bytes of it allowed.
        budget_bytes: u64,
        /// The first step that will run.
        first_step: u64,
        /// The last step, if it is known in advance.
        last_step: Option<u64>,
    },
    /// The state of an earlier session was restored.
    Resumed {
        /// The last step that was made before.
        step: u64,
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// A branch of the run begins at a checkpoint that is not its newest; later ones of other branches are left behind.
    Branched {
        /// The last step that the new branch has in common with the one that it left; 0 if none.
        from_step: u64,
        /// Later checkpoints that are no part of it.
        left_behind: Vec<PathBuf>,
    },
    /// A checkpoint was skipped because it is damaged.
    CheckpointSkipped {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A step was made.
    Step {
        /// Which, counted from 1.
        step: u64,
        /// Mean loss a token of the global batch, before the update; nats.
        loss: f64,
        /// Learning rate of the update.
        learning_rate: f64,
        /// Norm of the gradient before clipping.
        grad_norm: f64,
        /// Duration of the step.
        step_ms: f64,
        /// Tokens trained on, a second.
        tokens_per_s: f64,
        /// Memory of that kind that the run holds, as the system counts it, or as the device does where that is silent.
        memory_bytes: u64,
    },
    /// Held-out loss was computed.
    Evaluated {
        /// After which step.
        step: u64,
        /// Mean loss a token; nats.
        loss: f64,
        /// The same of the averaged weights, where there are any.
        average_loss: Option<f64>,
        /// Tokens that were predicted.
        tokens: u64,
    },
    /// A step's gradients overflowed half precision, so that its update was left out.
    UpdateSkipped {
        /// The step.
        step: u64,
        /// Its loss; nats.
        loss: f64,
        /// What gradients are multiplied by from now on.
        loss_scale: f32,
    },
    /// A checkpoint is whole on disk.
    CheckpointSaved {
        /// After which step.
        step: u64,
        /// Where.
        checkpoint: PathBuf,
        /// Size of all its files.
        bytes: u64,
        /// Time that it took.
        milliseconds: f64,
    },
    /// A checkpoint could not be written; older ones are kept and training continues.
    CheckpointFailed {
        /// After which step.
        step: u64,
        /// What the system said.
        reason: String,
    },
    /// Events could not be written to the journal, or not be made durable there.
    EventsLost {
        /// How many in this session so far.
        events: u64,
        /// What the system said.
        reason: String,
    },
    /// The run ended, and the state after its last step is not on disk.
    Unsaved {
        /// The last step that was made.
        step: u64,
        /// The newest step that a checkpoint of this session is whole on disk for.
        saved_step: Option<u64>,
        /// That checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A step that diverged is being undone: the steps since a checkpoint, or since the start, are rerun.
    Undoing {
        /// The last step of the checkpoint; 0 for the start.
        from: u64,
        /// The last step that is made again.
        to: u64,
    },
    /// Loss or gradient stopped being numbers.
    Diverged {
        /// The step.
        step: u64,
        /// Its loss, `null` if not a number.
        loss: Option<f64>,
        /// Its gradient norm, `null` if not a number.
        grad_norm: Option<f64>,
        /// Whether the weights are those before the step. Where parameters are updated in the backward pass, they are
        /// not if the step could not be undone; no checkpoint holds them then.
        weights_whole: bool,
    },
    /// The run was asked to stop before its end.
    Interrupted {
        /// The last step that was made.
        step: u64,
    },
    /// A card became hotter or cooler, the run was slowed or let go for it, or a sensor failed; once an episode.
    Heat {
        /// The card's name and number.
        card: String,
        /// What happened, with figures.
        what: String,
    },
    /// The run waits, since somebody asked it to.
    Paused {
        /// The step that it is in.
        step: u64,
        /// The order's number.
        order: u64,
    },
    /// The run goes on after a pause.
    Unpaused {
        /// The step that it is in.
        step: u64,
        /// The number of the order to go on; none if the run goes on to end.
        order: Option<u64>,
        /// How long it waited.
        seconds: f64,
    },
    /// Somebody gave the run another budget: it has saved, and goes on by another plan, which the next start tells.
    Replanned {
        /// The last step that was made.
        step: u64,
        /// The order's number.
        order: u64,
        /// Bytes of the plan.
        planned_bytes: u64,
        /// Bytes allowed.
        budget_bytes: u64,
    },
    /// Something that somebody asked for was not done; the run goes on as it was.
    OrderRefused {
        /// The last step that was made.
        step: u64,
        /// The order's number; none if no order could be read.
        order: Option<u64>,
        /// Why.
        reason: String,
    },
    /// Something about a card or the machine that a person should know, once an episode, and that it is over.
    Health {
        /// The card's name and number; none for the machine.
        card: Option<String>,
        /// What kind of thing, in a word that stays: `throttled`, `disk`.
        kind: String,
        /// What happened, with figures.
        what: String,
        /// What to do about it.
        advice: Option<String>,
        /// How bad it is.
        level: Level,
    },
    /// The run would not have fitted, and was changed so that it does.
    OutOfMemoryAverted {
        /// What was changed, with figures.
        what: String,
    },
    /// What the run's cards used so far; each minute, and at the end.
    Energy(EnergyUse),
    /// A card was above its limit, and the run ended with its state saved.
    StoppedForHeat {
        /// The last step that was made.
        step: u64,
    },
    /// The run came to its end.
    Finished {
        /// The last step.
        step: u64,
        /// Time in this session.
        seconds: f64,
    },
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is good to know: something is over.
    Info,
    /// It costs speed, or will become worse.
    Warn,
    /// Results or the run are in danger.
    Error,
}

/// An event with its time, as a journal keeps it: a run's, or one of another kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record<E = Event> {
    /// Version of the schema.
    pub v: u32,
    /// Seconds since 1970, UTC.
    pub time_s: f64,
    /// Which branch of the run it belongs to; 0 until an older checkpoint was resumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub branch: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: E,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(branch: &u64) -> bool {
    *branch == 0
}

/// Something that takes events as they happen.
pub trait Sink {
    /// Takes one.
    fn take(&mut self, event: &Event);
}
