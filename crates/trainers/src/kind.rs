//! Kinds of trainers. Not here: which one a settings file belongs to (`detect.rs`).

use std::fmt;

/// A trainer, or a layer such as DeepSpeed, with its own keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrainerKind {
    /// Hugging Face's `TrainingArguments`, and flags of scripts that use them.
    HuggingFace,
    /// axolotl.
    Axolotl,
    /// LLaMA-Factory.
    LlamaFactory,
    /// torchtune.
    Torchtune,
    /// The keyword arguments of Unsloth's notebooks, in one object.
    Unsloth,
    /// DeepSpeed's file, a layer on top of a trainer's settings.
    DeepSpeed,
    /// The file that `accelerate config` writes, a layer on top of a trainer's settings.
    Accelerate,
}

impl TrainerKind {
    /// All kinds, trainers first.
    pub const ALL: [Self; 7] = [
        Self::HuggingFace,
        Self::Axolotl,
        Self::LlamaFactory,
        Self::Torchtune,
        Self::Unsloth,
        Self::DeepSpeed,
        Self::Accelerate,
    ];

    /// Its name, as its authors spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HuggingFace => "Hugging Face's Trainer",
            Self::Axolotl => "axolotl",
            Self::LlamaFactory => "LLaMA-Factory",
            Self::Torchtune => "torchtune",
            Self::Unsloth => "Unsloth",
            Self::DeepSpeed => "DeepSpeed",
            Self::Accelerate => "accelerate",
        }
    }

    /// Whether its file only describes sharding and offload, in addition to a trainer's settings.
    pub fn is_layer(self) -> bool {
        matches!(self, Self::DeepSpeed | Self::Accelerate)
    }
}

impl fmt::Display for TrainerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
