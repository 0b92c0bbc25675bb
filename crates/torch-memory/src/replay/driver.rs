//! The driver of a recording: it returns the recorded addresses.

use crate::allocator::{Driver, DriverEvent, DriverEventKind};
use std::collections::VecDeque;

/// Addresses beyond those of any driver, for calls that are not in the recording.
const BEYOND: u64 = 1 << 60;

/// Responds like the recorded driver; grants calls that are not in the recording at other addresses.
#[derive(Debug)]
pub(super) struct RecordedDriver {
    /// Grants recorded for the current event.
    pub granted: VecDeque<DriverEvent>,
    /// Whether it refuses all other calls.
    pub refuses: bool,
    next: u64,
}

impl RecordedDriver {
    pub fn new() -> Self {
        Self { granted: VecDeque::new(), refuses: false, next: BEYOND }
    }

    /// Takes the next recorded grant if it matches.
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
