//! Reports once if a run is much slower than its plan predicted, with possible causes; and on a GPU whose memory Windows may
//! move to the host, once more if it becomes much slower later.

use crate::streams::talk;
use plimsoll_session::Control;
use plimsoll_telemetry::{Event, Sample, Sink};
use plimsoll_units::{Seconds, format_duration};

/// Time of steps before a comparison, without the first step.
const JUDGED_AFTER: Seconds = Seconds(20.0);

/// The least number of steps before a comparison with the steps before them.
const FEWEST_STEPS: usize = 3;

/// The least ratio of measured to predicted time to report.
const SLOW: f64 = 2.0;

/// The least share of time in which tasks waited for a core, or for memory, to report.
const PRESSURE_PERCENT: f64 = 20.0;

/// The least share of the cores in use by other processes to report.
const BUSY_PERCENT: f64 = 20.0;

/// Possible causes of a slow run.
#[derive(Debug, Clone, PartialEq, Default)]
struct Circumstances {
    /// Whether the step computes on a card.
    is_on_card: bool,
    /// The share of the cores' time that all processes use, less what the run's threads can use.
    busy_by_others_percent: Option<f64>,
    /// The share of the time in which a task waited for a core.
    cpu_pressure_percent: Option<f64>,
    /// The same for memory.
    memory_pressure_percent: Option<f64>,
    /// Whether the card is throttled for heat, and for its power limit.
    throttled: [bool; 2],
    /// Other processes that compute on the card.
    others_on_card: usize,
    /// Whether Windows may move the card's memory to the host.
    may_be_moved: bool,
    /// Whether the prediction comes from measurements of this device.
    is_calibrated: bool,
}

impl Circumstances {
    /// From a sample, for a run on the card with this UUID or on this many threads of the processor. Not whether memory may be
    /// moved.
    fn of(sample: &Sample, card: Option<&str>, threads: usize, is_calibrated: bool) -> Self {
        let found = sample.cards.iter().find(|found| Some(found.uuid.as_str()) == card);
        let throttling = found.and_then(|card| card.throttling);
        let computes = |card: &plimsoll_telemetry::CardSample| card.processes.iter().filter(|p| p.computes).count();
        let system = &sample.system;
        let own = |cores: u32| if card.is_some() { 0.0 } else { 100.0 * threads as f64 / f64::from(cores.max(1)) };
        let busy = system.cpu_percent.zip(system.cores).map(|(busy, cores)| busy - own(cores).min(100.0));
        Self {
            is_on_card: card.is_some(),
            busy_by_others_percent: busy,
            cpu_pressure_percent: system.cpu_pressure_percent,
            memory_pressure_percent: system.memory_pressure_percent,
            throttled: [throttling.is_some_and(|t| t.is_thermal()), throttling.is_some_and(|t| t.is_power())],
            others_on_card: found.map_or(0, computes).saturating_sub(1),
            may_be_moved: false,
            is_calibrated,
        }
    }

    /// The unusual conditions, in words.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let [is_hot, is_limited] = self.throttled;
        reasons.extend((self.others_on_card > 0).then(|| match self.others_on_card {
            1 => "another process computes on the GPU".to_owned(),
            others => format!("{others} other processes compute on the GPU"),
        }));
        reasons.extend(is_hot.then(|| "the GPU is throttled for heat".to_owned()));
        reasons.extend((is_limited && !is_hot).then(|| "the GPU is throttled by its power limit".to_owned()));
        let pressure = self.cpu_pressure_percent.filter(|percent| *percent >= PRESSURE_PERCENT);
        let busy = self.busy_by_others_percent.filter(|percent| *percent >= BUSY_PERCENT);
        reasons.extend(match (pressure, busy) {
            (Some(percent), _) => {
                Some(format!("the processor is busy: tasks waited for a core {percent:.0} % of the time"))
            }
            (None, Some(percent)) => Some(format!("the processor is busy: other processes use {percent:.0} % of it")),
            (None, None) => None,
        });
        let pressure = self.memory_pressure_percent.filter(|percent| *percent >= PRESSURE_PERCENT);
        reasons
            .extend(pressure.map(|percent| format!("memory is short: tasks waited for it {percent:.0} % of the time")));
        reasons.extend(self.may_be_moved.then(|| {
            "Windows may have moved GPU memory to the host, which `CUDA - Sysmem Fallback Policy: Prefer No Sysmem Fallback` in the \
             NVIDIA control panel prevents; close programs that use the GPU, or use a smaller `--vram`"
                .to_owned()
        }));
        if !self.is_calibrated {
            let device = if self.is_on_card { "this GPU" } else { "this processor" };
            reasons.push(format!("the prediction is an estimate until `plimsoll calibrate` has measured {device}"));
        }
        reasons
    }
}

/// The note that steps take much longer than expected, with possible causes; `None` if they do not. `expectation`: what the
/// expected time is.
fn slow(expected: Seconds, expectation: &str, measured: Seconds, around: &Circumstances) -> Option<String> {
    let times = measured.0 / expected.0;
    if !times.is_finite() || times < SLOW {
        return None;
    }
    let shown = |time: Seconds| match time.0 < 10.0 {
        true => format!("{:.0} ms", time.0 * 1e3),
        false => format_duration(time),
    };
    let reasons = around.reasons();
    let why = if reasons.is_empty() { "the system reports no cause".to_owned() } else { reasons.join("; ") };
    Some(format!("note: a step takes {}, {times:.1} times {expectation} {}: {why}", shown(measured), shown(expected)))
}

/// What comparisons know of a run's device.
pub(super) struct ComparedDevice {
    /// UUID of the run's card.
    pub(super) card: Option<String>,
    pub(super) threads: usize,
    /// Whether the prediction comes from measurements of this device.
    pub(super) is_calibrated: bool,
    /// Whether Windows may move the card's memory to the host.
    pub(super) may_be_moved: bool,
}

/// Compares a run's steps with their prediction, once, and with the steps before them if memory may be moved.
pub(super) struct Compared {
    control: Control,
    device: ComparedDevice,
    comparison: Comparison,
}

impl Compared {
    pub(super) fn new(predicted: Seconds, control: Control, device: ComparedDevice) -> Self {
        let comparison = Comparison::new(predicted, device.may_be_moved);
        Self { control, device, comparison }
    }
}

impl Sink for Compared {
    fn take(&mut self, event: &Event) {
        let Event::Step { step_ms, .. } = event else { return };
        let Self { control, device, comparison } = self;
        let around = || {
            let ComparedDevice { card, threads, is_calibrated, may_be_moved } = device;
            let around = match control.latest_sample() {
                Some(sample) => Circumstances::of(&sample, card.as_deref(), *threads, *is_calibrated),
                None => Circumstances { is_calibrated: *is_calibrated, ..Circumstances::default() },
            };
            Circumstances { may_be_moved: *may_be_moved, ..around }
        };
        comparison.after(step_ms / 1e3, around).into_iter().for_each(talk);
    }
}

/// A comparison of times, independent of where they come from.
struct Comparison {
    predicted: Seconds,
    /// Whether later steps are compared with earlier ones.
    continues: bool,
    /// Seconds of the steps since the last comparison.
    steps: Vec<f64>,
    /// Whether the first step is over, which is not compared.
    has_begun: bool,
    /// The shortest median of a comparison. `None` before the first.
    usual: Option<f64>,
    is_done: bool,
}

impl Comparison {
    fn new(predicted: Seconds, continues: bool) -> Self {
        Self { predicted, continues, steps: Vec::new(), has_begun: false, usual: None, is_done: false }
    }

    /// The note after a step of this many seconds, if one is due.
    fn after(&mut self, seconds: f64, around: impl FnOnce() -> Circumstances) -> Option<String> {
        if self.is_done || !self.has_begun {
            self.has_begun = true;
            return None;
        }
        self.steps.push(seconds);
        let fewest = if self.usual.is_some() { FEWEST_STEPS } else { 1 };
        if self.steps.iter().sum::<f64>() < JUDGED_AFTER.0 || self.steps.len() < fewest {
            return None;
        }
        self.steps.sort_by(f64::total_cmp);
        let median = self.steps[self.steps.len() / 2];
        self.steps.clear();
        let note = match self.usual {
            None => slow(self.predicted, "the predicted", Seconds(median), &around()),
            Some(usual) => slow(Seconds(usual), "the earlier", Seconds(median), &around()),
        };
        self.is_done = !self.continues || note.is_some();
        self.usual = Some(self.usual.map_or(median, |usual| usual.min(median)));
        note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_run_says_what_may_slow_it_down() {
        let calm = Circumstances { is_calibrated: true, cpu_pressure_percent: Some(3.0), ..Circumstances::default() };
        let said = |measured, around: &Circumstances| slow(Seconds(0.5), "the predicted", Seconds(measured), around);
        assert_eq!(said(0.9, &calm), None);
        assert_eq!(
            said(1.5, &calm).as_deref(),
            Some("note: a step takes 1500 ms, 3.0 times the predicted 500 ms: the system reports no cause")
        );
        for (around, words) in [
            (Circumstances { cpu_pressure_percent: Some(61.0), ..calm.clone() }, "waited for a core 61 % of the time"),
            (Circumstances { busy_by_others_percent: Some(48.0), ..calm.clone() }, "other processes use 48 % of it"),
            (Circumstances { memory_pressure_percent: Some(30.0), ..calm.clone() }, "memory is short"),
            (Circumstances { throttled: [true, true], ..calm.clone() }, ": the GPU is throttled for heat"),
            (Circumstances { throttled: [false, true], ..calm.clone() }, "throttled by its power limit"),
            (Circumstances { others_on_card: 1, ..calm.clone() }, "another process computes on the GPU"),
            (Circumstances { others_on_card: 2, ..calm.clone() }, "2 other processes compute on the GPU"),
            (Circumstances { may_be_moved: true, ..calm.clone() }, "Prefer No Sysmem Fallback"),
            (
                Circumstances { is_calibrated: false, ..calm.clone() },
                "`plimsoll calibrate` has measured this processor",
            ),
            (Circumstances { is_calibrated: false, is_on_card: true, ..calm.clone() }, "has measured this GPU"),
        ] {
            let sentence = said(1.5, &around).expect("slow");
            assert!(sentence.contains(words) && !sentence.contains("no cause"), "{words}: {sentence}");
        }
    }

    /// The notes after steps of these seconds, of which one is predicted.
    fn notes(may_be_moved: bool, steps: impl IntoIterator<Item = f64>) -> Vec<String> {
        let mut comparison = Comparison::new(Seconds(1.0), may_be_moved);
        let around = || Circumstances { may_be_moved, is_calibrated: true, ..Circumstances::default() };
        steps.into_iter().filter_map(|seconds| comparison.after(seconds, around)).collect()
    }

    #[test]
    fn a_run_is_compared_with_its_prediction_once_without_its_first_step() {
        assert_eq!(notes(false, [90.0].into_iter().chain([1.1; 30]).chain([9.0; 30])), [""; 0]);
        let said = notes(false, [3.0; 60]);
        assert!(said.len() == 1 && said[0].contains("3000 ms, 3.0 times the predicted 1000 ms"), "{said:?}");
    }

    /// One slow step among fast ones, such as one that waited for a checkpoint, is not a slow run.
    #[test]
    fn memory_that_is_moved_later_is_noticed_once() {
        let fast = || [90.0].into_iter().chain([1.0; 60]).chain([40.0]).chain([1.0; 60]);
        assert_eq!(notes(true, fast()), [""; 0]);
        let said = notes(true, fast().chain([4.0; 60]));
        assert!(said.len() == 1 && said[0].contains("4000 ms, 4.0 times the earlier 1000 ms: Windows"), "{said:?}");
    }

    #[test]
    fn own_use_of_the_cores_does_not_count_as_others() {
        let mut sample = Sample { time_s: 0.0, cards: vec![], system: plimsoll_telemetry::SystemSample::default() };
        (sample.system.cpu_percent, sample.system.cores) = (Some(100.0), Some(4));
        assert_eq!(Circumstances::of(&sample, None, 4, true).busy_by_others_percent, Some(0.0));
        assert_eq!(Circumstances::of(&sample, None, 1, true).busy_by_others_percent, Some(75.0));
        assert_eq!(Circumstances::of(&sample, Some("GPU-a"), 4, true).busy_by_others_percent, Some(100.0));
    }
}
