//! Lion: the sign of a moving average of gradients. Its state is half the size of AdamW's.

use super::{Constants, Moment, Rule, StateFormat, UpdateRule};
use serde::{Deserialize, Serialize};

/// With g the gradient, r the learning rate and λ the weight decay:
/// w = w - r·λ·w - r · sign(β₁m + (1-β₁)g); m = β₂m + (1-β₂)g. The sign of zero is zero.
/// Source: Chen et al. 2023 (arXiv:2302.06675), algorithm 2; its usual rate: section 5, a third to a tenth of AdamW's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    /// β₁: weight of the moment in the sum whose sign is the update.
    pub beta1: f32,
    /// β₂: decay of the moment.
    pub beta2: f32,
}

impl Default for Lion {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.99 }
    }
}

impl UpdateRule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn with(&self, constants: &Constants) -> Result<Rule, &'static str> {
        let Constants { beta1, beta2, eps } = *constants;
        if eps.is_some() {
            return Err("eps");
        }
        Ok(Self { beta1: beta1.unwrap_or(self.beta1), beta2: beta2.unwrap_or(self.beta2) }.into())
    }

    fn constants(&self) -> Constants {
        Constants { beta1: Some(self.beta1), beta2: Some(self.beta2), eps: None }
    }

    fn moments(&self) -> &'static [Moment] {
        &[Moment { name: "exp_avg", is_signed: true }]
    }

    fn flops(&self) -> u64 {
        9
    }

    fn rate_beside_adamw(&self) -> f64 {
        0.2
    }

    fn known_as(&self) -> &'static [(&'static str, StateFormat)] {
        &[
            ("lion", StateFormat::F32),
            ("lion_32bit", StateFormat::F32),
            ("lion_8bit", StateFormat::Blockwise8),
            ("paged_lion", StateFormat::F32),
            ("paged_lion_32bit", StateFormat::F32),
            ("paged_lion_8bit", StateFormat::Blockwise8),
        ]
    }
}
