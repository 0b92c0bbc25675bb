//! Dynamic loss scaling: what gradients are multiplied by so that small ones survive half precision.

use serde::{Deserialize, Serialize};

/// The scale, and how long it has been good. Source: Micikevicius et al. 2018, section 3.2; the numbers are PyTorch's
/// `GradScaler`'s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// A power of two, at least one.
    pub scale: f32,
    /// Good steps since it changed.
    pub good_steps: u32,
}

/// Good steps after which the scale doubles.
const GROWTH_STEPS: u32 = 2_000;
/// Beyond this, scaling on would leave single precision.
const LARGEST: f32 = (1u64 << 40) as f32;

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65_536.0, good_steps: 0 }
    }
}

impl LossScale {
    /// After a step whose gradients were finite.
    pub fn good(&mut self) {
        self.good_steps += 1;
        if self.good_steps == GROWTH_STEPS {
            *self = Self { scale: (2.0 * self.scale).min(LARGEST), good_steps: 0 };
        }
    }

    /// After a step that overflowed: halves the scale. False if it can't be the scale's fault any more.
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
    fn an_overflow_without_scaling_is_none() {
        let mut scale = LossScale { scale: 2.0, good_steps: 5 };
        assert!(scale.overflowed());
        assert!(!scale.overflowed());
        assert_eq!(scale.scale, 1.0);
    }
}
