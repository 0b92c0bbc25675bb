//! The flags of a training step, which `train`, `plan` and `bench` share, and the only function that turns them into a
//! request.

use super::Failure;
use super::adapters::AdapterArgs;
use super::device::Device;
use super::fp8::check_fp8;
use super::levers::LeverArgs;
use super::model::Chosen;
use super::objective::ObjectiveArgs;
use super::optimizer::OptimizerArgs;
use super::options::{AutoOr, auto_or_size, positive_size, rate};
use super::recipe::Recipe;
use ::plimsoll_plan::Request;
use clap::Args;
use plimsoll_data::Dataset;
use plimsoll_graph::Lengths;
use std::path::PathBuf;

/// Tokens of a prompt that are read at a time.
pub(super) const PREFILL: usize = 32;

/// The sizes of a training step.
#[derive(Debug, Clone, Args)]
pub(super) struct RequestArgs {
    /// Tokens per sample; for an encoder-decoder, per source [default: the model's positions, at most 1024; 256 for
    /// `bench`]. `auto`: the longest power of two that fits, up to the model's positions
    #[arg(long, value_name = "N|auto", value_parser = auto_or_size)]
    pub(super) seq_len: Option<AutoOr<usize>>,
    /// Samples per optimizer step [default: on a GPU 524,288 tokens in total, or 65,536 from weights and for T5; on the CPU 4
    /// samples, or 16 from weights; 32 for nano; in each case at most a hundredth of the training samples, or 4; for `bench`
    /// the micro-batch, else 4]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    pub(super) global_batch: Option<usize>,
    /// Samples per micro-batch: a divisor of the global batch, or `auto` for the fastest that fits
    #[arg(long, value_name = "N", value_parser = auto_or_size, default_value = "auto")]
    pub(super) micro_batch: AutoOr<usize>,
    /// Micro-batches per optimizer step, instead of the global batch
    #[arg(long, value_name = "N", value_parser = positive_size, conflicts_with = "global_batch")]
    pub(super) gradient_accumulation_steps: Option<usize>,
    /// Dropout rate everywhere [default: the model's; 0 for `bench`]
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(super) dropout: Option<f32>,
    #[command(flatten)]
    pub(super) objective: ObjectiveArgs,
    #[command(flatten)]
    pub(super) optimizer: OptimizerArgs,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) levers: LeverArgs,
}

/// The rows of a run, and its work in addition to its steps; `train` and `plan` share these flags.
#[derive(Debug, Clone, Args)]
pub(super) struct RunArgs {
    /// Start from these weights: a Plimsoll checkpoint, a folder saved by `transformers`, or a name in the Hugging Face
    /// cache, such as google/flan-t5-base
    #[arg(long, value_name = "PATH|NAME")]
    pub(super) init: Option<PathBuf>,
    /// Fetch what `--init` names from the Hugging Face hub if it is not in the cache: weights, configuration and tokenizer. Without
    /// `--init`, the configuration and tokenizer that `--model` names
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) download: bool,
    /// Sequence packing: put several short documents into each row of `--seq-len` tokens, without attention across them
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) packing: bool,
    /// Tokens of the sample generated at the end; 0 generates none
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count, default_value = "256")]
    pub(super) sample_tokens: u64,
}

impl RunArgs {
    /// A request for training a model on a device, with evaluations and samples. `records`: the training samples, if they are
    /// known.
    /// Errors: those of [`RequestArgs::request`].
    pub(super) fn request(
        &self,
        asked: &RequestArgs,
        chosen: &Chosen,
        on: &Device,
        sequences: Sequences,
        records: Option<u64>,
    ) -> Result<Request, Failure> {
        let (device, tokens) = (on.targets.device.kind(), sequences.longest.tokens);
        let usual_batch = self.recipe(chosen).samples_of_step(device, tokens, records);
        let request = asked.request(chosen, on, sequences, usual_batch)?;
        let sample_prefill = (self.sample_tokens > 0 && !chosen.config.is_encoder()).then_some(PREFILL);
        Ok(Request { packed: self.packing, sample_prefill, evaluates: true, ..request })
    }

    /// The defaults for training the model.
    pub(super) fn recipe(&self, chosen: &Chosen) -> Recipe {
        Recipe::new(chosen, self.init.is_some())
    }
}

/// The lengths of a run's rows.
#[derive(Debug, Clone)]
pub(super) struct Sequences {
    /// At least as long as every row.
    pub(super) longest: Lengths,
    /// The others.
    pub(super) buckets: Vec<Lengths>,
    /// Hard negatives of each sample, if the data is known.
    negatives: Option<usize>,
}

impl Sequences {
    /// For rows of equal length.
    pub(super) fn of_length(tokens: usize, target: Option<usize>) -> Self {
        Self { longest: Lengths { tokens, target }, buckets: vec![], negatives: None }
    }

    /// The lengths of a dataset's batches.
    pub(super) fn of(dataset: &Dataset) -> Self {
        let shapes = dataset.shapes();
        let lengths = shapes.iter().map(|s| Lengths { tokens: s.source_len, target: s.target_len });
        let lengths = lengths.collect::<Vec<_>>();
        let tokens = lengths.iter().map(|l| l.tokens).max().unwrap_or(1);
        let longest = Lengths { tokens, target: lengths.iter().filter_map(|l| l.target).max() };
        let negatives = match dataset {
            Dataset::Pairs(pairs) => Some(pairs.negatives()),
            Dataset::Windows(_) | Dataset::Packed(_) | Dataset::Preferences(_) => None,
        };
        Self { longest, buckets: lengths.into_iter().filter(|l| *l != longest).collect(), negatives }
    }
}

impl RequestArgs {
    /// The length of `--seq-len`; `None` if it is not given or `auto`.
    pub(super) fn seq_len(&self) -> Option<usize> {
        self.seq_len.and_then(AutoOr::given)
    }

    /// Whether to find the length.
    pub(super) fn finds_seq_len(&self) -> bool {
        self.seq_len == Some(AutoOr::Auto)
    }

    /// The same with micro-batches of this many samples: one per step, unless another flag sets the size of a step.
    pub(super) fn with_micro_batch(&self, samples: usize) -> Self {
        let is_sized = self.global_batch.is_some() || self.gradient_accumulation_steps.is_some();
        let global_batch = if is_sized { self.global_batch } else { Some(samples) };
        Self { micro_batch: AutoOr::Given(samples), global_batch, ..self.clone() }
    }

    /// Sets the model's dropout if the flag is given.
    pub(super) fn set_dropout(&self, chosen: &mut Chosen) {
        if let Some(rate) = self.dropout {
            chosen.config.set_dropout(rate);
        }
    }

    /// A request for a model on a device. `usual_batch` is the default number of samples per step.
    /// Errors: flags that exclude each other, parameters that the model does not have.
    pub(super) fn request(
        &self,
        chosen: &Chosen,
        on: &Device,
        sequences: Sequences,
        usual_batch: usize,
    ) -> Result<Request, Failure> {
        let mut levers = self.levers.request(on.precision);
        levers.base_weights = levers.base_weights.or(self.adapters.codes());
        check_fp8(on, &levers)?;
        let mut objective = self.objective.objective()?;
        if let Some(negatives) = sequences.negatives.filter(|_| chosen.config.is_encoder()) {
            objective.contrastive.negatives = negatives;
        }
        Ok(Request {
            optimizer: self.optimizer.optimizer(self.objective.layer_decay, self.adapters.lora_plus())?,
            frozen: self.optimizer.frozen(&chosen.config)?,
            adapters: self.adapters.adapters(&chosen.config)?,
            global_batch: self.global_batch(usual_batch),
            micro_batch: self.micro_batch.given(),
            seq_len: sequences.longest.tokens,
            target_len: sequences.longest.target,
            buckets: sequences.buckets,
            objective,
            budget: on.budget.with_host(on.targets.device.kind(), self.levers.host_ram)?,
            levers,
            ..Request::new(chosen.config.clone(), on.targets, on.machine.clone())
        })
    }

    /// Whether a flag sets the samples per step.
    pub(super) fn gives_global_batch(&self) -> bool {
        self.global_batch.is_some() || self.gradient_accumulation_steps.is_some()
    }

    fn global_batch(&self, usual: usize) -> usize {
        match (self.global_batch, self.gradient_accumulation_steps, self.micro_batch.given()) {
            (Some(global), _, _) => global,
            (None, Some(steps), micro) => steps.saturating_mul(micro.unwrap_or(1)),
            (None, None, Some(micro)) => micro.max(usual).next_multiple_of(micro),
            (None, None, None) => usual,
        }
    }
}
