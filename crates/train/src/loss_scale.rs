//! Dynamic loss scaling: multiplies gradients so that small ones do not underflow in half precision.

use serde::{Deserialize, Serialize};

/// The scale, and the number of good steps since it changed. Source: Micikevicius et al. 2018, section 3.2; the numbers
/// are those of PyTorch's `GradScaler`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// A power of two, at least one.
    pub scale: f32,
    /// Good steps since it changed.
    pub good_steps: u32,
}

/// Good steps after which the scale doubles.
const GROWTH_STEPS: u32 = 2_000;
/// A larger scale could overflow single precision.
const LARGEST: f32 = (1u64 << 40) as f32;

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65_536.0, good_steps: 0 }
    }
}

impl LossScale {
    /// Call after a step with finite gradients.
    pub fn good(&mut self) {
        self.good_steps += 1;
        if self.good_steps == GROWTH_STEPS {
            *self = Self { scale: (2.0 * self.scale).min(LARGEST), good_steps: 0 };
        }
    }

    /// Call after a step that overflowed: halves the scale. False if the scale can't be the cause anymore.
    pub fn overflowed(&mut self) -> bool {
        let can_shrink = self.scale > 1.0;
        *self = Self { scale: (self.scale / 2.0).max(1.0), good_steps: 0 };
        can_shrink
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_doubles_after_2000_good_steps_and_halves_at_once() {
        let mut scale = LossScale::default();
        (0..1_999).for_each(|_| scale.good());
        assert_eq!(scale, LossScale { scale: 65_536.0, good_steps: 1_999 });
        scale.good();
        assert_eq!(scale, LossScale { scale: 131_072.0, good_steps: 0 });
        scale.good();
        assert!(scale.overflowed());
        assert_eq!(scale, LossScale::default());
    }

    #[test]
    fn at_scale_one_an_overflow_is_a_divergence() {
        let mut scale = LossScale { scale: 2.0, good_steps: 5 };
        assert!(scale.overflowed());
        assert!(!scale.overflowed());
        assert_eq!(scale.scale, 1.0);
    }
}
