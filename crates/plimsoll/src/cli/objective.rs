//! The flags of the objective, and of the learning rates of layers.

use super::Failure;
use super::options::{number_from_zero, part, positive_number, rate};
use super::pairs::column;
use clap::Args;
use plimsoll_data::Column;
use plimsoll_graph::ops::{Pooling, PreferenceKind};
use plimsoll_graph::{Contrastive, Objective, Preferences};
use serde_json::{Map, Value, json};

/// The names of [`Pooling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PoolingName {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
}

impl PoolingName {
    pub(super) fn pooling(self) -> Pooling {
        match self {
            Self::Mean => Pooling::Mean,
            Self::Cls => Pooling::First,
        }
    }
}

/// What is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectiveName {
    /// Texts, chats or pairs, as the data has them.
    Sft,
    /// Preferences, by direct preference optimization.
    Dpo,
    /// Preferences, by the ratio of odds of both answers.
    Orpo,
    /// Single answers that are liked or disliked.
    Kto,
}

impl ObjectiveName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Dpo => "dpo",
            Self::Orpo => "orpo",
            Self::Kto => "kto",
        }
    }
}

/// Losses of single answers, by TRL's names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum KtoLossName {
    /// KTO: rewards are compared with those of answers to other prompts
    #[default]
    Kto,
    /// APO-zero: rewards are compared with zero
    #[value(name = "apo_zero_unpaired")]
    ApoZeroUnpaired,
}

impl KtoLossName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kto => "kto",
            Self::ApoZeroUnpaired => "apo_zero_unpaired",
        }
    }
}

/// Errors: another name; of losses of preferences that other trainers have, with what there is instead.
fn objective_name(name: &str) -> Result<ObjectiveName, String> {
    match name {
        "sft" => Ok(ObjectiveName::Sft),
        "dpo" => Ok(ObjectiveName::Dpo),
        "orpo" => Ok(ObjectiveName::Orpo),
        "kto" => Ok(ObjectiveName::Kto),
        "simpo" | "cpo" | "bco" | "grpo" | "ppo" | "rm" | "reward" => Err(format!(
            "Plimsoll does not train with {name}; `dpo` and `orpo` train on pairs of a chosen and a rejected answer, `kto` on single answers with a \
             label"
        )),
        _ => Err("is not `sft`, `dpo`, `orpo` or `kto`".to_owned()),
    }
}

/// The names of [`PreferenceKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DpoLossName {
    /// The logistic loss of DPO
    Sigmoid,
    /// The same for labels that are wrong with the probability `--label-smoothing`
    Robust,
    /// The hinge loss of SLiC
    Hinge,
    /// The squared loss of IPO
    Ipo,
}

impl DpoLossName {
    fn kind(self) -> PreferenceKind {
        match self {
            Self::Sigmoid => PreferenceKind::Sigmoid,
            Self::Robust => PreferenceKind::Robust,
            Self::Hinge => PreferenceKind::Hinge,
            Self::Ipo => PreferenceKind::Ipo,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sigmoid => "sigmoid",
            Self::Robust => "robust",
            Self::Hinge => "hinge",
            Self::Ipo => "ipo",
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct ObjectiveArgs {
    /// What to train on: `sft` for texts, chats and pairs as they are; `dpo` and `orpo` for preferences, rows with a `chosen`
    /// and a `rejected` answer; `kto` for rows with one `completion` and a `label`; `dpo` and `kto` need `--method lora` or
    /// `--method qlora`
    #[arg(long, value_name = "NAME", value_parser = objective_name, default_value = "sft")]
    pub objective: ObjectiveName,
    /// DPO and KTO: how much deviation from the model without adapters costs; ORPO: the weight of the ratio of odds [default: 0.1]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    pub beta: Option<f64>,
    /// DPO: the loss of a pair of answers [default: sigmoid]
    #[arg(long, value_name = "NAME", value_enum)]
    pub dpo_loss: Option<DpoLossName>,
    /// KTO: the loss of an answer [default: kto]
    #[arg(long, value_name = "NAME")]
    pub kto_loss: Option<KtoLossName>,
    /// KTO: the weight of answers whose `label` is true [default: 1]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    pub kto_desirable_weight: Option<f64>,
    /// KTO: the weight of answers whose `label` is false [default: 1]
    #[arg(long, value_name = "X", value_parser = positive_number)]
    pub kto_undesirable_weight: Option<f64>,
    /// Label smoothing: fraction of each target spread over the vocabulary, not used in held-out losses; for DPO, the
    /// fraction of preferences that is taken to be wrong
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0")]
    pub label_smoothing: f32,
    /// R-Drop: weight of the divergence between two passes with different dropout; 0 disables it
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0")]
    pub r_drop: f64,
    /// NEFTune: in training, add uniform noise of up to this over the square root of a row's numbers to the embeddings of
    /// tokens, for the longest rows; 0 disables it
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0")]
    pub neftune_noise_alpha: f64,
    /// Encoders: factor of the cosines of vectors in the loss
    #[arg(long, value_name = "X", value_parser = positive_number, default_value = "20")]
    pub similarity_scale: f64,
    /// Encoders: the tokens that a text's vector is made of
    #[arg(long, value_name = "NAME", value_enum, default_value = "mean")]
    pub pooling: PoolingName,
    /// Encoders: column or field of hard negatives; can be repeated, and each is a candidate of all anchors [default:
    /// `negative`, or `negative_1`, `negative_2`, …, as far as the first row has them]
    #[arg(long, value_name = "N|NAME", value_parser = column)]
    pub negative_column: Vec<Column>,
    /// Layer-wise learning rate decay: factor from each block's learning rate to that of the block before it
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub layer_decay: f32,
}

impl ObjectiveArgs {
    /// Errors: flags of another objective.
    pub(super) fn objective(&self) -> Result<Objective, Failure> {
        let preferences = self.preferences()?;
        let r_drop = (self.r_drop > 0.0).then_some(self.r_drop as f32);
        let embedding_noise = Some(self.neftune_noise_alpha as f32).filter(|&alpha| alpha > 0.0);
        let contrastive = Contrastive {
            scale: self.similarity_scale as f32,
            pooling: self.pooling.pooling(),
            negatives: self.negative_column.len(),
        };
        Ok(Objective { label_smoothing: self.label_smoothing, r_drop, embedding_noise, contrastive, preferences })
    }

    /// The flags of preferences as settings; none for other objectives.
    pub(super) fn resolved_preferences(&self) -> Map<String, Value> {
        let mut settings = Map::new();
        if self.objective != ObjectiveName::Sft {
            let usual = Preferences::default();
            let beta = self.beta.map_or_else(|| usual.beta.to_string(), |beta| beta.to_string());
            settings.insert("objective".into(), json!(self.objective.name()));
            settings.insert("beta".into(), json!(beta));
        }
        if self.objective == ObjectiveName::Dpo {
            settings.insert("dpo_loss".into(), json!(self.dpo_loss.unwrap_or(DpoLossName::Sigmoid).name()));
        }
        if self.objective == ObjectiveName::Kto {
            settings.insert("kto_loss".into(), json!(self.kto_loss.unwrap_or_default().name()));
            for (key, weight) in [
                ("kto_desirable_weight", self.kto_desirable_weight),
                ("kto_undesirable_weight", self.kto_undesirable_weight),
            ] {
                settings.insert(key.into(), json!(weight.unwrap_or(1.0).to_string()));
            }
        }
        settings
    }

    /// The loss of preferences, if they are trained on. Errors: flags of another objective.
    pub(super) fn preferences(&self) -> Result<Option<Preferences>, Failure> {
        let usual = Preferences::default();
        let kind = match self.objective {
            ObjectiveName::Orpo => PreferenceKind::Orpo,
            ObjectiveName::Kto => {
                let weight = |weight: Option<f64>| weight.unwrap_or(1.0) as f32;
                let (liked, disliked) = (weight(self.kto_desirable_weight), weight(self.kto_undesirable_weight));
                let has_reference_point = self.kto_loss.unwrap_or_default() == KtoLossName::Kto;
                PreferenceKind::Single { liked, disliked, has_reference_point }
            }
            ObjectiveName::Sft | ObjectiveName::Dpo => self.dpo_loss.map_or(usual.kind, DpoLossName::kind),
        };
        let preferences = Preferences { kind, beta: self.beta.map_or(usual.beta, |beta| beta as f32) };
        let compares = self.objective != ObjectiveName::Sft;
        if self.beta.is_some() && !compares {
            return Err(Failure::bad_flag("`--beta` is a setting of losses of preferences")
                .hint("add `--objective dpo`, `orpo` or `kto`, or omit it"));
        }
        if self.dpo_loss.is_some() && self.objective != ObjectiveName::Dpo {
            return Err(Failure::bad_flag("`--dpo-loss` is a setting of DPO").hint("add `--objective dpo`, or omit it"));
        }
        if compares && self.r_drop > 0.0 {
            return Err(Failure::bad_flag("`--r-drop` is for losses of targets, not for those of preferences")
                .hint("omit `--r-drop`"));
        }
        let is_kto = self.objective == ObjectiveName::Kto;
        for (flag, is_given) in [
            ("--kto-loss", self.kto_loss.is_some()),
            ("--kto-desirable-weight", self.kto_desirable_weight.is_some()),
            ("--kto-undesirable-weight", self.kto_undesirable_weight.is_some()),
        ] {
            if is_given && !is_kto {
                return Err(Failure::bad_flag(format!("`{flag}` is a setting of KTO"))
                    .hint("add `--objective kto`, or omit it"));
            }
        }
        if let PreferenceKind::Single { liked, disliked, .. } = kind
            && !(liked.is_normal() && disliked.is_normal())
        {
            return Err(Failure::bad_flag("a weight of KTO is out of range").hint("use weights around 1"));
        }
        if (is_kto || self.objective == ObjectiveName::Orpo) && self.label_smoothing > 0.0 {
            let name = self.objective.name().to_uppercase();
            return Err(
                Failure::bad_flag(format!("`--label-smoothing` is not for {name}")).hint("omit `--label-smoothing`")
            );
        }
        if compares && preferences.kind == PreferenceKind::Robust && self.label_smoothing >= 0.499 {
            let message = format!("`--dpo-loss robust` with a `--label-smoothing` of {}", self.label_smoothing);
            return Err(Failure::bad_flag(message).hint("use a `--label-smoothing` below 0.499"));
        }
        if compares && !preferences.beta.is_normal() {
            return Err(Failure::bad_flag(format!("`--beta` of {} is out of range", self.beta.unwrap_or_default()))
                .hint("0.1 is usual"));
        }
        Ok(compares.then_some(preferences))
    }
}
