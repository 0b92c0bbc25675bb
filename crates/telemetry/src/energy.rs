//! What a run's cards used of energy. Not here: how it is measured (`plimsoll-power`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Energy that a run's cards used, in all its sessions. Steps that were made again count again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyUse {
    /// In joules.
    pub energy_j: f64,
    /// How it was measured.
    pub by: EnergySource,
    /// Time in which nothing was measured.
    pub missed_s: f64,
    /// What it cost, where a price was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// In which currency, where that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// How energy was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// By the cards' own counters.
    Counter,
    /// From the power that they drew at each sample.
    Power,
    /// Some of it so, some so.
    Both,
}

impl fmt::Display for EnergyUse {
    /// `1.25 kWh (0.39 EUR)`, `312 Wh`, `900 J`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.energy_j {
            joules if joules < 3.6e3 => write!(f, "{joules:.0} J")?,
            joules if joules < 3.6e6 => write!(f, "{:.3} Wh", joules / 3.6e3)?,
            joules => write!(f, "{:.3} kWh", joules / 3.6e6)?,
        }
        match (self.cost, &self.currency) {
            (Some(cost), Some(currency)) => write!(f, " ({cost:.2} {currency})"),
            (Some(cost), None) => write!(f, " (costs {cost:.2})"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_reads_in_the_unit_that_suits_it() {
        let energy = |energy_j, cost, currency: Option<&str>| {
            let currency = currency.map(str::to_owned);
            EnergyUse { energy_j, by: EnergySource::Counter, missed_s: 0.0, cost, currency }.to_string()
        };
        assert_eq!(energy(900.0, None, None), "900 J");
        assert_eq!(energy(1.8e6, None, None), "500.000 Wh");
        assert_eq!(energy(4.5e6, Some(0.387), Some("EUR")), "1.250 kWh (0.39 EUR)");
        assert_eq!(energy(4.5e6, Some(0.387), None), "1.250 kWh (costs 0.39)");
    }
}
