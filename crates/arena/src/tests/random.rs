//! Small problems without any structure, as tests of correctness, not of quality.

use super::rng::Rng;
use crate::{Buffer, Problem};

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

/// A variation of a problem whose least peak is above its bound. Random problems of this size hardly ever have such a
/// gap.
///
/// ```text
///   time 0  1  2  3  4  5
///        4444                      Nine bytes are live at all times, but the least peak is ten: in
///        3333333                   every order of the first three, some later buffer does not fit
///           1111111                into the gaps between them.
///              1111
///        2222222222
///           3333333333
///              1111111  (twice)
///                 4444444
///                    1111
///                    4444
/// ```
pub fn problem_near_a_gap(seed: u64) -> Problem {
    let rng = &mut Rng(seed);
    let mut buffers = [
        (0, 1, 4),
        (0, 2, 3),
        (1, 3, 1),
        (2, 3, 1),
        (0, 3, 2),
        (1, 4, 3),
        (2, 4, 1),
        (2, 4, 1),
        (3, 5, 4),
        (4, 5, 1),
        (4, 5, 4),
    ]
    .map(|(lower, upper, size)| Buffer::new(lower, upper, size));
    for _ in 0..rng.range(0, 3) {
        let buffer = &mut buffers[rng.range(0, 10) as usize];
        match rng.range(0, 2) {
            0 => buffer.size = rng.range(1, 5),
            1 => buffer.lifespan.upper = rng.range(buffer.lifespan.lower + 1, 6),
            _ => buffer.lifespan.lower = rng.range(0, buffer.lifespan.upper - 1),
        }
    }
    for i in (1..buffers.len()).rev() {
        buffers.swap(i, rng.range(0, i as u64) as usize);
    }
    Problem { buffers: buffers.to_vec(), alignment: 1 }
}
