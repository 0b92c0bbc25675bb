//! A card's memory, as the driver allocates it.

use super::Driver;
use std::collections::BTreeMap;

/// Alignment of segments.
const PAGE: u64 = 2 << 20;
/// The first address of memory.
const FIRST: u64 = 0x7f00_0000_0000;
/// The first address reserved for expandable segments.
const FIRST_RESERVED: u64 = 0x3_0000_0000_0000;

/// Size of the addresses of an expandable segment.
const ADDRESSES: u64 = 1 << 42;

/// A card with this many bytes for the allocator. Freed addresses are reused for allocations of the same size.
#[derive(Debug, Clone)]
pub struct Card {
    capacity: u64,
    used: u64,
    next: u64,
    next_reserved: u64,
    /// Freed addresses, by size.
    returned: BTreeMap<u64, Vec<u64>>,
}

impl Card {
    /// A card with `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, next: FIRST, next_reserved: FIRST_RESERVED, returned: BTreeMap::new() }
    }

    /// Free bytes.
    pub fn free(&self) -> u64 {
        self.capacity - self.used
    }

    fn has(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.free();
        self.used += if fits { bytes } else { 0 };
        fits
    }
}

impl Driver for Card {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        if !self.has(bytes) {
            return None;
        }
        if let Some(address) = self.returned.get_mut(&bytes).and_then(Vec::pop) {
            return Some(address);
        }
        let address = self.next;
        self.next += bytes.next_multiple_of(PAGE);
        Some(address)
    }

    fn give_back(&mut self, address: u64, bytes: u64) {
        self.used -= bytes;
        self.returned.entry(bytes).or_default().push(address);
    }

    fn reserve(&mut self, unit: u64) -> (u64, u64) {
        // PyTorch reserves an eighth more than the card's memory; a larger reservation has the same effect.
        let bytes = ADDRESSES.next_multiple_of(unit);
        let address = self.next_reserved;
        self.next_reserved += bytes.next_multiple_of(PAGE);
        (address, bytes)
    }

    fn map(&mut self, _: u64, bytes: u64) -> bool {
        self.has(bytes)
    }

    fn unmap(&mut self, _: u64, bytes: u64) {
        self.used -= bytes;
    }
}
