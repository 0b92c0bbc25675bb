//! Names of programs: what a program computes, and for which sequence lengths.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Sequence lengths of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lengths {
    /// Tokens of a sample; tokens of its source if the model has an encoder.
    pub tokens: usize,
    /// Tokens of the decoder if the model has an encoder.
    pub target: Option<usize>,
}

/// What a program computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProgramKind {
    /// Loss and gradients of the first micro-batch of a step; the gradients replace those of the previous step.
    MicroStep,
    /// Loss and gradients of a further micro-batch, which are added to the existing ones.
    MicroStepAdd,
    /// New weights from the gradients; where the host updates some of them, without those.
    Update,
    /// The part of an update that the host computes.
    HostUpdate,
    /// `HostUpdate` of the step before, followed by `MicroStep`: blocks compute while weights of later blocks are updated.
    HostUpdateAndMicroStep,
    /// The loss of a held-out batch.
    Evaluate,
    /// The same as `Evaluate`, with the moving average of the weights.
    EvaluateAverage,
    /// Logits after several tokens of a prompt.
    Prefill,
    /// Logits after one token.
    Sample,
    /// Keys and values of a source, for the decoder's cross-attention.
    Encode,
    /// The vectors of texts.
    Embed,
    /// A numbered program of a graph without training, for example in a self-test.
    Numbered(u32),
}

const NAMES: [(ProgramKind, &str); 11] = [
    (ProgramKind::MicroStep, "micro_step"),
    (ProgramKind::MicroStepAdd, "micro_step_add"),
    (ProgramKind::Update, "update"),
    (ProgramKind::HostUpdate, "host_update"),
    (ProgramKind::HostUpdateAndMicroStep, "host_update_and_micro_step"),
    (ProgramKind::Evaluate, "evaluate"),
    (ProgramKind::EvaluateAverage, "evaluate_average"),
    (ProgramKind::Prefill, "prefill"),
    (ProgramKind::Sample, "sample"),
    (ProgramKind::Encode, "encode"),
    (ProgramKind::Embed, "embed"),
];

/// The program with which a step begins, except the first one of a run, if these are those of the run.
pub fn first_of_step(mut programs: impl Iterator<Item = ProgramKind>) -> ProgramKind {
    let has_host_update = programs.any(|kind| kind == ProgramKind::HostUpdateAndMicroStep);
    if has_host_update { ProgramKind::HostUpdateAndMicroStep } else { ProgramKind::MicroStep }
}

/// The name of a program, unique in its graph. Its text is `micro_step`, or `micro_step@64` and `micro_step@64x32` for
/// these sequence lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramName {
    /// What the program computes.
    pub kind: ProgramKind,
    /// The sequence lengths; `None` for the longest of the graph.
    pub lengths: Option<Lengths>,
}

impl From<ProgramKind> for ProgramName {
    /// The program for the longest sequences.
    fn from(kind: ProgramKind) -> Self {
        Self { kind, lengths: None }
    }
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbered(number) => number.fmt(f),
            named => f.write_str(NAMES.iter().find(|(kind, _)| kind == named).map_or("", |(_, name)| name)),
        }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lengths {
            None => self.kind.fmt(f),
            Some(Lengths { tokens, target: None }) => write!(f, "{}@{tokens}", self.kind),
            Some(Lengths { tokens, target: Some(target) }) => write!(f, "{}@{tokens}x{target}", self.kind),
        }
    }
}

/// The text is not the name of a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a program")]
pub struct NoProgramName(String);

impl FromStr for ProgramName {
    type Err = NoProgramName;

    fn from_str(text: &str) -> Result<Self, NoProgramName> {
        let no_name = || NoProgramName(text.to_owned());
        let (base, lengths) = text.split_once('@').map_or((text, None), |(base, lengths)| (base, Some(lengths)));
        let named = NAMES.iter().find(|(_, name)| *name == base).map(|(kind, _)| *kind);
        let kind = named.or_else(|| base.parse().ok().map(ProgramKind::Numbered)).ok_or_else(no_name)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| no_name());
        let lengths = lengths.map(|lengths| match lengths.split_once('x') {
            None => Ok(Lengths { tokens: number(lengths)?, target: None }),
            Some((tokens, target)) => Ok(Lengths { tokens: number(tokens)?, target: Some(number(target)?) }),
        });
        Ok(Self { kind, lengths: lengths.transpose()? })
    }
}

impl Serialize for ProgramName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProgramName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_their_text() {
        let kinds = NAMES.iter().map(|(kind, _)| *kind).chain([ProgramKind::Numbered(7)]);
        for kind in kinds {
            for lengths in [None, Some((64, None)), Some((64, Some(32)))] {
                let lengths = lengths.map(|(tokens, target)| Lengths { tokens, target });
                let name = ProgramName { kind, lengths };
                assert_eq!(name.to_string().parse(), Ok(name));
            }
        }
        let longest = ProgramName::from(ProgramKind::MicroStepAdd);
        assert_eq!(longest.to_string(), "micro_step_add");
        let lengths = Some(Lengths { tokens: 64, target: Some(32) });
        assert_eq!(ProgramName { lengths, ..longest }.to_string(), "micro_step_add@64x32");
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in ["", "micro", "micro_step@", "micro_step@64x", "micro_step@64x32x1", "update@-1", "-1"] {
            assert!(text.parse::<ProgramName>().is_err(), "{text}");
        }
    }
}
