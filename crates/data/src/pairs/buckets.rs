//! Length buckets: the few padded shapes that batches of pairs have, all known before the first step.
//!
//! ```text
//!   target ▲
//!       T₂ ┤  ·     ▪     ▪        a pair is rounded up to the grid; a batch uses the longest source and the longest
//!       T₁ ┤  ▪     ▪     ▪        target of its pairs, so in addition to the shapes of pairs (two of the ▪) there are
//!          └──┴─────┴─────┴─►      shapes of two pairs combined
//!             S₁    S₂    S₃ source
//! ```
//!
//! If there are more than sixteen shapes, the rounding step of sources is doubled until there are not; if that is not
//! enough, the step of targets too.

use std::collections::BTreeSet;

const SHAPES_MAX: usize = 16;

/// The grid to which lengths are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buckets {
    /// The rounding steps of sources and targets.
    steps: [usize; 2],
    /// Their maximum lengths, which cap the rounding.
    most: [usize; 2],
}

impl Buckets {
    /// The finest grid whose steps are `bucket` times a power of two and that yields at most sixteen shapes for these
    /// lengths of pairs, and those shapes.
    pub(crate) fn choose(bucket: usize, most: [usize; 2], lengths: &BTreeSet<[usize; 2]>) -> (Self, Vec<[usize; 2]>) {
        let mut buckets = Self { steps: [bucket; 2], most };
        loop {
            let shapes = buckets.shapes(lengths);
            if shapes.len() <= SHAPES_MAX {
                return (buckets, shapes);
            }
            let wider = if buckets.steps[0] < most[0] { 0 } else { 1 };
            buckets.steps[wider] *= 2;
        }
    }

    /// The minimum padded lengths of a pair.
    pub(crate) fn round(&self, lengths: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|side| lengths[side].max(1).next_multiple_of(self.steps[side]).min(self.most[side]))
    }

    /// All shapes of batches: a longest source and a longest target, if two pairs with these lengths can be in one
    /// batch.
    fn shapes(&self, lengths: &BTreeSet<[usize; 2]>) -> Vec<[usize; 2]> {
        let pairs: BTreeSet<[usize; 2]> = lengths.iter().map(|&pair| self.round(pair)).collect();
        let mut shapes = BTreeSet::new();
        for a in &pairs {
            shapes.extend(pairs.iter().map(|b| [a[0].max(b[0]), a[1].max(b[1])]));
        }
        shapes.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choose(most: [usize; 2], lengths: &[[usize; 2]]) -> (Buckets, Vec<[usize; 2]>) {
        Buckets::choose(64, most, &lengths.iter().copied().collect())
    }

    #[test]
    fn lengths_are_rounded_up_and_capped() {
        let (buckets, shapes) = choose([100, 512], &[[1, 70], [65, 3], [100, 1]]);
        assert_eq!(buckets.round([1, 64]), [64, 64]);
        assert_eq!(buckets.round([65, 65]), [100, 128]);
        assert_eq!(shapes, [[64, 128], [100, 64], [100, 128]]);
    }

    #[test]
    fn many_shapes_are_merged_by_longer_sources_first() {
        let grid: Vec<[usize; 2]> =
            (1..=512).step_by(32).flat_map(|s| (1..=128).step_by(32).map(move |t| [s, t])).collect();
        let (buckets, shapes) = choose([512, 128], &grid);
        assert_eq!((buckets.steps, shapes.len()), ([64, 64], 16));
        let long: Vec<[usize; 2]> = grid.iter().map(|&[s, t]| [t, s]).collect();
        assert_eq!(choose([128, 512], &long).0.steps, [64, 64]);
        let (buckets, shapes) =
            choose([512, 2048], &[&grid[..], &[[512, 2048], [1, 700], [1, 300], [1, 1400]]].concat());
        assert!(shapes.len() <= 16 && buckets.steps[0] > 64, "{buckets:?} {shapes:?}");
    }

    proptest! {
        #[test]
        fn every_batch_has_a_planned_shape(
            pairs in proptest::collection::vec((0usize..700, 0usize..3000).prop_map(|(s, t)| [s, t]), 1..60),
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 1..6),
        ) {
            let most = [pairs.iter().map(|p| p[0]).max().unwrap().max(1), 3000];
            let (buckets, shapes) = choose(most, &pairs);
            prop_assert!(shapes.len() <= SHAPES_MAX);
            let padded = picks.iter().map(|pick| pick.get(&pairs)).fold([0, 0], |longest, &pair| {
                let rounded = buckets.round(pair);
                assert!(pair[0] <= rounded[0] && pair[1] <= rounded[1]);
                [longest[0].max(rounded[0]), longest[1].max(rounded[1])]
            });
            prop_assert!(shapes.contains(&padded), "{padded:?} {shapes:?}");
        }
    }
}
