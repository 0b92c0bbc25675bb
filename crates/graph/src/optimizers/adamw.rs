//! AdamW: Adam with decoupled weight decay.

use super::{Constants, Moment, Rule, StateFormat, UpdateRule};
use serde::{Deserialize, Serialize};

/// With g the gradient, t = `Scalars::update`, r the learning rate and λ the weight decay:
/// m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = w - r·λ·w - r · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε).
/// Source: Loshchilov & Hutter 2019, algorithm 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// β₁: decay of the first moment.
    pub beta1: f32,
    /// β₂: decay of the second moment.
    pub beta2: f32,
    /// ε, outside the root.
    pub eps: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8 }
    }
}

impl UpdateRule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn with(&self, constants: &Constants) -> Result<Rule, &'static str> {
        let Constants { beta1, beta2, eps } = *constants;
        let rule = Self {
            beta1: beta1.unwrap_or(self.beta1),
            beta2: beta2.unwrap_or(self.beta2),
            eps: eps.unwrap_or(self.eps),
        };
        Ok(rule.into())
    }

    fn constants(&self) -> Constants {
        Constants { beta1: Some(self.beta1), beta2: Some(self.beta2), eps: Some(self.eps) }
    }

    fn moments(&self) -> &'static [Moment] {
        &[Moment { name: "exp_avg", is_signed: true }, Moment { name: "exp_avg_sq", is_signed: false }]
    }

    fn flops(&self) -> u64 {
        14
    }

    fn known_as(&self) -> &'static [(&'static str, StateFormat)] {
        &[
            ("adamw", StateFormat::F32),
            ("adamw_torch", StateFormat::F32),
            ("adamw_torch_fused", StateFormat::F32),
            ("adamw_apex_fused", StateFormat::F32),
            ("paged_adamw", StateFormat::F32),
            ("paged_adamw_32bit", StateFormat::F32),
            ("adamw_8bit", StateFormat::Blockwise8),
            ("adamw_bnb_8bit", StateFormat::Blockwise8),
            ("adamw_torch_8bit", StateFormat::Blockwise8),
            ("paged_adamw_8bit", StateFormat::Blockwise8),
        ]
    }
}
