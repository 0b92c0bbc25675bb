//! Results that `plan` prints in addition to a plan, and sizes that replace flags.

use serde_json::Value;

/// A result in addition to the plan.
pub(super) struct Answer {
    /// The key in JSON output.
    pub(super) key: &'static str,
    /// The value in JSON output.
    pub(super) value: Value,
    /// The text output.
    pub(super) words: String,
}

/// Sizes that replace those of the flags.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    pub(super) seq_len: Option<usize>,
    /// Samples per micro-batch; a step has one micro-batch, unless a flag sets the size of a step.
    pub(super) micro_batch: Option<usize>,
}
