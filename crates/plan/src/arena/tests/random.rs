//! Small problems without any structure: what an algorithm must get right, not what it is for.

use super::rng::Rng;
use crate::arena::{Buffer, Problem};

/// Up to `most` buffers; some are empty, many share starts, ends and sizes.
pub fn random_problem(seed: u64, most: u64) -> Problem {
    let rng = &mut Rng(seed);
    let alignment = rng.pick(&[1, 1, 2, 16, 256]);
    let horizon = rng.range(1, 3 * most);
    let largest = rng.pick(&[3, 20, 1_000, 1 << 40]);
    let buffers = (0..rng.range(0, most)).map(|_| {
        let lower = rng.range(0, horizon);
        let shortest = if rng.chance(5) { 0 } else { 1 };
        let upper = lower + rng.range(shortest, horizon.div_ceil(2));
        let smallest = if rng.chance(5) { 0 } else { 1 };
        Buffer::new(lower, upper, rng.range(smallest, largest))
    });
    Problem { buffers: buffers.collect(), alignment }
}
