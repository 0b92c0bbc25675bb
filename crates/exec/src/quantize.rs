//! Moments of one byte each: the levels that a byte encodes, and the search for the nearest.

/// The values of the 256 codes, ascending: fine near zero and coarse near one, since moments spread over many orders of
/// magnitude. Source: dynamic quantization, Dettmers et al. 2021 (arXiv:2110.02861), section 2: a decimal exponent in
/// unary; the remaining bits divide its decade evenly.
#[derive(Debug, Clone)]
pub struct Levels {
    values: [f32; 256],
    /// The midpoint of a level and the next.
    bounds: [f32; 255],
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
        let bounds = std::array::from_fn(|i| 0.5 * (values[i] + values[i + 1]));
        Self { values, bounds }
    }

    /// The values of all codes.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The value of a code, as a part of the block's largest.
    pub fn decode(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// The code of the nearest level; of two, the upper.
    pub fn encode(&self, value: f32) -> u8 {
        self.bounds.partition_point(|&bound| bound <= value) as u8
    }

    /// Like [`encode`](Self::encode), but positive values stay positive: a second moment of zero would make the next
    /// update divide by zero.
    pub fn encode_above_zero(&self, value: f32) -> u8 {
        let code = self.encode(value);
        code + u8::from(value > 0.0 && self.decode(code) == 0.0)
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

    #[test]
    fn small_second_moments_stay_above_zero() {
        let levels = Levels::unsigned();
        assert_eq!((levels.encode(1e-12), levels.encode_above_zero(1e-12)), (0, 1));
        assert_eq!((levels.encode_above_zero(0.0), levels.encode_above_zero(1.0)), (0, 255));
        assert!(levels.decode(1) > 0.0);
    }
}
