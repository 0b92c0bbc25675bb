//! Why a card's clocks are below their maximum, according to NVML.
//! Source: `nvmlClocksEventReasons` of NVIDIA's `nvml.h`.

use serde::{Deserialize, Serialize};

/// Reasons as a bit set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Throttling(pub u64);

/// The bits with their names, those that cost speed first.
const WORDS: [(u64, &str); 9] = [
    (0x40, "too hot (hardware)"),
    (0x20, "too hot (driver)"),
    (0x80, "power brake"),
    (0x08, "slowed by hardware"),
    (0x04, "power limit"),
    (0x10, "waits for a synchronized GPU"),
    (0x100, "display clocks"),
    (0x02, "application clocks"),
    (0x01, "idle"),
];

impl Throttling {
    /// Whether heat is a reason.
    pub fn is_thermal(self) -> bool {
        self.0 & 0x60 != 0
    }

    /// The thermal reasons, as `nvidia-smi` names them.
    pub fn thermal_reasons(self) -> Vec<&'static str> {
        let names = [(0x40, "HW thermal slowdown"), (0x20, "SW thermal slowdown")];
        names.into_iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| name).collect()
    }

    /// Whether the power limit is a reason, or a power supply that demands less.
    pub fn is_power(self) -> bool {
        self.0 & 0x84 != 0
    }

    /// Whether the card is idle.
    pub fn is_idle(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Whether an unexpected reason slows down a busy card: not user-set clocks, and not the power limit, at which most
    /// cards run all the time.
    pub fn is_trouble(self) -> bool {
        self.0 & 0xe8 != 0
    }

    /// The reasons in words, those that cost speed first.
    pub fn words(self) -> Vec<&'static str> {
        WORDS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, word)| *word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_distinguished() {
        let hot_and_capped = Throttling(0x44);
        assert!(hot_and_capped.is_thermal() && hot_and_capped.is_power() && hot_and_capped.is_trouble());
        assert_eq!(hot_and_capped.thermal_reasons(), ["HW thermal slowdown"]);
        assert_eq!(hot_and_capped.words(), ["too hot (hardware)", "power limit"]);
        assert!(!Throttling(0x04).is_trouble() && !Throttling(0x04).is_thermal());
        assert!(Throttling(0x01).is_idle() && Throttling(0).words().is_empty());
    }
}
