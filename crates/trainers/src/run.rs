//! A PyTorch training run: all settings that affect its memory, independent of trainers.

use crate::unsure::Unsure;
use crate::versions::Libraries;
use plimsoll_units::Bytes;

/// The settings of a run of a transformers model. Lengths are in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Which weights are trained.
    pub method: Method,
    /// Data types of weights and of computations.
    pub precision: Precision,
    /// Samples per forward pass on one card.
    pub micro_batch: u64,
    /// Micro-batches per optimizer step.
    pub accumulation: u64,
    /// Length of a sample, or of its source in an encoder-decoder.
    pub seq_len: u64,
    /// Length of the target in an encoder-decoder; `None` for the same as `seq_len`.
    pub target_len: Option<u64>,
    /// The optimizer and its implementation.
    pub optimizer: Optimizer,
    /// Activation checkpointing.
    pub checkpointing: Checkpointing,
    /// The attention implementation.
    pub attention: Attention,
    /// The loss implementation.
    pub loss: Loss,
    /// Whether gradients are clipped by norm, which needs temporary memory.
    pub clips: bool,
    /// Whether dropout is as in the model's configuration, or off.
    pub dropout: bool,
    /// Sharding across cards.
    pub sharding: Sharding,
    /// Sizes of DeepSpeed's buffers.
    pub buffers: Buffers,
    /// Offload to host memory.
    pub offload: Offload,
    /// Number of cards.
    pub cards: u64,
    /// Whether the model is compiled with `torch.compile`.
    pub compiles: bool,
    /// The value of `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's default.
    pub alloc_conf: String,
    /// The fraction of the card's memory that the process may use, if set.
    pub memory_fraction: Option<f64>,
    /// Whether each parameter is updated as soon as its gradient is complete, and the gradient freed.
    pub updates_in_backward: bool,
    /// Differences from the training loop of Hugging Face's `Trainer`.
    pub custom_loop: CustomLoop,
    /// Versions of PyTorch and transformers.
    pub libraries: Libraries,
    /// How the memory needed may differ because of settings that are not modeled.
    pub unsure: Unsure,
}

impl Default for Run {
    /// The defaults of Hugging Face's `Trainer`.
    fn default() -> Self {
        Self {
            method: Method::Full,
            precision: Precision::Fp32,
            micro_batch: 8,
            accumulation: 1,
            seq_len: 1024,
            target_len: None,
            optimizer: Optimizer::AdamWFused,
            checkpointing: Checkpointing::Off,
            attention: Attention::Sdpa,
            loss: Loss::Plain,
            clips: true,
            dropout: true,
            sharding: Sharding::None,
            buffers: Buffers::default(),
            offload: Offload::default(),
            cards: 1,
            compiles: false,
            alloc_conf: String::new(),
            memory_fraction: None,
            updates_in_backward: false,
            custom_loop: CustomLoop::default(),
            libraries: Libraries::default(),
            unsure: Unsure::default(),
        }
    }
}

/// Which weights are trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// All of them.
    Full,
    /// Low-rank additions to some linear layers.
    Lora(Lora),
    /// The same on weights that are stored in 4 bits (NF4).
    Qlora(Lora, Quantized),
}

/// Low-rank additions to linear layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lora {
    /// The inner dimension of the two matrices.
    pub rank: u64,
    /// Which layers get them.
    pub targets: Targets,
    /// Whether their input has dropout.
    pub dropout: bool,
}

/// Linear layers that get LoRA additions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// All but the output head.
    AllLinear,
    /// Layers whose names end with one of these, such as `q_proj`.
    Named(Vec<String>),
    /// PEFT's default for the model family: queries and values, or `c_attn` for GPT-2.
    Default,
}

/// The storage of 4-bit weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantized {
    /// Elements that share a scale.
    pub block: u64,
    /// Whether the scales are stored in 8 bits.
    pub double: bool,
}

/// Data types of weights and of computations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    Fp32,
    /// Weights, gradients and moments in bf16.
    PureBf16,
    /// The same in fp16.
    PureFp16,
    /// Weights in single precision, autocast to bf16.
    AmpBf16,
    /// Weights in single precision, autocast to fp16, with loss scaling.
    AmpFp16,
}

/// The optimizer and its implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizer {
    /// AdamW on all parameters at once, with temporaries as large as the parameters: PyTorch's default on a card.
    AdamWForeach,
    /// AdamW in one kernel: the default of Hugging Face's `Trainer`.
    AdamWFused,
    /// AdamW on one parameter at a time.
    AdamWForLoop,
    /// bitsandbytes' AdamW with moments in 8 bits.
    AdamW8bit,
    /// The same with paged moments, which move to the host when the card is full.
    PagedAdamW8bit,
    /// bitsandbytes' AdamW with paged moments in 32 bits.
    PagedAdamW,
    /// transformers' Adafactor: factored second moments, no first moments.
    Adafactor,
    /// Gradient descent.
    Sgd {
        /// With a buffer as large as the weights.
        momentum: bool,
    },
}

/// Activation checkpointing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpointing {
    /// Recompute nothing.
    Off,
    /// Recompute each block with an autograd function that runs it again.
    Reentrant,
    /// Recompute each block with hooks on saved tensors.
    NonReentrant,
}

/// The attention implementation of transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Products and a softmax, with the full score matrix.
    Eager,
    /// `scaled_dot_product_attention`, with the kernel that it chooses.
    Sdpa,
    /// `scaled_dot_product_attention` with its memory-efficient kernel, and keys and values repeated for each query head.
    Efficient,
    /// FlashAttention 2.
    Flash2,
}

/// How a training loop differs from that of Hugging Face's `Trainer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CustomLoop {
    /// How long a variable holds the model's outputs, which contain the logits.
    pub outputs: KeptOutputs,
    /// Whether gradients stay allocated between steps: `zero_grad(set_to_none=False)`.
    pub keeps_gradients: bool,
    /// Whether the model receives no attention mask.
    pub omits_mask: bool,
}

/// How long a training loop holds the model's outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeptOutputs {
    /// Until the loss is computed, as the `Trainer` does.
    #[default]
    UntilLoss,
    /// Until the end of the backward pass.
    UntilBackward,
    /// Until the end of the optimizer's step, such as the end of a function that runs a step.
    UntilStep,
    /// Until the end of the next forward pass, which assigns the variable again.
    UntilNext,
}

/// The loss implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All logits, then cross-entropy in single precision.
    Plain,
    /// Liger kernels, whose fused output head holds some rows of logits at a time.
    Liger,
    /// Cut cross-entropy, which stores no logits.
    CutCrossEntropy,
}

/// Sharding across cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// No sharding.
    None,
    /// Each card has a full copy. Gradients are summed in buckets.
    Ddp {
        /// The size of a bucket.
        bucket: Bytes,
        /// Whether gradients are views of the buckets.
        views: bool,
    },
    /// DeepSpeed ZeRO stage 1, 2 or 3.
    Zero {
        /// 1 shards the optimizer state, 2 also gradients, 3 also weights.
        stage: u8,
    },
    /// Fully sharded data parallel, with one unit per transformer block.
    Fsdp,
}

/// Sizes of DeepSpeed's buffers, in elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Gradients per reduction: `reduce_bucket_size`.
    pub reduce: Elements,
    /// Weights to prefetch: `stage3_prefetch_bucket_size`.
    pub prefetch: Elements,
    /// Size below which parameters are not sharded: `stage3_param_persistence_threshold`.
    pub persistent: Elements,
    /// Distance to the next use within which weights stay gathered: `stage3_max_reuse_distance`.
    pub reuse: Elements,
    /// Whether reductions overlap with the backward pass, with a second bucket; `None` if unset.
    pub overlaps: Option<bool>,
}

/// A number of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Elements {
    /// Not set.
    #[default]
    Unknown,
    /// The value that Hugging Face's trainer uses for `auto`, which depends on the hidden size.
    Auto,
    /// This number.
    Of(u64),
}

/// Offload to host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// The optimizer state and the update.
    pub optimizer: bool,
    /// Weights, which are fetched one block at a time.
    pub weights: bool,
}
