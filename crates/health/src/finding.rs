//! What can be found, as values with their figures. Not here: the words for it.

use plimsoll_telemetry::{Level, Throttling};
use plimsoll_units::{Bytes, Seconds};

/// Something that a person should know.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// The card does not answer: it fell off the bus, or its driver is gone.
    Lost {
        /// What the driver said.
        reason: String,
    },
    /// The card lowers its own clocks.
    Throttled {
        /// Why.
        reasons: Throttling,
    },
    /// Errors of its memory that could not be corrected.
    EccUncorrected {
        /// How many there are since the driver was loaded.
        count: u64,
    },
    /// Errors of its memory that were corrected, unusually many.
    EccCorrected {
        /// How many.
        more: u64,
        /// In this time.
        over: Seconds,
    },
    /// Packets to and from the card had to be sent again, unusually many.
    PcieReplays {
        /// How many.
        more: u64,
        /// In this time.
        over: Seconds,
    },
    /// Pages or rows of its memory were taken out of use.
    RowsReplaced {
        /// Retired pages and remapped rows, since the card was made.
        count: u64,
        /// How many of them are new.
        more: u64,
    },
    /// The driver reported an error.
    Xid {
        /// NVIDIA's number.
        number: u64,
        /// How often within the last hours.
        times: u32,
    },
    /// Its fans are at their full speed.
    FansFull {
        /// Of their largest speed.
        percent: u32,
    },
    /// It has fewer lanes to the machine, or slower ones, than both could have, while it works.
    PcieNarrow {
        /// Generation now, and what could be.
        generation: (u32, u32),
        /// Lanes now, and what could be.
        lanes: (u32, u32),
    },
    /// The card waits for data.
    Starved {
        /// Percent of the time in which a run waited for its next batch.
        waited_percent: f64,
    },
    /// The card has less to do than it could have.
    Underused {
        /// Percent of the time in which a kernel ran.
        busy_percent: f64,
        /// Why, as far as it shows.
        cause: Cause,
    },
    /// The disk will not take the next checkpoint.
    DiskFull {
        /// What is free.
        free: Bytes,
        /// What the next checkpoint takes.
        checkpoint: Bytes,
    },
    /// The disk is nearly full, or will be soon.
    DiskNearlyFull {
        /// What is free.
        free: Bytes,
        /// What the next checkpoint takes.
        checkpoint: Option<Bytes>,
        /// When it will be full, at the speed of the last minutes.
        full_in: Option<Seconds>,
    },
    /// The machine or the control group is short of memory.
    MemoryShort {
        /// Percent of the last ten seconds in which somebody waited for memory.
        waiting_percent: Option<f64>,
        /// What is available, to the machine or the group.
        available: Option<Bytes>,
        /// Of so much.
        total: Option<Bytes>,
        /// Whether the limit is a control group's.
        is_group: bool,
    },
}

/// Why a card has less to do than it could have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It waits for data.
    Data,
    /// Others compute on it too: their names and numbers.
    Others(Vec<String>),
    /// It lowered its own clocks.
    Throttled,
    /// Its link to the machine is slower than it could be.
    Pcie,
    /// It waits for work of the host: what was offloaded.
    Host,
    /// Micro-batches are small for it.
    SmallBatches,
}

/// Whether something begins or is over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// It begins, or happened.
    Begins,
    /// It is over after so long.
    Ends(Seconds),
}

/// A finding that begins or is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Episode {
    /// The card: its number and name. None for the machine.
    pub card: Option<(u32, String)>,
    /// What.
    pub finding: Finding,
    /// Whether it begins.
    pub phase: Phase,
}

impl Finding {
    /// What kind of thing, in a word that stays.
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

    /// How bad it is.
    pub fn level(&self) -> Level {
        match self {
            Self::Lost { .. } | Self::EccUncorrected { .. } | Self::DiskFull { .. } => Level::Error,
            Self::Xid { number, .. } => crate::xid(*number).map_or(Level::Warn, |xid| xid.level),
            _ => Level::Warn,
        }
    }
}
