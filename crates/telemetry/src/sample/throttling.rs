//! Why a card's clocks are below what they could be, as NVML counts it.
//! Source: `nvmlClocksEventReasons` of NVIDIA's `nvml.h`.

use serde::{Deserialize, Serialize};

/// Reasons, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Throttling(pub u64);

/// Bits with the words for them, those that cost speed first.
const WORDS: [(u64, &str); 9] = [
    (0x40, "too hot (hardware)"),
    (0x20, "too hot (driver)"),
    (0x80, "power brake"),
    (0x08, "slowed by hardware"),
    (0x04, "power limit"),
    (0x10, "waits for a synchronized card"),
    (0x100, "display clocks"),
    (0x02, "clocks that were set"),
    (0x01, "idle"),
];

impl Throttling {
    /// Whether heat is a reason.
    pub fn is_thermal(self) -> bool {
        self.0 & 0x60 != 0
    }

    /// The reasons that are heat, by the names that `nvidia-smi` gives them.
    pub fn thermal_reasons(self) -> Vec<&'static str> {
        let names = [(0x40, "HW thermal slowdown"), (0x20, "SW thermal slowdown")];
        names.into_iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| name).collect()
    }

    /// Whether the power limit is a reason, or a power supply that asks for less.
    pub fn is_power(self) -> bool {
        self.0 & 0x84 != 0
    }

    /// Whether the card has nothing to do.
    pub fn is_idle(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Whether something keeps a card slow that has work: not the clocks that somebody set, nor the power limit, under which
    /// most cards run all the time.
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
    fn reasons_are_told_apart() {
        let hot_and_capped = Throttling(0x44);
        assert!(hot_and_capped.is_thermal() && hot_and_capped.is_power() && hot_and_capped.is_trouble());
        assert_eq!(hot_and_capped.thermal_reasons(), ["HW thermal slowdown"]);
        assert_eq!(hot_and_capped.words(), ["too hot (hardware)", "power limit"]);
        assert!(!Throttling(0x04).is_trouble() && !Throttling(0x04).is_thermal());
        assert!(Throttling(0x01).is_idle() && Throttling(0).words().is_empty());
    }
}
