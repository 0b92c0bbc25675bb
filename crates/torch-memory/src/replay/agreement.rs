//! Compares the simulation with a recording.

use crate::allocator::{DriverEvent, DriverEventKind};

/// The numbers of compared and of equal items.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// Memory allocated from and returned to the driver: at the recorded event, with the recorded size.
    pub segment_events: SegmentCount,
    /// Blocks at the recorded address.
    pub addresses: Count,
    /// Blocks in use at the end, with the recorded size.
    pub blocks_at_end: Count,
    /// The first difference of each kind.
    pub first: Vec<Difference>,
    /// Number of events and blocks of the file that contradict each other.
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
    /// All events.
    pub events: usize,
    /// Equal events.
    pub equal: usize,
}

/// A difference at an event of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A block has another address.
    Address {
        /// The index of the event.
        event: usize,
        /// The recorded address.
        recorded: u64,
        /// The simulated address.
        simulated: u64,
    },
    /// The calls to the driver differ.
    Segments {
        /// The index of the event.
        event: usize,
        /// The recorded calls.
        recorded: Vec<DriverEvent>,
        /// The simulated calls.
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
    /// Whether everything is equal, without contradictions.
    pub fn is_whole(&self) -> bool {
        let SegmentCount { recorded, simulated, equal } = self.segment_events;
        recorded == equal
            && simulated == equal
            && self.addresses.events == self.addresses.equal
            && self.contradictions == 0
    }

    /// Compares the address of a block.
    pub(super) fn address(&mut self, event: usize, recorded: u64, simulated: u64) {
        self.addresses.events += 1;
        if recorded == simulated {
            self.addresses.equal += 1;
        } else if !self.first.iter().any(|difference| matches!(difference, Difference::Address { .. })) {
            self.first.push(Difference::Address { event, recorded, simulated });
        }
    }

    /// Compares the driver calls of one event.
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

/// Number of equal events of two lists, in order. Ignores the addresses of segments, which the driver chooses.
pub(super) fn equal_events(recorded: &[DriverEvent], simulated: &[DriverEvent]) -> usize {
    let pairs = recorded.iter().zip(simulated);
    pairs
        .filter(|(a, b)| {
            a.kind == b.kind && a.bytes == b.bytes && (a.kind == DriverEventKind::Take || a.address == b.address)
        })
        .count()
}
