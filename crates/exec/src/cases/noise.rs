//! Reproducible noise, and operands filled with it.

use crate::philox;
use crate::reference::{Real, Value, filled};
use plimsoll_graph::{DType, Fill, TensorType};

/// Reproducible noise.
#[derive(Debug, Clone)]
pub struct Noise {
    key: u64,
    drawn: u32,
}

impl Noise {
    /// A generator that yields the same noise for the same key.
    pub fn new(key: u64) -> Self {
        Self { key, drawn: 0 }
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.drawn += 1;
        philox([self.drawn, 0, 0, 0], [self.key as u32, (self.key >> 32) as u32])[0]
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        f64::from(self.word()) / 4_294_967_296.0
    }

    /// Uniform in [0, n).
    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

/// The value rounded to this precision.
fn rounded(dtype: DType, value: f32) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_f32(value).to_f64(),
        DType::Bf16 => half::bf16::from_f32(value).to_f64(),
        _ => f64::from(value),
    }
}

/// Fills a tensor as an example specifies. Floats are rounded to the tensor's precision, so that kernel and reference
/// get the same values; codes are random bytes, remainders random 16-bit integers.
pub fn fill_value<F: Real>(ty: &TensorType, fill: Fill, noise: &mut Noise) -> Value<F> {
    let (mut run, mut left) = (0, 0);
    let integers = arranged(ty, fill, noise);
    filled(ty, |index| match fill {
        _ if ty.dtype == DType::U8 => noise.below(256) as f64,
        _ if ty.dtype == DType::I16 => noise.below(1 << 16) as f64 + f64::from(i16::MIN),
        Fill::Uniform => rounded(ty.dtype, (2.0 * noise.unit() - 1.0) as f32),
        Fill::Positive => rounded(ty.dtype, (0.5 + noise.unit()) as f32),
        Fill::Negative => rounded(ty.dtype, (-0.5 - noise.unit()) as f32),
        Fill::Index(n) => noise.below(n as usize) as f64,
        Fill::Target(n) => noise.below(n as usize + 1) as f64 - 1.0,
        Fill::Grouped(n) => noise.below(2 * n as usize + 1) as f64 - f64::from(n + 1),
        Fill::Runs(n) => {
            if left == 0 {
                (run, left) = (run + 1, 1 + noise.below(n as usize));
            }
            left -= 1;
            f64::from(run)
        }
        Fill::Distinct(_) | Fill::Permutation | Fill::Bounds(_) => integers[index] as f64,
    })
}

/// The integers of fills that depend on each other; empty for all other fills.
fn arranged(ty: &TensorType, fill: Fill, noise: &mut Noise) -> Vec<usize> {
    let mut shuffled = |count: usize| {
        let mut all = (0..count).collect::<Vec<_>>();
        (1..count).for_each(|last| all.swap(last, noise.below(last + 1)));
        all
    };
    match fill {
        Fill::Distinct(n) => (0..ty.rows()).flat_map(|_| shuffled(n as usize).into_iter().take(ty.columns())).collect(),
        Fill::Permutation => shuffled(ty.elements()),
        Fill::Bounds(n) => {
            let inner = (2..ty.elements()).map(|_| noise.below(n as usize + 1));
            let mut bounds = inner.chain([0, n as usize]).collect::<Vec<_>>();
            bounds.sort_unstable();
            bounds
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_keep_within_their_ranges_and_use_them() {
        let ends = |fill| {
            let values = fill_value::<f64>(&TensorType::f32(&[1000]), fill, &mut Noise::new(1)).floats().to_vec();
            values.into_iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (x.min(low), x.max(high)))
        };
        for (fill, low, high) in [(Fill::Uniform, -1.0, 1.0), (Fill::Positive, 0.5, 1.5), (Fill::Negative, -1.5, -0.5)]
        {
            let (least, most) = ends(fill);
            assert!(
                low <= least && least < low + 0.1 && high - 0.1 < most && most <= high,
                "{fill:?}: {least} to {most}"
            );
        }
    }

    #[test]
    fn arranged_integers_are_distinct_complete_or_ascending() {
        let ints = |shape: &[usize], fill| {
            fill_value::<f64>(&TensorType::i32(shape), fill, &mut Noise::new(2)).ints().to_vec()
        };
        let sorted = |mut values: Vec<i32>| {
            values.sort_unstable();
            values
        };
        for row in ints(&[50, 4], Fill::Distinct(6)).chunks(4) {
            let row = sorted(row.to_vec());
            assert!(row.windows(2).all(|two| two[0] < two[1]) && row[0] >= 0 && row[3] < 6, "{row:?}");
        }
        let permutation = ints(&[3, 5, 2], Fill::Permutation);
        assert!(permutation != sorted(permutation.clone()));
        assert_eq!(sorted(permutation), (0..30).collect::<Vec<_>>());
        let bounds = ints(&[9], Fill::Bounds(20));
        assert_eq!((bounds[0], bounds[8]), (0, 20));
        assert!(bounds.is_sorted() && bounds[4] > 0 && bounds[4] < 20, "{bounds:?}");
    }
}
