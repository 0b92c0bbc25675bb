//! What is best recomputed of a block: for every price of a byte the choice that costs the least in all, and so each
//! point of the lower hull of bytes kept against seconds spent.
//!
//! ```text
//!   seconds  ●  3        2 ─► 3 saves few bytes for its time
//!            │   ╲
//!            │     ● 2
//!            │       ‾‾──●_ 1
//!            │             ‾‾‾───● 0   nothing is recomputed
//!            └───────────────────────  bytes kept
//! ```
//!
//! A choice has to be closed: what is recomputed is recomputed from results that are kept, or recomputed too.

use super::closure::cheapest_closure;
use plimsoll_graph::ALIGNMENT;

/// A node of a block that can be recomputed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Maker {
    /// Its place in the block.
    pub(super) place: usize,
    /// Time to recompute it.
    pub(super) seconds: f64,
    /// Its operands that are no parameters, by index in the block's tensors.
    pub(super) operands: Vec<usize>,
    /// Its results likewise.
    pub(super) results: Vec<usize>,
}

/// A result of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Saved {
    pub(super) bytes: u64,
    /// Whether the backward pass reads it, so that it is kept if it is not recomputed.
    pub(super) is_needed: bool,
}

/// A block of the forward pass, as far as what is kept of it is concerned.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Block {
    pub(super) makers: Vec<Maker>,
    pub(super) tensors: Vec<Saved>,
}

/// A choice that is the best at some price.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    /// Which makers are recomputed.
    pub(super) recomputed: Vec<bool>,
    /// Bytes that the block keeps.
    pub(super) bytes: u64,
    /// Time that recomputing takes.
    pub(super) seconds: f64,
}

impl Point {
    /// Seconds that a byte less costs, on the way to another point.
    pub(super) fn price_to(&self, next: &Self) -> f64 {
        (next.seconds - self.seconds) / (self.bytes - next.bytes) as f64
    }
}

impl Block {
    /// The lower hull, from nothing to as much as saves bytes.
    pub(super) fn hull(&self) -> Vec<Point> {
        let all = self.makers.iter().map(|maker| maker.seconds).sum::<f64>();
        let nothing = self.point(vec![false; self.makers.len()]);
        // At this price the fewest bytes that tensors differ by are worth all of the time.
        let most = self.best(2.0 * all / ALIGNMENT as f64);
        if most.bytes >= nothing.bytes {
            return vec![nothing];
        }
        let mut hull = Vec::new();
        self.between(&nothing, &most, &mut hull);
        hull.insert(0, nothing);
        hull.push(most);
        hull
    }

    /// Adds the points between two of the hull.
    fn between(&self, first: &Point, last: &Point, hull: &mut Vec<Point>) {
        /// Below this part of a price, two are one.
        const ALIKE: f64 = 1e-9;
        let price = first.price_to(last);
        let best = self.best(price);
        let cost = |point: &Point| point.seconds + price * point.bytes as f64;
        let is_between = last.bytes < best.bytes && best.bytes < first.bytes;
        if !is_between || cost(&best) >= cost(first) - ALIKE * cost(first).abs() {
            return;
        }
        self.between(first, &best, hull);
        hull.push(best.clone());
        self.between(&best, last, hull);
    }

    /// The best choice at a price of a byte, in seconds.
    fn best(&self, price: f64) -> Point {
        let cost = |tensor: &Saved| price * tensor.bytes as f64;
        let tensors = self.tensors.len();
        // A thing for each tensor that is there in the backward pass, kept or recomputed, and one for each recomputed maker.
        let worth_everything = 2.0
            * (self.tensors.iter().map(cost).sum::<f64>() + self.makers.iter().map(|maker| maker.seconds).sum::<f64>());
        let mut costs = self.tensors.iter().map(cost).collect::<Vec<_>>();
        for (cost, tensor) in costs.iter_mut().zip(&self.tensors) {
            if tensor.is_needed {
                *cost -= worth_everything;
            }
        }
        let mut implies = Vec::new();
        for (maker, index) in self.makers.iter().zip(tensors..) {
            let results = maker.results.iter().map(|&result| cost(&self.tensors[result])).sum::<f64>();
            costs.push(maker.seconds - results);
            implies.extend(maker.operands.iter().chain(&maker.results).map(|&tensor| (index, tensor)));
        }
        self.point(cheapest_closure(&costs, &implies).split_off(tensors))
    }

    /// What a choice keeps and costs.
    pub(super) fn point(&self, recomputed: Vec<bool>) -> Point {
        let mut is_there = self.tensors.iter().map(|tensor| tensor.is_needed).collect::<Vec<_>>();
        let mut is_remade = vec![false; self.tensors.len()];
        let mut seconds = 0.0;
        for (maker, _) in self.makers.iter().zip(&recomputed).filter(|(_, is)| **is) {
            maker.operands.iter().for_each(|&operand| is_there[operand] = true);
            maker.results.iter().for_each(|&result| is_remade[result] = true);
            seconds += maker.seconds;
        }
        let kept = self.tensors.iter().zip(is_there).zip(is_remade).filter(|((_, there), remade)| *there && !remade);
        let bytes = kept.map(|((tensor, _), _)| tensor.bytes).sum();
        Point { recomputed, bytes, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> impl Strategy<Value = Block> {
        let maker = (prop::collection::vec(0_usize..8, 0..3), 1..3_usize, 1_u32..100);
        let tensor = (1_u64..50, any::<bool>());
        (prop::collection::vec(maker, 1..7), prop::collection::vec(tensor, 20)).prop_map(|(makers, tensors)| {
            let saved = |(bytes, is_needed)| Saved { bytes: ALIGNMENT * bytes, is_needed };
            let mut made = 2;
            let mut block = Block::default();
            for (place, (operands, results, seconds)) in makers.into_iter().enumerate() {
                let operands = operands.into_iter().map(|operand| operand % made).collect();
                block.makers.push(Maker {
                    place,
                    seconds: f64::from(seconds),
                    operands,
                    results: (made..made + results).collect(),
                });
                made += results;
            }
            block.tensors = tensors.into_iter().take(made).map(saved).collect();
            block
        })
    }

    proptest! {
        /// All choices that are closed are tried.
        #[test]
        fn no_choice_is_below_the_hull(block in block()) {
            let hull = block.hull();
            prop_assert!(hull.is_sorted_by(|a, b| a.bytes > b.bytes && a.seconds < b.seconds), "{hull:?}");
            prop_assert!(hull.windows(3).all(|three| three[0].price_to(&three[1]) <= three[1].price_to(&three[2]) + 1e-12));
            for set in 0..1_u32 << block.makers.len() {
                let choice = (0..block.makers.len()).map(|maker| set >> maker & 1 == 1).collect::<Vec<_>>();
                let point = block.point(choice);
                let is_below = |line: &[Point]| {
                    let price = line[0].price_to(&line[1]);
                    let at = |point: &Point| point.seconds + price * point.bytes as f64;
                    at(&point) < at(&line[0]) - 1e-6
                };
                prop_assert!(!hull.windows(2).any(is_below), "{point:?} is below {hull:?}");
                prop_assert!(point.bytes >= hull[hull.len() - 1].bytes);
            }
        }
    }
}
