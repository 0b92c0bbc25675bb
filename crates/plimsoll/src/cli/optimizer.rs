//! The flags of the optimizer, and of the parameters that it does not update.

use super::Failure;
use super::options::{number_from_zero, positive_number, rate};
use clap::Args;
use clap::builder::PossibleValuesParser;
use plimsoll_graph::Optimizer;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::optimizers::{Constants, Rule};
use plimsoll_units::patterns::is_like;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Args)]
pub(super) struct OptimizerArgs {
    /// Optimizer
    #[arg(long, value_name = "NAME", value_parser = names(), default_value = "adamw")]
    pub(super) optimizer: String,
    /// Freeze the parameters with these names; `*` matches any characters, as in `*.h.0.*` or `*.bias`. Can
    /// be repeated
    #[arg(long, value_name = "GLOB")]
    pub(super) freeze: Vec<String>,
    /// Decoupled weight decay, not applied to norms and biases [default: 0.1 for adamw, else scaled for the optimizer]
    #[arg(long, value_name = "X", value_parser = number_from_zero)]
    weight_decay: Option<f64>,
    /// Decay of the first moment [default: the optimizer's]
    #[arg(long, value_name = "X", value_parser = rate)]
    beta1: Option<f32>,
    /// Decay of the second moment, or the optimizer's β₂ [default: the optimizer's]
    #[arg(long, value_name = "X", value_parser = rate)]
    beta2: Option<f32>,
    /// AdamW's epsilon [default: 1e-8]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    adam_eps: Option<f64>,
    /// Clip the gradient norm to this value; 0 disables clipping, which allows updates in the backward pass
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "1")]
    grad_clip: f64,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(Rule::all().into_iter().map(|rule| rule.name()))
}

impl OptimizerArgs {
    /// The optimizer with its default constants.
    pub(super) fn rule(&self) -> Rule {
        Rule::named(&self.optimizer).expect("the flag takes these names only")
    }

    /// The optimizer of the flags. Errors: it does not have one of the given constants.
    pub(super) fn optimizer(&self, layer_decay: f32, lora_plus: f32) -> Result<Optimizer, Failure> {
        let eps = self.adam_eps.map(|eps| eps as f32);
        let constants = Constants { beta1: self.beta1, beta2: self.beta2, eps };
        let rule = self.rule().with(&constants).map_err(|constant| {
            let flag = if constant == "eps" { "adam-eps" } else { constant };
            Failure::bad_flag(format!("`--{flag}` does not apply to {}", self.optimizer))
                .hint(format!("omit `--{flag}`, or choose another `--optimizer`"))
        })?;
        Ok(Optimizer {
            rule,
            weight_decay: self.weight_decay.map_or(self.usual_weight_decay(), |decay| decay as f32),
            grad_clip: (self.grad_clip > 0.0).then_some(self.grad_clip as f32),
            layer_decay,
            lora_plus,
        })
    }

    /// The optimizer's default weight decay: AdamW's, divided by the ratio of their learning rates.
    fn usual_weight_decay(&self) -> f32 {
        (f64::from(Optimizer::default().weight_decay) / self.rule().rate_beside_adamw()) as f32
    }

    /// The names of the frozen parameters. Errors: a pattern matches no parameter.
    pub(super) fn frozen(&self, model: &ModelConfig) -> Result<BTreeSet<String>, Failure> {
        if self.freeze.is_empty() {
            return Ok(BTreeSet::new());
        }
        let names = model.parameter_names();
        let mut frozen = BTreeSet::new();
        for pattern in &self.freeze {
            let matching = names.iter().filter(|name| is_like(pattern, name)).cloned().collect::<Vec<_>>();
            if matching.is_empty() {
                let example = names.get(names.len() / 2).map_or("", String::as_str);
                return Err(Failure::bad_input(format!("`--freeze {pattern}` matches no parameter of the model"))
                    .hint(format!("parameters have names such as `{example}`; `*` matches any characters")));
            }
            frozen.extend(matching);
        }
        Ok(frozen)
    }
}
