//! The request to the planner.

use crate::budget::Budget;
use crate::cost::Machine;
use crate::settings::{Excluded, LeverRequest};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Adapters, GraphError, Lengths, Objective, Optimizer, Preferences, Targets, WeightCodes};
use std::collections::BTreeSet;

/// A training run to be planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What is trained.
    pub model: ModelConfig,
    /// How.
    pub optimizer: Optimizer,
    /// Samples of a step.
    pub global_batch: usize,
    /// Samples at a time; `None`: the search chooses.
    pub micro_batch: Option<usize>,
    /// Tokens of a sample; of its source, where there is a decoder.
    pub seq_len: usize,
    /// Tokens of the decoder at most; `None` if there is no decoder.
    pub target_len: Option<usize>,
    /// Shorter lengths that have programs of their own.
    pub buckets: Vec<Lengths>,
    /// Whether a row holds several documents, which don't see each other.
    pub packed: bool,
    /// What is minimised.
    pub objective: Objective,
    /// What the arenas must stay under: a limit for each memory, or one for both if device and host are one memory.
    pub budget: Budget,
    /// What runs the nodes of the device and of the host.
    pub targets: Targets,
    /// How fast it is.
    pub machine: Machine,
    /// The settings of levers, as far as they are fixed.
    pub levers: LeverRequest,
    /// Names of the parameters that are not trained.
    pub frozen: BTreeSet<String>,
    /// The adapters, if only they are trained.
    pub adapters: Option<Adapters>,
    /// Whether held-out loss is computed during the run.
    pub evaluates: bool,
    /// Tokens that a prompt is read at a time, if the run writes samples.
    pub sample_prefill: Option<usize>,
}

/// Why there is nothing to plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The model can't be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Levers that exclude each other.
    #[error(transparent)]
    Excluded(#[from] Excluded),
    /// A size is zero.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// Only models that are trained on pairs have a second length.
    #[error("{}", if *.takes_pairs { "the model is trained on pairs of texts, so it needs a target length" } else { "the model is not an encoder-decoder, so it takes no target length" })]
    Target {
        /// Whether the model is trained on pairs.
        takes_pairs: bool,
    },
    /// Terms of the loss that only models with targets have.
    #[error("an encoder has no targets, so its loss has no {term}")]
    NoTargets {
        /// The term.
        term: &'static str,
    },
    /// Losses of preferences compare continuations of a prompt.
    #[error("the model is not a decoder, so it is not trained on preferences")]
    NotADecoder,
    /// The reference of preferences is the model without its adapters.
    #[error("{}", if *.has_adapters { "parameters of the model itself are trained, so there is no reference for the loss of preferences" } else { "the loss of preferences needs a reference, which is the model without its adapters" })]
    NoReference {
        /// Whether there are adapters.
        has_adapters: bool,
    },
    /// Only encoders have hard negatives.
    #[error("the model is not an encoder, so its samples have no negatives")]
    Negatives,
    /// The texts of a batch are each other's negatives, so that smaller micro-batches would change the loss.
    #[error("a micro-batch of {micro_batch} leaves out negatives of the batch of {global_batch}")]
    PartOfNegatives {
        /// Samples at a time.
        micro_batch: usize,
        /// Samples of a step.
        global_batch: usize,
    },
    /// More blocks are to be recomputed than there are.
    #[error("{asked} blocks can't be recomputed; the model has {blocks}")]
    TooManyBlocks {
        /// Blocks asked for.
        asked: usize,
        /// Blocks of the model.
        blocks: usize,
    },
    /// Codes are asked for, but no weight can be in them.
    #[error("no weight can be quantized to {}: {}", .format.name(), if *.frozen == 0 { "all are trained, and only frozen weights can be" } else { "of the frozen parameters, none is the weight (out, in) of a linear layer within a block" })]
    NothingQuantized {
        /// The codes.
        format: WeightCodes,
        /// Number of frozen parameters.
        frozen: usize,
    },
    /// The micro-batch does not divide the global batch.
    #[error("a micro-batch of {micro_batch} does not divide the global batch of {global_batch}")]
    NotADivisor {
        /// Samples at a time.
        micro_batch: usize,
        /// Samples of a step.
        global_batch: usize,
        /// Micro-batches that do.
        divisors: Vec<usize>,
    },
    /// The run is so large that its bytes can't be counted.
    #[error("{what} is too large: {value}")]
    TooLarge {
        /// Which.
        what: &'static str,
        /// How large.
        value: u128,
    },
}

/// Larger global batches are typing errors.
const MOST_SAMPLES: u128 = 1 << 28;

/// Longer sequences too: models have no more positions.
const MOST_TOKENS: usize = 1 << 24;

/// Tensors beyond this many elements are refused, so that sums of their bytes stay far inside 64 bits.
const MOST_ELEMENTS: u128 = 1 << 52;

impl Request {
    /// One sample of the model's maximum length, up to the usual one, on a machine without limits.
    pub fn new(model: ModelConfig, targets: Targets, machine: Machine) -> Self {
        /// Tokens of a sample if the model has more positions, or no limit.
        const USUAL: usize = 1024;
        let seq_len = model.max_positions().min(USUAL);
        let target_len = model.takes_pairs().then_some(seq_len);
        Self {
            model,
            optimizer: Optimizer::default(),
            global_batch: 1,
            micro_batch: None,
            seq_len,
            target_len,
            buckets: vec![],
            packed: false,
            objective: Objective::default(),
            budget: Budget::unlimited(),
            targets,
            machine,
            levers: LeverRequest::default(),
            frozen: BTreeSet::new(),
            adapters: None,
            evaluates: false,
            sample_prefill: None,
        }
    }

    /// Rows of tokens that pass through the model with this many samples.
    pub(crate) fn rows(&self, samples: usize) -> usize {
        samples * self.objective.rows_of_sample()
    }

    /// Errors: zero sizes, a micro-batch that does not divide, sizes beyond counting, an impossible model.
    pub fn check(&self) -> Result<(), PlanError> {
        // Checked before the model, whose number of positions may have been set to this length.
        if self.seq_len > MOST_TOKENS {
            return Err(PlanError::TooLarge { what: "the sequence length", value: self.seq_len as u128 });
        }
        self.model.validate()?;
        for (what, value) in [
            ("the global batch", self.global_batch),
            ("the sequence length", self.seq_len),
            ("the target length", self.target_len.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(PlanError::Zero { what });
            }
        }
        self.model.check_length(self.seq_len.max(self.target_len.unwrap_or(1)))?;
        let takes_pairs = self.model.takes_pairs();
        if takes_pairs != self.target_len.is_some() {
            return Err(PlanError::Target { takes_pairs });
        }
        let (asked, blocks) = (self.levers.recompute.map_or(0, |recompute| recompute.blocks), self.model.blocks());
        if asked > blocks {
            return Err(PlanError::TooManyBlocks { asked, blocks });
        }
        match self.micro_batch {
            Some(0) => return Err(PlanError::Zero { what: "the micro-batch" }),
            Some(micro_batch) if !self.global_batch.is_multiple_of(micro_batch) => {
                let divisors = crate::divisors(self.global_batch);
                return Err(PlanError::NotADivisor { micro_batch, global_batch: self.global_batch, divisors });
            }
            Some(micro_batch) if self.model.is_encoder() && micro_batch != self.global_batch => {
                return Err(PlanError::PartOfNegatives { micro_batch, global_batch: self.global_batch });
            }
            _ => {}
        }
        let Objective { label_smoothing, r_drop, contrastive, preferences, .. } = self.objective;
        if let Some(Preferences { kind, .. }) = preferences {
            if takes_pairs {
                return Err(PlanError::NotADecoder);
            }
            if kind.has_reference() && self.adapters.as_ref().is_none_or(|adapters| !adapters.saved.is_empty()) {
                return Err(PlanError::NoReference { has_adapters: self.adapters.is_some() });
            }
        }
        if self.model.is_encoder() {
            for (term, is_asked) in [("label smoothing", label_smoothing > 0.0), ("R-Drop", r_drop.is_some())] {
                if is_asked {
                    return Err(PlanError::NoTargets { term });
                }
            }
        }
        if contrastive.negatives > 0 && !self.model.is_encoder() {
            return Err(PlanError::Negatives);
        }
        let candidates = 1 + contrastive.negatives as u128;
        let tokens = self.seq_len as u128 * self.objective.rows_of_sample() as u128
            + self.target_len.unwrap_or(0) as u128 * candidates;
        let activations = self.model.elements_per_token() * self.global_batch as u128 * tokens;
        for (what, value, most) in [
            ("the global batch", self.global_batch as u128, MOST_SAMPLES),
            ("the number of activations in a batch", activations, MOST_ELEMENTS),
            ("the number of parameters", self.model.parameters(), MOST_ELEMENTS),
        ] {
            if value > most {
                return Err(PlanError::TooLarge { what, value });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Rates;
    use plimsoll_graph::Contrastive;

    #[test]
    fn what_is_too_large_to_count_is_refused_by_name() {
        let model = ModelConfig::preset("t5-small").expect("a preset");
        let request = Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)));
        let too_large = |request: Request| match request.check() {
            Err(PlanError::TooLarge { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(request.check(), Ok(()));
        assert_eq!(too_large(Request { seq_len: MOST_TOKENS + 1, ..request.clone() }), "the sequence length");
        assert_eq!(
            too_large(Request { global_batch: (1 << 28) + 1, seq_len: 1, ..request.clone() }),
            "the global batch"
        );
        let activations = Request { global_batch: 1 << 24, seq_len: 1 << 20, ..request };
        assert_eq!(too_large(activations), "the number of activations in a batch");
    }

    #[test]
    fn an_encoder_has_no_terms_of_targets() {
        let model = ModelConfig::preset("bert-base").expect("a preset");
        let request = Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)));
        assert_eq!(request.check(), Ok(()));
        for (objective, term) in [
            (Objective { label_smoothing: 0.1, ..Objective::default() }, "label smoothing"),
            (Objective { r_drop: Some(1.0), ..Objective::default() }, "R-Drop"),
        ] {
            let refused = Request { objective, ..request.clone() }.check();
            assert_eq!(refused, Err(PlanError::NoTargets { term }));
        }
        let contrastive = Contrastive { negatives: 2, ..Contrastive::default() };
        let objective = Objective { contrastive, ..Objective::default() };
        assert_eq!(Request { objective, ..request.clone() }.check(), Ok(()));
        let decoder = Request { model: ModelConfig::preset("gpt2").expect("a preset"), target_len: None, ..request };
        assert_eq!(Request { objective, ..decoder }.check(), Err(PlanError::Negatives));
    }
}
