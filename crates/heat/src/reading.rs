//! What the sensors of a card say at one moment, each allowed to say nothing.
//! Not here: whether they are believed. Read next: `tracker.rs`.

/// What was read from one card. A sensor that the card lacks, or that failed this time, is `None`.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Temperature of the die, °C.
    pub core_c: Option<f64>,
    /// Temperature of the memory, °C.
    pub memory_c: Option<f64>,
    /// Temperature of the hottest place of the die, °C.
    pub hotspot_c: Option<f64>,
    /// Whether the card lowers its own clocks because of heat. Not for a power limit or an idle card.
    pub throttling: Option<bool>,
    /// What the card draws, W.
    pub power_w: Option<f64>,
}

impl Reading {
    /// What a sensor says, °C.
    pub(crate) fn of(&self, sensor: Sensor) -> Option<f64> {
        match sensor {
            Sensor::Core => self.core_c,
            Sensor::Memory => self.memory_c,
            Sensor::Hotspot => self.hotspot_c,
        }
    }
}

/// A sensor of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sensor {
    /// Of the die.
    Core,
    /// Of the memory.
    Memory,
    /// Of the hottest place of the die.
    Hotspot,
}

impl Sensor {
    /// All of a card, in the order in which arrays have them.
    pub(crate) const ALL: [Sensor; 3] = [Sensor::Core, Sensor::Memory, Sensor::Hotspot];
}
