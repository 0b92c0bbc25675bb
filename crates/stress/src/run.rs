//! Runs the protocol: prepares the workloads, then phase after phase, each turn followed by the pause that its load and the
//! card's heat require.

use crate::device::{OpenDevice, StressError};
use crate::findings::{Ending, Findings, MemoryFilled, PhaseRun, Readings, Series, WrongResults};
use crate::parts::Burst;
use crate::protocol::{Phase, PhaseRange};
use crate::rig::{Rig, Turn, run_tf32_product};
use crate::sizes::{Sizes, measured_rate};
use crate::watch::{Watch, WatchSettings, larger_use};
use plimsoll_exec::DeviceError;
use plimsoll_graph::{GraphError, Targets};
use plimsoll_plan::Precision;
use plimsoll_train::TrainError;
use plimsoll_units::{Bytes, Seconds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest turn of a round, and the part of the duration that a run of a workload may take.
const TURN: Duration = Duration::from_millis(500);
const RUN_OF_DURATION: u32 = 200;

/// The part of the duration that a lap of training takes, and the longest lap.
const LAP_OF_DURATION: u32 = 20;
const LAP: Duration = Duration::from_secs(5);

/// A device to test.
#[derive(Clone, Copy)]
pub struct DeviceUnderTest<'a> {
    /// Opens it.
    pub open: OpenDevice<'a>,
    /// Its properties for plans.
    pub targets: Targets,
    /// The precision of training steps.
    pub precision: Precision,
    /// Whether it multiplies in TF32.
    pub has_tf32: bool,
}

/// What is to run.
#[derive(Clone)]
pub struct Protocol {
    /// The phases.
    pub phases: PhaseRange,
    /// Their time together.
    pub duration: Duration,
    /// Bytes to fill.
    pub memory: Bytes,
    /// The memory of which they are a part; `None` for all of the card's, as its driver reports it.
    pub budget: Option<Bytes>,
    /// How the card is watched; `None` on the processor.
    pub watch: Option<WatchSettings>,
}

impl From<GraphError> for StressError {
    fn from(error: GraphError) -> Self {
        Self::Plan(error.into())
    }
}

impl From<DeviceError> for StressError {
    fn from(error: DeviceError) -> Self {
        Self::Train(error.into())
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct StressOutcome {
    /// What was found until the end.
    pub findings: Findings,
    /// The error that ended the run.
    pub error: Option<TrainError>,
}

/// Runs the protocol until its end, `stop`, heat, or a failure of the device. `began`: called when a phase begins, with the time
/// that it may take. Errors: the device fails before the first phase.
pub fn run(
    protocol: &Protocol,
    device: DeviceUnderTest,
    stop: &AtomicBool,
    began: &mut dyn FnMut(&Phase, Duration),
) -> Result<StressOutcome, StressError> {
    let watch = Watch::start(protocol.watch.as_ref()).map_err(StressError::NoSampler)?;
    let DeviceUnderTest { open, targets, precision, has_tf32 } = device;
    let each = (protocol.duration / RUN_OF_DURATION).min(TURN);
    let sizes = Sizes::for_rate(measured_rate(open, &targets, protocol.memory)?, each, &targets)?;
    let (mut wrong, mut series, mut tf32_size) = (WrongResults::default(), Vec::new(), None);
    if has_tf32 && protocol.phases.contains(1) {
        // TF32 is a property of a loaded plan, so this product has its own.
        let time = protocol.duration.mul_f64(0.01).min(TURN);
        let (product, burst) = run_tf32_product(open, &targets, sizes.product, time, &mut wrong)?;
        record(&mut series, &product.label, burst, 1.0);
        tf32_size = Some((product.label, product.size));
    }
    let lap = (protocol.duration / LAP_OF_DURATION).min(LAP);
    let rig = Rig::new(open, &targets, precision, sizes, (protocol.memory, lap), &mut wrong)?;
    let memory = rig.memory(protocol.budget)?;
    let mut session = Session { rig, watch, stop, wrong, series, phases: vec![], tf32_size };
    let start = Instant::now();
    let error = session.run(&protocol.phases.within(protocol.duration), began).err();
    let ran = Seconds(start.elapsed().as_secs_f64());
    Ok(session.conclude(protocol, memory, ran, error))
}

/// A run in progress.
struct Session<'a> {
    rig: Rig,
    watch: Watch,
    stop: &'a AtomicBool,
    wrong: WrongResults,
    series: Vec<Series>,
    phases: Vec<PhaseRun>,
    /// Name and size of the product in TF32, if it ran.
    tf32_size: Option<(String, String)>,
}

impl Session<'_> {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.watch.is_too_hot()
    }

    fn run(
        &mut self,
        phases: &[(&'static Phase, Duration)],
        began: &mut dyn FnMut(&Phase, Duration),
    ) -> Result<(), TrainError> {
        for &(phase, time) in phases {
            if self.is_over() {
                return Ok(());
            }
            began(phase, time);
            let start = Instant::now();
            let result = self.run_phase(phase, time);
            let (planned, ran) = (Seconds(time.as_secs_f64()), Seconds(start.elapsed().as_secs_f64()));
            self.phases.push(PhaseRun { number: phase.number, name: phase.name, planned, ran });
            result?;
        }
        let (watch, stop) = (&self.watch, self.stop);
        self.rig.check_memory(&mut self.wrong, &|| stop.load(Ordering::Relaxed) || watch.is_too_hot())
    }

    fn run_phase(&mut self, phase: &Phase, time: Duration) -> Result<(), TrainError> {
        let turns = phase.round.iter().flat_map(|kind| self.rig.turns(*kind)).collect::<Vec<_>>();
        let of_load = time / phase.loads.len() as u32;
        let share = of_load / turns.len() as u32;
        let mut round = turns.iter().enumerate().cycle();
        let (mut end, mut is_whole) = (Instant::now(), false);
        for &load in phase.loads {
            end += of_load;
            // Each workload runs at least once, also in a short phase.
            while (Instant::now() < end || !is_whole) && !self.is_over() {
                if !self.watch.wait_after(Duration::ZERO, load, end, self.stop) && Instant::now() >= end {
                    break;
                }
                let (place, &turn) = round.next().expect("a cycle has no end");
                is_whole |= place + 1 == turns.len();
                let of_turn = if phase.has_one_round { share } else { share.min(TURN) };
                self.run_turn(turn, of_turn, load, end)?;
            }
        }
        Ok(())
    }

    /// Runs a workload for its time, which includes pauses, in parts that heat can hold back. Pauses end with the phase.
    fn run_turn(&mut self, turn: Turn, time: Duration, load: f64, end: Instant) -> Result<(), TrainError> {
        let start = Instant::now();
        loop {
            let left = time.saturating_sub(start.elapsed()).min(TURN);
            let Some(burst) = self.rig.run(turn, left.mul_f64(load), &mut self.wrong)? else { return Ok(()) };
            record(&mut self.series, self.rig.label(turn), burst, load);
            let may_work = self.watch.wait_after(burst.busy, load, end, self.stop);
            if !may_work || start.elapsed() >= time || self.is_over() {
                return Ok(());
            }
        }
    }

    fn conclude(
        self,
        protocol: &Protocol,
        memory: MemoryFilled,
        ran: Seconds,
        error: Option<TrainError>,
    ) -> StressOutcome {
        let is_too_hot = self.watch.is_too_hot();
        let readings = self.watch.finish();
        let ending = match &error {
            Some(error) => Ending::Failed(error.to_string()),
            None if is_too_hot => Ending::TooHot,
            None if self.stop.load(Ordering::Relaxed) => Ending::Interrupted,
            None => Ending::Finished,
        };
        // The driver of a card that failed can't be asked again.
        let last = if error.is_none() { self.rig.memory(protocol.budget).ok() } else { None };
        let compared = last.map_or(memory.compared, |last| last.compared);
        let sampled = readings.as_ref().filter(|_| memory.is_of_card).and_then(|readings: &Readings| readings.used);
        let (used, of) = larger_use(memory.used, memory.of, sampled);
        let findings = Findings {
            phases: self.phases,
            sizes: self.rig.sizes().into_iter().chain(self.tf32_size).collect(),
            series: self.series,
            memory: MemoryFilled { compared, used, of, ..memory },
            wrong: self.wrong,
            readings,
            ending,
            planned: Seconds(protocol.duration.as_secs_f64()),
            ran,
        };
        StressOutcome { findings, error }
    }
}

/// Adds a turn to the series of its workload. Only speeds at full load are comparable: clocks fall in pauses.
fn record(series: &mut Vec<Series>, workload: &str, burst: Burst, load: f64) {
    let index = series.iter().position(|known| known.workload == workload).unwrap_or_else(|| {
        let empty = Series { workload: workload.to_owned(), unit: burst.unit, speeds: vec![], busy: Seconds(0.0) };
        series.push(empty);
        series.len() - 1
    });
    let seconds = burst.busy.as_secs_f64().max(1e-9);
    if load >= 1.0 {
        series[index].speeds.push(burst.work / seconds);
        series[index].busy.0 += seconds;
    }
}
