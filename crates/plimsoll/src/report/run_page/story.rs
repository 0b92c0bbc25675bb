//! Everything that a run's folder tells for a report: its journal, its samples of the machine, its plan. Nothing in the folder is
//! trusted; what is missing or damaged is left out.

use plimsoll_files::{read_inside, read_text_inside};
use plimsoll_plan::{Plan, validate};
use plimsoll_telemetry::{CardSample, Curve, history, history_span};
use plimsoll_train::Report;
use plimsoll_units::Bytes;
use plimsoll_watch::{Kind, RunFollower, RunView, Standing, WatchError};
use std::io::ErrorKind;
use std::path::Path;

/// Far more than the plan of a model that fits a card.
const PLAN_BYTES_MAX: Bytes = Bytes::mib(64);

/// Room for the losses of some million steps.
const REPORT_BYTES_MAX: Bytes = Bytes::mib(128);

/// Hours of samples that are read, the newest: two years.
const HOURS_MAX: f64 = 17_520.0;

/// Cards of a machine that are shown.
const CARDS: usize = 8;

/// Between samples that are further apart nobody knows what was used.
const GAP_S: f64 = 150.0;

/// A run.
pub struct RunStory {
    /// What its journal and its files tell, as all views have it.
    pub run: RunView,
    /// report.json, if it is of the last session.
    pub report: Option<Report>,
    /// The cards while it ran.
    pub cards: Vec<CardStory>,
    /// Between the first and the last sample.
    pub sampled_s: u64,
    /// Its plan, if that is sound.
    pub plan: Option<Plan>,
}

/// A card while a run ran. Curves go over seconds since the first sample.
#[derive(Debug, Default)]
pub struct CardStory {
    /// NVML's number.
    pub index: u32,
    /// Its own number.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Of the core.
    pub temperature_c: Curve,
    /// What it drew.
    pub power_w: Curve,
    /// What it used between samples, whoever computed.
    pub energy_j: Option<f64>,
    slowdown_c: Option<f64>,
    /// Time and power of the newest sample.
    newest: Option<(f64, f64)>,
}

impl RunStory {
    /// Reads a run's folder. Errors: it has no journal that can be read, or it is of a program that is kept alive.
    pub fn read(folder: &Path) -> Result<Self, WatchError> {
        let mut run = RunView::clone(RunFollower::open(folder)?.view());
        if run.kind != Kind::Train {
            return Err(WatchError::NotARun { folder: folder.to_owned() });
        }
        let report = report(folder, &mut run);
        let (cards, sampled_s) = cards(folder);
        let plan = read_inside(&folder.join("plan.json"), 1, PLAN_BYTES_MAX).ok().and_then(|bytes| sound_plan(&bytes));
        Ok(Self { run, report, cards, sampled_s, plan })
    }

    /// What all cards used together, in joules.
    pub fn energy_j(&self) -> Option<f64> {
        self.cards.iter().filter_map(|card| card.energy_j).reduce(|a, b| a + b)
    }
}

/// What the run itself summed up at its end; none while it is going, and of an earlier session. One that can't be read is a problem.
fn report(folder: &Path, run: &mut RunView) -> Option<Report> {
    if matches!(run.standing, Standing::Running | Standing::CutShort | Standing::NotStarted) {
        return None;
    }
    let text = match read_text_inside(&folder.join("report.json"), 1, REPORT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) => {
            let is_there = error.kind() != ErrorKind::NotFound;
            run.problems.extend(is_there.then(|| format!("report.json can't be read: {error}")));
            return None;
        }
    };
    let report = serde_json::from_str::<Report>(&text);
    let report = report.map_err(|error| run.problems.push(format!("report.json is damaged: {error}"))).ok();
    report.filter(|report| report.losses.len() as u64 >= run.step)
}

/// A plan that can be drawn: nothing in it points out of it, and its validator accepts it.
fn sound_plan(json: &[u8]) -> Option<Plan> {
    let plan = serde_json::from_slice::<Plan>(json).ok()?;
    let is_there = |id: plimsoll_graph::TensorId| id.index() < plan.tensors.len();
    let is_sound = plan.programs.iter().all(|program| {
        let of_steps = program.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.outputs).copied());
        of_steps.chain(program.ports.fed()).chain(program.ports.fetched()).all(is_there)
    });
    let has_sizes = plan.tensors.iter().all(|tensor| {
        let elements = tensor.ty.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64));
        let bytes = elements.and_then(|elements| elements.checked_mul(tensor.ty.dtype.size_bytes()));
        bytes.is_some_and(|bytes| tensor.offset.checked_add(bytes).is_some_and(|end| end < u64::MAX / 4))
    });
    (is_sound && has_sizes && !plan.programs.is_empty() && validate(&plan).is_ok()).then_some(plan)
}

/// The cards of a run's samples, which are read an hour at a time, and the seconds that they span.
fn cards(folder: &Path) -> (Vec<CardStory>, u64) {
    let mut cards = Vec::<CardStory>::new();
    let Some(span) = history_span(folder) else { return (cards, 0) };
    let (mut first_s, mut last_s) = (None, 0);
    let mut hour = span.start.max(span.end - 3600.0 * HOURS_MAX);
    while hour < span.end {
        // An hour that can't be read is left out.
        for sample in history(folder, hour..hour + 3600.0).unwrap_or_default() {
            let since = sample.time_s - *first_s.get_or_insert(sample.time_s);
            for card in sample.cards.iter().filter(|_| since >= 0.0) {
                last_s = last_s.max(since as u64);
                let known = cards.iter().position(|known| known.uuid == card.uuid && known.index == card.index);
                let place = known.or_else(|| {
                    cards.push(CardStory { index: card.index, uuid: card.uuid.clone(), ..CardStory::default() });
                    Some(cards.len() - 1)
                });
                if let Some(story) = place.filter(|place| *place < CARDS).and_then(|place| cards.get_mut(place)) {
                    story.add(card, since);
                }
            }
            cards.truncate(CARDS);
        }
        hour += 3600.0;
    }
    (cards, last_s)
}

impl CardStory {
    fn add(&mut self, card: &CardSample, since_s: f64) {
        self.name.clone_from(&card.name);
        self.slowdown_c = card.limits.slowdown_c.or(self.slowdown_c);
        if let Some(celsius) = card.temperature_c {
            self.temperature_c.push(since_s as u64, celsius);
        }
        let Some(watts) = card.power_w.filter(|watts| watts.is_finite()) else {
            self.newest = None;
            return;
        };
        self.power_w.push(since_s as u64, watts);
        if let Some((before_s, before_w)) = self.newest
            && (0.0..GAP_S).contains(&(since_s - before_s))
        {
            *self.energy_j.get_or_insert(0.0) += (since_s - before_s) * (before_w + watts) / 2.0;
        }
        self.newest = Some((since_s, watts));
    }

    /// From here on it slows itself down.
    pub fn slowdown_c(&self) -> Option<f64> {
        self.slowdown_c
    }

    /// `card 0, NAME`
    pub fn title(&self) -> String {
        format!("card {}, {}", self.index, if self.name.is_empty() { "-" } else { &self.name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_power_over_time_and_nothing_is_known_of_gaps() {
        let mut story = CardStory::default();
        let card = |power_w| CardSample { power_w, ..CardSample::default() };
        for (since_s, power_w) in [
            (0.0, Some(100.0)),
            (10.0, Some(200.0)),
            // The card did not tell, and then nobody looked.
            (20.0, None),
            (30.0, Some(200.0)),
            (1000.0, Some(200.0)),
            (1001.0, Some(200.0)),
            // A clock that was set back.
            (900.0, Some(200.0)),
        ] {
            story.add(&card(power_w), since_s);
        }
        assert_eq!(story.energy_j, Some(1500.0 + 200.0));
        let mut silent = CardStory::default();
        (0..5).for_each(|n| silent.add(&card(None), f64::from(n)));
        assert_eq!(silent.energy_j, None);
    }

    #[test]
    fn a_plan_that_points_out_of_itself_is_not_drawn() {
        for text in ["", "{}", "null", "[1,2]", "\u{0}"] {
            assert!(sound_plan(text.as_bytes()).is_none());
        }
    }
}
