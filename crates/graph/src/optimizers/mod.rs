//! Optimizers, one file each: an optimizer's state, its cost and its names in other trainers. Its reference kernel in
//! `exec` defines its formula; the op that applies it, with everything that optimizers share, is
//! `ops/parameter_update.rs`.
//!
//! To add an elementwise optimizer: its file, its line in `rules!`, a formula in
//! `exec/src/reference/parameter_update.rs`, and a file and an arm in `exec/src/cpu/parameter_update/`.

mod adamw;
mod lion;

pub use adamw::AdamW;
pub use lion::Lion;

use serde::{Deserialize, Serialize};

/// State that an optimizer keeps per parameter: a tensor of the parameter's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Its name in PyTorch, which follows the parameter's name in checkpoints.
    pub name: &'static str,
    /// Whether it can be negative.
    pub is_signed: bool,
}

/// How moments are stored between updates. Arithmetic is always in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateFormat {
    /// In single precision.
    F32,
    /// Rounded to `Bf16` stochastically, without bias.
    Bf16,
    /// One byte each, and a scale for each [`STATE_BLOCK`](crate::ops::STATE_BLOCK) elements: the nearest of 256 levels between minus and plus
    /// (for a moment that is never negative: between zero and plus) the block's largest value. Positive values of such
    /// a moment stay positive.
    Blockwise8,
}

/// The constants that a user may set. `None` means the optimizer's default, or that it has no such constant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Constants {
    /// β₁.
    pub beta1: Option<f32>,
    /// β₂.
    pub beta2: Option<f32>,
    /// ε.
    pub eps: Option<f32>,
}

/// The interface of an optimizer.
pub trait UpdateRule {
    /// Its name in flags and files.
    fn name(&self) -> &'static str;

    /// The rule with these constants. Errors: the name of a constant that it does not have.
    fn with(&self, constants: &Constants) -> Result<Rule, &'static str>;

    /// Its constants.
    fn constants(&self) -> Constants;

    /// Its moments, in the order of its node's results.
    fn moments(&self) -> &'static [Moment];

    /// Floating point operations per element.
    fn flops(&self) -> u64;

    /// Its usual learning rate divided by AdamW's. Its usual weight decay differs by the inverse factor, because the
    /// rate multiplies the decay.
    fn rate_beside_adamw(&self) -> f64 {
        1.0
    }

    /// Its names in Hugging Face's `optim`, each with the format of its state.
    fn known_as(&self) -> &'static [(&'static str, StateFormat)];
}

macro_rules! rules {
    ($($name:ident),* $(,)?) => {
        /// Any optimizer with its constants, as plain data.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is documented at the struct that it holds")]
        pub enum Rule {
            $($name($name)),*
        }

        $(impl From<$name> for Rule {
            fn from(rule: $name) -> Self {
                Self::$name(rule)
            }
        })*

        impl std::ops::Deref for Rule {
            type Target = dyn UpdateRule;
            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(rule) => rule),*
                }
            }
        }

        impl Rule {
            /// All optimizers, with their default constants.
            pub fn all() -> Vec<Self> {
                vec![$($name::default().into()),*]
            }
        }
    };
}

rules!(AdamW, Lion);

impl Rule {
    /// The optimizer of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|rule| rule.name() == name)
    }

    /// The optimizer of this name in Hugging Face's `optim`, and the format of its state.
    pub fn known_elsewhere_as(name: &str) -> Option<(Self, StateFormat)> {
        Self::all().into_iter().find_map(|rule| {
            let (_, format) = rule.known_as().iter().find(|(known, _)| *known == name)?;
            Some((rule, *format))
        })
    }
}

/// A rule with its settings. The learning rate changes from step to step, so it is not included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Decoupled weight decay; does not apply to norms and biases.
    pub weight_decay: f32,
    /// Largest norm of all gradients together; `None` if gradients are not clipped.
    pub grad_clip: Option<f32>,
    /// Factor of the learning rate from each block to the one before it, starting at the head.
    pub layer_decay: f32,
    /// Learning rate of the second matrix of an adapter, relative to that of its first. Parameters of one dimension that are
    /// trained with adapters have it too, as in PEFT's `create_loraplus_optimizer`. Source: LoRA+, Hayou et al. 2024
    /// (arXiv:2402.12354).
    #[serde(default = "same_rate")]
    pub lora_plus: f32,
}

/// The ratio of learning rates without LoRA+.
fn same_rate() -> f32 {
    1.0
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            rule: AdamW::default().into(),
            weight_decay: 0.1,
            grad_clip: Some(1.0),
            layer_decay: 1.0,
            lora_plus: same_rate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_find_their_optimizer() {
        let mut names = HashSet::new();
        for rule in Rule::all() {
            assert_eq!(Rule::named(rule.name()), Some(rule));
            assert!(names.insert(rule.name()), "{} is taken", rule.name());
            let mut elsewhere = HashSet::new();
            for &(known, format) in rule.known_as() {
                assert!(elsewhere.insert(known), "{known} is taken");
                assert_eq!(Rule::known_elsewhere_as(known), Some((rule, format)));
            }
        }
        assert_eq!((Rule::named("adam"), Rule::known_elsewhere_as("sgd")), (None, None));
    }

    #[test]
    fn an_unknown_constant_is_an_error_with_its_name() {
        let given = Constants { beta1: Some(0.5), ..Constants::default() };
        let eps = Constants { eps: Some(1e-3), ..given };
        let lion = Lion::default();
        assert_eq!(lion.with(&given), Ok(Lion { beta1: 0.5, ..lion }.into()));
        assert_eq!(lion.with(&eps), Err("eps"));
        let adamw = AdamW::default();
        assert_eq!(adamw.with(&eps), Ok(AdamW { beta1: 0.5, eps: 1e-3, ..adamw }.into()));
    }
}
