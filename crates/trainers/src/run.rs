//! A training run of PyTorch's, as far as its memory depends on it, in no trainer's words.

use crate::unsure::Unsure;
use plimsoll_units::Bytes;

/// What a run of transformers' models is told. Lengths are in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Which weights are trained.
    pub method: Method,
    /// Types of weights, and of what is computed.
    pub precision: Precision,
    /// Samples of a forward pass on one card.
    pub micro_batch: u64,
    /// Micro-batches of an optimizer step.
    pub accumulation: u64,
    /// Of a sample, or of its source in an encoder-decoder.
    pub seq_len: u64,
    /// Of a sample's target in an encoder-decoder; the same as `seq_len` where none is told.
    pub target_len: Option<u64>,
    /// The optimizer, and how it is computed.
    pub optimizer: Optimizer,
    /// What is recomputed in the backward pass.
    pub checkpointing: Checkpointing,
    /// How attention is computed.
    pub attention: Attention,
    /// How the loss is computed from hidden states.
    pub loss: Loss,
    /// Whether gradients are clipped by their norm, whose pieces are in memory for a moment.
    pub clips: bool,
    /// Whether dropout is as the model's settings say, or off.
    pub dropout: bool,
    /// What is divided among the cards.
    pub sharding: Sharding,
    /// Sizes of DeepSpeed's buffers.
    pub buffers: Buffers,
    /// What lies in the host's memory.
    pub offload: Offload,
    /// Cards of the run.
    pub cards: u64,
    /// Whether the model goes through `torch.compile`.
    pub compiles: bool,
    /// The value of `PYTORCH_CUDA_ALLOC_CONF`; empty for PyTorch's defaults.
    pub alloc_conf: String,
    /// The part of the card's memory that the process may take, if it was set.
    pub memory_fraction: Option<f64>,
    /// Whether each parameter is updated as soon as its gradient is complete, and the gradient freed.
    pub updates_in_backward: bool,
    /// How the memory needed may differ from what the other settings say.
    pub unsure: Unsure,
}

impl Default for Run {
    /// What Hugging Face's `Trainer` does where it is told nothing.
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
    /// The same, over weights that are stored in 4 bits (NF4).
    Qlora(Lora, Quantized),
}

/// Low-rank additions to linear layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lora {
    /// Channels between the two matrices.
    pub rank: u64,
    /// Which layers get them.
    pub targets: Targets,
    /// Whether what goes into them passes a dropout.
    pub dropout: bool,
}

/// Linear layers that get additions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// All but the output head.
    AllLinear,
    /// Those whose names end so, such as `q_proj`.
    Named(Vec<String>),
    /// Those that PEFT takes for the family: queries and values, or GPT-2's `c_attn`.
    Default,
}

/// How 4-bit weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantized {
    /// Elements that share a scale.
    pub block: u64,
    /// Whether the scales are stored in 8 bits.
    pub double: bool,
}

/// Types of weights, and of what is computed.
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
    /// The same to fp16, with a scaled loss.
    AmpFp16,
}

/// The optimizer, and how it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizer {
    /// AdamW, all parameters of a call at once, which needs temporaries as large as they are: PyTorch's default on a card.
    AdamWForeach,
    /// AdamW in one kernel: the default of Hugging Face's `Trainer`.
    AdamWFused,
    /// AdamW, one parameter after the other.
    AdamWForLoop,
    /// bitsandbytes' AdamW with moments in 8 bits.
    AdamW8bit,
    /// The same, with moments that go to the host where the card is full.
    PagedAdamW8bit,
    /// bitsandbytes' AdamW with moments in 32 bits that go to the host where the card is full.
    PagedAdamW,
    /// transformers' Adafactor: factored second moments, without a first.
    Adafactor,
    /// Gradient descent.
    Sgd {
        /// With a buffer as large as the weights.
        momentum: bool,
    },
}

/// What is recomputed in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpointing {
    /// Nothing.
    Off,
    /// Each block, by an autograd function that runs it again.
    Reentrant,
    /// Each block, by hooks on saved tensors.
    NonReentrant,
}

/// How transformers computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// By products and a softmax, which hold all scores.
    Eager,
    /// By `scaled_dot_product_attention`, with the kernel that it chooses.
    Sdpa,
    /// By FlashAttention 2.
    Flash2,
}

/// How the loss is computed from hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All logits, then cross-entropy in single precision.
    Plain,
    /// Liger's kernels, whose fused head holds some rows of logits at a time.
    Liger,
    /// Cut cross-entropy, which holds no logits.
    CutCrossEntropy,
}

/// What is divided among cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// Nothing.
    None,
    /// Each card has all; gradients are summed by buckets of so many bytes, or are views of them.
    Ddp {
        /// Gradients that are summed at once.
        bucket: Bytes,
        /// Whether gradients lie in the buckets.
        views: bool,
    },
    /// DeepSpeed's stage 1, 2 or 3.
    Zero {
        /// 1: the optimizer's state is divided; 2: gradients, too; 3: weights, too.
        stage: u8,
    },
    /// Fully sharded data parallel, a transformer block a unit.
    Fsdp,
}

/// Sizes of DeepSpeed's buffers, in elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Gradients that are summed at once: `reduce_bucket_size`.
    pub reduce: Elements,
    /// Weights that are gathered ahead: `stage3_prefetch_bucket_size`.
    pub prefetch: Elements,
    /// Parameters that are smaller stay whole: `stage3_param_persistence_threshold`.
    pub persistent: Elements,
    /// Weights that are used again within so many elements stay gathered: `stage3_max_reuse_distance`.
    pub reuse: Elements,
    /// Whether sums overlap with the backward pass, with a second bucket; none where it is not told.
    pub overlaps: Option<bool>,
}

/// How many elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Elements {
    /// It is not told.
    #[default]
    Unknown,
    /// As many as Hugging Face's trainer takes for `auto`, which depends on the model's channels.
    Auto,
    /// So many.
    Of(u64),
}

/// What lies in the host's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// The optimizer's state and its update.
    pub optimizer: bool,
    /// Weights, which are fetched a block at a time.
    pub weights: bool,
}
