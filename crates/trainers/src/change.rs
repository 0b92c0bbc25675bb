//! One setting of a run, in no trainer's words: what is rewritten, and what is exported.

use crate::run::{Attention, Checkpointing, Loss, Method, Offload, Optimizer, Precision, Run, Sharding};
use std::fmt;

/// A setting and its new value.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Samples of a forward pass on one card.
    MicroBatch(u64),
    /// Micro-batches of an optimizer step.
    Accumulation(u64),
    /// Tokens of a sample, or of its source.
    SeqLen(u64),
    /// Tokens of a sample's target in an encoder-decoder.
    TargetLen(u64),
    /// Which weights are trained.
    Method(Method),
    /// Types of weights, and of what is computed.
    Precision(Precision),
    /// The optimizer, and how it is computed.
    Optimizer(Optimizer),
    /// What is recomputed in the backward pass.
    Checkpointing(Checkpointing),
    /// How attention is computed.
    Attention(Attention),
    /// How the loss is computed.
    Loss(Loss),
    /// What is divided among the cards.
    Sharding(Sharding),
    /// What lies in the host's memory.
    Offload(Offload),
    /// Whether gradients are clipped by their norm.
    Clips(bool),
    /// Whether the model goes through `torch.compile`.
    Compiles(bool),
    /// Whether each parameter is updated as soon as its gradient is complete.
    UpdatesInBackward(bool),
}

impl Change {
    /// The run with this setting.
    pub fn apply(&self, run: &mut Run) {
        match self {
            Self::MicroBatch(samples) => run.micro_batch = *samples,
            Self::Accumulation(times) => run.accumulation = *times,
            Self::SeqLen(tokens) => run.seq_len = *tokens,
            Self::TargetLen(tokens) => run.target_len = Some(*tokens),
            Self::Method(method) => run.method = method.clone(),
            Self::Precision(precision) => run.precision = *precision,
            Self::Optimizer(optimizer) => run.optimizer = *optimizer,
            Self::Checkpointing(checkpointing) => run.checkpointing = *checkpointing,
            Self::Attention(attention) => run.attention = *attention,
            Self::Loss(loss) => run.loss = *loss,
            Self::Sharding(sharding) => run.sharding = *sharding,
            Self::Offload(offload) => run.offload = *offload,
            Self::Clips(clips) => run.clips = *clips,
            Self::Compiles(compiles) => run.compiles = *compiles,
            Self::UpdatesInBackward(updates) => run.updates_in_backward = *updates,
        }
    }

    /// All settings of a run that a trainer may have keys for, what decides over others first.
    pub fn all_of(run: &Run) -> Vec<Self> {
        let mut all = vec![
            Self::Method(run.method.clone()),
            Self::Precision(run.precision),
            Self::MicroBatch(run.micro_batch),
            Self::Accumulation(run.accumulation),
            Self::SeqLen(run.seq_len),
        ];
        all.extend(run.target_len.map(Self::TargetLen));
        all.extend([
            Self::Optimizer(run.optimizer),
            Self::Checkpointing(run.checkpointing),
            Self::Attention(run.attention),
            Self::Loss(run.loss),
            Self::Sharding(run.sharding),
            Self::Offload(run.offload),
            Self::Clips(run.clips),
            Self::Compiles(run.compiles),
            Self::UpdatesInBackward(run.updates_in_backward),
        ]);
        all
    }

    /// What makes one run of another, as far as trainers have keys for it.
    pub fn between(from: &Run, to: &Run) -> Vec<Self> {
        let before = Self::all_of(from);
        Self::all_of(to).into_iter().filter(|change| !before.contains(change)).collect()
    }

    /// A smaller micro-batch with more accumulation, of which the product stays the same: the effective batch is that of
    /// the run. Odd ones are divided by their smallest divisor. `None` if the micro-batch is one sample already, or if updates
    /// in the backward pass leave no gradient to add to.
    pub fn halve_micro_batch(run: &Run) -> Option<[Self; 2]> {
        if run.updates_in_backward {
            return None;
        }
        let divisor = (2..=run.micro_batch).find(|divisor| run.micro_batch.is_multiple_of(*divisor))?;
        let accumulation = run.accumulation.checked_mul(divisor)?;
        Some([Self::MicroBatch(run.micro_batch / divisor), Self::Accumulation(accumulation)])
    }
}

impl fmt::Display for Change {
    /// The setting in words, without its value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MicroBatch(_) => "the micro-batch",
            Self::Accumulation(_) => "gradient accumulation",
            Self::SeqLen(_) => "the length of samples",
            Self::TargetLen(_) => "the length of targets",
            Self::Method(Method::Full) => "training all weights",
            Self::Method(Method::Lora(_)) => "LoRA",
            Self::Method(Method::Qlora(..)) => "QLoRA",
            Self::Precision(Precision::Fp32) => "single precision",
            Self::Precision(Precision::PureBf16) => "weights in bf16",
            Self::Precision(Precision::PureFp16) => "weights in fp16",
            Self::Precision(Precision::AmpBf16) => "mixed precision in bf16",
            Self::Precision(Precision::AmpFp16) => "mixed precision in fp16",
            Self::Optimizer(_) => "the optimizer",
            Self::Checkpointing(Checkpointing::Reentrant) => "re-entrant gradient checkpointing",
            Self::Checkpointing(_) => "gradient checkpointing",
            Self::Attention(_) => "how attention is computed",
            Self::Loss(Loss::Liger) => "Liger's kernels",
            Self::Loss(Loss::CutCrossEntropy) => "cut cross-entropy",
            Self::Loss(Loss::Plain) => "the plain loss",
            Self::Sharding(_) => "how the run is divided among cards",
            Self::Offload(_) => "offload",
            Self::Clips(_) => "clipping of gradients",
            Self::Compiles(_) => "`torch.compile`",
            Self::UpdatesInBackward(_) => "updates in the backward pass",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halving_keeps_the_effective_batch_and_ends_at_one_sample(micro_batch in 1u64..5000, accumulation in 1u64..100) {
            let mut run = Run { micro_batch, accumulation, ..Run::default() };
            while let Some(changes) = Change::halve_micro_batch(&run) {
                let before = run.micro_batch;
                changes.iter().for_each(|change| change.apply(&mut run));
                prop_assert!(run.micro_batch < before);
                prop_assert_eq!(run.micro_batch * run.accumulation, micro_batch * accumulation);
            }
            prop_assert_eq!(run.micro_batch, 1);
        }
    }

    #[test]
    fn what_differs_makes_one_run_of_the_other() {
        let from = Run::default();
        let to = Run { micro_batch: 1, accumulation: 8, loss: Loss::Liger, target_len: Some(64), ..Run::default() };
        let changes = Change::between(&from, &to);
        assert_eq!(changes.len(), 4, "{changes:?}");
        let mut run = from;
        changes.iter().for_each(|change| change.apply(&mut run));
        assert_eq!(run, to);
    }

    #[test]
    fn a_batch_too_large_to_count_is_left_alone() {
        let run = Run { micro_batch: 4, accumulation: u64::MAX, ..Run::default() };
        assert_eq!(Change::halve_micro_batch(&run), None);
    }
}
