//! The flags for monitoring a run, and the notices of its session in words.

use super::signals::StepClock;
use crate::cli::Failure;
use crate::cli::heat::checked;
use crate::cli::power::say_put_back;
use crate::cli::samples::{say_lost, say_not_kept};
use crate::streams::{end_soon, talk};
use clap::Args;
use plimsoll_heat::Settings;
use plimsoll_power::Price;
use plimsoll_render::health_event;
use plimsoll_session::{MemorySettings, Notice, Notices, WatchSettings};
use plimsoll_units::{Seconds, format_duration};
use serde_json::{Map, Value, json};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// Time between two samples of the GPU and the system, stored in the run's folder: `1s`, `0.5s`, `1m`; `off` takes
    /// no samples, and heat, health and energy are not watched
    #[arg(long, value_name = "TIME|off", default_value = "1s")]
    sample_every: SampleEvery,
    /// GPU temperature in degrees Celsius above which the run saves and ends, with exit code 6; the GPU's own limit
    /// applies if it is lower
    #[arg(long, value_name = "C", default_value = "83")]
    max_temp: f64,
    /// Temperature to hold by slowing the run: it pauses between micro-batches
    #[arg(long, value_name = "C", default_value = "78")]
    throttle_temp: f64,
    /// Temperature below which a slowed run runs at full speed again
    #[arg(long, value_name = "C", default_value = "70")]
    resume_temp: f64,
    /// As `--max-temp`, for the GPU's memory if the GPU reports its temperature
    #[arg(long, value_name = "C", default_value = "100")]
    memory_temp: f64,
}

/// `--sample-every`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SampleEvery {
    Off,
    Time(Seconds),
}

impl FromStr for SampleEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Some YAML readers parse the word as a boolean.
        match text {
            "off" | "false" => Ok(Self::Off),
            time => sample_time(time).map(Self::Time),
        }
    }
}

/// From a hundredth of a second to a day.
pub(in crate::cli) fn sample_time(text: &str) -> Result<Seconds, String> {
    let time = text.parse::<Seconds>().map_err(|error| error.to_string())?;
    if (0.01..=86_400.0).contains(&time.0) { Ok(time) } else { Err("from 0.01 seconds to 24h".to_owned()) }
}

impl WatchArgs {
    /// The requested limits. Errors: they contradict each other.
    pub(super) fn limits(&self) -> Result<Settings, Failure> {
        let settings = Settings {
            max_c: self.max_temp,
            throttle_c: self.throttle_temp,
            resume_c: self.resume_temp,
            memory_max_c: self.memory_temp,
        };
        checked(settings)
    }

    /// Whether sampling is off.
    pub(super) fn is_off(&self) -> bool {
        self.sample_every == SampleEvery::Off
    }

    /// What a session watches under accepted limits; `None` if sampling is off. `memory`: how its budget changes, if it does.
    pub(super) fn settings(
        &self,
        heat: Settings,
        price: Option<Price>,
        memory: Option<MemorySettings>,
    ) -> Option<WatchSettings> {
        match self.sample_every {
            SampleEvery::Off => None,
            SampleEvery::Time(time) => {
                let every = Duration::from_secs_f64(time.0);
                Some(WatchSettings { every, heat, price, health_event, memory })
            }
        }
    }

    /// The settings that make a resumed run watch the same.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let settings = json!({
            "sample_every": match self.sample_every {
                SampleEvery::Off => "off".to_owned(),
                SampleEvery::Time(time) => format!("{}s", time.0),
            },
            "max_temp": self.max_temp.to_string(),
            "throttle_temp": self.throttle_temp.to_string(),
            "resume_temp": self.resume_temp.to_string(),
            "memory_temp": self.memory_temp.to_string(),
        });
        settings.as_object().cloned().unwrap_or_default()
    }
}

/// Prints the notices of a session.
pub(super) fn notices(clock: StepClock) -> Notices {
    Arc::new(move |notice| match notice {
        Notice::NoOrders(error) => {
            talk(format_args!("note: the run accepts no orders such as `plimsoll pause`: {error}"))
        }
        Notice::NoSamples(error) => talk(format_args!("note: the run is not sampled: {error}")),
        Notice::AskedToStop => {
            end_soon();
            let step = clock.words();
            talk(format_args!("\nasked to stop: stopping after this step{step} and saving a checkpoint"));
        }
        Notice::StepDropped => talk("the step does not end within the grace period: saving the state before it"),
        Notice::StillWaiting(time) => talk(format_args!("waited for memory for {}", format_duration(time))),
        Notice::StillPaused(time) => talk(format_args!("paused for {}", format_duration(time))),
        Notice::SamplesNotKept(error) => say_not_kept(&error),
        Notice::SamplesLost(error) => say_lost(&error),
        Notice::PutBack(back) => say_put_back(&back),
    })
}
