//! The energy used by a run's cards. Not here: measuring it (`plimsoll-power`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Energy used by a run's cards, in all its sessions. Repeated steps count each time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnergyUse {
    /// In joules.
    pub energy_j: f64,
    /// How it was measured.
    pub by: EnergySource,
    /// Time without measurements.
    pub missed_s: f64,
    /// The cost, if a price was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The currency of the cost, if it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// How energy was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// The cards' own energy counters.
    Counter,
    /// The power readings of the samples.
    Power,
    /// A mix of both.
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
    fn energy_is_shown_in_a_suitable_unit() {
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
