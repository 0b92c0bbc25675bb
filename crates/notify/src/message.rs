//! What is told, as a value. Not here: how it reads (`words.rs`) and how it is sent.

use plimsoll_telemetry::{EnergyUse, Sample};
use plimsoll_units::{Bytes, Seconds};
use serde::Serialize;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The run began, or was resumed.
    Start,
    /// How far it is.
    Progress,
    /// A checkpoint is whole on disk.
    Checkpoint,
    /// A card is hot, and what was done about it.
    Heat,
    /// Something about a card or the machine that costs speed, or that it is over.
    Health,
    /// The run would not have fitted, and was changed so that it does.
    OutOfMemoryAverted,
    /// Something went wrong.
    Failure,
    /// The run came to its end.
    End,
    /// The run was stopped before its end, as it was asked to.
    Stopped,
    /// Somebody tries whether messages arrive.
    Test,
}

impl Kind {
    /// Who goes first where a queue is full: the lowest. Failures, ends and tests never go.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Progress => 0,
            Self::Checkpoint => 1,
            Self::Start => 2,
            Self::Heat | Self::Health | Self::OutOfMemoryAverted => 3,
            Self::Failure | Self::End | Self::Stopped | Self::Test => u8::MAX,
        }
    }

    /// The color of its edge, as 0xRRGGBB: red for what failed, amber for warnings, green for a success, blue for the rest.
    pub(crate) fn color(self) -> u32 {
        match self {
            Self::Failure => 0xc0_392b,
            Self::Heat | Self::Health | Self::OutOfMemoryAverted | Self::Stopped => 0xe6_7e22,
            Self::End => 0x27_ae60,
            Self::Start | Self::Progress | Self::Checkpoint | Self::Test => 0x29_80b9,
        }
    }

    /// Whether it is kept whatever happens.
    pub(crate) fn is_kept(self) -> bool {
        self.rank() == u8::MAX
    }
}

/// A card of the machine, as far as it tells.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Card {
    /// The product, with its number where there are several.
    pub name: String,
    /// Of the core.
    pub temperature_c: Option<f64>,
    /// Of the memory chips.
    pub memory_temperature_c: Option<f64>,
    /// What it draws.
    pub power_w: Option<f64>,
    /// What it may draw.
    pub power_limit_w: Option<f64>,
    /// The part of the last moment in which a kernel ran.
    pub busy_percent: Option<u32>,
    /// Memory that processes have.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// All memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
}

impl Card {
    /// The cards of a sample.
    pub fn of_sample(sample: &Sample) -> Vec<Self> {
        let several = sample.cards.len() > 1;
        let of_card = |card: &plimsoll_telemetry::CardSample| Self {
            name: if several { format!("{} {}", card.index, card.name) } else { card.name.clone() },
            temperature_c: card.temperature_c,
            memory_temperature_c: card.memory_temperature_c,
            power_w: card.power_w,
            power_limit_w: card.power_limit_w,
            busy_percent: card.busy_percent,
            used: card.used,
            total: card.total,
        };
        sample.cards.iter().map(of_card).collect()
    }
}

/// A point of the loss curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossPoint {
    /// After this step.
    pub step: u64,
    /// Nats a token, a mean over the steps since the last point.
    pub loss: f64,
}

/// What somebody is told. What is not known is `None`, never zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// What it is about.
    pub kind: Kind,
    /// Name of the run.
    pub run: String,
    /// What happened, in a sentence or a few; may be empty.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Seconds since 1970, UTC.
    pub time_s: f64,
    /// The last step that was made.
    pub step: Option<u64>,
    /// The last one that will be made.
    pub last_step: Option<u64>,
    /// Mean loss a token of that step; nats.
    pub loss: Option<f64>,
    /// Tokens trained on, a second.
    pub tokens_per_s: Option<f64>,
    /// Until the last step, at the speed of the last ones.
    #[serde(rename = "time_left_s")]
    pub time_left: Option<Seconds>,
    /// What the run has on its device.
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Bytes>,
    /// The cards of the machine.
    pub cards: Vec<Card>,
    /// What the run's cards used of energy so far.
    pub energy: Option<EnergyUse>,
    /// The losses so far, thinned.
    pub curve: Vec<LossPoint>,
    /// Messages that were dropped or merged before this one.
    pub dropped_messages: u64,
}

impl Message {
    /// A message of which nothing is known but what it says.
    pub fn new(kind: Kind, run: impl Into<String>, text: impl Into<String>, time_s: f64) -> Self {
        Self {
            kind,
            run: run.into(),
            text: text.into(),
            advice: None,
            time_s,
            step: None,
            last_step: None,
            loss: None,
            tokens_per_s: None,
            time_left: None,
            memory: None,
            cards: vec![],
            energy: None,
            curve: vec![],
            dropped_messages: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_telemetry::CardSample;

    #[test]
    fn only_a_success_is_green_and_only_a_failure_red() {
        let all = [
            (Kind::Failure, 0xc0_392b),
            (Kind::Heat, 0xe6_7e22),
            (Kind::Stopped, 0xe6_7e22),
            (Kind::End, 0x27_ae60),
            (Kind::Progress, 0x29_80b9),
        ];
        assert!(all.iter().all(|(kind, color)| kind.color() == *color));
    }

    #[test]
    fn cards_are_told_as_they_were_sampled() {
        let card = |index| CardSample {
            index,
            name: "RTX 3090".to_owned(),
            temperature_c: Some(71.0),
            memory_temperature_c: Some(84.0),
            power_w: Some(310.0),
            power_limit_w: Some(350.0),
            busy_percent: Some(98),
            used: Some(Bytes(1)),
            total: Some(Bytes(2)),
            ..CardSample::default()
        };
        let told = Card {
            name: "RTX 3090".to_owned(),
            temperature_c: Some(71.0),
            memory_temperature_c: Some(84.0),
            power_w: Some(310.0),
            power_limit_w: Some(350.0),
            busy_percent: Some(98),
            used: Some(Bytes(1)),
            total: Some(Bytes(2)),
        };
        let of = |cards| Card::of_sample(&Sample { cards, ..Sample::default() });
        assert_eq!(of(vec![card(0)]), [told]);
        let names = of(vec![card(0), card(1)]).into_iter().map(|card| card.name).collect::<Vec<_>>();
        assert_eq!(names, ["0 RTX 3090", "1 RTX 3090"]);
    }
}
