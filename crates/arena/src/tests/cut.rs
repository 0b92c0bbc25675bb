//! Hard problems with a known packing: a random dissection of a rectangle of time and memory.
//!
//! ```text
//!   guillotine           pinwheel            Every piece is a buffer, so a peak equal to the height of
//!   +----+-------+       +-------+---+       the rectangle is known to exist, and every column is
//!   guillotine           pinwheel            Every piece is a buffer, so a peak equal to the height of
//!   +----+-------+       +-------+---+       the rectangle is known to exist, and every column is
//!   |    |       |       +--+----+   |       full: no byte may be lost. Leaving out or shortening
//!   |    +--+----+       |  |    |   |       pieces makes some space, and more wrong decisions.
//! ```

use super::rng::Rng;
use crate::{Buffer, Problem};

/// How a rectangle is cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Approximate number of pieces.
    pub pieces: u64,
    /// Percentage of cuts that are pinwheels.
    pub pinwheels: u64,
    /// Percentage of pieces that are left out.
    pub left_out: u64,
    /// Percentage of pieces with a shortened lifespan.
    pub shortened: u64,
    /// Average ratio of a piece's lifespan to its size; 1 is square.
    pub stretch: u64,
}

/// The height of the rectangle.
pub const CAPACITY: u64 = 1 << 20;

/// All offsets are multiples of this.
const GRAIN: u64 = 1 << 10;

#[derive(Clone, Copy)]
struct Piece {
    lower: u64,
    upper: u64,
    bottom: u64,
    top: u64,
}

/// A problem that fits into `CAPACITY`.
pub fn cut(seed: u64, how: Cut) -> Problem {
    let rng = &mut Rng(seed);
    let whole = Piece { lower: 0, upper: 4_096, bottom: 0, top: CAPACITY / GRAIN };
    let mut pieces = Vec::new();
    divide(rng, how, whole, how.pieces, &mut pieces);
    let mut buffers = Vec::new();
    for mut piece in pieces {
        if rng.chance(how.left_out) {
            continue;
        }
        if rng.chance(how.shortened) && piece.upper - piece.lower > 1 {
            let at = rng.range(piece.lower + 1, piece.upper - 1);
            if rng.chance(50) { piece.lower = at } else { piece.upper = at }
        }
        buffers.push(Buffer::new(piece.lower, piece.upper, (piece.top - piece.bottom) * GRAIN));
    }
    // Shuffle, so that the order of the buffers does not reveal the known packing.
    for i in (1..buffers.len()).rev() {
        buffers.swap(i, rng.range(0, i as u64) as usize);
    }
    Problem { buffers, alignment: 1 }
}

fn divide(rng: &mut Rng, how: Cut, piece: Piece, count: u64, done: &mut Vec<Piece>) {
    let Piece { lower, upper, bottom, top } = piece;
    let (width, height) = (upper - lower, top - bottom);
    if count <= 1 || (width < 2 && height < 2) {
        done.push(piece);
        return;
    }
    let parts = if count >= 5 && width >= 3 && height >= 3 && rng.chance(how.pinwheels) {
        let (l, u) = two(rng, lower, upper);
        let (b, t) = two(rng, bottom, top);
        vec![
            Piece { upper: u, top: b, ..piece },
            Piece { lower: u, top: t, ..piece },
            Piece { lower: l, bottom: t, ..piece },
            Piece { upper: l, bottom: b, ..piece },
            Piece { lower: l, upper: u, bottom: b, top: t },
        ]
    } else if height < 2 || (width >= 2 && rng.range(0, width + height * 4 * how.stretch) < width) {
        let at = rng.range(lower + 1, upper - 1);
        vec![Piece { upper: at, ..piece }, Piece { lower: at, ..piece }]
    } else {
        let at = rng.range(bottom + 1, top - 1);
        vec![Piece { top: at, ..piece }, Piece { bottom: at, ..piece }]
    };
    let area = width * height;
    for part in parts {
        let share = (part.upper - part.lower) * (part.top - part.bottom) * count;
        divide(rng, how, part, (share + area / 2) / area, done);
    }
}

/// Two different numbers strictly within a range.
fn two(rng: &mut Rng, lower: u64, upper: u64) -> (u64, u64) {
    let a = rng.range(lower + 1, upper - 2);
    (a, rng.range(a + 1, upper - 1))
}
