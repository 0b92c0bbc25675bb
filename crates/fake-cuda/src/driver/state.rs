//! State of the driver: memory, modules, streams, counters, and the sticky error.

use super::card::Card;
use super::codes::{
    Code, ILLEGAL_ADDRESS, INVALID_VALUE, LAUNCH_FAILED, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS, OUT_OF_MEMORY, SUCCESS,
};
use super::devices::{Device, visible};
use crate::lt::Lt;
use crate::ptx::run::{self, FaultKind, Launch};
use crate::ptx::{Kernel, Module};
use crate::shadow::{Memory, Mode, Outside, Pages, Rights};
use crate::streams::{Announcement, Engine, Failure, HostSource, Machine, Operation, Work};
use crate::trace::Counters;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A kernel of a loaded module.
#[derive(Debug)]
pub struct Function {
    /// The module.
    pub module: Arc<Module>,
    /// Handle of the module.
    pub owner: u64,
    /// Index of the kernel in the module.
    pub index: usize,
    /// Maximum dynamic shared memory, as set by `cuFuncSetAttribute`.
    pub most_dynamic: i32,
}

impl Function {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.module.kernels[self.index]
    }
}

/// Physical memory of the card, mapped or not.
#[derive(Debug)]
pub struct Physical {
    /// Its size.
    pub bytes: u64,
    /// Its contents while it is not mapped.
    pub pages: Option<Pages>,
    /// Whether its handle was released: the memory is freed when it is unmapped.
    pub released: bool,
}

/// Everything that kernels and copies use.
#[derive(Debug, Default)]
pub struct Machinery {
    /// Device memory.
    pub memory: Memory,
    /// Kernels by handle.
    pub functions: HashMap<u64, Function>,
    /// Counters of launches, by kernel.
    pub counters: BTreeMap<String, Counters>,
    /// RunSettings of kernel execution.
    pub settings: run::RunSettings,
    /// Kernels whose first result is falsified.
    pub wrong: Vec<String>,
}

/// The driver.
#[derive(Debug)]
pub struct Driver {
    /// The machine.
    pub card: Card,
    /// The devices that the process sees, by CUDA's numbers.
    pub devices: Vec<Device>,
    /// Whether `cuInit` was called.
    pub initialized: bool,
    /// Number of calls of each function.
    pub calls: BTreeMap<&'static str, u64>,
    /// The sticky error, which every call returns.
    pub sticky: Code,
    /// Message of the last failure.
    pub last_failure: String,
    /// Bytes held by this process: allocations, context, modules.
    pub used: u64,
    /// Maximum of `used` so far.
    pub most_used: u64,
    /// Number of times the primary context is retained.
    pub retained: u64,
    /// `cuMemAlloc`: sizes by address.
    pub allocations: BTreeMap<u64, u64>,
    /// `cuMemAddressReserve`: sizes by address.
    pub reservations: BTreeMap<u64, u64>,
    /// `cuMemCreate`: memory by handle.
    pub physical: HashMap<u64, Physical>,
    /// `cuMemMap`: handle and size by address.
    pub mappings: BTreeMap<u64, (u64, u64)>,
    /// Pinned host memory: size, and whether the driver allocated it, by address.
    pub pinned: BTreeMap<usize, (usize, bool)>,
    /// Modules by handle.
    pub modules: HashMap<u64, Arc<Module>>,
    /// Kernels and memory.
    pub machinery: Machinery,
    /// Streams.
    pub engine: Engine,
    /// Instantiated graphs.
    pub executables: HashMap<u64, Vec<crate::streams::Node>>,
    /// Objects of cuBLASLt.
    pub lt: Lt,
    /// Memory that the device may access.
    pub announcement: Arc<Announcement>,
    next: u64,
}

impl Driver {
    /// The initial state, for a process with this `CUDA_VISIBLE_DEVICES`.
    pub fn new(card: Card, variable: Option<&str>) -> Self {
        Self {
            devices: visible(&card, variable),
            initialized: false,
            calls: BTreeMap::new(),
            sticky: SUCCESS,
            last_failure: String::new(),
            used: 0,
            most_used: 0,
            retained: 0,
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            physical: HashMap::new(),
            mappings: BTreeMap::new(),
            pinned: BTreeMap::new(),
            modules: HashMap::new(),
            machinery: Machinery { settings: card.settings, wrong: card.wrong.clone(), ..Machinery::default() },
            engine: Engine::new(card.execution),
            executables: HashMap::new(),
            lt: Lt::default(),
            announcement: Arc::default(),
            next: 0x1000,
            card,
        }
    }

    /// Counts a call. Errors: the sticky error, or one that the description sets for this call.
    pub fn begin_call(&mut self, name: &'static str) -> Result<(), Code> {
        let count = self.calls.entry(name).or_default();
        *count += 1;
        let count = *count;
        if self.card.log {
            eprintln!("fake CUDA: {name}");
        }
        // Error names are available in any state.
        // Hooks are called by tests, not by the program.
        if name.starts_with("cuGetError") || name.starts_with("fake_cuda") {
            return Ok(());
        }
        if self.sticky != SUCCESS {
            return Err(self.sticky);
        }
        let grabs = self.card.grabs.iter().filter(|grab| grab.function == name && grab.call == count);
        self.card.others += grabs.map(|grab| grab.bytes).sum::<u64>();
        if let Some(fault) = self.card.fault(name, count) {
            let (code, sticky) = (fault.code, fault.sticky);
            self.last_failure = format!("{name}: call {count} fails with code {code}, as the description says");
            if sticky {
                self.sticky = code;
            }
            return Err(code);
        }
        Ok(())
    }

    /// A new handle.
    pub fn handle(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    /// Bytes of the device in use by this process. All devices share one state.
    pub fn memory(&self) -> u64 {
        self.devices.first().map_or(0, |device| device.memory)
    }

    /// Free bytes, after other processes took theirs.
    pub fn free_bytes(&mut self) -> u64 {
        self.card.others += self.card.growth;
        self.memory().saturating_sub(self.card.others + self.used)
    }

    /// Allocates memory of the card.
    pub fn take(&mut self, bytes: u64) -> Result<(), Code> {
        if bytes > self.free_bytes() {
            return Err(OUT_OF_MEMORY);
        }
        self.used += bytes;
        self.most_used = self.most_used.max(self.used);
        Ok(())
    }

    /// Enqueues an operation with the current announcement.
    pub fn enqueue(&mut self, stream: u64, operation: Operation) {
        let work = Work { operation, announcement: self.announcement.clone() };
        self.with_engine(|engine, machine| engine.enqueue(stream, work, machine));
    }

    /// Runs a closure that may run operations. A failure becomes the sticky error.
    pub fn with_engine<T: Default>(
        &mut self,
        act: impl FnOnce(&mut Engine, &mut dyn Machine) -> Result<T, Failure>,
    ) -> T {
        let outcome = act(&mut self.engine, &mut self.machinery);
        outcome.unwrap_or_else(|failure| {
            eprintln!("fake CUDA: {}", failure.message);
            (self.sticky, self.last_failure) = (failure.code, failure.message);
            T::default()
        })
    }

    /// Runs a wait of the host. A failure is returned immediately.
    pub fn wait<T: Default>(
        &mut self,
        act: impl FnOnce(&mut Engine, &mut dyn Machine) -> Result<T, Failure>,
    ) -> Result<T, Code> {
        let value = self.with_engine(act);
        if self.sticky == SUCCESS { Ok(value) } else { Err(self.sticky) }
    }

    /// Whether all of these host bytes are pinned.
    pub fn is_pinned(&self, at: usize, bytes: usize) -> bool {
        let region = self.pinned.range(..=at).next_back();
        region.is_some_and(|(start, (size, _))| at + bytes <= start + size)
    }
}

fn failure(code: Code, message: String) -> Failure {
    Failure { code, message }
}

fn outside(what: &str, address: u64, outside: &Outside) -> Failure {
    failure(INVALID_VALUE, format!("{what}: address {address:#x} {outside}"))
}

impl Machine for Machinery {
    fn run(&mut self, operation: &Operation, rights: &Rights) -> Result<Vec<(u64, u64, bool)>, Failure> {
        match operation {
            Operation::Launch { function, grid, block, dynamic_shared, parameters } => {
                let launch = Launch { grid: *grid, block: *block, dynamic_shared: *dynamic_shared, parameters };
                self.launch(*function, &launch, rights)
            }
            Operation::Product(product) => product.run(&mut self.memory, rights),
            Operation::ToDevice { to, from, bytes } => {
                self.check(operation, *to, *bytes as u64, true, rights)?;
                let (data, host) = match from {
                    HostSource::Staged(data) => (data.clone(), None),
                    HostSource::Pinned(at) => {
                        // SAFETY: the caller that enqueued the copy promised that these bytes stay readable until it
                        // runs.
                        let data = unsafe { std::slice::from_raw_parts(*at as *const u8, *bytes) };
                        (data.to_vec(), Some((*at as u64, (*at + bytes) as u64, false)))
                    }
                };
                self.memory.write(*to, &data).map_err(|error| outside(operation.name(), *to, &error))?;
                Ok([Some((*to, to + *bytes as u64, true)), host].into_iter().flatten().collect())
            }
            Operation::ToHost { to, from, bytes } => {
                self.check(operation, *from, *bytes as u64, false, rights)?;
                let (data, written) =
                    self.memory.read(*from, *bytes as u64).map_err(|error| outside(operation.name(), *from, &error))?;
                if let Some(first) = written.iter().position(|written| !written) {
                    let message = format!("a copy to the host of unwritten bytes, from {:#x}", from + first as u64);
                    return Err(failure(LAUNCH_FAILED, message));
                }
                // SAFETY: the caller that enqueued the copy promised that these bytes stay writable until it runs.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), *to as *mut u8, *bytes) };
                Ok(vec![(*from, from + *bytes as u64, false), (*to as u64, (*to + bytes) as u64, true)])
            }
            Operation::Within { to, from, bytes } => {
                let bytes = *bytes as u64;
                self.check(operation, *from, bytes, false, rights)?;
                self.check(operation, *to, bytes, true, rights)?;
                self.memory.copy(*to, *from, bytes).map_err(|error| outside(operation.name(), *to, &error))?;
                Ok(vec![(*from, from + bytes, false), (*to, to + bytes, true)])
            }
            Operation::Fill { to, pattern, count } => {
                let data = pattern.repeat(*count);
                self.check(operation, *to, data.len() as u64, true, rights)?;
                self.memory.write(*to, &data).map_err(|error| outside(operation.name(), *to, &error))?;
                Ok(vec![(*to, to + data.len() as u64, true)])
            }
            Operation::Callback { function, argument } => {
                // SAFETY: the caller that enqueued it passed a function of this type, as cuda.h requires.
                let function: extern "C" fn(*mut std::ffi::c_void) = unsafe { std::mem::transmute(*function) };
                function(*argument as *mut std::ffi::c_void);
                // A host function's accesses are known only from the announcement.
                let announced = rights.regions().iter();
                Ok(announced.map(|(start, end, mode)| (*start, *end, *mode != Mode::Read)).collect())
            }
            Operation::Marker(_) => Ok(Vec::new()),
        }
    }

    fn forget(&mut self, start: u64, end: u64) {
        // An announced address outside of memory is reported when it is accessed.
        let _ = self.memory.forget(start, end - start);
    }
}

impl Machinery {
    fn check(&self, operation: &Operation, at: u64, bytes: u64, write: bool, rights: &Rights) -> Result<(), Failure> {
        if rights.allows(at, bytes, write) {
            return Ok(());
        }
        let verb = if write { "written" } else { "read" };
        let message = format!("{}: {bytes} bytes at {at:#x} must not be {verb}", operation.name());
        Err(failure(ILLEGAL_ADDRESS, message))
    }

    fn launch(&mut self, function: u64, launch: &Launch, rights: &Rights) -> Result<Vec<(u64, u64, bool)>, Failure> {
        let Some(function) = self.functions.get(&function) else {
            return Err(failure(LAUNCH_FAILED, "the kernel's module was unloaded before it ran".to_owned()));
        };
        let kernel = function.kernel();
        self.memory.rights = rights.clone();
        let outcome = run::launch(kernel, launch, &self.settings, &mut self.memory, &function.module.files);
        self.memory.rights = Rights::default();
        let outcome = outcome.map_err(|fault| {
            let code = match fault.kind {
                FaultKind::Bounds(_) | FaultKind::SpaceBounds { .. } => ILLEGAL_ADDRESS,
                FaultKind::Misaligned { .. } => MISALIGNED_ADDRESS,
                FaultKind::Steps(_) => LAUNCH_TIMEOUT,
                _ => LAUNCH_FAILED,
            };
            failure(code, fault.to_string())
        })?;
        self.counters.entry(kernel.name.clone()).or_default().add(&outcome.counters);
        if self.wrong.contains(&kernel.name) {
            self.spoil(&outcome.touched)?;
        }
        Ok(outcome.touched)
    }

    /// Falsifies the first number that a kernel wrote: flips a high exponent bit of a single, or of the second of two
    /// halves.
    fn spoil(&mut self, touched: &[(u64, u64, bool)]) -> Result<(), Failure> {
        let mut written = touched.iter().filter(|(start, end, is_written)| *is_written && end - start >= 4);
        let Some((start, ..)) = written.next() else { return Ok(()) };
        let at = start + 3;
        let outside = |error| outside("a planted fault", at, &error);
        let (bytes, _) = self.memory.read(at, 1).map_err(outside)?;
        self.memory.write(at, &[bytes[0] ^ 0x40]).map_err(outside)
    }
}
