//! A change of one setting of a run, independent of trainers. Used to rewrite and to export settings.

use crate::run::{Attention, Checkpointing, Loss, Method, Offload, Optimizer, Precision, Run, Sharding};
use std::fmt;

/// A setting and its new value.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingChange {
    /// Samples per forward pass on one card.
    MicroBatch(u64),
    /// Micro-batches per optimizer step.
    Accumulation(u64),
    /// Tokens per sample, or per source in an encoder-decoder.
    SeqLen(u64),
    /// Tokens per target in an encoder-decoder.
    TargetLen(u64),
    /// Which weights are trained.
    Method(Method),
    /// Data types of weights and of computations.
    Precision(Precision),
    /// The optimizer and its implementation.
    Optimizer(Optimizer),
    /// Activation checkpointing.
    Checkpointing(Checkpointing),
    /// The attention implementation.
    Attention(Attention),
    /// The loss implementation.
    Loss(Loss),
    /// Sharding across cards.
    Sharding(Sharding),
    /// Offload to host memory.
    Offload(Offload),
    /// Whether gradients are clipped by norm.
    Clips(bool),
    /// Whether the model is compiled with `torch.compile`.
    Compiles(bool),
    /// Whether each parameter is updated as soon as its gradient is complete.
    UpdatesInBackward(bool),
}

impl SettingChange {
    /// Applies the change to a run.
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

    /// All settings of a run that a trainer may have keys for. Settings that others depend on come first.
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

    /// The changes from one run to another, as far as trainers have keys for them.
    pub fn between(from: &Run, to: &Run) -> Vec<Self> {
        let before = Self::all_of(from);
        Self::all_of(to).into_iter().filter(|change| !before.contains(change)).collect()
    }

    /// Half the micro-batch with twice the accumulation, which keeps the effective batch. Divides an odd micro-batch by
    /// its smallest divisor. `None` if the micro-batch is one sample, or if updates in the backward pass rule out
    /// gradient accumulation.
    pub fn halve_micro_batch(run: &Run) -> Option<[Self; 2]> {
        if run.updates_in_backward {
            return None;
        }
        let divisor = (2..=run.micro_batch).find(|divisor| run.micro_batch.is_multiple_of(*divisor))?;
        let accumulation = run.accumulation.checked_mul(divisor)?;
        Some([Self::MicroBatch(run.micro_batch / divisor), Self::Accumulation(accumulation)])
    }
}

impl fmt::Display for SettingChange {
    /// The setting, without its value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MicroBatch(_) => "the micro-batch",
            Self::Accumulation(_) => "gradient accumulation",
            Self::SeqLen(_) => "the sample length",
            Self::TargetLen(_) => "the target length",
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
            Self::Attention(_) => "the attention implementation",
            Self::Loss(Loss::Liger) => "Liger kernels",
            Self::Loss(Loss::CutCrossEntropy) => "cut cross-entropy",
            Self::Loss(Loss::Plain) => "the default loss",
            Self::Sharding(_) => "sharding across GPUs",
            Self::Offload(_) => "offload",
            Self::Clips(_) => "gradient clipping",
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
            while let Some(changes) = SettingChange::halve_micro_batch(&run) {
                let before = run.micro_batch;
                changes.iter().for_each(|change| change.apply(&mut run));
                prop_assert!(run.micro_batch < before);
                prop_assert_eq!(run.micro_batch * run.accumulation, micro_batch * accumulation);
            }
            prop_assert_eq!(run.micro_batch, 1);
        }
    }

    #[test]
    fn changes_between_two_runs_turn_one_into_the_other() {
        let from = Run::default();
        let to = Run { micro_batch: 1, accumulation: 8, loss: Loss::Liger, target_len: Some(64), ..Run::default() };
        let changes = SettingChange::between(&from, &to);
        assert_eq!(changes.len(), 4, "{changes:?}");
        let mut run = from;
        changes.iter().for_each(|change| change.apply(&mut run));
        assert_eq!(run, to);
    }

    #[test]
    fn an_overflowing_accumulation_is_rejected() {
        let run = Run { micro_batch: 4, accumulation: u64::MAX, ..Run::default() };
        assert_eq!(SettingChange::halve_micro_batch(&run), None);
    }
}
