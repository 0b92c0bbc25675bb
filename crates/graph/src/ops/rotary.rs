//! Rotary position embeddings, and their scalings for longer contexts.

use super::working::rows_in_single;
use super::{Example, Io, Operation, Target, expect_rank, operands};
use crate::{Backward, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// How frequencies are scaled for positions beyond those of pretraining.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Unchanged.
    #[default]
    None,
    /// All frequencies are divided by `factor`. Source: Chen et al. 2023 (arXiv:2306.15595).
    Linear {
        /// Divisor of frequencies.
        factor: f32,
    },
    /// Low frequencies are divided by `factor`, high ones are kept, those between are interpolated.
    /// Source: Llama 3.1, as in `transformers` (`modeling_rope_utils.py`).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// A frequency is low if it makes fewer turns than this within the original positions.
        low_freq_factor: f32,
        /// A frequency is high if it makes more turns than this within the original positions.
        high_freq_factor: f32,
        /// Number of positions in pretraining.
        original_max_positions: usize,
    },
    /// As `Llama3`, with a linear ramp over the pairs' indices, and with larger queries and keys.
    /// Source: Peng et al. 2023 (arXiv:2309.00071), section 3, as in `transformers`.
    Yarn {
        /// Divisor of low frequencies.
        factor: f32,
        /// Frequencies with at least this many turns within the original positions are kept.
        beta_fast: f32,
        /// Frequencies with fewer turns than this within the original positions are divided.
        beta_slow: f32,
        /// Number of positions in pretraining.
        original_max_positions: usize,
        /// Factor of cos and sin; the default is 0.1 ln(factor) + 1.
        attention_factor: Option<f32>,
        /// Whether the ramp begins and ends at whole indices.
        truncate: bool,
    },
    /// Each frequency has its own divisor. Source: Ding et al. 2024 (arXiv:2402.13753), as in `transformers`.
    #[serde(rename = "longrope")]
    LongRope {
        /// Divisor of each pair's frequency.
        factors: Vec<f32>,
        /// Factor of cos and sin.
        attention_factor: f32,
    },
    /// All frequencies are divided by `factor`, and only the highest ones are used: other pairs are not rotated.
    /// Source: Gemma 4, as in `transformers`.
    Proportional {
        /// Divisor of frequencies.
        factor: f32,
        /// The share of pairs that are rotated. In double precision, since the number of pairs is rounded down.
        share: f64,
    },
}

/// Frequencies of the `rotated / 2` pairs of a head in radians per position, and the factor of cos and sin. Without
/// scaling pair i has the frequency base^(-2i / `rotated`).
/// Source: Su et al. 2021 (arXiv:2104.09864), section 3.2; scaled as in `ROPE_INIT_FUNCTIONS` of `transformers`.
pub fn inverse_frequencies(rotated: usize, base: f32, scaling: &RopeScaling) -> (Vec<f64>, f64) {
    let exponent = |pair: usize| 2.0 * pair as f64 / rotated as f64;
    let plain = (0..rotated / 2).map(|pair| f64::from(base).powf(-exponent(pair)));
    match *scaling {
        RopeScaling::None => (plain.collect(), 1.0),
        RopeScaling::Linear { factor } => (plain.map(|f| f / f64::from(factor)).collect(), 1.0),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(f64::from);
            let kept = |f: f64| (original_max_positions as f64 * f / (2.0 * PI) - low) / (high - low);
            (plain.map(|f| blend(f, factor, kept(f))).collect(), 1.0)
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor, truncate } => {
            let factor = f64::from(factor);
            let turns_at = |turns: f32| {
                let wavelength = original_max_positions as f64 / (f64::from(turns) * 2.0 * PI);
                rotated as f64 * wavelength.ln() / (2.0 * f64::from(base).ln())
            };
            let (first, last) = (turns_at(beta_fast), turns_at(beta_slow));
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let (first, last) = (first.max(0.0), last.min(rotated as f64 - 1.0));
            // A ramp of length zero is a step.
            let length = if first == last { 0.001 } else { last - first };
            let kept = |pair: usize| 1.0 - (pair as f64 - first) / length;
            let frequencies = plain.enumerate().map(|(pair, f)| blend(f, factor, kept(pair))).collect();
            let default = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
            (frequencies, attention_factor.map_or(default, f64::from))
        }
        RopeScaling::LongRope { ref factors, attention_factor } => {
            let frequencies = plain.zip(factors).map(|(f, &factor)| f / f64::from(factor)).collect();
            (frequencies, f64::from(attention_factor))
        }
        RopeScaling::Proportional { factor, share } => {
            let pairs = (share * rotated as f64 / 2.0).floor() as usize;
            let used = |(pair, f)| if pair < pairs { f / f64::from(factor) } else { 0.0 };
            (plain.enumerate().map(used).collect(), 1.0)
        }
    }
}

/// Interpolates a frequency: the part `kept`, limited to [0, 1], is unchanged and the rest divided by `factor`.
fn blend(frequency: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    kept * frequency + (1.0 - kept) * frequency / factor
}

/// Rotates the pair (i, i + R/2) of the first R channels of each head by position · frequency i, and multiplies by the
/// scaling's factor: y[i] = a·cos - b·sin, y[i + R/2] = b·cos + a·sin. Other channels are copied. The position of row t
/// is t, plus `Scalars::position` if `offset`.
/// x: (B, T, H·D) -> y the same; it may overwrite x. Saves nothing. Scratch: T × R cosines and sines; in half precision
/// also a row of x and of y for each worker, widened to single.
/// Errors: `ShapeMismatch` if D does not divide the channels, R is odd or exceeds D, or the scaling has factors for
/// another number of pairs.
/// Source: Su et al. 2021 (arXiv:2104.09864), eq. 34, with the pairs of `transformers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    /// Head size D.
    pub head_size: usize,
    /// Number of rotated channels of a head, R.
    pub rotated: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Whether pairs are rotated in the other direction, which is the gradient.
    pub inverse: bool,
    /// Whether the first row is at `Scalars::position`.
    pub offset: bool,
}

impl Operation for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("rotary", inputs)?;
        expect_rank("rotary", "x", x, 3)?;
        let Self { head_size, rotated, ref scaling, .. } = *self;
        let problem = if head_size == 0 || !x.columns().is_multiple_of(head_size) {
            format!("{} channels cannot be divided into heads of {head_size}", x.columns())
        } else if rotated == 0 || rotated % 2 == 1 || rotated > head_size {
            format!("{rotated} rotated channels are not an even number of a head's {head_size}")
        } else if let RopeScaling::LongRope { factors, .. } = scaling
            && factors.len() != rotated / 2
        {
            format!("the scaling has {} factors, but there are {} pairs", factors.len(), rotated / 2)
        } else {
            return Ok(vec![x.clone()]);
        };
        Err(GraphError::ShapeMismatch { op: "rotary", problem })
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        (3 * io.outputs[0].elements() / self.head_size * self.rotated) as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let angles = Bytes(4 * (io.outputs[0].shape[1] * self.rotated) as u64);
        angles + rows_in_single(io.outputs[0], 0, 2, target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        let dx = cx.push(Self { inverse: !self.inverse, ..self.clone() }, &[upstream])?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        };
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_positions: 512,
            attention_factor: None,
            truncate: false,
        };
        let longrope = RopeScaling::LongRope { factors: vec![1.0, 1.5, 3.0, 40.0], attention_factor: 1.2 };
        let proportional = RopeScaling::Proportional { factor: 2.0, share: 0.5 };
        let case = |scaling, inverse, offset, [head_size, rotated]: [usize; 2], shape: &[usize]| {
            let op = Self { head_size, rotated, base: 1e4, scaling, inverse, offset };
            let mut example = Example::uniform(op, &[shape]);
            example.scalars.position = 1001;
            example
        };
        vec![
            case(RopeScaling::None, false, false, [6, 6], &[2, 3, 18]),
            case(RopeScaling::Linear { factor: 2.5 }, true, false, [2, 2], &[1, 5, 2]),
            case(llama3, false, true, [34, 34], &[1, 133, 34]),
            case(yarn, true, true, [16, 16], &[3, 1, 80]),
            case(longrope, false, true, [12, 8], &[1, 5, 36]),
            case(RopeScaling::None, true, false, [7, 4], &[2, 3, 21]),
            case(proportional, false, false, [24, 24], &[1, 3, 48]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rotated: usize, base: f32, scaling: &RopeScaling, factor: f64, expected: &[(usize, f64)]) {
        let (found, found_factor) = inverse_frequencies(rotated, base, scaling);
        assert_eq!(found.len(), rotated / 2);
        assert!((found_factor - factor).abs() < 1e-7, "{scaling:?}: factor {found_factor}, not {factor}");
        for &(pair, frequency) in expected {
            // `transformers` computes them in single precision.
            let error = (found[pair] - frequency).abs();
            assert!(error <= 1e-6 * frequency, "{scaling:?}: frequency {pair} is {}, not {frequency}", found[pair]);
        }
    }

    /// Values of `ROPE_INIT_FUNCTIONS` of `transformers` 5.24.0.
    #[test]
    fn frequencies_equal_those_of_transformers() {
        let linear = RopeScaling::Linear { factor: 4.0 };
        check(64, 1e4, &linear, 1.0, &[(0, 0.25), (1, 0.187_473_550), (16, 0.0025), (31, 3.333_803_76e-5)]);
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        let expected = [
            (1, 0.814_617_217),
            (16, 0.037_606_031),
            (32, 5.248_460_22e-4),
            (48, 6.647_869_67e-6),
            (63, 3.068_925_88e-7),
        ];
        check(128, 5e5, &llama3, 1.0, &expected);
        let yarn = |factor, [beta_fast, beta_slow]: [f32; 2], original_max_positions, attention_factor, truncate| {
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor, truncate }
        };
        let expected = [(1, 0.649_381_638), (16, 5.833_333_71e-4), (24, 7.905_693_56e-6), (31, 3.849_816_32e-7)];
        check(64, 1e6, &yarn(4.0, [32.0, 1.0], 32768, None, true), 1.138_629_436, &expected);
        let expected = [(1, 0.749_894_202), (8, 0.1), (16, 5.500_000_44e-3), (24, 2.499_999_94e-5)];
        check(64, 1e4, &yarn(40.0, [32.0, 1.0], 4096, Some(0.9), true), 0.9, &expected);
        let expected = [(1, 0.217_406_571), (2, 0.037_499_998), (4, 6.25e-4), (7, 1.976_423_66e-5)];
        check(16, 1e4, &yarn(16.0, [16.0, 2.0], 256, None, true), 1.277_258_872, &expected);
        let expected = [(8, 0.050_813_272_6), (12, 7.015_713_96e-3), (17, 2.279_479_87e-4), (18, 3.830_881_18e-5)];
        check(64, 1.5e5, &yarn(32.0, [32.0, 1.0], 4096, None, true), 1.346_573_59, &expected);
        let expected = [(8, 0.050_813_272_6), (12, 6.794_959_31e-3), (17, 1.293_186_94e-4), (18, 3.830_881_18e-5)];
        check(64, 1.5e5, &yarn(32.0, [32.0, 1.0], 4096, None, false), 1.346_573_59, &expected);
        let factors = (0..8).map(|pair| 1.0 + 0.5 * pair as f32).collect();
        let longrope = RopeScaling::LongRope { factors, attention_factor: 1.25 };
        let expected = [(0, 1.0), (1, 0.210_818_499), (4, 3.333_333_41e-3), (7, 7.027_283_57e-5)];
        check(16, 1e4, &longrope, 1.25, &expected);
        let proportional = RopeScaling::Proportional { factor: 8.0, share: 0.25 };
        let expected = [(0, 0.125), (1, 0.081_172_704_7), (7, 6.087_094_08e-3), (8, 0.0), (31, 0.0)];
        check(64, 1e6, &proportional, 1.0, &expected);
    }

    #[test]
    fn heads_that_cannot_be_rotated_are_rejected() {
        let op = |head_size, rotated, scaling| {
            let op = Rotary { head_size, rotated, base: 1e4, scaling, inverse: false, offset: false };
            op.infer(&[&TensorType::f32(&[1, 2, 6])])
        };
        assert!(op(3, 2, RopeScaling::None).is_ok());
        for (head_size, rotated) in [(3, 3), (4, 4), (0, 0), (6, 0), (6, 8)] {
            assert!(op(head_size, rotated, RopeScaling::None).is_err(), "{head_size} {rotated}");
        }
        let longrope = |pairs| RopeScaling::LongRope { factors: vec![1.0; pairs], attention_factor: 1.0 };
        assert!(op(6, 4, longrope(2)).is_ok());
        assert!(op(6, 4, longrope(3)).is_err());
    }
}
