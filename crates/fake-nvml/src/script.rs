//! A script of readings over time. Part of the stand-in, compiled into it.
//!
//! ```text
//!   # A line: one or two times in seconds, a card, and what holds from then on.
//!   clock pass                       each call that counts the cards advances 1 s; or `clock real 3600`: 3600 s per real second
//!   0      0 temperature 40          names: below, `NAMES`
//!   0..600 0 temperature 40..84      rises linearly, then stays
//!   300    0 error nvmlDeviceGetPowerUsage 3    the call fails with NVML's code 3; `*` is every call, code 0 ends it
//!   400    0 gone                    the card fell off the bus
//!   500    0 back
//!   500    0 xid 79                  the driver reports an error
//!   500    0 process 4711 300        the process holds 300 MiB; 0 removes it
//!   600    count 1                   the driver reports 1 card
//! ```

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Names of readings. Units are NVML's, except power (W), energy (J) and memory (MiB).
pub const NAMES: &[&str] = &[
    "temperature",
    "memory_temperature",
    "slowdown",
    "shutdown",
    "operating",
    "memory_slowdown",
    "power",
    "power_limit",
    "power_default",
    "power_min",
    "power_max",
    "clock_offset",
    "clock_offset_min",
    "clock_offset_max",
    "memory_clock_offset",
    "memory_clock_offset_min",
    "memory_clock_offset_max",
    "energy",
    "sm_clock",
    "memory_clock",
    "sm_clock_max",
    "memory_clock_max",
    "throttling",
    "performance_state",
    "fans",
    "fan",
    "busy",
    "memory_busy",
    "encoder",
    "decoder",
    "used",
    "reserved",
    "pcie_generation",
    "pcie_lanes",
    "pcie_generation_max",
    "pcie_lanes_max",
    "pcie_received",
    "pcie_sent",
    "replays",
    "ecc_corrected",
    "ecc_uncorrected",
    "retired",
    "remapped",
    "mig",
    "compute_mode",
    "display_active",
];

#[derive(Debug, Default, PartialEq)]
pub struct Script {
    clock: Clock,
    lines: Vec<Line>,
}

#[derive(Debug, Default, PartialEq)]
enum Clock {
    /// A second per call that counts the cards.
    #[default]
    Pass,
    /// This many seconds per real second.
    Real(f64),
}

#[derive(Debug, PartialEq)]
struct Line {
    from: f64,
    to: f64,
    /// `None` for the machine.
    card: Option<usize>,
    what: What,
}

#[derive(Debug, PartialEq)]
enum What {
    Value { name: String, from: f64, to: f64 },
    Error { function: String, code: u32 },
    Gone(bool),
    Xid(u64),
    Process { pid: u32, mib: u64 },
    Count(u32),
}

static PASSES: AtomicU64 = AtomicU64::new(0);
static START: OnceLock<Instant> = OnceLock::new();

impl Script {
    /// Parses a script; an invalid one ends the process.
    pub fn parse(text: &str) -> Self {
        let mut script = Self::default();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            let words = line.split_ascii_whitespace().collect::<Vec<_>>();
            match &words[..] {
                [] => {}
                ["clock", "pass"] => script.clock = Clock::Pass,
                ["clock", "real", speed] => script.clock = Clock::Real(number(speed)),
                [times, rest @ ..] => script.lines.push(Line::parse(times, rest)),
            }
        }
        script
    }

    /// Advances the clock: the cards were counted.
    pub fn pass(&self) {
        PASSES.fetch_add(1, Ordering::Relaxed);
    }

    /// Seconds since the start of the script.
    pub fn now(&self) -> f64 {
        match self.clock {
            Clock::Pass => PASSES.load(Ordering::Relaxed).saturating_sub(1) as f64,
            Clock::Real(speed) => START.get_or_init(Instant::now).elapsed().as_secs_f64() * speed,
        }
    }

    /// Lines about a card, or the machine, that hold at a time; the newest is last.
    fn holding(&self, card: Option<usize>, time: f64) -> impl DoubleEndedIterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.card == card && line.from <= time)
    }

    /// A card's reading.
    pub fn value(&self, card: usize, name: &str, time: f64) -> Option<f64> {
        self.holding(Some(card), time).rev().find_map(|line| match &line.what {
            What::Value { name: of, from, to } if of == name => {
                let part =
                    if line.to > line.from { ((time - line.from) / (line.to - line.from)).min(1.0) } else { 1.0 };
                Some(from + part * (to - from))
            }
            _ => None,
        })
    }

    /// The code with which a call fails, or 0.
    pub fn error(&self, card: usize, function: &str, time: f64) -> u32 {
        const LOST: u32 = 15;
        let code = |line: &Line| match &line.what {
            What::Error { function: of, code } if of == function || of == "*" => Some(*code),
            What::Gone(gone) => Some(if *gone { LOST } else { 0 }),
            _ => None,
        };
        self.holding(Some(card), time).rev().find_map(code).unwrap_or(0)
    }

    /// Xid errors that the driver reported up to a time, in order.
    pub fn xids(&self, card: usize, time: f64) -> Vec<u64> {
        let number = |line: &Line| if let What::Xid(number) = line.what { Some(number) } else { None };
        self.holding(Some(card), time).filter_map(number).collect()
    }

    /// Pids with their MiB.
    pub fn processes(&self, card: usize, time: f64) -> Vec<(u32, u64)> {
        let mut processes: Vec<(u32, u64)> = vec![];
        for line in self.holding(Some(card), time) {
            if let What::Process { pid, mib } = line.what {
                processes.retain(|(known, _)| *known != pid);
                processes.extend((mib > 0).then_some((pid, mib)));
            }
        }
        processes
    }

    /// The number of cards, if the script sets it.
    pub fn count(&self, time: f64) -> Option<u32> {
        self.holding(None, time)
            .rev()
            .find_map(|line| if let What::Count(count) = line.what { Some(count) } else { None })
    }
}

impl Line {
    fn parse(times: &str, words: &[&str]) -> Self {
        let (from, to) = range(times);
        let (card, what) = match words {
            ["count", count] => (None, What::Count(number(count) as u32)),
            [card, what @ ..] => (Some(number(card) as usize), What::parse(what)),
            [] => panic!("a line of a script needs a time, a card and a statement"),
        };
        Self { from, to, card, what }
    }
}

impl What {
    fn parse(words: &[&str]) -> Self {
        match words {
            ["error", function, code] => Self::Error { function: (*function).to_owned(), code: number(code) as u32 },
            ["gone"] => Self::Gone(true),
            ["back"] => Self::Gone(false),
            ["xid", number_of] => Self::Xid(number(number_of) as u64),
            ["process", pid, mib] => Self::Process { pid: number(pid) as u32, mib: number(mib) as u64 },
            [name, value] if NAMES.contains(name) => {
                let (from, to) = range(value);
                Self::Value { name: (*name).to_owned(), from, to }
            }
            other => panic!("unknown statement in a script: {other:?}"),
        }
    }
}

fn range(text: &str) -> (f64, f64) {
    match text.split_once("..") {
        Some((from, to)) => (number(from), number(to)),
        None => (number(text), number(text)),
    }
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
clock real 60
0 0 temperature 40       # cool
10..20 0 temperature 40..80
30 0 error nvmlDeviceGetPowerUsage 3
40 0 gone
50 0 back
15 0 xid 79
0 0 process 7 300
20 0 process 7 0
20 1 process 8 100
60 count 1
";

    #[test]
    fn the_newest_line_holds() {
        let script = Script::parse(SCRIPT);
        let temperature = |time| script.value(0, "temperature", time);
        assert_eq!([0.0, 15.0, 99.0].map(temperature), [Some(40.0), Some(60.0), Some(80.0)]);
        assert_eq!(script.value(1, "temperature", 9.0), None);
        let failing = |time| script.error(0, "nvmlDeviceGetPowerUsage", time);
        assert_eq!([29.0, 30.0, 45.0, 50.0].map(failing), [0, 3, 15, 0]);
        assert_eq!(script.error(0, "nvmlDeviceGetName", 30.0), 0);
        assert_eq!((script.xids(0, 14.0), script.xids(0, 15.0)), (vec![], vec![79]));
        assert_eq!((script.processes(0, 5.0), script.processes(0, 20.0)), (vec![(7, 300)], vec![]));
        assert_eq!((script.count(59.0), script.count(60.0)), (None, Some(1)));
        assert_eq!(script.clock, Clock::Real(60.0));
    }

    #[test]
    #[should_panic(expected = "unknown statement")]
    fn unknown_names_are_refused() {
        Script::parse("0 0 temprature 40");
    }
}
