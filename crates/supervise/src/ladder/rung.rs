//! The built-in steps against running out of memory, and their order for each cause. They keep the effective batch.
//! Not here: how a step is taken (`rungs.rs`), the choice of the next one (`mod.rs`), a user's own steps (`user.rs`).

use super::configuration::Configuration;
use crate::ends::{CardAllocator, Cause};

/// A kind of step. Some can be taken more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Fewer data-loading workers, each of which has its own memory and shared memory for its samples.
    Workers,
    /// Copies to the GPU from pageable memory.
    Unpinned,
    /// The allocator setting of PyTorch against fragmentation.
    Allocator,
    /// Half the micro-batch, twice the accumulation.
    Halve,
    /// Activation checkpointing.
    Checkpointing,
    /// The optimizer state on the host, or in 8 bits.
    Optimizer,
    /// Samples of half the length.
    Shorter,
    /// Everything else that saves memory without changing results.
    Minimum,
    /// One sample per forward pass, of the shortest length: results differ. Only until memory is free.
    Smallest,
}

/// The situation in which a step is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    /// The cause of the end; `None` when retaking a remembered step.
    pub(crate) cause: Option<&'a Cause>,
    /// The allocator setting in the supervisor's environment.
    pub(crate) alloc_conf: &'a str,
    /// Whether samples may be truncated.
    pub(crate) allow_shorter: bool,
}

/// The configuration after a step, and its changes as one line each.
pub(crate) type Step = (Configuration, Vec<String>);

/// Minimum length of truncated samples, in tokens.
pub(super) const SHORTEST: u64 = 128;

const CARD: [Rung; 6] =
    [Rung::Allocator, Rung::Halve, Rung::Checkpointing, Rung::Optimizer, Rung::Shorter, Rung::Minimum];
/// The memory of DeepSpeed's state does not depend on the batch, so it is offloaded first.
const DEEPSPEED: [Rung; 6] =
    [Rung::Allocator, Rung::Optimizer, Rung::Halve, Rung::Checkpointing, Rung::Shorter, Rung::Minimum];
const HOST: [Rung; 6] = [Rung::Unpinned, Rung::Workers, Rung::Halve, Rung::Checkpointing, Rung::Shorter, Rung::Minimum];
const ALL: [Rung; 9] = [
    Rung::Workers,
    Rung::Unpinned,
    Rung::Allocator,
    Rung::Halve,
    Rung::Checkpointing,
    Rung::Optimizer,
    Rung::Shorter,
    Rung::Minimum,
    Rung::Smallest,
];

impl Rung {
    /// The steps against a cause, in order.
    pub(crate) fn against(cause: &Cause) -> &'static [Self] {
        match cause {
            Cause::CardMemory { by: CardAllocator::DeepSpeed, .. } => &DEEPSPEED,
            Cause::CardMemory { .. } => &CARD,
            Cause::HostMemory(_) => &HOST,
            Cause::Done | Cause::Fault(_) => &[],
        }
    }

    /// The step with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|rung| rung.name() == name)
    }

    /// Its name, under which it is remembered.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Unpinned => "unpinned",
            Self::Allocator => "allocator",
            Self::Halve => "micro-batch",
            Self::Checkpointing => "checkpointing",
            Self::Optimizer => "optimizer",
            Self::Shorter => "shorter",
            Self::Minimum => "minimum",
            Self::Smallest => "smallest",
        }
    }
}
