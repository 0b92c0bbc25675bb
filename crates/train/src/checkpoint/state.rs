//! `state.json`: the state of a run apart from its tensors.

use crate::LossScale;
use plimsoll_data::StepBatches;
use plimsoll_graph::WeightCodes;
use serde::{Deserialize, Serialize};

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name inside the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of its contents, in hexadecimal.
    pub blake3: String,
}

/// Counts of what the model has been trained on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingCounts {
    /// Training tokens, sources and targets together.
    #[serde(rename = "tokens_seen")]
    pub tokens: u64,
    /// Predicted tokens; losses are means over them.
    #[serde(rename = "targets_seen", default)]
    pub targets: u64,
    /// Padding tokens, not counted in `tokens`.
    #[serde(rename = "padding_seen")]
    pub padding: u64,
    /// Samples whose text was truncated.
    #[serde(rename = "truncated_seen")]
    pub truncated: u64,
}

impl TrainingCounts {
    /// Adds the counts of a step.
    pub(crate) fn add(&mut self, batches: &StepBatches) {
        self.tokens += batches.tokens;
        self.targets += batches.targets;
        self.padding += batches.padding;
        self.truncated += batches.truncated;
    }
}

/// The state of a run after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Version of this schema.
    pub version: u32,
    /// The branch of the run; 0 until an older checkpoint is resumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub branch: u64,
    /// A checksum of the weights below the adapters, which the checkpoint does not contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The codes in which the run stores the weights below the adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_codes: Option<WeightCodes>,
    /// The last completed step.
    pub step: u64,
    /// Samples trained on: the position in the seeded order of the data, and the counter of dropout.
    pub samples_seen: u64,
    /// Counts of what the model has been trained on.
    #[serde(flatten)]
    pub seen: TrainingCounts,
    /// Training time.
    pub seconds: f64,
    /// Number of updates: steps minus skipped updates.
    pub updates: u64,
    /// Loss scaling, if gradients are in half precision.
    pub loss_scale: Option<LossScale>,
    /// Precision of weights and activations, as in the flag's value.
    pub precision: String,
    /// The run's seed.
    pub seed: u64,
    /// Samples per step.
    pub global_batch: usize,
    /// Tokens per sample, or per source.
    pub seq_len: usize,
    /// Tokens per target, if there is a decoder.
    pub target_len: Option<usize>,
    /// Identifies the data and tokenizer.
    pub data_fingerprint: String,
    /// The tokenizer, for writing text later.
    pub tokenizer: String,
    /// The other files.
    pub files: Vec<FileSum>,
    /// BLAKE3 of this file's contents with an empty checksum.
    pub checksum: String,
}

impl RunState {
    /// Version of the schema that this code writes.
    pub const VERSION: u32 = 3;

    /// The file's contents, checksum included.
    pub fn to_json(&self) -> String {
        let bare = Self { checksum: String::new(), ..self.clone() };
        let checksum = blake3::hash(bare.json().as_bytes()).to_hex().to_string();
        Self { checksum, ..bare }.json()
    }

    fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a state is plain data")
    }

    /// Parses the file's contents. Errors: the problem in words.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if state.version != Self::VERSION {
            return Err(format!("its version is {}, this program reads {}", state.version, Self::VERSION));
        }
        if state.to_json() != text.trim_end() {
            return Err("its checksum does not match".to_owned());
        }
        match state.nonsense() {
            Some(problem) => Err(problem),
            None => Ok(state),
        }
    }

    /// Counts that no run can have, even if the checksum is right. Accepted counts stay far from overflow.
    fn nonsense(&self) -> Option<String> {
        const MOST: u64 = 1 << 56;
        let samples = self.step.checked_mul(self.global_batch as u64);
        if samples != Some(self.samples_seen) || self.samples_seen > MOST || self.global_batch == 0 {
            let (step, global_batch, samples) = (self.step, self.global_batch, self.samples_seen);
            return Some(format!("{step} steps of {global_batch} samples are not {samples} samples"));
        } else if self.updates > self.step {
            return Some(format!("it counts {} updates in {} steps", self.updates, self.step));
        }
        let TrainingCounts { tokens, targets, padding, truncated } = self.seen;
        let most = tokens.max(targets).max(padding).max(truncated);
        if most > MOST {
            return Some(format!("it counts {most} tokens or samples"));
        }
        let LossScale { scale, good_steps } = self.loss_scale.unwrap_or_default();
        let is_scale = scale.is_finite() && scale > 0.0 && u64::from(good_steps) <= self.step;
        let is_sensible = is_scale && self.seconds.is_finite() && self.seconds >= 0.0;
        let scale = format!("a loss scale of {scale}, good for {good_steps} steps");
        (!is_sensible).then(|| format!("it has {scale}, after {} seconds", self.seconds))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(branch: &u64) -> bool {
    *branch == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> RunState {
        RunState {
            version: RunState::VERSION,
            branch: 0,
            base: Some("c0ffee".into()),
            base_codes: Some(WeightCodes::Nf4),
            step: 7,
            samples_seen: 224,
            seen: TrainingCounts { tokens: 14336, targets: 14000, padding: 3, truncated: 1 },
            seconds: 0.1 + 0.2,
            updates: 6,
            precision: "fp16".into(),
            loss_scale: Some(LossScale { scale: 0.1, good_steps: 3 }),
            seed: u64::MAX,
            global_batch: 32,
            seq_len: 64,
            target_len: None,
            data_fingerprint: "abc".into(),
            tokenizer: "bytes".into(),
            files: vec![FileSum { name: "model.safetensors".into(), bytes: 5, blake3: "00".into() }],
            checksum: String::new(),
        }
    }

    #[test]
    fn a_state_reads_back_and_any_change_is_detected() {
        let text = state().to_json();
        let read = RunState::from_json(&text).expect("what was written can be read");
        assert_eq!(RunState { checksum: String::new(), ..read }, state());
        assert!(RunState::from_json(&text.replace("\"step\": 7", "\"step\": 8")).unwrap_err().contains("checksum"));
    }

    /// A process that can write a state can also write its checksum.
    #[test]
    fn states_that_no_run_can_have_are_refused() {
        let seen = TrainingCounts { tokens: u64::MAX, ..state().seen };
        for (forged, expected) in [
            (RunState { step: 1 << 62, ..state() }, "4611686018427387904 steps of 32 samples are not 224"),
            (RunState { step: 1 << 62, samples_seen: 0, global_batch: 4, ..state() }, "are not 0 samples"),
            (
                RunState { step: 1 << 62, samples_seen: 1 << 62, global_batch: 1, ..state() },
                "steps of 1 samples are not",
            ),
            (RunState { samples_seen: 0, global_batch: 0, ..state() }, "steps of 0 samples"),
            (RunState { updates: 8, ..state() }, "8 updates in 7 steps"),
            (RunState { seen, ..state() }, "18446744073709551615 tokens"),
            (RunState { seconds: -1.0, ..state() }, "after -1 seconds"),
            (RunState { loss_scale: Some(LossScale { scale: 0.0, good_steps: 0 }), ..state() }, "a loss scale of 0"),
        ] {
            let error = RunState::from_json(&forged.to_json()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let branched = RunState { branch: 3, ..state() };
        assert_eq!(RunState::from_json(&branched.to_json()).map(|state| state.branch), Ok(3));
    }

    proptest! {
        #[test]
        fn flipped_bits_are_detected_without_panics(position in 0usize..400, bit in 0u8..7) {
            let mut bytes = state().to_json().into_bytes();
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert!(RunState::from_json(&text).is_err());
            }
        }
    }
}
