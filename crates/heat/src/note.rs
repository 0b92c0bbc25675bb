//! Notes about cards for the event log: one per episode, with the card and its figures.
//! Not here: the wording of messages. Read next: `guard.rs`.

use crate::limits::Band;
use crate::order::{Duty, TooHot};
use crate::reading::Sensor;
use plimsoll_units::Seconds;

/// Something that happened to a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Note {
    /// Index of the card among the readings; 0 for a note about the clock.
    pub card: usize,
    /// What happened.
    pub what: NoteKind,
}

/// What happened to a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoteKind {
    /// The card entered another band, as judged by its hottest sensor relative to its limits.
    Band {
        /// The previous band.
        from: Band,
        /// The new band.
        to: Band,
        /// The sensor that determined it.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
    },
    /// The run is slowed by pauses.
    Slows {
        /// The sensor that requires it.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
        /// The sensor's throttle temperature, °C.
        throttle_c: f64,
        /// Whether the reason is that the card lowers its own clocks for heat, rather than the temperature.
        by_card: bool,
        /// The first duty.
        duty: Duty,
    },
    /// The card's power limit is lowered, before pauses are used.
    LimitsPower {
        /// The sensor that requires it.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
        /// The sensor's throttle temperature, °C.
        throttle_c: f64,
        /// Whether the reason is that the card lowers its own clocks for heat, rather than the temperature.
        by_card: bool,
        /// The first limit, W.
        limit_w: f64,
    },
    /// The run is paused until the card has cooled.
    Pauses {
        /// The sensor that requires it.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
        /// The sensor's maximum, above which the run stops, °C.
        max_c: f64,
        /// Whether the reason is that the card lowers its own clocks for heat, rather than the temperature.
        by_card: bool,
    },
    /// The card no longer limits the run.
    Resumes {
        /// The hottest sensor.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
        /// How long the card was slowed or paused.
        slowed: Seconds,
    },
    /// The run must stop.
    Stops(TooHot),
    /// A sensor stopped reporting plausible temperatures.
    SensorLost {
        /// The sensor.
        sensor: Sensor,
        /// Its last trusted temperature, °C.
        last_c: f64,
    },
    /// A sensor's value did not change although the card must have become hotter or cooler.
    SensorStuck {
        /// The sensor.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
        /// How long the value has not changed.
        same: Seconds,
    },
    /// A lost or stuck sensor is trusted again.
    SensorBack {
        /// The sensor.
        sensor: Sensor,
        /// Its temperature, °C.
        celsius: f64,
    },
    /// The die sensor is not trusted; its temperature is estimated from another sensor of the card.
    Estimated {
        /// The other sensor.
        by: Sensor,
        /// The estimated temperature, °C.
        celsius: f64,
    },
    /// No sensor of the card is trusted: the run continues at a duty that is known to be safe.
    Blind {
        /// The duty.
        duty: Duty,
    },
    /// The card lowers its own clocks because of heat.
    ThrottlesItself {
        /// Temperature of the hottest trusted sensor, °C.
        celsius: Option<f64>,
    },
    /// The clock jumped backward, or far forward.
    ClockJumped {
        /// The size of the jump.
        by: Seconds,
    },
}
