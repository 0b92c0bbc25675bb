//! The only event type. All views, journals and alerts are built from these events alone.

use crate::energy::EnergyUse;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the schema below; incremented if a field changes its meaning or is removed.
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
        /// Bytes of the plan on the device; includes the host if both share one memory.
        planned_bytes: u64,
        /// The budget in bytes.
        budget_bytes: u64,
        /// The first step that will run.
        first_step: u64,
        /// The last step, if it is known in advance.
        last_step: Option<u64>,
    },
    /// The state of an earlier session was restored.
    Resumed {
        /// The last step before the resume.
        step: u64,
        /// The checkpoint.
        checkpoint: PathBuf,
    },
    /// The run resumed from a checkpoint that is not its newest and starts a branch; later checkpoints of other
    /// branches are abandoned.
    Branched {
        /// The last step that the new branch shares with the old one; 0 if none.
        from_step: u64,
        /// Later checkpoints that do not belong to the new branch.
        left_behind: Vec<PathBuf>,
    },
    /// A checkpoint was skipped because it is damaged.
    CheckpointSkipped {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A step completed.
    Step {
        /// The step, counted from 1.
        step: u64,
        /// Mean loss per token of the global batch, before the update; nats.
        loss: f64,
        /// Learning rate of the update.
        learning_rate: f64,
        /// Norm of the gradient before clipping.
        grad_norm: f64,
        /// Duration of the step.
        step_ms: f64,
        /// Training tokens per second.
        tokens_per_s: f64,
        /// Memory of the run within its budget: resident arena memory, or the size of the arenas if the system does not
        /// report it.
        memory_bytes: u64,
    },
    /// Held-out loss was computed.
    Evaluated {
        /// The step before the evaluation.
        step: u64,
        /// Mean loss per token; nats.
        loss: f64,
        /// The loss of the averaged weights, if the run keeps them.
        average_loss: Option<f64>,
        /// Number of predicted tokens.
        tokens: u64,
    },
    /// Rewards of preferences: of the step that just completed, before its update, or of held-out examples after it.
    Rewards {
        /// The step.
        step: u64,
        /// Whether they are those of held-out examples.
        held_out: bool,
        /// Mean reward of the chosen or liked answers: β times the difference of their log-probability to the reference.
        /// `None` without any.
        chosen: Option<f64>,
        /// Mean reward of the rejected or disliked answers. `None` without any.
        rejected: Option<f64>,
        /// The part of examples whose chosen answer has the higher reward. `None` if examples have one answer.
        accuracy: Option<f64>,
    },
    /// The gradients of a step overflowed half precision, so its update was skipped.
    UpdateSkipped {
        /// The step.
        step: u64,
        /// Its loss; nats.
        loss: f64,
        /// The loss scale from now on.
        loss_scale: f32,
    },
    /// A checkpoint is complete on disk.
    CheckpointSaved {
        /// The step of the checkpoint.
        step: u64,
        /// Its path.
        checkpoint: PathBuf,
        /// Size of all its files.
        bytes: u64,
        /// Time to write it.
        milliseconds: f64,
    },
    /// A checkpoint could not be written; older ones are kept and training continues.
    CheckpointFailed {
        /// The step of the checkpoint.
        step: u64,
        /// The system's error.
        reason: String,
    },
    /// Events could not be written to the journal, or could not be made durable.
    EventsLost {
        /// Number of lost events in this session so far.
        events: u64,
        /// The system's error.
        reason: String,
    },
    /// The run ended without saving the state after its last step.
    Unsaved {
        /// The last completed step.
        step: u64,
        /// The newest step of this session with a complete checkpoint on disk.
        saved_step: Option<u64>,
        /// That checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A step that diverged is being undone: the steps since a checkpoint, or since the start, are repeated.
    Undoing {
        /// The last step of the checkpoint; 0 for the start.
        from: u64,
        /// The last step that is repeated.
        to: u64,
    },
    /// The loss, the gradient or a value to save became NaN or infinite.
    Diverged {
        /// The step.
        step: u64,
        /// Its loss; `null` if not finite.
        loss: Option<f64>,
        /// Its gradient norm; `null` if not finite.
        grad_norm: Option<f64>,
        /// Whether the weights are still those before the step. If the backward pass updates parameters and the step
        /// could not be undone, they are not; then no checkpoint contains them.
        weights_whole: bool,
        /// The tensor of a refused checkpoint that has such values; `None` if the loss or the gradient has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tensor: Option<String>,
    },
    /// The user interrupted the run before its end.
    Interrupted {
        /// The last completed step.
        step: u64,
    },
    /// A card became hotter or cooler, the run was slowed down or released because of heat, or a sensor failed; once
    /// per episode.
    Heat {
        /// The card's name and number.
        card: String,
        /// A description with figures.
        what: String,
    },
    /// The run is paused at the user's request.
    Paused {
        /// The current step.
        step: u64,
        /// The order's number.
        order: u64,
    },
    /// The run continues after a pause.
    Unpaused {
        /// The current step.
        step: u64,
        /// The number of the order to continue; `None` if the run continues in order to end.
        order: Option<u64>,
        /// Duration of the pause.
        seconds: f64,
    },
    /// The user changed the budget: the run saved its state and restarts with a new plan, which the next start reports.
    Replanned {
        /// The last completed step.
        step: u64,
        /// The order's number.
        order: u64,
        /// Bytes of the plan.
        planned_bytes: u64,
        /// The budget in bytes.
        budget_bytes: u64,
    },
    /// A request was refused; the run continues unchanged.
    OrderRefused {
        /// The last completed step.
        step: u64,
        /// The order's number; `None` if the order could not be read.
        order: Option<u64>,
        /// Why.
        reason: String,
    },
    /// The run acts on the memory that other programs use or freed: it changes its budget, waits, saves or ends.
    MemoryPressure {
        /// The last completed step.
        step: u64,
        /// The memory that there is, and the run's action.
        what: String,
        /// Whether the run returns its memory and waits; its next start ends that.
        waits: bool,
    },
    /// A health finding about a card or the machine, and its end; once per episode.
    Health {
        /// The card's name and number; `None` for the machine.
        card: Option<String>,
        /// The stable identifier of the finding: `throttled`, `disk`.
        kind: String,
        /// A description with figures.
        what: String,
        /// What the user can do.
        advice: Option<String>,
        /// Severity.
        level: Level,
    },
    /// The run would not have fitted in memory, and was changed to fit.
    OutOfMemoryAverted {
        /// The changes, with figures.
        what: String,
    },
    /// The run has safe settings instead of its usual ones.
    SafeSettings {
        /// The settings, and why.
        what: String,
    },
    /// Energy used by the run's cards so far; once a minute and at the end.
    Energy(EnergyUse),
    /// A card exceeded its limit, and the run ended after saving its state.
    StoppedForHeat {
        /// The last completed step.
        step: u64,
    },
    /// The run finished.
    Finished {
        /// The last step.
        step: u64,
        /// Duration of this session.
        seconds: f64,
    },
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// For information: a problem has ended.
    Info,
    /// It costs speed, or may get worse.
    Warn,
    /// It endangers results or the run.
    Error,
}

/// An event with its time, as stored in a journal: an event of a run by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record<E = Event> {
    /// Version of the schema.
    pub v: u32,
    /// Seconds since 1970, UTC.
    pub time_s: f64,
    /// The branch of the run; 0 until an older checkpoint is resumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub branch: u64,
    /// The event.
    #[serde(flatten)]
    pub event: E,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(branch: &u64) -> bool {
    *branch == 0
}

/// Receives events as they happen.
pub trait Sink {
    /// Receives one event.
    fn take(&mut self, event: &Event);
}
