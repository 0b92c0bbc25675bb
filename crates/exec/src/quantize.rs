//! Moments of one byte each: the levels that a byte encodes, and the search for the nearest.

/// The values of the 256 codes, ascending: fine near zero and coarse near one, since moments spread over many orders of
/// magnitude. Source: dynamic quantization, Dettmers et al. 2021 (arXiv:2110.02861), section 2: a decimal exponent in
/// unary; the remaining bits divide its decade evenly.
#[derive(Debug, Clone)]
pub struct Levels {
    values: [f32; 256],
    /// The midpoint of a level and the next, and two that no number reaches.
    bounds: [f32; 257],
    /// The code of the least number of each upper half of the bits of a number.
    first: Box<[u8; 1 << 16]>,
}

impl Levels {
    /// From -1 to 1, for first moments. Zero and one are among them.
    pub fn signed() -> Self {
        Self::new(true)
    }

    /// From 0 to 1, for second moments.
    pub fn unsigned() -> Self {
        Self::new(false)
    }

    fn new(signed: bool) -> Self {
        const DECADES: i32 = 7;
        let mut values = vec![0.0, 1.0];
        for decade in 0..DECADES {
            let parts = 1 << if signed { decade } else { decade + 1 };
            let magnitude = 10f64.powi(decade + 1 - DECADES);
            for part in 0..parts {
                let middle = 0.1 + 0.9 * (f64::from(part) + 0.5) / f64::from(parts);
                values.push(magnitude * middle);
                if signed {
                    values.push(-magnitude * middle);
                }
            }
        }
        values.sort_by(f64::total_cmp);
        let values: [f64; 256] = values.try_into().expect("254 levels in the decades, zero and one");
        let values = values.map(|v| v as f32);
        // Midpoints of the rounded levels, so that every implementation with these levels finds the same codes.
        let midpoint = |i: usize| 0.5 * (values[i] + values[i + 1]);
        let bounds: [f32; 257] = std::array::from_fn(|i| if i < 255 { midpoint(i) } else { f32::NAN });
        let mut first = vec![0; 1 << 16];
        let mut code = 0;
        // From the least number to infinity. Below zero, the least with an upper half is the one with the largest lower half.
        let below_zero = (0x8000..0xFF80).rev().map(|upper| (upper, upper << 16 | 0xFFFF));
        for (upper, least) in below_zero.chain((0..=0x7F80).map(|upper| (upper, upper << 16))) {
            while bounds[code] <= f32::from_bits(least) {
                code += 1;
            }
            first[upper as usize] = code as u8;
        }
        let first = first.try_into().expect("there are as many upper halves");
        Self { values, bounds, first }
    }

    /// The values of all codes.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The value of a code, as a part of the block's largest.
    #[inline(always)]
    pub fn decode(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// The code of the nearest level; of two, the upper.
    #[inline(always)]
    pub fn encode(&self, value: f32) -> u8 {
        let first = self.first[(value.to_bits() >> 16) as usize];
        let [next, after] = [0, 1].map(|further| self.bounds[usize::from(first) + further] <= value);
        first + u8::from(next) + u8::from(after)
    }

    /// Like [`encode`](Self::encode) for levels of which zero is the least, but positive values stay positive: a second moment of
    /// zero would make the next update divide by zero.
    #[inline(always)]
    pub fn encode_above_zero(&self, value: f32) -> u8 {
        self.encode(value).max(u8::from(value > 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_distinct_and_ascend() {
        for (levels, first) in [(Levels::signed(), -0.99297), (Levels::unsigned(), 0.0)] {
            assert!(levels.values.windows(2).all(|pair| pair[0] < pair[1]));
            assert!((levels.values[0] - first).abs() < 1e-5 && levels.values[255] == 1.0, "{:?}", levels.values);
            assert!(levels.values.contains(&0.0));
        }
    }

    #[test]
    fn the_nearest_level_is_found() {
        for levels in [Levels::signed(), Levels::unsigned()] {
            for i in 0..=20_000 {
                let value = (f64::from(i) / 10_000.0 - 1.0).powi(5) as f32;
                let distance = |code: u8| (levels.decode(code) - value).abs();
                let nearest = (0..=255).map(distance).fold(f32::INFINITY, f32::min);
                assert!(distance(levels.encode(value)) <= nearest * 1.000_01, "{value}");
            }
            for code in 0..=255 {
                assert_eq!(levels.encode(levels.decode(code)), code);
            }
        }
    }

    /// Around all bounds and the steps of the table of upper halves, and far from them.
    #[test]
    fn codes_are_those_of_the_bounds_below() {
        let halves =
            (0..=u32::from(u16::MAX)).flat_map(|upper| [0, 1, 0x7FFF, 0xFFFF].map(|lower| upper << 16 | lower));
        for levels in [Levels::signed(), Levels::unsigned()] {
            let near =
                levels.bounds.iter().flat_map(|bound| [-1, 0, 1].map(|by| bound.to_bits().wrapping_add_signed(by)));
            for value in halves.clone().chain(near).map(f32::from_bits).filter(|value| !value.is_nan()) {
                let expected = levels.bounds[..255].iter().filter(|&&bound| bound <= value).count();
                assert_eq!(usize::from(levels.encode(value)), expected, "{value}");
            }
        }
    }

    #[test]
    fn small_second_moments_stay_above_zero() {
        let levels = Levels::unsigned();
        assert_eq!((levels.encode(1e-12), levels.encode_above_zero(1e-12)), (0, 1));
        assert_eq!((levels.encode_above_zero(0.0), levels.encode_above_zero(1.0)), (0, 255));
        assert!(levels.decode(1) > 0.0);
    }
}
