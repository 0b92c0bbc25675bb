//! Q4_K and Q5_K: 256 numbers in 8 groups of 32. A group has a scale and an offset of 6 bits, which are multiples of two
//! numbers of the block.
//!
//! ```text
//!   bytes   0..2 d   2..4 m   4..16 eight pairs (s, t) of 6 bits   Q5_K: 32 bytes of fifth bits   128 bytes of low bits
//!   number  d · s · q - m · t
//! ```

use super::{BLOCK, SUPER_BLOCK, inverse};
use half::f16;

const GROUPS: usize = SUPER_BLOCK / BLOCK;
/// The largest scale and offset of a group.
const MOST: f32 = 63.0;
/// Ranges that are tried for a group, as parts of its numbers' range: outliers may be cut off.
const TRIED: [f32; 7] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.79, 1.04];
/// Improvements of the scale and the offset for the integers of a range.
const REPEATS: usize = 1;

/// The line scale · q - offset through a group's numbers.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    offset: f32,
}

impl Line {
    /// The integer of each number, rounded to the nearest by cutting off what is below the half: the rounding of the standard
    /// library is a call on older processors.
    fn integers(self, numbers: &[f32; BLOCK], most: f32) -> [f32; BLOCK] {
        let inverse = inverse(self.scale);
        numbers.map(|number| (((number + self.offset) * inverse).clamp(0.0, most) + 0.5) as i32 as f32)
    }

    fn error(self, numbers: &[f32; BLOCK], weights: &[f32; BLOCK], integers: &[f32; BLOCK]) -> f32 {
        let mut terms = [0.0; BLOCK];
        for place in 0..BLOCK {
            let difference = self.scale * integers[place] - self.offset - numbers[place];
            terms[place] = weights[place] * difference * difference;
        }
        terms.iter().sum()
    }

    /// The line of least squares through the numbers with these integers; `None` if they are all the same. The offset is not
    /// negative, since it is stored without a sign.
    fn through(numbers: &[f32; BLOCK], weights: &[f32; BLOCK], integers: &[f32; BLOCK]) -> Option<Self> {
        let [mut w, mut q, mut qq, mut x, mut qx] = [0.0_f32; 5];
        for ((&number, &weight), &integer) in numbers.iter().zip(weights).zip(integers) {
            let weighted = weight * integer;
            w += weight;
            q += weighted;
            qq += weighted * integer;
            x += weight * number;
            qx += weighted * number;
        }
        let determinant = w * qq - q * q;
        if determinant <= 0.0 {
            return None;
        }
        let line = Self { scale: (w * qx - q * x) / determinant, offset: (q * qx - qq * x) / determinant };
        let line = if line.offset < 0.0 { Self { scale: qx / qq, offset: 0.0 } } else { line };
        (line.scale > 0.0).then_some(line)
    }
}

/// The line of the least squared error that is found among ranges of the numbers. Larger numbers weigh more, since they
/// change results more.
fn fit(numbers: &[f32; BLOCK], most: f32) -> Line {
    let mean_square = numbers.iter().map(|x| x * x).sum::<f32>() / BLOCK as f32;
    let mut weights = [0.0; BLOCK];
    weights.iter_mut().zip(numbers).for_each(|(weight, x)| *weight = mean_square.sqrt() + x.abs());
    let low = numbers.iter().fold(0.0_f32, |low, &x| low.min(x));
    let high = numbers.iter().fold(f32::NEG_INFINITY, |high, &x| high.max(x)).max(low);
    if high <= low {
        return Line { scale: 0.0, offset: -low };
    }
    let mut best = (f32::INFINITY, Line::default());
    for part in TRIED {
        let mut line = Line { scale: (high - low) * part / most, offset: -low * part };
        for repeat in 0..=REPEATS {
            let integers = line.integers(numbers, most);
            let error = line.error(numbers, &weights, &integers);
            if error < best.0 {
                best = (error, line);
            }
            match Line::through(numbers, &weights, &integers) {
                Some(better) if repeat < REPEATS => line = better,
                _ => break,
            }
        }
    }
    best.1
}

/// The lines of a block's groups with scales and offsets as they are stored.
struct Block {
    scale: f16,
    offset: f16,
    of_groups: [[u8; 2]; GROUPS],
}

impl Block {
    fn of(numbers: &[f32], most: f32) -> Self {
        let mut lines = [Line::default(); GROUPS];
        let groups = numbers.as_chunks().0;
        lines.iter_mut().zip(groups).for_each(|(line, group)| *line = fit(group, most));
        let largest = |of: fn(&Line) -> f32| f16::from_f32(lines.iter().map(of).fold(0.0, f32::max) / MOST);
        let (scale, offset) = (largest(|line| line.scale), largest(|line| line.offset));
        let code = |part: f32, unit: f16| match unit.to_f32() {
            0.0 => 0,
            unit => (part / unit).round().clamp(0.0, MOST) as u8,
        };
        let of_groups = lines.map(|line| [code(line.scale, scale), code(line.offset, offset)]);
        Self { scale, offset, of_groups }
    }

    fn line(&self, group: usize) -> Line {
        let [scale, offset] = self.of_groups[group].map(f32::from);
        Line { scale: self.scale.to_f32() * scale, offset: self.offset.to_f32() * offset }
    }

    /// The first 16 bytes. The pairs of the first four groups are the lower 6 bits of bytes 4 to 12; of the others, the lower
    /// 4 bits are in bytes 12 to 16, and the upper 2 above those of the first four.
    fn write_header(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&self.scale.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.offset.to_le_bytes());
        for place in 0..GROUPS / 2 {
            let ([s, t], [later_s, later_t]) = (self.of_groups[place], self.of_groups[place + GROUPS / 2]);
            bytes[4 + place] = s | (later_s >> 4) << 6;
            bytes[8 + place] = t | (later_t >> 4) << 6;
            bytes[12 + place] = (later_s & 15) | later_t << 4;
        }
    }
}

/// A block of the integers of `most`, and calls `put` with the number's place and integer.
fn encode(numbers: &[f32], bytes: &mut [u8], most: f32, mut put: impl FnMut(&mut [u8], usize, u8)) {
    let block = Block::of(numbers, most);
    bytes.fill(0);
    block.write_header(bytes);
    for (group, numbers) in numbers.as_chunks().0.iter().enumerate() {
        for (place, integer) in block.line(group).integers(numbers, most).into_iter().enumerate() {
            put(bytes, group * BLOCK + place, integer as u8);
        }
    }
}

/// The place of a number's lower four bits: groups 2k and 2k + 1 share 32 bytes, the former in the lower halves.
fn put_low(bytes: &mut [u8], place: usize, integer: u8) {
    let (group, within) = (place / BLOCK, place % BLOCK);
    bytes[group / 2 * BLOCK + within] |= (integer & 15) << (group % 2 * 4);
}

pub(super) fn q4_k(numbers: &[f32], bytes: &mut [u8]) {
    encode(numbers, bytes, 15.0, |bytes, place, integer| put_low(&mut bytes[16..], place, integer));
}

pub(super) fn q5_k(numbers: &[f32], bytes: &mut [u8]) {
    encode(numbers, bytes, 31.0, |bytes, place, integer| {
        // Bit k of byte i is the fifth bit of number i of group k.
        bytes[16 + place % BLOCK] |= (integer >> 4) << (place / BLOCK);
        put_low(&mut bytes[48..], place, integer);
    });
}
