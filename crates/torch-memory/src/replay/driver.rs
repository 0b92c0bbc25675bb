//! The driver of a recording: it gives memory where it was given then.

use crate::allocator::{Driver, DriverEvent, DriverEventKind};
use std::collections::VecDeque;

/// Addresses beyond those of any driver, for memory that the recording did not ask for.
const BEYOND: u64 = 1 << 60;

/// Answers as the recorded driver did; what it was not asked then, it grants at addresses of its own.
#[derive(Debug)]
pub(super) struct RecordedDriver {
    /// What it gave for the event at hand.
    pub granted: VecDeque<DriverEvent>,
    /// Whether it refuses all else.
    pub refuses: bool,
    next: u64,
}

impl RecordedDriver {
    pub fn new() -> Self {
        Self { granted: VecDeque::new(), refuses: false, next: BEYOND }
    }

    /// Takes what was given next, if it is that.
    fn granted(&mut self, is_asked: impl Fn(&DriverEvent) -> bool) -> Option<DriverEvent> {
        self.granted.front().filter(|event| is_asked(event))?;
        self.granted.pop_front()
    }

    fn beyond(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(2 << 20);
        address
    }
}

impl Driver for RecordedDriver {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let is_asked = |event: &DriverEvent| event.kind == DriverEventKind::Take && event.bytes == bytes;
        let granted = self.granted(is_asked);
        if granted.is_none() && self.refuses {
            return None;
        }
        Some(granted.map_or_else(|| self.beyond(bytes), |event| event.address))
    }

    fn give_back(&mut self, _: u64, _: u64) {}

    fn reserve(&mut self, _: u64) -> (u64, u64) {
        let bytes = 1 << 42;
        match self.granted.front() {
            Some(DriverEvent { kind: DriverEventKind::Map, address, .. }) => (*address, bytes),
            _ => (self.beyond(bytes), bytes),
        }
    }

    fn map(&mut self, address: u64, _: u64) -> bool {
        let is_asked = |event: &DriverEvent| event.kind == DriverEventKind::Map && event.address == address;
        self.granted(is_asked).is_some() || !self.refuses
    }

    fn unmap(&mut self, _: u64, _: u64) {}
}
