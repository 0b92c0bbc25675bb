//! Selects the pairs in the global batch of a step, so that pairs of similar length are together and training still
//! sees them in random order. A function of seed and step; the micro-batch does not affect it.
//!
//! ```text
//!   shuffled epoch   ├──────── a group: 32 global batches ────────┤├──────── …
//!   sorted by shape  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▃▅▅▅▅▅▇▇▇▇
//!   cut, reshuffled  ▂▂▂▂│▁▁▁▁│▅▇▇▇│▁▁▁▁│…
//! ```
//!
//! A group is no longer than an epoch, if an epoch has a whole batch, so that a batch does not repeat a pair unless it
//! must.

use crate::{DataError, Order};
use std::sync::{Arc, Mutex, PoisonError};

const BATCHES_PER_GROUP: u64 = 32;

/// The order of training pairs, sorted by shape within groups.
#[derive(Debug)]
pub(crate) struct Grouping {
    seed: u64,
    order: Order,
    /// The most recent group: sorting a group takes longer than a step.
    last: Mutex<Option<Arc<Group>>>,
}

#[derive(Debug)]
struct Group {
    global_batch: u64,
    index: u64,
    /// Training pairs, batch after batch.
    pairs: Vec<u64>,
}

impl Grouping {
    /// The order of `training` pairs. Panics if there are none.
    pub(crate) fn new(seed: u64, training: u64) -> Self {
        Self { seed, order: Order::new(seed, training), last: Mutex::new(None) }
    }

    /// Appends the training pairs of a step's global batch, short ones first. `shape` returns the shape of a pair.
    /// Errors: those of `shape`.
    pub(crate) fn batch(
        &self,
        step: u64,
        global_batch: u64,
        shape: impl Fn(u64) -> Result<[usize; 2], DataError>,
        out: &mut Vec<u64>,
    ) -> Result<(), DataError> {
        let epoch_batches = self.order.samples_per_epoch() / global_batch;
        let batches = epoch_batches.clamp(1, BATCHES_PER_GROUP);
        let group = self.group(step / batches, batches, global_batch, shape)?;
        let within = Order::new(self.seed ^ !(step / batches), batches).at(step % batches);
        let start = (within * global_batch) as usize;
        out.extend_from_slice(&group.pairs[start..start + global_batch as usize]);
        Ok(())
    }

    fn group(
        &self,
        index: u64,
        batches: u64,
        global_batch: u64,
        shape: impl Fn(u64) -> Result<[usize; 2], DataError>,
    ) -> Result<Arc<Group>, DataError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = last.as_ref().filter(|group| (group.index, group.global_batch) == (index, global_batch)) {
            return Ok(Arc::clone(group));
        }
        let first = index * batches * global_batch;
        let mut keyed: Vec<([usize; 2], u64)> = (first..first + batches * global_batch)
            .map(|position| self.order.at(position))
            .map(|pair| Ok((shape(pair)?, pair)))
            .collect::<Result<_, DataError>>()?;
        // A stable sort, so that pairs of one shape stay in random order.
        keyed.sort_by_key(|(shape, _)| *shape);
        let group = Arc::new(Group { global_batch, index, pairs: keyed.into_iter().map(|(_, pair)| pair).collect() });
        *last = Some(Arc::clone(&group));
        Ok(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(grouping: &Grouping, step: u64, global_batch: u64) -> Vec<u64> {
        let mut out = Vec::new();
        grouping.batch(step, global_batch, |pair| Ok([pair as usize % 5, 0]), &mut out).unwrap();
        out
    }

    #[test]
    fn a_group_has_each_pair_once_in_batches_of_similar_shape() {
        let grouping = Grouping::new(3, 320);
        let steps: Vec<Vec<u64>> = (0..32).map(|step| batch(&grouping, step, 10)).collect();
        let mut all = steps.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..320), "32 batches of 10 are the epoch");
        let shapes_of = |batch: &Vec<u64>| batch.iter().map(|pair| pair % 5).collect::<std::collections::BTreeSet<_>>();
        assert!(steps.iter().filter(|batch| shapes_of(batch).len() > 1).count() <= 4);
        assert!(!steps.is_sorted_by_key(|batch| batch[0] % 5), "batches come in random order");
        assert!(steps.iter().all(|batch| batch.is_sorted_by_key(|pair| pair % 5)));
    }

    #[test]
    fn each_group_orders_its_batches_differently() {
        let grouping = Grouping::new(3, 320);
        // No two batches have a shape in common, so the first shape identifies the batch within its group.
        let first_shape = |step: u64| {
            let mut out = Vec::new();
            grouping.batch(step, 10, |pair| Ok([pair as usize, 0]), &mut out).unwrap();
            out[0]
        };
        let order = |group: u64| {
            let mut steps = (0..32).collect::<Vec<_>>();
            steps.sort_by_key(|step| first_shape(32 * group + step));
            steps
        };
        let orders = [order(0), order(1), order(2)];
        assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2], "{orders:?}");
    }

    #[test]
    fn steps_may_be_requested_in_any_order() {
        let (forward, backward) = (Grouping::new(9, 100), Grouping::new(9, 100));
        let a: Vec<_> = (0..100).map(|step| batch(&forward, step, 7)).collect();
        let mut b: Vec<_> = (0..100).rev().map(|step| batch(&backward, step, 7)).collect();
        b.reverse();
        assert_eq!(a, b);
        assert_ne!(batch(&Grouping::new(8, 100), 0, 7), a[0]);
    }

    #[test]
    fn fewer_pairs_than_a_batch_repeat() {
        let grouping = Grouping::new(1, 3);
        let mut six = batch(&grouping, 5, 6);
        six.sort_unstable();
        assert_eq!(six, [0, 0, 1, 1, 2, 2]);
    }
}
