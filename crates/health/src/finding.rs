//! All findings, as values. Not here: their wording.

use plimsoll_telemetry::{Level, Throttling};
use plimsoll_units::{Bytes, Seconds};

/// A health finding.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// The card does not respond: it fell off the bus, or its driver is gone.
    Lost {
        /// The driver's message.
        reason: String,
    },
    /// The card lowers its own clocks.
    Throttled {
        /// The reasons.
        reasons: Throttling,
    },
    /// Uncorrectable memory errors.
    EccUncorrected {
        /// Count since the driver was loaded.
        count: u64,
    },
    /// An unusual number of corrected memory errors.
    EccCorrected {
        /// Number of events.
        more: u64,
        /// Time in which they occurred.
        over: Seconds,
    },
    /// An unusual number of PCIe replays.
    PcieReplays {
        /// Number of events.
        more: u64,
        /// Time in which they occurred.
        over: Seconds,
    },
    /// Pages or rows of its memory were retired or remapped.
    RowsReplaced {
        /// Total of retired pages and remapped rows over the card's lifetime.
        count: u64,
        /// How many of these are new.
        more: u64,
    },
    /// The driver reported an XID error.
    Xid {
        /// NVIDIA's XID number.
        number: u64,
        /// Number of occurrences in the current series, which ends after an hour without one.
        times: u32,
    },
    /// Its fans run at full speed.
    FansFull {
        /// Fan speed, percent of the maximum.
        percent: u32,
    },
    /// Under load, its PCIe link has fewer lanes or a lower generation than card and machine support.
    PcieNarrow {
        /// Current and maximum generation.
        generation: (u32, u32),
        /// Current and maximum number of lanes.
        lanes: (u32, u32),
    },
    /// The card waits for training data.
    Starved {
        /// Percent of the time that the run waited for its next batch.
        waited_percent: f64,
    },
    /// The card is not fully used.
    Underused {
        /// Percent of the time that a kernel ran.
        busy_percent: f64,
        /// The most likely cause.
        cause: Cause,
    },
    /// The next checkpoint does not fit on the disk.
    DiskFull {
        /// Free space.
        free: Bytes,
        /// Size of the next checkpoint.
        checkpoint: Bytes,
    },
    /// The disk is nearly full, or soon will be.
    DiskNearlyFull {
        /// Free space.
        free: Bytes,
        /// Size of the next checkpoint.
        checkpoint: Option<Bytes>,
        /// Time until it is full, at the rate of the last minutes.
        full_in: Option<Seconds>,
    },
    /// The machine or the control group is low on memory.
    MemoryShort {
        /// Percent of the last ten seconds in which at least one process waited for memory.
        waiting_percent: Option<f64>,
        /// Memory available to the machine or the group.
        available: Option<Bytes>,
        /// Total memory of the machine or the group.
        total: Option<Bytes>,
        /// Whether the limit is that of a control group.
        is_group: bool,
    },
}

/// Why a card is not fully used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It waits for training data.
    Data,
    /// Other processes compute on it: their names and process IDs.
    Others(Vec<String>),
    /// It lowered its own clocks.
    Throttled,
    /// Its PCIe link is slower than it could be.
    Pcie,
    /// It waits for offloaded work on the host.
    Host,
    /// The micro-batches are too small to use it fully.
    SmallBatches,
}

/// Whether an episode begins or ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// The episode begins, or a single event happened.
    Begins,
    /// The episode ended after this time.
    Ends(Seconds),
}

/// The beginning or end of a finding.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    /// Index and name of the card; `None` for the machine.
    pub card: Option<(u32, String)>,
    /// The finding.
    pub finding: Finding,
    /// Whether it begins or ends.
    pub phase: Phase,
}

impl Finding {
    /// A stable identifier of the kind of finding.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost { .. } => "lost",
            Self::Throttled { .. } => "throttled",
            Self::EccUncorrected { .. } | Self::EccCorrected { .. } => "ecc",
            Self::PcieReplays { .. } => "pcie_replays",
            Self::RowsReplaced { .. } => "rows",
            Self::Xid { .. } => "xid",
            Self::FansFull { .. } => "fans",
            Self::PcieNarrow { .. } => "pcie_narrow",
            Self::Starved { .. } => "starved",
            Self::Underused { .. } => "underused",
            Self::DiskFull { .. } | Self::DiskNearlyFull { .. } => "disk",
            Self::MemoryShort { .. } => "memory",
        }
    }

    /// Severity.
    pub fn level(&self) -> Level {
        match self {
            Self::Lost { .. } | Self::EccUncorrected { .. } | Self::DiskFull { .. } => Level::Error,
            Self::Xid { number, .. } => crate::xid(*number).map_or(Level::Warn, |xid| xid.level),
            _ => Level::Warn,
        }
    }
}
