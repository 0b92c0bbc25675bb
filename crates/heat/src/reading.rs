//! One reading of a card's sensors. Each value may be missing.
//! Not here: whether the values are trusted. Read next: `tracker.rs`.

/// A reading of one card. A sensor that the card lacks, or that failed this time, is `None`.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Mean temperature of the die, °C.
    pub core_c: Option<f64>,
    /// Temperature of the memory, °C.
    pub memory_c: Option<f64>,
    /// Temperature of the hottest point of the die, °C.
    pub hotspot_c: Option<f64>,
    /// Whether the card lowers its own clocks because of heat. Power limits and idle clocks do not count.
    pub throttling: Option<bool>,
    /// Power draw, W.
    pub power_w: Option<f64>,
}

impl Reading {
    /// The reading of one sensor, °C.
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
    /// Die temperature.
    Core,
    /// Memory temperature.
    Memory,
    /// Hottest point of the die.
    Hotspot,
}

impl Sensor {
    /// All sensors, in the order of the arrays that are indexed by sensor.
    pub(crate) const ALL: [Sensor; 3] = [Sensor::Core, Sensor::Memory, Sensor::Hotspot];
}
