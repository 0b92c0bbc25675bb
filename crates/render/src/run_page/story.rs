//! The data of a run's page: its journal, its samples of the machine, its plan. None of it is trusted; data that is
//! missing or damaged is left out. Not here: the files themselves, which the caller reads.

use plimsoll_plan::{Plan, validate};
use plimsoll_telemetry::{Attempts, CardSample, Curve, Sample};
use plimsoll_train::Report;
use plimsoll_watch::{RunView, Standing};
use std::io::{self, ErrorKind};

/// The maximum number of cards that are shown.
const CARDS: usize = 8;

/// The longest gap between samples across which energy is counted.
const GAP_S: f64 = 150.0;

/// A run.
pub struct RunStory {
    /// The contents of its journal and files, as in all views.
    pub run: RunView,
    /// report.json, if the last session wrote it.
    pub report: Option<Report>,
    /// The cards during the run.
    pub cards: Vec<CardStory>,
    /// The time between the first and the last sample.
    pub sampled_s: u64,
    /// Its plan, if that is valid.
    pub plan: Option<Plan>,
    /// Its attempts and how they ended.
    pub attempts: Attempts,
}

/// A card during a run. Curves are over seconds since the first sample.
#[derive(Debug, Default)]
pub struct CardStory {
    /// NVML's number.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Temperatures of the core.
    pub temperature_c: Curve,
    /// Its power.
    pub power_w: Curve,
    /// Energy that it used between samples, for any process.
    pub energy_j: Option<f64>,
    slowdown_c: Option<f64>,
    /// Time and power of the newest sample.
    newest: Option<(f64, f64)>,
}

impl RunStory {
    /// A run with its attempts, the text of its report.json, the bytes of its plan.json (empty if there is none), and its samples in
    /// their order, which are read once. A report that can't be read becomes a problem of the run.
    pub fn new(
        mut run: RunView,
        report: io::Result<String>,
        plan: &[u8],
        samples: impl Iterator<Item = Sample>,
        attempts: Attempts,
    ) -> Self {
        let report = last_report(report, &mut run);
        let (cards, sampled_s) = cards(samples);
        Self { run, report, cards, sampled_s, plan: sound_plan(plan), attempts }
    }

    /// What its losses are the mean of, with their unit; those of preferences have none.
    pub(super) fn loss_unit(&self) -> &'static str {
        if self.plan.as_ref().is_some_and(Plan::compares) { "mean of examples" } else { "nats per token" }
    }

    /// The energy of all cards together, in joules.
    pub fn energy_j(&self) -> Option<f64> {
        self.cards.iter().filter_map(|card| card.energy_j).reduce(|a, b| a + b)
    }
}

/// The run's own summary at its end. `None` while it is running, and if the report is from an earlier session.
fn last_report(text: io::Result<String>, run: &mut RunView) -> Option<Report> {
    if matches!(run.standing, Standing::Running | Standing::CutShort | Standing::NotStarted) {
        return None;
    }
    let text = match text {
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

/// A plan that can be drawn: all of its indices are in bounds, and its validator accepts it.
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

/// The cards of a run's samples, and the seconds that the samples span.
fn cards(samples: impl Iterator<Item = Sample>) -> (Vec<CardStory>, u64) {
    let mut cards = Vec::<CardStory>::new();
    let (mut first_s, mut last_s) = (None, 0);
    for sample in samples {
        let since = sample.time_s - *first_s.get_or_insert(sample.time_s);
        for card in sample.cards.iter().filter(|_| since >= 0.0) {
            last_s = last_s.max(since as u64);
            let known = cards.iter().position(|known| known.uuid == card.uuid && known.index == card.index);
            let place = known.or_else(|| {
                (cards.len() < CARDS).then(|| {
                    cards.push(CardStory { index: card.index, uuid: card.uuid.clone(), ..CardStory::default() });
                    cards.len() - 1
                })
            });
            if let Some(place) = place {
                cards[place].add(card, since);
            }
        }
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

    /// The temperature from which the card slows down.
    pub fn slowdown_c(&self) -> Option<f64> {
        self.slowdown_c
    }

    /// `card 0, NAME`
    pub fn title(&self) -> String {
        format!("GPU {}, {}", self.index, if self.name.is_empty() { "-" } else { &self.name })
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
            // The card did not report a reading, and then no sample was taken.
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
