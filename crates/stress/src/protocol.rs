//! The phases as data: what runs in each, at which load, and for which share of the time.

use std::str::FromStr;
use std::time::Duration;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// Patterns that are checked and replaced in the memory that no other workload uses.
    Memory,
    /// Products of matrices in each precision.
    Product,
    /// Causal attention in each precision.
    Attention,
    /// Copies between host and device.
    Transfer,
    /// Training steps of a model.
    Training,
}

impl WorkloadKind {
    /// All kinds, in the order in which they run.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Product, Self::Attention, Self::Transfer, Self::Training];
}

/// A phase of the protocol.
#[derive(Debug, PartialEq)]
pub struct Phase {
    /// Its number, from 1.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Its share of the duration if all phases run.
    pub share: f64,
    /// Fractions of the time in which the device works: each for an equal part of the phase.
    pub loads: &'static [f64],
    /// The kinds of work of a round, in order.
    pub round: &'static [WorkloadKind],
    /// Whether there is one round, whose turns share the time; otherwise turns are short, and rounds follow each other.
    pub has_one_round: bool,
}

/// All phases.
pub const PHASES: [Phase; 3] = [
    Phase {
        number: 1,
        name: "each workload",
        what: "one kind of work at a time, at full load",
        share: 0.15,
        loads: &[1.0],
        round: &WorkloadKind::ALL,
        has_one_round: true,
    },
    Phase {
        number: 2,
        name: "rising load",
        what: "all kinds of work in short turns, at 25, 50, 75 and 100 % of the time",
        share: 0.25,
        loads: &[0.25, 0.5, 0.75, 1.0],
        round: &WorkloadKind::ALL,
        has_one_round: false,
    },
    Phase {
        number: 3,
        name: "training",
        what: "training steps between products, attention and checks of the filled memory, at full load",
        share: 0.6,
        loads: &[1.0],
        round: &[
            WorkloadKind::Training,
            WorkloadKind::Product,
            WorkloadKind::Training,
            WorkloadKind::Memory,
            WorkloadKind::Training,
            WorkloadKind::Attention,
            WorkloadKind::Training,
            WorkloadKind::Transfer,
        ],
        has_one_round: false,
    },
];

/// Consecutive phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseRange {
    first: u8,
    last: u8,
}

impl Default for PhaseRange {
    /// All phases.
    fn default() -> Self {
        Self { first: 1, last: PHASES.len() as u8 }
    }
}

impl FromStr for PhaseRange {
    type Err = String;

    /// Accepts `2` and `1..3`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u8>().ok().filter(|n| (1..=PHASES.len() as u8).contains(n));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!("phases are 1 to {}: write `2` or `1..2`", PHASES.len())),
        }
    }
}

impl PhaseRange {
    /// Whether a phase of this number is among them.
    pub fn contains(self, number: u8) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// The phases with their parts of the duration.
    pub fn within(self, duration: Duration) -> Vec<(&'static Phase, Duration)> {
        let phases = PHASES.iter().filter(|phase| self.contains(phase.number));
        let all = phases.clone().map(|phase| phase.share).sum::<f64>();
        phases.map(|phase| (phase, duration.mul_f64(phase.share / all))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_phases_takes_the_whole_duration() {
        let numbers = |text: &str| {
            let range = text.parse::<PhaseRange>()?;
            let phases = range.within(Duration::from_secs(100));
            assert!((phases.iter().map(|(_, time)| time.as_secs_f64()).sum::<f64>() - 100.0).abs() < 1e-6, "{text}");
            Ok::<_, String>(phases.iter().map(|(phase, _)| phase.number).collect::<Vec<_>>())
        };
        assert_eq!(numbers("2"), Ok(vec![2]));
        assert_eq!(numbers("1..2"), Ok(vec![1, 2]));
        assert_eq!(numbers("1..3").as_ref().map(Vec::len), Ok(PHASES.len()));
        for wrong in ["0", "4", "2..1", "", "a", "1..", "..2", "1..9", "256"] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
        assert!((PHASES.iter().map(|phase| phase.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(PHASES.iter().flat_map(|phase| phase.loads).all(|load| *load > 0.0 && *load <= 1.0));
    }
}
