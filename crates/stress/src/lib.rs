//! A stress protocol for a GPU or the processor: workloads whose results are known run on the device through the plans and
//! kernels of training, while its memory is filled with patterns and its sensors are read. Each metric gets a verdict.
//!
//! ```text
//!   protocol ─► rig: one plan with all workloads ─► run: phases, loads, heat ─► findings ─► verdicts
//!                     exact   products and attention            ▲
//!                     memory  patterns                          watch: samples, heat guard
//!                     transfers, training
//! ```
//! Not here: opening the device, and the output (`plimsoll-render`). Read next: `protocol.rs`, `rig.rs`, `run.rs`, `verdict.rs`.

mod device;
mod exact;
mod findings;
mod known;
mod memory;
mod numbers;
mod parts;
mod protocol;
mod rig;
mod run;
mod sizes;
mod training;
mod transfers;
mod verdict;
mod watch;

pub use device::{OpenDevice, StressError};
pub use findings::{Ending, Findings, MemoryFilled, Mismatch, PhaseRun, Readings, Series, Unit, WrongResults};
pub use protocol::{PHASES, Phase, PhaseRange, WorkloadKind};
pub use run::{DeviceUnderTest, Protocol, StressOutcome, run};
pub use verdict::{Criteria, MatrixUnits, Metric, Outcome, Verdict, judge};
pub use watch::WatchSettings;
