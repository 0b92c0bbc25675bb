//! The cards during a run, as charts over its time: temperatures and power.

use super::curves::{COLUMNS, draw};
use super::story::{CardStory, RunStory};
use crate::page::axis::NumberAxis;
use crate::page::chart::{Chart, LINE};
use plimsoll_telemetry::{Curve, Stretch};

/// Heights in pixels.
const HEIGHT: f64 = 150.0;

/// CSS classes, one per card; the cards after these share the last.
pub(super) const CLASSES: [&str; 3] = ["first", "second", "third"];

/// Units of time in seconds, and their names.
const UNITS: [(u64, &str); 3] = [(1, "seconds"), (60, "minutes"), (3600, "hours")];

/// The unit that gives the axis enough ticks, but not too many.
fn unit(seconds: u64) -> (u64, &'static str) {
    let fits = |(unit, _): &&(u64, &str)| seconds / unit < 300;
    *UNITS.iter().find(fits).unwrap_or(&UNITS[2])
}

/// Temperatures of the cards; `None` if no card reports one.
pub(super) fn temperature_chart(story: &RunStory) -> Option<Chart> {
    chart(story, "°C", |card| &card.temperature_c, |_| None)
}

/// Power of the cards.
pub(super) fn power_chart(story: &RunStory) -> Option<Chart> {
    chart(story, "watts", |card| &card.power_w, |_| Some(0.0))
}

fn chart<'a>(
    story: &'a RunStory,
    what: &str,
    of: impl Fn(&'a CardStory) -> &'a Curve,
    floor: impl Fn(f64) -> Option<f64>,
) -> Option<Chart> {
    let wholes = story.cards.iter().filter_map(|card| of(card).whole()).collect::<Vec<_>>();
    let lowest = wholes.iter().map(|whole| whole.lowest.value).reduce(f64::min)?;
    let highest = wholes.iter().map(|whole| whole.highest.value).reduce(f64::max)?;
    let (unit, units) = unit(story.sampled_s);
    let last = story.sampled_s.div_ceil(unit).max(1);
    let part = |second: u64| second as f64 / (last * unit) as f64;
    let mut chart = Chart::new(COLUMNS);
    chart.title(format!("{what}, over {units}"));
    let axis = NumberAxis::new(&mut chart, HEIGHT, [floor(lowest).map_or(lowest, |floor| floor.min(lowest)), highest]);
    axis.draw_ground(&mut chart);
    for (index, card) in story.cards.iter().enumerate() {
        let middle = |stretch: &Stretch| COLUMNS as f64 * (part(stretch.first.step) + part(stretch.last.step)) / 2.0;
        draw(&mut chart, of(card), CLASSES[index.min(CLASSES.len() - 1)], middle, |value| axis.y(value));
    }
    let row = chart.extend(LINE + 6.0) + 4.0;
    chart.ticks_across(row, [0, last], |n| part(n * unit));
    Some(chart)
}
