//! How estimates count words that they do not model exactly: the possible effect on memory, and what is counted instead.

use crate::unsure::{
    ACTIVATIONS, ALL, ATTENTION, DIVISION, Effect, LOGITS, OPTIMIZER_STATE, PREFERENCES, Part, RECOMPUTATION, SAMPLES,
    TEMPORARIES, TRAINED, WEIGHTS,
};

/// An effect on memory, and how the word is counted.
pub(crate) type Note = (Effect, &'static str);

/// How preference training is counted.
pub(crate) const ON_PREFERENCES: &str = "counted as training on single samples without a reference model";

/// Why runs with generation are not counted.
pub(crate) const GENERATES: &str = "runs with generation or teacher models are not modeled";

pub(super) const ACTIVATIONS_MAY_NEED_LESS: Note = (Effect::Less(ACTIVATIONS), "not modeled");
pub(super) const ACTIVATIONS_ON_CARD: Note = (Effect::Less(ACTIVATIONS), "activations are counted on the card");
pub(super) const ADAPTED_PARAMETERS: Note = (Effect::More(TRAINED), "adapters of parameters are not counted");
pub(super) const ADAPTERS_IN_ALL_LAYERS: Note = (Effect::Less(TRAINED), "adapters are counted in all layers");
pub(super) const ALL_RECOMPUTED: Note = (Effect::More(RECOMPUTATION), "all blocks are counted as recomputed");
pub(super) const ALL_WEIGHTS_TRAINED: Note = (Effect::Less(TRAINED), "all weights are counted as trained");
pub(super) const AS_NEXT_TOKEN: Note = (Effect::More(PREFERENCES), "counted as next-token training");
pub(super) const AS_OPTIM: Note = (Effect::Less(TRAINED), "its optimizer needs less: counted as the one in `optim`");
pub(super) const AS_SDPA: Note = (Effect::Either(TEMPORARIES), "not modeled: counted as SDPA");
pub(super) const BATCHES_AS_SET: Note =
    (Effect::Either(SAMPLES), "batches are counted with `micro_batch_size` samples");
pub(super) const BIASES_FROZEN: Note = (Effect::Same, "biases are counted as not trained");
pub(super) const CACHE_KEPT: Note = (Effect::Less(TEMPORARIES), "the allocator's cache is counted as never emptied");
pub(super) const CHANGED_MODEL: Note = (Effect::Either(ALL), "it changes the model: not modeled");
pub(super) const COUNTED_WITHOUT: Note = (Effect::Same, "counted without it");
pub(super) const COUNTED_WITHOUT_TILES: Note = (Effect::Less(SAMPLES), "counted without its tiles, which need less");
pub(super) const DEFAULT_SIZES: Note = (Effect::Either(ALL), "the model is counted with its default sizes");
pub(super) const DORA_MAGNITUDES: Note = (Effect::More(ALL), "DoRA's magnitudes are not counted");
pub(super) const EIGHT_BIT_WEIGHTS: Note =
    (Effect::Less(WEIGHTS), "weights in 8 bits are not modeled: counted in their usual type");
pub(super) const EMBEDDINGS_ON_CARD: Note = (Effect::Less(WEIGHTS), "embeddings are counted on the card");
pub(super) const EMBEDDING_NOISE: Note =
    (Effect::More(ACTIVATIONS), "its noise, which has the size of the embeddings, is not counted");
pub(super) const EXTRA_CASTS: Note = (Effect::More(SAMPLES), "its casts are not counted");
pub(super) const FULLY_RECOMPUTED: Note = (Effect::More(RECOMPUTATION), "all blocks are counted as fully recomputed");
pub(super) const GENERATION: Note = (Effect::Unbounded, GENERATES);
pub(super) const KERNEL_ACTIVATIONS: Note =
    (Effect::Less(ACTIVATIONS), "the activations that its kernels save are not counted");
pub(super) const LAYERS_ALIKE: Note =
    (Effect::Either(ALL), "all layers are counted alike, with adapters in the named ones");
pub(super) const LAYERS_ONCE: Note = (Effect::More(ALL), "layers are counted once");
pub(super) const LOADING_ARGUMENTS: Note = (Effect::Either(WEIGHTS), "arguments of model loading are not read");
pub(super) const LOGIT_TEMPORARIES: Note =
    (Effect::More(LOGITS), "its extra temporaries, which have the size of the logits, are not counted");
pub(super) const MAY_NEED_MORE: Note = (Effect::More(ALL), "not modeled");
pub(super) const MICRO_BATCH_AS_SET: Note =
    (Effect::Less(SAMPLES), "it may halve the micro-batch: the estimate is for the one that you set");
pub(super) const MODEL_PARALLELISM: Note = (Effect::Less(ALL), "tensor and sequence parallelism are not modeled");
pub(super) const NOT_MODELED: Note = (Effect::Either(ALL), "not modeled");
pub(super) const OFFLOADED_ON_CARD: Note =
    (Effect::Less(&[Part::Weights, Part::Activations]), "offloaded tensors are counted on the card");
pub(super) const ONE_RANK: Note = (Effect::Either(TRAINED), "all adapters are counted with one rank and type");
pub(super) const ONE_TYPE: Note = (Effect::Either(SAMPLES), "all layers are counted in one type");
pub(super) const OPTIMIZER_IN_FULL: Note =
    (Effect::Less(OPTIMIZER_STATE), "its optimizer needs less for these modules: counted for all modules in full");
pub(super) const OTHER_ATTENTION: Note = (Effect::More(ATTENTION), "attention is counted with `attn_implementation`");
pub(super) const OTHER_KERNELS: Note = (Effect::Either(SAMPLES), "its kernels are not modeled");
pub(super) const OTHER_PARALLELISM: Note = (Effect::Either(ALL), "only FSDP and ZeRO are modeled");
pub(super) const OWN_VOCABULARY: Note = (Effect::Same, "the vocabulary is counted as the model's own");
pub(super) const PLAIN_LOSS_NEEDS_LESS: Note = (Effect::More(LOGITS), "counted as the plain loss");
pub(super) const PLAIN_LOSS_NEEDS_MORE: Note = (Effect::Less(LOGITS), "counted as the plain loss");
pub(super) const PLAIN_LOSS_WITHOUT_REFERENCE: Note = (Effect::More(PREFERENCES), "counted as the plain loss");
pub(super) const PREFERENCE_TRAINING: Note = (Effect::More(PREFERENCES), ON_PREFERENCES);
pub(super) const SHARDED_ACROSS_ALL: Note = (Effect::More(DIVISION), "weights are counted as sharded across all cards");
pub(super) const TOKEN_MASKS: Note = (Effect::More(ATTENTION), "its masks, with one row per token, are not counted");
pub(super) const TRAINED_MODULES: Note = (Effect::More(&[Part::Additions]), "fully trained modules are not counted");
pub(super) const TRAINING_MAY_NEED_LESS: Note = (Effect::Less(TRAINED), "not modeled");
pub(super) const TRAINING_NOT_MODELED: Note = (Effect::Either(TRAINED), "not modeled");
pub(super) const UNSLOTH_KERNELS: Note = (Effect::Less(SAMPLES), "Unsloth's kernels are not modeled");
