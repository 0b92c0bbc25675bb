//! The orders in which `place.rs` places buffers. `heuristic.rs` chooses which orders to try, and when.

use super::compress::{Compressed, CompressedBuffer};
use std::cmp::Reverse;

/// An order of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Longest lifespan first: exact where lifespans nest, as those of saved activations do.
    Width,
    /// By start, the longest lifespan first: a stack.
    Start,
    /// By end, the latest first.
    End,
    /// Largest first.
    Size,
    /// Largest product of size and lifespan first.
    Area,
    /// By the highest load of a buffer's columns, then by size.
    LoadSize,
    /// By the highest load of a buffer's columns, then by lifespan.
    LoadWidth,
    /// By the sum of the loads of a buffer's columns, the largest first.
    Pressure,
}

impl Order {
    /// The indices of the buffers in this order; among equals the lower index comes first.
    pub fn sorted(self, problem: &Compressed) -> Vec<u32> {
        let buffers = &problem.buffers;
        let by = |key: &dyn Fn(&CompressedBuffer) -> (u64, u64, u64)| {
            let mut keyed: Vec<_> = buffers.iter().zip(0u32..).map(|(buffer, i)| (Reverse(key(buffer)), i)).collect();
            keyed.sort_unstable();
            keyed.into_iter().map(|(_, i)| i).collect::<Vec<u32>>()
        };
        let down = |column: u32| u64::from(u32::MAX - column);
        let sum_of_loads =
            |b: &CompressedBuffer| problem.loads[b.columns()].iter().fold(0, |sum: u64, &l| sum.saturating_add(l));
        let max_load = |b: &CompressedBuffer| problem.loads[b.columns()].iter().copied().max().unwrap_or(0);
        match self {
            Self::Width => by(&|b| (b.width(), b.size, 0)),
            Self::Start => by(&|b| (down(b.lower), b.width(), b.size)),
            Self::End => by(&|b| (u64::from(b.upper), b.width(), b.size)),
            Self::Size => by(&|b| (b.size, b.width(), 0)),
            Self::Area => by(&|b| (b.size.saturating_mul(b.width()), b.size, 0)),
            Self::LoadSize => by(&|b| (max_load(b), b.size, b.width())),
            Self::LoadWidth => by(&|b| (max_load(b), b.width(), b.size)),
            Self::Pressure => by(&|b| (sum_of_loads(b), b.size, 0)),
        }
    }
}
