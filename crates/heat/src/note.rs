//! What happened, for events: each once an episode, with the card and its figures.
//! Not here: how it is said to people. Read next: `guard.rs`.

use crate::limits::Band;
use crate::order::{Duty, TooHot};
use crate::reading::Sensor;
use plimsoll_units::Seconds;

/// Something about a card that a person wants to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Note {
    /// Which card, as readings count them; 0 for what is about the clock.
    pub card: usize,
    /// What happened.
    pub what: What,
}

/// What happened to a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// The card became hotter or cooler, by the hottest of its sensors against its limits.
    Band {
        /// How hot it was.
        from: Band,
        /// How hot it is.
        to: Band,
        /// By which sensor.
        sensor: Sensor,
        /// What that says, °C.
        celsius: f64,
    },
    /// The run is slowed.
    Slows {
        /// The sensor that asks for it.
        sensor: Sensor,
        /// What that says, °C.
        celsius: f64,
        /// Where slowing begins for it, °C.
        throttle_c: f64,
        /// Whether the sensor asks for nothing, and the card does: it lowers its own clocks for heat.
        by_card: bool,
        /// The first duty.
        duty: Duty,
    },
    /// The card's power limit is lowered, instead of pauses.
    LimitsPower {
        /// The sensor that asks for it.
        sensor: Sensor,
        /// What that says, °C.
        celsius: f64,
        /// Where slowing begins for it, °C.
        throttle_c: f64,
        /// Whether the sensor asks for nothing, and the card does: it lowers its own clocks for heat.
        by_card: bool,
        /// The first limit, W.
        limit_w: f64,
    },
    /// The run is paused until the card has cooled.
    Pauses {
        /// The sensor that asks for it.
        sensor: Sensor,
        /// What that says, °C.
        celsius: f64,
        /// Where the run would be stopped, °C.
        max_c: f64,
        /// Whether the sensor asks for nothing, and the card does: it lowers its own clocks for heat.
        by_card: bool,
    },
    /// The card lets the run go freely again.
    Resumes {
        /// The hottest sensor.
        sensor: Sensor,
        /// What that says, °C.
        celsius: f64,
        /// How long it was slowed or paused.
        slowed: Seconds,
    },
    /// The run must stop.
    Stops(TooHot),
    /// A sensor says nothing any more, or nothing that can be a temperature.
    SensorLost {
        /// Which.
        sensor: Sensor,
        /// What it said last that was believed, °C.
        last_c: f64,
    },
    /// A sensor says the same although the card must have become hotter or cooler.
    SensorStuck {
        /// Which.
        sensor: Sensor,
        /// What it says, °C.
        celsius: f64,
        /// For how long.
        same: Seconds,
    },
    /// A sensor that was lost or stuck is believed again.
    SensorBack {
        /// Which.
        sensor: Sensor,
        /// What it says, °C.
        celsius: f64,
    },
    /// The die's sensor is not believed; its temperature is estimated from another of the card.
    Estimated {
        /// From which.
        by: Sensor,
        /// The estimate, °C.
        celsius: f64,
    },
    /// No sensor of the card is believed: the run continues at a duty that is known to be mild.
    Blind {
        /// The duty.
        duty: Duty,
    },
    /// The card lowers its own clocks because of heat.
    ThrottlesItself {
        /// The hottest sensor, if any is believed, °C.
        celsius: Option<f64>,
    },
    /// The clock went back, or a long way forward, by this much.
    ClockJumped {
        /// By how much.
        by: Seconds,
    },
}
