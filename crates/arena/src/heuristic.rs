//! Fast packing: a fixed list of cheap attempts, then repairs of the best ones. It stops at the first packing that is
//! low enough. `pack.rs` starts here and searches if the result is too high; `solver.rs` starts here and proves a
//! bound.
//!
//! ```text
//!   1. orders.rs + place.rs   place buffers in a given order, each in the lowest gap (or the tightest)
//!   2. skyline.rs             fill the deepest valley with the longest buffer that fits into it
//!   3. here                   move buffers that exceed the bound to the front of the order; repeat
//! ```
//!
//! Placing in order works well if long lifespans nest; the skyline works well if many short ones alternate in one place
//! (chunks of a head, parts of a recompute). Work is counted in examined buffers, not in time, so the same problem
//! always gives the same packing.
//!
//! Sources: the deepest valley is the best-fit heuristic of Burke, Kendall and Whitwell 2004, which Sekiyama, Imai,
//! Negishi and Kawachiya 2018 used for memory; moving the worst buffers to the front is squeaky wheel optimization,
//! Joslin and Clements 1999.

use super::compress::Compressed;
use super::orders::Order;
use super::place::{Fit, Placer};
use super::skyline::{Prefer, Skyline};

/// Buffers to examine for each buffer of the problem before the best packing so far is returned.
const WORK_PER_BLOCK: u64 = 14_000;
/// Least work, for problems so small that `WORK_PER_BLOCK` would end before the repairs start.
const MIN_WORK: u64 = 1_000_000;
/// Work of the cheap attempts: a few milliseconds.
const CHEAP_WORK: u64 = 2_000_000;
/// Orders that the repairs start from, best first.
const REPAIRED_ORDERS: usize = 3;

/// One cheap way to pack.
#[derive(Debug, Clone, Copy)]
enum Attempt {
    InOrder(Order, Fit),
    Valleys(Prefer),
}

/// Best first, as measured on training steps (`tests/training.rs`).
const ATTEMPTS: [Attempt; 15] = [
    Attempt::InOrder(Order::LoadSize, Fit::Lowest),
    Attempt::Valleys(Prefer::Width),
    Attempt::Valleys(Prefer::Size),
    Attempt::Valleys(Prefer::Area),
    Attempt::InOrder(Order::Size, Fit::Lowest),
    Attempt::InOrder(Order::Width, Fit::Lowest),
    Attempt::InOrder(Order::Area, Fit::Lowest),
    Attempt::InOrder(Order::LoadWidth, Fit::Lowest),
    Attempt::InOrder(Order::Start, Fit::Lowest),
    Attempt::InOrder(Order::End, Fit::Lowest),
    Attempt::InOrder(Order::Pressure, Fit::Lowest),
    Attempt::Valleys(Prefer::Left),
    Attempt::InOrder(Order::Size, Fit::Best),
    Attempt::InOrder(Order::Area, Fit::Best),
    Attempt::InOrder(Order::Width, Fit::Best),
];

/// Returns one offset per buffer, in units: the best packing within `WORK_PER_BLOCK`.
pub(super) fn pack_buffers(problem: &Compressed) -> Vec<u64> {
    let work = (problem.buffers.len() as u64 * WORK_PER_BLOCK).max(MIN_WORK);
    let mut packer = Packer::new(problem, problem.bound(), work);
    let orders = packer.attempt();
    packer.repair_best(orders);
    packer.best
}

/// Returns one offset per buffer, in units: the first cheap attempt that is at most `enough` high, or the best of all.
pub(super) fn attempts(problem: &Compressed, enough: u64) -> Vec<u64> {
    Attempts::new(problem, enough).packer.best
}

/// The cheap attempts, from which repairs can continue.
pub(super) struct Attempts<'a> {
    packer: Packer<'a>,
    orders: Vec<(u64, Vec<u32>)>,
}

impl<'a> Attempts<'a> {
    /// Makes attempts until one is at most `enough` high.
    pub(super) fn new(problem: &'a Compressed, enough: u64) -> Self {
        let mut packer = Packer::new(problem, enough, CHEAP_WORK);
        let orders = packer.attempt();
        Self { packer, orders }
    }

    /// The best offsets so far, one per buffer, in units.
    pub(super) fn best(&self) -> &[u64] {
        &self.packer.best
    }

    /// Replaces `best` by a packing that repairs lower to `enough`, or at least below `best`.
    pub(super) fn repair(mut self, enough: u64, best: &mut Vec<u64>) {
        self.packer.enough = enough;
        self.packer.repair_best(self.orders);
        if self.packer.best_peak < self.packer.problem.peak(best) {
            *best = self.packer.best;
        }
    }
}

/// The best packing so far, and what is needed to try another.
struct Packer<'a> {
    problem: &'a Compressed,
    /// A peak at which the packer stops.
    enough: u64,
    budget: u64,
    placer: Placer,
    skyline: Skyline,
    /// The offsets of the latest attempt.
    offsets: Vec<u64>,
    /// The offsets of the best attempt, and its peak.
    best: Vec<u64>,
    best_peak: u64,
}

impl<'a> Packer<'a> {
    fn new(problem: &'a Compressed, enough: u64, budget: u64) -> Self {
        let n = problem.buffers.len();
        Self {
            problem,
            enough,
            budget,
            placer: Placer::default(),
            skyline: Skyline::default(),
            offsets: vec![0; n],
            best: vec![0; n],
            best_peak: if n == 0 { 0 } else { u64::MAX },
        }
    }

    fn work(&self) -> u64 {
        self.placer.work + self.skyline.work
    }

    fn done(&self) -> bool {
        self.best_peak <= self.enough || self.work() >= self.budget
    }

    /// Makes attempts until it is done; returns the attempted orders with their peaks.
    fn attempt(&mut self) -> Vec<(u64, Vec<u32>)> {
        let mut orders = Vec::new();
        for attempt in ATTEMPTS {
            if self.done() {
                break;
            }
            match attempt {
                Attempt::Valleys(prefer) => self.valleys(prefer),
                Attempt::InOrder(order, fit) => {
                    let order = order.sorted(self.problem);
                    let peak = self.in_order(&order, fit);
                    orders.push((peak, order));
                }
            }
        }
        orders
    }

    fn in_order(&mut self, order: &[u32], fit: Fit) -> u64 {
        let peak = self.placer.place(&self.problem.buffers, order, fit, &mut self.offsets);
        self.keep(peak);
        peak
    }

    fn valleys(&mut self, prefer: Prefer) {
        let peak = self.skyline.fill(self.problem, prefer, &mut self.offsets);
        self.keep(peak);
    }

    fn keep(&mut self, peak: u64) {
        if peak < self.best_peak {
            self.best_peak = peak;
            self.best.copy_from_slice(&self.offsets);
        }
    }

    /// Divides the remaining work among the orders with the lowest peaks.
    fn repair_best(&mut self, mut orders: Vec<(u64, Vec<u32>)>) {
        orders.sort_by_key(|(peak, _)| *peak);
        orders.truncate(REPAIRED_ORDERS);
        let work_left = self.budget.saturating_sub(self.work());
        for (index, (_, order)) in orders.into_iter().enumerate() {
            let share = work_left * (index as u64 + 1) / REPAIRED_ORDERS as u64;
            self.repair(order, self.budget - work_left + share);
        }
    }

    /// Places the buffers repeatedly, each time with those that exceed the bound moved to the front of the order, until
    /// `work` is reached or the order no longer changes.
    fn repair(&mut self, mut order: Vec<u32>, work: u64) {
        while !self.done() && self.work() < work {
            self.in_order(&order, Fit::Lowest);
            let sticks_out = |i: u32| {
                let i = i as usize;
                self.offsets[i] + self.problem.buffers[i].size > self.enough
            };
            let (mut next, rest): (Vec<u32>, Vec<u32>) = order.iter().copied().partition(|&i| sticks_out(i));
            next.extend(rest);
            if next == order {
                break;
            }
            order = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::training::training_step;

    /// The repairs start with the lowest orders, so a wrong peak would make them start with others.
    #[test]
    fn the_peak_of_an_order_is_its_highest_top() {
        for seed in 0..20 {
            let problem = Compressed::new(&training_step(seed, 120));
            let mut packer = Packer::new(&problem, 0, u64::MAX);
            let orders = packer.attempt();
            assert_eq!(orders.len(), 11, "seed {seed}");
            for (peak, order) in orders {
                let again = [Fit::Lowest, Fit::Best].map(|fit| {
                    let before = packer.work();
                    let peak = packer.in_order(&order, fit);
                    assert!(
                        packer.work() >= before + problem.buffers.len() as u64,
                        "each placed buffer counts as work"
                    );
                    let ends = packer.offsets.iter().zip(&problem.buffers).map(|(offset, buffer)| offset + buffer.size);
                    assert_eq!(Some(peak), ends.max(), "seed {seed}");
                    peak
                });
                assert!(again.contains(&peak), "seed {seed}: {peak} is not among {again:?}");
            }
        }
    }
}
