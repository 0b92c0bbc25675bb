//! Thermal model of a card: a die on a cooler in air, with memory next to it and a fan that follows the die.
//!
//! ```text
//!   die ──R core──┐
//!                 ├── cooler ──R sink(fan, dust)── air
//!   memory ──R────┘
//! ```
//! Sources of the values:
//! - Die to cooler: junction to case 0.014 °C/W for an RTX 5000 of 110 W (ADLINK, EGX-MXM-RTX5000 manual, table 1-4);
//!   with paste and base plate, a quarter of the total resistance to the air, as in the resistance chains of Igor's
//!   Lab.
//! - Die and cooler together: reviews measure 60 to 80 °C in air of 25 °C at full power, with a fan below its maximum,
//!   for 75 to 600 W. Here the rise at full fan speed is 30 to 75 °C, so that some cards must be slowed.
//! - Time: a die's own time constant is 2 to 5 s. A cooler has 1.5 to 4 J/°C per watt of its rating: 0.2 kg of aluminum
//!   (897 J/kg/°C) for 75 W, 1.5 kg of copper (385) and aluminum for 450 W. That gives 50 to 300 s.
//! - Fans: heat transfer of laminar air along fins grows with the square root of its speed (Incropera, Fundamentals of
//!   Heat and Mass Transfer, flat plate); still air cools as much as a fan at 5 %.
//! - Hot spots: 8 to 18 °C above the die's mean at full power. Memory: 10 to 20 % of the power.

//! - Power limits: a chip's power has a part proportional to its clock, and a part proportional to clock times voltage
//!   squared, with the voltage following the clock: a f + (1 - a) f^3 of the power above idle at the speed f, with a
//!   from 0.05 to 0.6. At 60 % of its power such a card has 70 to 83 % of its speed, as reviews of the RTX 4090 show.
//!   The lowest limit is 40 to 70 % of the power.

use crate::rng::Rng;

/// The physical parameters of a card.
#[derive(Debug, Clone)]
pub struct Build {
    pub power_w: f64,
    pub idle_w: f64,
    pub core_c_per_w: f64,
    pub core_s: f64,
    pub sink_c_per_w: f64,
    pub sink_j_per_c: f64,
    pub memory_part: f64,
    pub memory_c_per_w: f64,
    pub memory_s: f64,
    pub hotspot_c: f64,
    /// The fan's lowest speed, and the die temperatures at which it begins to speed up and reaches full speed, °C.
    pub fan: (f64, f64, f64),
    pub fan_s: f64,
}

impl Build {
    pub fn random(rng: &mut Rng) -> Self {
        let power_w = rng.log_between(50.0, 600.0);
        let rise_c = rng.between(30.0, 75.0);
        let core_part = rng.between(0.15, 0.3);
        let memory_part = rng.between(0.1, 0.2);
        let core_w = power_w * (1.0 - memory_part);
        Self {
            power_w,
            idle_w: power_w * rng.between(0.04, 0.1),
            core_c_per_w: rise_c * core_part / core_w,
            core_s: rng.between(2.0, 5.0),
            sink_c_per_w: rise_c * (1.0 - core_part) / power_w,
            sink_j_per_c: power_w * rng.between(1.5, 4.0),
            memory_part,
            memory_c_per_w: rng.between(5.0, 30.0) / (power_w * memory_part),
            memory_s: rng.between(5.0, 20.0),
            hotspot_c: rng.between(8.0, 18.0),
            fan: (rng.between(0.2, 0.4), rng.between(40.0, 55.0), rng.between(70.0, 80.0)),
            fan_s: rng.between(4.0, 15.0),
        }
    }
}

/// How a card responds to power limits. Derived from its power alone, so that the days are the same with and without
/// limits.
#[derive(Debug, Clone, Copy)]
pub struct Limited {
    /// The fraction of its power that is proportional to its clock.
    linear: f64,
    /// The lowest limit, and the default limit, W.
    pub least_w: f64,
    pub most_w: f64,
}

impl Build {
    pub fn limited(&self) -> Limited {
        let mut rng = Rng(self.power_w.to_bits());
        Limited {
            linear: rng.between(0.05, 0.6),
            least_w: self.power_w * rng.between(0.4, 0.7),
            most_w: self.power_w * rng.between(1.0, 1.3),
        }
    }

    /// The speed of the card under a limit, relative to full speed, and its draw while it computes, W.
    pub fn under(&self, limit_w: f64) -> (f64, f64) {
        let linear = self.limited().linear;
        let draw_w = limit_w.clamp(self.idle_w, self.power_w);
        let part = (draw_w - self.idle_w) / (self.power_w - self.idle_w);
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..40 {
            let speed: f64 = (low + high) / 2.0;
            let draws = linear * speed + (1.0 - linear) * speed.powi(3);
            if draws <= part { low = speed } else { high = speed }
        }
        (if part >= 1.0 { 1.0 } else { low }, draw_w)
    }
}

/// The surroundings of the card at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Around {
    pub air_c: f64,
    /// Highest fan speed, 0 to 1.
    pub fan_most: f64,
    /// Factor of the cooler's resistance due to dust: 1 or more.
    pub dust: f64,
}

/// The state of a card.
#[derive(Debug, Clone)]
pub struct Plant {
    pub build: Build,
    pub core_c: f64,
    pub sink_c: f64,
    pub memory_c: f64,
    pub power_w: f64,
    fan: f64,
    sink_w_per_c: f64,
    fan_due_s: f64,
    decay: Decay,
}

/// The remaining fraction of a difference after a step of `for_s`.
#[derive(Debug, Clone, Copy, Default)]
struct Decay {
    for_s: f64,
    core: f64,
    memory: f64,
}

/// Interval between updates of the fan, s.
const FAN_EVERY_S: f64 = 2.0;

impl Plant {
    pub fn new(build: Build, air_c: f64) -> Self {
        let fan = build.fan.0;
        let (core_c, sink_c, memory_c) = (air_c, air_c, air_c);
        let decay = Decay::default();
        let sink_w_per_c = 1.0 / build.sink_c_per_w;
        Self { build, core_c, sink_c, memory_c, power_w: 0.0, fan, sink_w_per_c, fan_due_s: 0.0, decay }
    }

    pub fn hotspot_c(&self) -> f64 {
        self.core_c + self.build.hotspot_c * self.power_w / self.build.power_w
    }

    /// Advances by `for_s` seconds, of which the card computes the fraction `computing` at a draw of `draw_w`.
    pub fn step(&mut self, for_s: f64, computing: f64, draw_w: f64, around: &Around) {
        if self.decay.for_s != for_s {
            let core = (-for_s / self.build.core_s).exp();
            self.decay = Decay { for_s, core, memory: (-for_s / self.build.memory_s).exp() };
        }
        self.fan_due_s -= for_s;
        if self.fan_due_s <= 0.0 {
            self.fan_due_s = FAN_EVERY_S;
            self.turn_fan(around);
        }
        let b = &self.build;
        self.power_w = b.idle_w + (draw_w - b.idle_w) * computing;
        let memory_w = self.power_w * b.memory_part;
        let to_air_w = (self.sink_c - around.air_c) * self.sink_w_per_c;
        self.sink_c += for_s * (self.power_w - to_air_w) / b.sink_j_per_c;
        let core_aim_c = self.sink_c + (self.power_w - memory_w) * b.core_c_per_w;
        self.core_c = core_aim_c + (self.core_c - core_aim_c) * self.decay.core;
        let memory_aim_c = self.sink_c + memory_w * b.memory_c_per_w;
        self.memory_c = memory_aim_c + (self.memory_c - memory_aim_c) * self.decay.memory;
    }

    /// The fan follows the die with a lag, up to its highest speed; the cooler's resistance follows the fan.
    fn turn_fan(&mut self, around: &Around) {
        let (least, from_c, full_c) = self.build.fan;
        let wanted = least + (1.0 - least) * ((self.core_c - from_c) / (full_c - from_c)).clamp(0.0, 1.0);
        self.fan += (wanted - self.fan) * FAN_EVERY_S / (self.build.fan_s + FAN_EVERY_S);
        let air = self.fan.min(around.fan_most).max(0.05);
        self.sink_w_per_c = air.sqrt() / (self.build.sink_c_per_w * around.dust);
    }
}
