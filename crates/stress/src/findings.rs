//! What a run of the protocol found: values, without verdicts (`verdict.rs`) and words.

use plimsoll_telemetry::Throttling;
use plimsoll_units::{Bytes, Seconds};

/// The number of mismatches that are kept with their addresses. All are counted.
const KEPT: usize = 16;

/// Everything that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// The phases that ran.
    pub phases: Vec<PhaseRun>,
    /// Workloads with their sizes, in words: `product, bf16` and `8192 x 8192 x 8192`.
    pub sizes: Vec<(String, String)>,
    /// Speeds of workloads.
    pub series: Vec<Series>,
    /// The filled memory.
    pub memory: MemoryFilled,
    /// Wrong results.
    pub wrong: WrongResults,
    /// Readings of the card; `None` on the processor.
    pub readings: Option<Readings>,
    /// How the run ended.
    pub ending: Ending,
    /// The requested duration.
    pub planned: Seconds,
    /// The time from the first workload to the end.
    pub ran: Seconds,
}

/// A phase that ran.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseRun {
    /// Its number.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// Its planned duration.
    pub planned: Seconds,
    /// Its real duration.
    pub ran: Seconds,
}

/// What a speed counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Floating-point operations.
    Flops,
    /// Bytes.
    Bytes,
    /// Tokens.
    Tokens,
}

/// The speeds of a workload over the run. Pauses are not part of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The workload.
    pub workload: String,
    /// What is counted.
    pub unit: Unit,
    /// Speed of each turn at full load, per second.
    pub speeds: Vec<f64>,
    /// Time of these turns.
    pub busy: Seconds,
}

impl Series {
    /// The median speed.
    pub fn median(&self) -> f64 {
        let mut sorted = self.speeds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    /// The speed that nine of ten turns reach, as a fraction of the median.
    pub fn slow_part(&self) -> f64 {
        let mut sorted = self.speeds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 10).map_or(0.0, |slow| slow / self.median())
    }
}

/// The memory that is filled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryFilled {
    /// Bytes of the plan on the device.
    pub reserved: Bytes,
    /// Bytes with patterns.
    pub patterned: Bytes,
    /// Bytes of patterns that were compared, over all passes.
    pub compared: Bytes,
    /// Memory in use.
    pub used: Bytes,
    /// The memory of which `used` is a part: the budget, or all of the card.
    pub of: Bytes,
    /// Whether `used` and `of` are the driver's figures for the whole card.
    pub is_of_card: bool,
}

/// A value that differs from its known answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// The workload.
    pub workload: String,
    /// Its offset in the arena of the device, or of the host if `on_host`.
    pub offset: u64,
    /// Whether it is in the host's arena.
    pub on_host: bool,
    /// The bits that were found and expected; `None` if a result differed from an earlier one and the difference was gone
    /// before it was read.
    pub bits: Option<[u32; 2]>,
}

impl Mismatch {
    /// The bits that differ.
    pub fn differing(&self) -> u32 {
        self.bits.map_or(0, |[found, expected]| found ^ expected)
    }
}

/// All mismatches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WrongResults {
    /// Number of wrong values.
    pub values: u64,
    /// Number of wrong bits in them; at least one for each value.
    pub bits: u64,
    /// Number of comparisons of a result, a block of memory or a loss with its known answer.
    pub checks: u64,
    /// The first mismatches.
    pub first: Vec<Mismatch>,
}

impl WrongResults {
    /// Adds one mismatch.
    pub(crate) fn add(&mut self, mismatch: Mismatch) {
        let bits = u64::from(mismatch.differing().count_ones().max(1));
        self.add_all([1, bits], [mismatch]);
    }

    /// Adds this many wrong values with this many wrong bits, of which some are known with their places.
    pub(crate) fn add_all(&mut self, [values, bits]: [u64; 2], first: impl IntoIterator<Item = Mismatch>) {
        self.values += values;
        self.bits += bits;
        let room = KEPT - self.first.len();
        self.first.extend(first.into_iter().take(room));
    }
}

/// Readings of the card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    /// Number of samples with the card.
    pub samples: u64,
    /// The highest temperature of the core, °C.
    pub hottest_c: Option<f64>,
    /// The highest temperature that the core held for `verdict::SUSTAINED`, or for the whole run if that is shorter, °C.
    pub sustained_c: Option<f64>,
    /// The highest temperature of the memory, °C.
    pub memory_c: Option<f64>,
    /// Mean and highest power draw, W.
    pub power_w: Option<[f64; 2]>,
    /// The power limit, W.
    pub power_limit_w: Option<f64>,
    /// Lowest and highest clock of the multiprocessors while it worked, MHz.
    pub clock_mhz: Option<[u32; 2]>,
    /// Reasons for lowered clocks, with the number of samples.
    pub throttling: Vec<(Throttling, u64)>,
    /// New corrected and uncorrected memory errors; `None` if the card counts none.
    pub ecc: Option<[u64; 2]>,
    /// Error numbers that the driver reported.
    pub xids: Vec<u64>,
    /// The largest used part of the card's memory, and its total.
    pub used: Option<[Bytes; 2]>,
    /// Time for which heat held the work back.
    pub held_back: Seconds,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All phases ran.
    Finished,
    /// It was asked to stop.
    Interrupted,
    /// A card was above its maximum temperature.
    TooHot,
    /// The device failed.
    Failed(String),
}
