//! `state.json`: where a run stands, apart from its tensors.

use crate::LossScale;
use data::StepBatches;
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

/// What has passed through the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Tokens trained on, sources and targets together.
    #[serde(rename = "tokens_seen")]
    pub tokens: u64,
    /// Tokens of padding beside them.
    #[serde(rename = "padding_seen")]
    pub padding: u64,
    /// Samples whose text was cut.
    #[serde(rename = "truncated_seen")]
    pub truncated: u64,
}

impl Seen {
    /// Adds a step's.
    pub(crate) fn add(&mut self, batches: &StepBatches) {
        self.tokens += batches.tokens;
        self.padding += batches.padding;
        self.truncated += batches.truncated;
    }
}

/// Where a run stands after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of this schema.
    pub version: u32,
    /// The last step that was made.
    pub step: u64,
    /// Samples trained on: the position in the seeded order of the data, and the counter of dropout.
    pub samples_seen: u64,
    /// What they came to.
    #[serde(flatten)]
    pub seen: Seen,
    /// Time spent training.
    pub seconds: f64,
    /// Updates made: steps less those whose update was skipped.
    pub updates: u64,
    /// Loss scaling, where gradients are in half precision.
    pub loss_scale: Option<LossScale>,
    /// Precision of weights and activations, as the flag names it.
    pub precision: String,
    /// The run's seed.
    pub seed: u64,
    /// Samples of a step.
    pub global_batch: usize,
    /// Tokens of a sample, or of its source.
    pub seq_len: usize,
    /// Tokens of a target, where there is a decoder.
    pub target_len: Option<usize>,
    /// Which data, tokenizer included.
    pub data_fingerprint: String,
    /// The tokenizer, for writing text later.
    pub tokenizer: String,
    /// The other files.
    pub files: Vec<FileSum>,
    /// BLAKE3 of this file's contents with an empty checksum.
    pub checksum: String,
}

impl State {
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

    /// Reads the file's contents. Errors: what is wrong with them.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if state.version != Self::VERSION {
            return Err(format!("its version is {}, this program reads {}", state.version, Self::VERSION));
        }
        if state.to_json() != text.trim_end() {
            return Err("its checksum does not match".to_owned());
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> State {
        State {
            version: State::VERSION,
            step: 7,
            samples_seen: 224,
            seen: Seen { tokens: 14336, padding: 3, truncated: 1 },
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
    fn a_state_survives_and_any_change_is_noticed() {
        let text = state().to_json();
        let read = State::from_json(&text).expect("what was written can be read");
        assert_eq!(State { checksum: String::new(), ..read }, state());
        assert!(State::from_json(&text.replace("\"step\": 7", "\"step\": 8")).unwrap_err().contains("checksum"));
    }

    proptest! {
        #[test]
        fn flipped_bits_are_noticed_and_nothing_panics(position in 0usize..400, bit in 0u8..7) {
            let mut bytes = state().to_json().into_bytes();
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            if let Ok(text) = String::from_utf8(bytes) {
                prop_assert!(State::from_json(&text).is_err());
            }
        }
    }
}
