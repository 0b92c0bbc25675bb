//! How far the simulation and a recording agree.

use crate::allocator::{DriverEvent, DriverEventKind};

/// What was compared, and what was equal.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Memory taken from the driver and given back: at the event, and of the size recorded.
    pub segment_events: SegmentCount,
    /// Blocks at the address recorded.
    pub addresses: Count,
    /// Blocks that are in use at the end, of the size recorded.
    pub blocks_at_end: Count,
    /// The first of each kind of difference.
    pub first: Vec<Difference>,
    /// Events and blocks of the file that contradict each other.
    pub contradictions: usize,
}

/// Events of segments.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SegmentCount {
    /// In the recording.
    pub recorded: usize,
    /// In the simulation.
    pub simulated: usize,
    /// In both.
    pub equal: usize,
}

/// Events of blocks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// All.
    pub events: usize,
    /// Those that are equal.
    pub equal: usize,
}

/// A difference, at an event of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A block lies elsewhere.
    Address {
        /// The index of the event.
        event: usize,
        /// Where it was.
        recorded: u64,
        /// Where it is.
        simulated: u64,
    },
    /// The driver is asked for something else.
    Segments {
        /// The index of the event.
        event: usize,
        /// What it was asked for.
        recorded: Vec<DriverEvent>,
        /// What it is asked for.
        simulated: Vec<DriverEvent>,
    },
}

impl Difference {
    /// The index of the event.
    pub fn event(&self) -> usize {
        match self {
            Self::Address { event, .. } | Self::Segments { event, .. } => *event,
        }
    }
}

impl Agreement {
    /// Whether all is equal, and nothing contradicts itself.
    pub fn is_whole(&self) -> bool {
        let SegmentCount { recorded, simulated, equal } = self.segment_events;
        recorded == equal
            && simulated == equal
            && self.addresses.events == self.addresses.equal
            && self.contradictions == 0
    }

    /// Compares a block's address.
    pub(super) fn address(&mut self, event: usize, recorded: u64, simulated: u64) {
        self.addresses.events += 1;
        if recorded == simulated {
            self.addresses.equal += 1;
        } else if !self.first.iter().any(|difference| matches!(difference, Difference::Address { .. })) {
            self.first.push(Difference::Address { event, recorded, simulated });
        }
    }

    /// Compares what the driver is asked for at one event.
    pub(super) fn segments(&mut self, event: usize, recorded: &[DriverEvent], simulated: &[DriverEvent]) {
        let equal = equal_events(recorded, simulated);
        self.segment_events.recorded += recorded.len();
        self.segment_events.simulated += simulated.len();
        self.segment_events.equal += equal;
        let differ = equal < recorded.len() || equal < simulated.len();
        if differ && !self.first.iter().any(|difference| matches!(difference, Difference::Segments { .. })) {
            let [recorded, simulated] = [recorded.to_vec(), simulated.to_vec()];
            self.first.push(Difference::Segments { event, recorded, simulated });
        }
    }
}

/// How many events of two lists are equal, in order. Where the driver gives a segment is its choice; all else is compared.
pub(super) fn equal_events(recorded: &[DriverEvent], simulated: &[DriverEvent]) -> usize {
    let pairs = recorded.iter().zip(simulated);
    pairs
        .filter(|(a, b)| {
            a.kind == b.kind && a.bytes == b.bytes && (a.kind == DriverEventKind::Take || a.address == b.address)
        })
        .count()
}
