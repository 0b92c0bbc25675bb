//! Messages for what heat does to a run.

use plimsoll_heat::{NoteKind, Reported, Sensor};
use plimsoll_units::format_duration;

/// The message for a note on a card's heat; `None` for a note that only has a temperature. `end`: what happens to the run above
/// the maximum; `reasons`: why the card lowers its own clocks, as it reports now.
pub(super) fn heat_words(told: &Reported, end: &str, reasons: &[&str]) -> Option<String> {
    let words = in_words(&told.note.what, end, reasons)?;
    Some(match told.times {
        1 => words,
        times => format!("{words} (for the {times}th time in {})", format_duration(told.over)),
    })
}

/// What happened to a card, for people; nothing for what only says how warm it is.
fn in_words(what: &NoteKind, end: &str, reasons: &[&str]) -> Option<String> {
    let clocks = match reasons {
        [] => "lowers its own clocks for heat".to_owned(),
        reasons => format!("lowers its own clocks ({})", reasons.join(", ")),
    };
    let of = |sensor: Sensor| match sensor {
        Sensor::Core => "core",
        Sensor::Memory => "memory",
        Sensor::Hotspot => "hotspot",
    };
    Some(match *what {
        NoteKind::Band { .. } => return None,
        NoteKind::Slows { sensor, celsius, by_card: true, duty, .. } => format!(
            "slowed to {:.0} % of the time: it {clocks}; its {} is at {celsius:.0} °C",
            100.0 * duty.share(),
            of(sensor)
        ),
        NoteKind::LimitsPower { sensor, celsius, by_card: true, limit_w, .. } => format!(
            "power limit lowered, to {limit_w:.0} W at first: it {clocks}; its {} is at {celsius:.0} °C",
            of(sensor)
        ),
        NoteKind::Pauses { sensor, celsius, by_card: true, .. } => {
            format!("paused: it {clocks}; its {} is at {celsius:.0} °C", of(sensor))
        }
        NoteKind::Slows { sensor, celsius, throttle_c, duty, .. } => format!(
            "slowed to {:.0} % of the time: its {} is at {celsius:.0} °C of {throttle_c:.0}",
            100.0 * duty.share(),
            of(sensor)
        ),
        NoteKind::LimitsPower { sensor, celsius, throttle_c, limit_w, .. } => format!(
            "power limit lowered, to {limit_w:.0} W at first: its {} is at {celsius:.0} °C of {throttle_c:.0}",
            of(sensor)
        ),
        NoteKind::Pauses { sensor, celsius, max_c, .. } => {
            format!("paused: its {} is at {celsius:.0} °C, the run ends above {max_c:.0}", of(sensor))
        }
        NoteKind::Resumes { celsius, slowed, .. } => {
            format!("at {celsius:.0} °C; runs freely again after {}", format_duration(slowed))
        }
        NoteKind::Stops(hot) => {
            format!("its {} is at {:.0} °C, above {:.0}: {end}", of(hot.sensor), hot.celsius, hot.max_c)
        }
        NoteKind::SensorLost { sensor, last_c } => {
            format!("its {} tells no temperature any more; last {last_c:.0} °C", of(sensor))
        }
        NoteKind::SensorStuck { sensor, celsius, same } => {
            format!("its {} has said {celsius:.0} °C for {} and is not believed", of(sensor), format_duration(same))
        }
        NoteKind::SensorBack { sensor, celsius } => format!("its {} is believed again, at {celsius:.0} °C", of(sensor)),
        NoteKind::Estimated { by, celsius } => format!("its core is taken to be at {celsius:.0} °C, by its {}", of(by)),
        NoteKind::Blind { duty } => {
            format!("no sensor is believed: slowed to {:.0} % of the time to be safe", 100.0 * duty.share())
        }
        NoteKind::ThrottlesItself { celsius } => {
            let at = celsius.map_or(String::new(), |celsius| format!(" at {celsius:.0} °C"));
            format!("{clocks}{at}")
        }
        NoteKind::ClockJumped { by } => format!("the clock jumped by {:.0} s", by.0),
    })
}
