//! The flags of `plimsoll estimate`, and the run that they describe.
//! Not here: files and command lines of trainers (`input.rs`), cards (`card.rs`).

use super::custom_loop::{LoopDifference, torch, transformers};
use crate::cli::options::{alloc_conf, positive_count, positive_size};
use clap::{Args, ValueEnum};
use plimsoll_trainers::{
    Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, Sharding, Targets,
    TrainerKind, Version,
};
use plimsoll_units::Bytes;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(in crate::cli) struct EstimateArgs {
    /// The model: one of `plimsoll models`, its name on the Hugging Face hub, a config.json, or a folder with one
    /// [default: the one that the trainer's file names]
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Fetch the model's config.json from the Hugging Face hub if it is not in the cache
    #[arg(long)]
    pub(super) download: bool,
    /// The trainer's own file: of Hugging Face's `TrainingArguments`, axolotl, LLaMA-Factory, torchtune, or Unsloth's
    /// keywords as JSON; repeat it to add a file of DeepSpeed or accelerate. Flags override its settings
    #[arg(long, value_name = "FILE")]
    pub(super) config: Vec<PathBuf>,
    /// Which weights are trained
    #[arg(long, value_enum, value_name = "full|lora|qlora")]
    pub(super) method: Option<MethodName>,
    /// Rank of LoRA [default: 16]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) lora_rank: Option<u64>,
    /// The layers to adapt with LoRA, by the ends of their names: `q_proj,v_proj`; or `all-linear` [default: PEFT's own
    /// for the family]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) lora_targets: Vec<String>,
    /// Whether the scales of 4-bit weights are themselves in 8 bits: `bnb_4bit_use_double_quant` [default: on, as most
    /// trainers]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(super) double_quant: Option<Switch>,
    /// Types of the weights and of the computation: `pure-bf16` uses bf16 for all, `amp-bf16` fp32 weights with
    /// autocast [default: fp32; amp-bf16 with `--method qlora`]
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub(super) precision: Option<PrecisionName>,
    /// Samples per forward pass on one GPU [default: 8, as Hugging Face's trainer; 1 with `--method qlora`]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) micro_batch: Option<u64>,
    /// Micro-batches per optimizer step [default: 1]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) gradient_accumulation_steps: Option<u64>,
    /// Tokens per sample, or per source [default: 1024, 512 for encoder-decoders]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    pub(super) seq_len: Option<usize>,
    /// Tokens per target of an encoder-decoder [default: the same as per source]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    pub(super) target_len: Option<usize>,
    /// The optimizer
    #[arg(long, value_enum, value_name = "OPTIMIZER")]
    pub(super) optimizer: Option<OptimizerName>,
    /// How PyTorch computes AdamW: all parameters at once, with temporaries of their size (`foreach`), in one kernel
    /// (`fused`), or one after the other [default: fused, as Hugging Face's trainer]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(super) optimizer_implementation: Option<Implementation>,
    /// Recompute each block in the backward pass; `=reentrant` uses an autograd function, as older trainers do
    #[arg(
        long, value_enum, value_name = "HOW", num_args = 0..=1, default_missing_value = "non-reentrant", require_equals = true
    )]
    pub(super) gradient_checkpointing: Option<CheckpointingName>,
    /// How attention is computed [default: sdpa]
    #[arg(long, value_enum, value_name = "KERNEL")]
    pub(super) attention: Option<AttentionName>,
    /// How the loss is computed: `liger` uses Liger's kernels, `cce` cut cross-entropy [default: plain]
    #[arg(long, value_enum, value_name = "plain|liger|cce")]
    pub(super) loss: Option<LossName>,
    /// Whether gradients are clipped by their norm [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(super) clip: Option<Switch>,
    /// What is sharded among GPUs [default: none for one GPU, otherwise ddp]
    #[arg(long, value_enum, value_name = "SHARDING")]
    pub(super) sharding: Option<ShardingName>,
    /// What to offload to host memory, as DeepSpeed or FSDP do [default: none]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(super) offload: Option<OffloadName>,
    /// Number of GPUs; results are per GPU [default: 1]
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub(super) cards: Option<u64>,
    /// Use `torch.compile`; the estimate is a range then
    #[arg(long)]
    pub(super) compile: bool,
    /// Update each parameter as soon as its gradient is complete, as torchtune's `optimizer_in_bwd` does [default: off]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(super) update_in_backward: Option<Switch>,
    /// How your training loop differs from Hugging Face's trainer
    #[arg(long = "loop", value_enum, value_name = "DIFFERENCES", value_delimiter = ',')]
    pub(super) loop_differences: Vec<LoopDifference>,
    /// The version of transformers [default: the newest known]
    #[arg(long, value_name = "VERSION", value_parser = transformers)]
    pub(super) transformers: Option<Version>,
    /// The version of PyTorch [default: the newest known]
    #[arg(long, value_name = "VERSION", value_parser = torch)]
    pub(super) torch: Option<Version>,
    /// The value of PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "CONF", value_parser = alloc_conf)]
    pub(super) alloc_conf: Option<String>,
    /// The GPU: `3060`, `a100 80gb`; `list` lists them [default: the first of this machine]
    #[arg(long, value_name = "NAME", conflicts_with = "vram")]
    pub(super) gpu: Option<String>,
    /// The GPU's memory in place of its name: `24` (GiB), `16gb`
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: Option<Bytes>,
    /// Memory to leave free for the display, other processes and the uncertainty of the estimate [default: 512 MiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram_margin: Option<Bytes>,
    /// Print JSON
    #[arg(long, conflicts_with = "export")]
    pub(super) json: bool,
    /// Print settings that fit in a trainer's own keys, with the same effective batch: the run if it fits, otherwise
    /// the nearest one; edits your own file if `--config` is of that trainer
    #[arg(long, value_enum, value_name = "TRAINER")]
    pub(super) export: Option<ExportName>,
    /// The command that starts the trainer; its flags are read instead of `--config`
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "config")]
    pub(super) command: Vec<String>,
}

/// An enum of a flag's choices, each with a value of a run.
macro_rules! choices {
    ($(#[$about:meta])* $name:ident -> $of:ty { $($(#[$doc:meta])* $choice:ident = $value:expr,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
        pub(super) enum $name { $($(#[$doc])* $choice,)+ }

        impl $name {
            pub(super) fn value(self) -> $of {
                match self { $(Self::$choice => $value,)+ }
            }
        }
    };
}

choices! {
    /// `--method`.
    MethodName -> fn(Lora) -> Method {
        Full = |_| Method::Full,
        Lora = Method::Lora,
        Qlora = |lora| Method::Qlora(lora, DOUBLY_QUANTIZED),
    }
}

choices! {
    /// `--precision`.
    PrecisionName -> Precision {
        Fp32 = Precision::Fp32,
        #[value(alias = "bf16-pure")]
        PureBf16 = Precision::PureBf16,
        #[value(alias = "fp16-pure")]
        PureFp16 = Precision::PureFp16,
        #[value(alias = "bf16")]
        AmpBf16 = Precision::AmpBf16,
        #[value(alias = "fp16")]
        AmpFp16 = Precision::AmpFp16,
    }
}

choices! {
    /// `--optimizer`.
    OptimizerName -> Optimizer {
        Adamw = Optimizer::AdamWFused,
        #[value(name = "adamw-8bit")]
        Adamw8bit = Optimizer::AdamW8bit,
        #[value(name = "paged-adamw-8bit")]
        PagedAdamw8bit = Optimizer::PagedAdamW8bit,
        PagedAdamw = Optimizer::PagedAdamW,
        Adafactor = Optimizer::Adafactor,
        Sgd = Optimizer::Sgd { momentum: false },
        SgdMomentum = Optimizer::Sgd { momentum: true },
    }
}

choices! {
    /// `--optimizer-implementation`.
    Implementation -> Optimizer {
        Foreach = Optimizer::AdamWForeach,
        Fused = Optimizer::AdamWFused,
        ForLoop = Optimizer::AdamWForLoop,
    }
}

choices! {
    /// `--gradient-checkpointing`.
    CheckpointingName -> Checkpointing {
        #[value(alias = "true")]
        NonReentrant = Checkpointing::NonReentrant,
        Reentrant = Checkpointing::Reentrant,
        #[value(alias = "false")]
        Off = Checkpointing::Off,
    }
}

choices! {
    /// `--attention`.
    AttentionName -> Attention {
        Eager = Attention::Eager,
        Sdpa = Attention::Sdpa,
        /// `sdpa` with its memory-efficient kernel alone
        Efficient = Attention::Efficient,
        #[value(alias = "flash_attention_2")]
        Flash2 = Attention::Flash2,
    }
}

choices! {
    /// `--loss`.
    LossName -> Loss {
        Plain = Loss::Plain,
        Liger = Loss::Liger,
        Cce = Loss::CutCrossEntropy,
    }
}

choices! {
    /// `--sharding`.
    ShardingName -> Sharding {
        None = Sharding::None,
        Ddp = Sharding::Ddp { bucket: Bytes::mib(25), views: false },
        Zero1 = Sharding::Zero { stage: 1 },
        Zero2 = Sharding::Zero { stage: 2 },
        Zero3 = Sharding::Zero { stage: 3 },
        Fsdp = Sharding::Fsdp,
    }
}

choices! {
    /// `--offload`.
    OffloadName -> Offload {
        None = Offload::default(),
        Optimizer = Offload { optimizer: true, weights: false },
        All = Offload { optimizer: true, weights: true },
    }
}

choices! {
    /// `--clip`, `--double-quant` and `--update-in-backward`.
    Switch -> bool {
        #[value(alias = "true")]
        On = true,
        #[value(alias = "false")]
        Off = false,
    }
}

choices! {
    /// `--export`: `None` is the environment.
    ExportName -> Option<TrainerKind> {
        Hf = Some(TrainerKind::HuggingFace),
        Axolotl = Some(TrainerKind::Axolotl),
        Llamafactory = Some(TrainerKind::LlamaFactory),
        Torchtune = Some(TrainerKind::Torchtune),
        Unsloth = Some(TrainerKind::Unsloth),
        Deepspeed = Some(TrainerKind::DeepSpeed),
        Accelerate = Some(TrainerKind::Accelerate),
        Env = None,
    }
}

impl ExportName {
    /// Whether the exported settings can ask for updates in the backward pass; the allocator's line changes no
    /// settings.
    pub(super) fn has_updates_in_backward(self) -> bool {
        matches!(self, Self::Torchtune | Self::Env)
    }
}

/// bitsandbytes' block size, and 8-bit scales as most trainers use.
const DOUBLY_QUANTIZED: Quantized = Quantized { block: 64, double: true };

/// The default rank of LoRA, as TRL's.
const LORA_RANK: u64 = 16;

impl EstimateArgs {
    /// Applies the flags over the trainer's settings.
    pub(super) fn apply_to(&self, run: &mut Run) {
        self.apply_method_to(run);
        set(&mut run.precision, self.precision.map(PrecisionName::value));
        set(&mut run.micro_batch, self.micro_batch);
        set(&mut run.accumulation, self.gradient_accumulation_steps);
        set(&mut run.seq_len, self.seq_len.map(|tokens| tokens as u64));
        run.target_len = self.target_len.map(|tokens| tokens as u64).or(run.target_len);
        let is_adamw = self.optimizer.is_none_or(|name| name == OptimizerName::Adamw);
        set(&mut run.optimizer, self.optimizer.map(OptimizerName::value));
        set(&mut run.optimizer, self.optimizer_implementation.filter(|_| is_adamw).map(Implementation::value));
        set(&mut run.checkpointing, self.gradient_checkpointing.map(CheckpointingName::value));
        set(&mut run.attention, self.attention.map(AttentionName::value));
        set(&mut run.loss, self.loss.map(LossName::value));
        set(&mut run.clips, self.clip.map(Switch::value));
        set(&mut run.sharding, self.sharding.map(ShardingName::value));
        set(&mut run.offload, self.offload.map(OffloadName::value));
        set(&mut run.cards, self.cards);
        run.compiles |= self.compile;
        set(&mut run.updates_in_backward, self.update_in_backward.map(Switch::value));
        set(&mut run.alloc_conf, self.alloc_conf.clone());
        self.loop_differences.iter().for_each(|difference| difference.apply_to(&mut run.custom_loop));
        set(&mut run.libraries.transformers, self.transformers);
        set(&mut run.libraries.torch, self.torch);
        if self.sharding.is_none() {
            run.divide();
        }
    }

    /// Whether the flags ask for QLoRA.
    pub(super) fn is_qlora(&self) -> bool {
        matches!(self.method, Some(MethodName::Qlora))
    }

    fn apply_method_to(&self, run: &mut Run) {
        let previous = match &run.method {
            Method::Full => Lora { rank: LORA_RANK, targets: Targets::Default, dropout: false },
            Method::Lora(lora) | Method::Qlora(lora, _) => lora.clone(),
        };
        let targets = match &self.lora_targets[..] {
            [] => previous.targets,
            [all] if matches!(all.as_str(), "all-linear" | "all") => Targets::AllLinear,
            names => Targets::Named(names.to_vec()),
        };
        let lora = Lora { rank: self.lora_rank.unwrap_or(previous.rank), targets, ..previous };
        let asks = self.lora_rank.is_some() || !self.lora_targets.is_empty();
        run.method = match (self.method, &run.method) {
            (Some(MethodName::Qlora) | None, Method::Qlora(_, quantized)) => Method::Qlora(lora, *quantized),
            (Some(name), _) => name.value()(lora),
            (None, Method::Full) if !asks => Method::Full,
            (None, _) => Method::Lora(lora),
        };
        if let (Method::Qlora(_, quantized), Some(double)) = (&mut run.method, self.double_quant) {
            quantized.double = double.value();
        }
    }
}

fn set<T>(value: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *value = new;
    }
}
