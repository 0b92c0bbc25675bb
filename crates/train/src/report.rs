//! What came of a run: report.json, and the measured part of a benchmark.

use crate::Footprint;
use crate::engine::EngineMemory;
use plimsoll_plan::Plan;
use plimsoll_telemetry::EnergyUse;
use serde::{Deserialize, Serialize};

/// The plan's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSummary {
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// Bytes of the arena.
    pub peak_bytes: u64,
    /// Bytes below which no packing can come.
    pub lower_bound_bytes: u64,
    /// Bytes of the host's arena.
    pub host_bytes: u64,
    /// Samples at a time.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub accumulation: usize,
    /// Samples of a step.
    pub global_batch: usize,
    /// Tokens of a sample, or of its source.
    pub seq_len: usize,
    /// Tokens of a target; `null` without a decoder.
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

/// What was measured, and what was counted on the way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What the system says of the arenas and of the process.
    #[serde(flatten)]
    pub footprint: Footprint,
    /// End of the highest region of the arena that any step or copy touched. Where regions end is the plan's word.
    pub touched_bytes: u64,
    /// The same of the host's arena.
    pub host_touched_bytes: u64,
    /// What the plan says that the programs which ran take: the plan's peak, unless no sequence was as long as allowed.
    pub planned_bytes_of_what_ran: u64,
    /// How often the device asked the system for memory after the first step, counted where it asks.
    pub device_allocations_after_first_step: u64,
    /// Median duration of a step; `null` if none was made.
    pub step_ms_p50: Option<f64>,
    /// Shortest duration of a step.
    pub step_ms_min: Option<f64>,
    /// Tokens trained on a second, padding not counted; the median over steps.
    pub tokens_per_s: Option<f64>,
    /// The BLAS that large products were left to; `null` where they were the built-in ones.
    pub blas: Option<String>,
}

impl Measured {
    /// From a device's memory, and the durations and the speeds of steps.
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

    /// Takes in what has become of memory since.
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

/// A held-out loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// After which step.
    pub step: u64,
    /// Mean loss a token; nats.
    pub loss: f64,
    /// The same of the averaged weights, where there are any.
    pub average_loss: Option<f64>,
}

/// report.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the run.
    pub name: String,
    /// `finished`, `interrupted` or `diverged`; `unsaved` if the state after the last step is not on disk.
    pub status: String,
    /// Which branch of the run this is; 0 until an older checkpoint was resumed. Losses are those along it.
    pub branch: u64,
    /// The step of the newest checkpoint that is whole on disk; `null` if there is none.
    pub saved_step: Option<u64>,
    /// Events of this session that the journal may lack.
    pub journal_events_lost: u64,
    /// The plan's numbers.
    pub plan: PlanSummary,
    /// What was measured in this session.
    pub measured: Measured,
    /// Loss of each step, from the first; `null` where the journal lost it.
    pub losses: Vec<Option<f64>>,
    /// Held-out losses.
    pub eval: Vec<Evaluation>,
    /// Tokens that have passed through the model, resumed sessions included.
    pub tokens_seen: u64,
    /// Tokens that were predicted, of which losses are means: of chats those of answers, unless all are trained on.
    pub target_tokens: u64,
    /// Tokens of padding beside them.
    pub padding_tokens: u64,
    /// Samples whose text was cut to the longest that is allowed.
    pub truncated_samples: u64,
    /// Steps whose update was skipped because a gradient overflowed in half precision, resumed sessions included.
    #[serde(default)]
    pub updates_skipped: u64,
    /// Time spent training, resumed sessions included.
    pub seconds: f64,
    /// What the run's cards used, resumed sessions included; `null` where none tells.
    #[serde(default)]
    pub energy: Option<EnergyUse>,
    /// That for each token of `tokens_seen`: steps that were made again used energy, too.
    #[serde(default)]
    pub energy_j_per_token: Option<f64>,
}

/// The smallest value that at least `part` of the values don't exceed; none for no values.
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
