//! What is asked in addition to a plan, and the sizes that are tried in place of flags.

use serde_json::Value;

/// Questions in addition to the plan.
pub(super) struct Answer {
    pub(super) key: &'static str,
    pub(super) value: Value,
    pub(super) words: String,
}

/// What stands in the place of flags.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    pub(super) seq_len: Option<usize>,
    /// Samples of a micro-batch: of the only one of a step, unless a flag says how large a step is.
    pub(super) micro_batch: Option<usize>,
}
