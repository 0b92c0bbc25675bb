//! The machine that the environment variable `FAKE_CUDA` describes (format: `lib.rs`). An invalid description ends the
//! process.

use crate::ptx::run::{Accumulation, Order, RunSettings};
use crate::streams::Execution;

const MIB: u64 = 1 << 20;

/// Properties of a card model, from the CUDA programming guide's technical specifications and the vendor's data sheets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Model {
    key: &'static str,
    name: &'static str,
    capability: (i32, i32),
    memory_mib: u64,
    multiprocessors: i32,
    clock_khz: i32,
    memory_clock_khz: i32,
    memory_bus_bits: i32,
}

const MODELS: [Model; 6] = [
    Model {
        key: "rtx2080",
        name: "NVIDIA GeForce RTX 2080",
        capability: (7, 5),
        memory_mib: 8192,
        multiprocessors: 46,
        clock_khz: 1_710_000,
        memory_clock_khz: 7_000_000,
        memory_bus_bits: 256,
    },
    Model {
        key: "rtx3060",
        name: "NVIDIA GeForce RTX 3060",
        capability: (8, 6),
        memory_mib: 12_288,
        multiprocessors: 28,
        clock_khz: 1_777_000,
        memory_clock_khz: 7_501_000,
        memory_bus_bits: 192,
    },
    Model {
        key: "rtx3090",
        name: "NVIDIA GeForce RTX 3090",
        capability: (8, 6),
        memory_mib: 24_576,
        multiprocessors: 82,
        clock_khz: 1_695_000,
        memory_clock_khz: 9_751_000,
        memory_bus_bits: 384,
    },
    Model {
        key: "a100",
        name: "NVIDIA A100-SXM4-40GB",
        capability: (8, 0),
        memory_mib: 40_960,
        multiprocessors: 108,
        clock_khz: 1_410_000,
        memory_clock_khz: 1_215_000,
        memory_bus_bits: 5120,
    },
    Model {
        key: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        capability: (8, 9),
        memory_mib: 24_564,
        multiprocessors: 128,
        clock_khz: 2_520_000,
        memory_clock_khz: 10_501_000,
        memory_bus_bits: 384,
    },
    Model {
        key: "rtx5090",
        name: "NVIDIA GeForce RTX 5090",
        capability: (12, 0),
        memory_mib: 32_607,
        multiprocessors: 170,
        clock_khz: 2_407_000,
        memory_clock_khz: 14_001_000,
        memory_bus_bits: 512,
    },
];

/// A slice of a card in MIG mode, which CUDA shows as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Its profile: `1g.5gb`.
    pub profile: String,
    /// Its memory, in bytes.
    pub memory: u64,
}

/// A call that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFault {
    /// Name of the function.
    pub function: String,
    /// Number of the call, from 1.
    pub call: u64,
    /// The code that it returns.
    pub code: u32,
    /// Whether every later call of any function returns this code too.
    pub sticky: bool,
}

/// Memory that another process takes during a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grab {
    /// Name of the function.
    pub function: String,
    /// Number of the call, from 1.
    pub call: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A machine with cards of one model.
#[derive(Debug, Clone)]
pub struct Card {
    kind: Model,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Memory, in bytes.
    pub memory: u64,
    /// Number of cards.
    pub count: i32,
    /// The slices of each card, if in MIG mode.
    pub slices: Option<Vec<Slice>>,
    /// The driver's version: 12080 is 12.8.
    pub driver: i32,
    /// Bytes that other processes hold.
    pub others: u64,
    /// Bytes that they take at each allocation or query of memory.
    pub growth: u64,
    /// Memory that other processes take during a call.
    pub grabs: Vec<Grab>,
    /// Bytes used by a context.
    pub context: u64,
    /// Bytes used by a module.
    pub module: u64,
    /// Bytes of the host's own memory that can be pinned.
    pub registrable: u64,
    /// Whether virtual memory management is supported.
    pub mapping: bool,
    /// `CUcomputemode`
    pub mode: i32,
    /// Whether it drives a display, so that the system limits the time of its kernels.
    pub display: bool,
    /// When operations run.
    pub execution: Execution,
    /// RunSettings of kernel execution.
    pub settings: RunSettings,
    /// Kernels whose first result is falsified.
    pub wrong: Vec<String>,
    /// Calls that fail.
    pub faults: Vec<CallFault>,
    /// Path for the counters, written when the context is released.
    pub trace: Option<String>,
    /// The version of cuBLASLt: 130100 is 13.1.0.
    pub cublas: usize,
    /// Whether calls are printed to stderr.
    pub log: bool,
}

impl Card {
    /// Parses a description.
    pub fn parse(description: &str) -> Result<Self, String> {
        let mut card = Self::of(MODELS[1]);
        for entry in description.split(';').filter(|entry| !entry.is_empty()) {
            card.entry(entry).ok_or_else(|| format!("FAKE_CUDA: unknown entry `{entry}`"))?;
        }
        Ok(card)
    }

    fn of(kind: Model) -> Self {
        Self {
            kind,
            name: kind.name.to_owned(),
            capability: kind.capability,
            memory: kind.memory_mib * MIB,
            count: 1,
            slices: None,
            driver: 12_080,
            others: 350 * MIB,
            growth: 0,
            grabs: Vec::new(),
            context: 250 * MIB,
            module: 2 * MIB,
            registrable: u64::MAX,
            mapping: true,
            mode: 0,
            display: false,
            execution: Execution::Eager,
            settings: RunSettings { shared_limit: shared_limit(kind.capability), ..RunSettings::default() },
            wrong: Vec::new(),
            faults: Vec::new(),
            trace: None,
            cublas: 130_100,
            log: false,
        }
    }

    fn entry(&mut self, entry: &str) -> Option<()> {
        let (key, value) = entry.split_once('=')?;
        let number = || value.parse::<u64>().ok();
        match key {
            "card" => {
                let kind = MODELS.into_iter().find(|kind| kind.key == value)?;
                let Self { faults, settings, execution, .. } = self.clone();
                *self = Self { faults, execution, ..Self::of(kind) };
                self.settings = RunSettings { shared_limit: self.settings.shared_limit, ..settings };
            }
            "name" => self.name = value.to_owned(),
            "capability" => {
                let (major, minor) = value.split_once('.')?;
                self.capability = (major.parse().ok()?, minor.parse().ok()?);
                self.settings.shared_limit = shared_limit(self.capability);
            }
            "memory" => self.memory = number()? * MIB,
            "cards" => self.count = value.parse().ok().filter(|count| (0..=9).contains(count))?,
            "mig" => {
                let slices = value.split(',').filter(|slice| !slice.is_empty()).map(slice);
                self.slices = Some(slices.collect::<Option<_>>()?);
            }
            "driver" => self.driver = value.parse().ok()?,
            "others" => self.others = number()? * MIB,
            "growth" => self.growth = number()? * MIB,
            "grab" => self.grabs.push(grab(value)?),
            "wrong" => self.wrong.push(value.to_owned()),
            "context" => self.context = number()? * MIB,
            "module" => self.module = number()? * MIB,
            "registrable" => self.registrable = number()? * MIB / 1024,
            "mapping" => self.mapping = number()? != 0,
            "mode" => self.mode = value.parse().ok()?,
            "display" => self.display = number()? != 0,
            "cublas" => self.cublas = value.parse().ok()?,
            "log" => self.log = number()? != 0,
            "trace" => self.trace = Some(value.to_owned()),
            "steps" => self.settings.steps = number()?,
            "blur" => self.settings.blur = number()?,
            "accumulation" => {
                self.settings.accumulation = match value {
                    "nearest" => Accumulation::Nearest,
                    "truncating" => Accumulation::Truncating,
                    _ => return None,
                }
            }
            "execution" => {
                self.execution = match value {
                    "eager" => Execution::Eager,
                    "late" => Execution::Late,
                    _ => return None,
                }
            }
            "order" => self.settings.order = order(value)?,
            "fail" | "stick" => self.faults.push(call_fault(value, key == "stick")?),
            _ => return None,
        }
        Some(())
    }

    /// The code with which the k-th call of a function fails, if any.
    pub fn fault(&self, function: &str, call: u64) -> Option<&CallFault> {
        self.faults.iter().find(|fault| fault.function == function && fault.call == call)
    }

    /// Compute capability in the format of PTX targets: 86.
    pub fn target(&self) -> u32 {
        (self.capability.0 * 10 + self.capability.1) as u32
    }

    /// The newest PTX version that the driver supports, as major · 10 + minor. From NVIDIA's release notes of PTX.
    pub fn newest_ptx(&self) -> u32 {
        const NEWEST: [(i32, u32); 12] = [
            (13_000, 90),
            (12_090, 88),
            (12_080, 87),
            (12_070, 86),
            (12_050, 85),
            (12_040, 84),
            (12_030, 83),
            (12_020, 82),
            (12_010, 81),
            (12_000, 80),
            (11_080, 78),
            (11_000, 70),
        ];
        NEWEST.iter().find(|(driver, _)| self.driver >= *driver).map_or(63, |(_, version)| *version)
    }

    /// Dynamic shared memory of a block that needs no `cuFuncSetAttribute`.
    pub const USUAL_SHARED: i32 = 48 << 10;

    /// `CUdevice_attribute`, by its number in `cuda.h`. `None`: not supported by the stand-in.
    pub fn attribute(&self, attribute: u32) -> Option<i32> {
        let (major, minor) = self.capability;
        let ampere = i32::from(self.target() >= 80);
        Some(match attribute {
            // Limits of threads per block, block extents and grid extents.
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => Self::USUAL_SHARED,
            9 => 64 << 10,
            10 => 32,
            12 | 82 => 65_536,
            13 => self.kind.clock_khz,
            14 => 512,
            16 => self.kind.multiprocessors,
            17 => i32::from(self.display),
            // Integrated; ECC; compute mode; can map host memory.
            18 | 32 => 0,
            20 => self.mode,
            19 | 31 | 41 => 1,
            33 => 1,
            34 => 0,
            35 => 0,
            36 => self.kind.memory_clock_khz,
            37 => self.kind.memory_bus_bits,
            38 => 4 << 20,
            39 => {
                if ampere == 1 {
                    1536
                } else {
                    1024
                }
            }
            40 => 2,
            75 => major,
            76 => minor,
            78 => 1,
            81 => self.settings.shared_limit as i32 + 1024,
            97 => self.settings.shared_limit as i32,
            102 => i32::from(self.mapping),
            106 => 16,
            // No memory pools, so that every allocation is visible to tests.
            115 => 0,
            _ => return None,
        })
    }
}

/// Maximum shared memory of a block with `cuFuncSetAttribute`. CUDA programming guide, technical specifications.
fn shared_limit(capability: (i32, i32)) -> u32 {
    match capability {
        (7, _) => 64 << 10,
        (8, 0 | 7) => 163 << 10,
        (9, _) | (10, _) => 227 << 10,
        _ => 99 << 10,
    }
}

fn order(value: &str) -> Option<Order> {
    Some(match value.split_once(':') {
        None if value == "forward" => Order::Forward,
        None if value == "backward" => Order::Backward,
        None if value == "interleaved" => Order::Interleaved,
        Some(("random", seed)) => Order::Random(seed.parse().ok()?),
        _ => return None,
    })
}

/// `function:call:MiB`
fn grab(value: &str) -> Option<Grab> {
    let (function, rest) = value.split_once(':')?;
    let (call, bytes) = rest.split_once(':')?;
    Some(Grab { function: function.to_owned(), call: call.parse().ok()?, bytes: bytes.parse::<u64>().ok()? * MIB })
}

/// `profile:MiB`
fn slice(value: &str) -> Option<Slice> {
    let (profile, memory) = value.split_once(':')?;
    Some(Slice { profile: profile.to_owned(), memory: memory.parse::<u64>().ok()? * MIB })
}

/// `function:call:code`
fn call_fault(value: &str, sticky: bool) -> Option<CallFault> {
    let mut parts = value.split(':');
    let (function, call, code) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(CallFault { function, call, code, sticky })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_parsed_or_refused() {
        let card = Card::parse("card=rtx4090;others=100;driver=11080;fail=cuMemAlloc_v2:3:2;order=random:9").unwrap();
        assert_eq!((card.target(), card.memory, card.others), (89, 24_564 * MIB, 100 * MIB));
        assert_eq!(card.newest_ptx(), 78);
        assert_eq!(card.fault("cuMemAlloc_v2", 3).map(|fault| fault.code), Some(2));
        assert_eq!(card.settings.order, Order::Random(9));
        for wrong in [
            "card=gtx1",
            "memory=x",
            "fail=cuInit:1",
            "fail=a:1:2:3",
            "what",
            "order=sideways",
            "mig=1g",
            "grab=cuInit:1",
            "cards=10",
        ] {
            assert!(Card::parse(wrong).is_err(), "{wrong}");
        }
    }
}
