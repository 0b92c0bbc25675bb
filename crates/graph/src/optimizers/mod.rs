//! Optimizers, one file each: an optimizer's state, its cost and the names that other trainers have for it. Its formula is
//! defined by its reference kernel in `exec`; the op that applies it, with everything that optimizers have in common, is
//! `ops/parameter_update.rs`.
//!
//! To add one that treats each element by itself: its file, its line in `rules!`, a formula in
//! `exec/src/reference/parameter_update.rs`, and a file and an arm in `exec/src/cpu/parameter_update/`.

mod adamw;
mod lion;

pub use adamw::AdamW;
pub use lion::Lion;

use crate::ops::StateFormat;
use serde::{Deserialize, Serialize};

/// State of a parameter between updates: a tensor of the parameter's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// PyTorch's name for it, which follows the parameter's name in checkpoints.
    pub name: &'static str,
    /// Whether it may be below zero.
    pub is_signed: bool,
}

/// The constants that a user may set; `None` is the optimizer's default, or a constant that it does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Constants {
    /// β₁.
    pub beta1: Option<f32>,
    /// β₂.
    pub beta2: Option<f32>,
    /// ε.
    pub eps: Option<f32>,
}

/// The contract of an optimizer.
pub trait UpdateRule {
    /// Its name, as flags and files write it.
    fn name(&self) -> &'static str;

    /// With these constants. Errors: the name of a constant that it does not have.
    fn with(&self, constants: &Constants) -> Result<Rule, &'static str>;

    /// Its constants.
    fn constants(&self) -> Constants;

    /// Its state of each parameter, in the order of its node's results.
    fn moments(&self) -> &'static [Moment];

    /// Floating point operations on each element.
    fn flops(&self) -> u64;

    /// Its usual learning rate divided by AdamW's. Its usual weight decay differs by the inverse, since the rate multiplies
    /// the decay.
    fn rate_beside_adamw(&self) -> f64 {
        1.0
    }

    /// Its names in Hugging Face's `optim`, each with the format of the state.
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
            /// All optimizers, with their own constants.
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

/// A rule with its settings. The learning rate changes from step to step and is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Decoupled weight decay; not of norms and biases.
    pub weight_decay: f32,
    /// Largest norm of all gradients together; `None` if gradients are not clipped.
    pub grad_clip: Option<f32>,
    /// Factor of the learning rate from a block to the one before it, counted from the head.
    pub layer_decay: f32,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { rule: AdamW::default().into(), weight_decay: 0.1, grad_clip: Some(1.0), layer_decay: 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_lead_back_to_their_optimizer() {
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
    fn a_constant_that_an_optimizer_has_not_is_refused_by_name() {
        let given = Constants { beta1: Some(0.5), ..Constants::default() };
        let eps = Constants { eps: Some(1e-3), ..given };
        let lion = Lion::default();
        assert_eq!(lion.with(&given), Ok(Lion { beta1: 0.5, ..lion }.into()));
        assert_eq!(lion.with(&eps), Err("eps"));
        let adamw = AdamW::default();
        assert_eq!(adamw.with(&eps), Ok(AdamW { beta1: 0.5, eps: 1e-3, ..adamw }.into()));
    }
}
