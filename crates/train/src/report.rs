//! The report of a run, report.json, and the measurements of a benchmark.

use crate::Footprint;
use crate::engine::EngineMemory;
use plimsoll_plan::Plan;
use plimsoll_telemetry::{Attempts, EnergyUse};
use serde::{Deserialize, Serialize};

/// The plan's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// The budget in bytes.
    pub budget_bytes: u64,
    /// Bytes of the arena.
    pub peak_bytes: u64,
    /// Lower bound on the arena of any packing.
    pub lower_bound_bytes: u64,
    /// Bytes of the host's arena.
    pub host_bytes: u64,
    /// Samples per micro-batch.
    pub micro_batch: usize,
    /// Micro-batches per step.
    pub accumulation: usize,
    /// Samples per step.
    pub global_batch: usize,
    /// Tokens per sample, or per source.
    pub seq_len: usize,
    /// Tokens per target; `null` without a decoder.
    pub target_len: Option<usize>,
}

impl From<&Plan> for PlanSummary {
    fn from(plan: &Plan) -> Self {
        Self {
            budget_bytes: plan.budget().device().0,
            peak_bytes: plan.peak().0,
            lower_bound_bytes: plan.lower_bound_bytes,
            host_bytes: plan.host().0,
            micro_batch: plan.micro_batch,
            accumulation: plan.accumulation,
            global_batch: plan.global_batch,
            seq_len: plan.seq_len,
            target_len: plan.target_len,
        }
    }
}

/// Measurements and counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The system's measurements of the arenas and the process.
    #[serde(flatten)]
    pub footprint: Footprint,
    /// End of the highest region of the arena that any node or copy used, where the plan defines the regions.
    pub touched_bytes: u64,
    /// The same for the host's arena.
    pub host_touched_bytes: u64,
    /// The planned peak of the programs that ran: the plan's peak, unless no sequence had the maximum length.
    pub planned_bytes_of_what_ran: u64,
    /// Number of the device's allocations after the first step, counted at the allocation.
    pub device_allocations_after_first_step: u64,
    /// Median duration of a step; `null` without steps.
    pub step_ms_p50: Option<f64>,
    /// Shortest duration of a step.
    pub step_ms_min: Option<f64>,
    /// Training tokens per second, without padding; the median over steps.
    pub tokens_per_s: Option<f64>,
    /// The BLAS used for large products; `null` if the built-in kernels were used.
    pub blas: Option<String>,
}

impl Measured {
    /// From a device's memory, and the durations and speeds of steps.
    pub fn new(memory: EngineMemory, step_ms: &[f64], tokens_per_s: &[f64]) -> Self {
        Self {
            footprint: memory.footprint,
            touched_bytes: memory.touched_bytes,
            host_touched_bytes: memory.host_touched_bytes,
            planned_bytes_of_what_ran: memory.planned_bytes_of_what_ran,
            device_allocations_after_first_step: memory.allocations_after_first_step,
            step_ms_p50: percentile(step_ms, 0.5),
            step_ms_min: percentile(step_ms, 0.0),
            tokens_per_s: percentile(tokens_per_s, 0.5),
            blas: plimsoll_exec::blas_in_use().map(ToString::to_string),
        }
    }

    /// Updates the memory measurements.
    pub fn update_memory(&mut self, memory: EngineMemory) {
        let later = Self::new(memory, &[], &[]);
        *self = Self {
            step_ms_p50: self.step_ms_p50,
            step_ms_min: self.step_ms_min,
            tokens_per_s: self.tokens_per_s,
            ..later
        };
    }
}

/// The memory that a step used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAtStep {
    /// The step.
    pub step: u64,
    /// Bytes of the run within its budget, as the step's event has them.
    pub memory_bytes: u64,
}

/// A held-out loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The step before the evaluation.
    pub step: u64,
    /// Mean loss per token; nats.
    pub loss: f64,
    /// The loss of the averaged weights, if the run keeps them.
    pub average_loss: Option<f64>,
}

/// The contents of report.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the run.
    pub name: String,
    /// `finished`, `interrupted` or `diverged`; `unsaved` if the state after the last step is not on disk.
    pub status: String,
    /// The branch of the run; 0 until an older checkpoint is resumed. Losses are those along it.
    pub branch: u64,
    /// The step of the newest complete checkpoint on disk; `null` without one.
    pub saved_step: Option<u64>,
    /// Events of this session that the journal may lack.
    pub journal_events_lost: u64,
    /// Settings that were made safe after failures or on request, and why; `null` with the usual ones.
    #[serde(default)]
    pub safe_settings: Option<String>,
    /// The run's attempts, including this one, how they ended, and the health findings.
    #[serde(default)]
    pub attempts: Attempts,
    /// The plan's numbers.
    pub plan: PlanSummary,
    /// What was measured in this session.
    pub measured: Measured,
    /// Loss of each step, from the first; `null` if the journal lost it.
    pub losses: Vec<Option<f64>>,
    /// Held-out losses.
    pub eval: Vec<Evaluation>,
    /// The memory at the first step, at every step whose number is a power of ten, and at the last one that the journal has.
    #[serde(default)]
    pub memory: Vec<MemoryAtStep>,
    /// Training tokens, including resumed sessions.
    pub tokens_seen: u64,
    /// Predicted tokens, over which losses are means: in chats the tokens of answers, unless all are trained on.
    pub target_tokens: u64,
    /// Padding tokens, not counted in `tokens_seen`.
    pub padding_tokens: u64,
    /// Samples truncated to the maximum length.
    pub truncated_samples: u64,
    /// Steps whose update was skipped because a gradient overflowed in half precision, including resumed sessions.
    #[serde(default)]
    pub updates_skipped: u64,
    /// Training time, including resumed sessions.
    pub seconds: f64,
    /// Energy used by the run's cards, including resumed sessions; `null` if no card reports it.
    #[serde(default)]
    pub energy: Option<EnergyUse>,
    /// Energy per token of `tokens_seen`; includes the energy of repeated steps.
    #[serde(default)]
    pub energy_j_per_token: Option<f64>,
}

/// The smallest value that at least `part` of the values do not exceed; `None` without values.
pub fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values = [3.0, 1.0, 2.0, 10.0];
        assert_eq!(
            [0.0, 0.5, 0.9, 1.0].map(|p| percentile(&values, p)),
            [Some(1.0), Some(2.0), Some(10.0), Some(10.0)]
        );
        assert_eq!(percentile(&[], 0.5), None);
    }
}
