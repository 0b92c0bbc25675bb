//! Expandable segments: addresses are reserved once, and memory is mapped as needed.

use super::block::{Block, DriverEvent, DriverEventKind, Space};
use super::{Allocator, Driver, SMALL_SEGMENT, Search};

impl Allocator {
    /// Returns a free block for the request, by mapping memory at the lowest addresses with room for it.
    pub(super) fn expand(&mut self, search: &Search, driver: &mut dyn Driver) -> Option<u32> {
        let mut candidate = match self.expandable_place(search) {
            Some(place) => place,
            None => self.new_space(search, driver),
        };
        if !self.block(candidate).mapped && !self.map(candidate, search.bytes, driver) {
            return None;
        }
        while self.block(candidate).bytes < search.bytes {
            let missing = search.bytes - self.block(candidate).bytes;
            let next = self.block(candidate).next.expect("the range has room for the request");
            if !self.map(next, missing, driver) {
                return None;
            }
            // The mapped block was merged with the free one before it.
            candidate = next;
        }
        self.remove_free(candidate);
        Some(candidate)
    }

    /// The lowest addresses, free or unmapped, with room for the request.
    fn expandable_place(&self, search: &Search) -> Option<u32> {
        let unmapped = &self.pools[search.pool].unmapped;
        let mut places = unmapped.range((search.stream, 0, 0)..).take_while(|place| place.0 == search.stream);
        places.find_map(|(_, _, place)| {
            let before = self.block(*place).previous.filter(|before| !self.block(*before).in_use);
            let first = before.unwrap_or(*place);
            self.has_room(first, search.bytes).then_some(first)
        })
    }

    fn has_room(&self, first: u32, bytes: u64) -> bool {
        let mut room = 0;
        let mut next = Some(first);
        while let Some(block) = next.map(|index| self.block(index)).filter(|block| !block.in_use && room < bytes) {
            room += block.bytes;
            next = block.next;
        }
        room >= bytes
    }

    fn new_space(&mut self, search: &Search, driver: &mut dyn Driver) -> u32 {
        let unit = if self.pools[search.pool].small { SMALL_SEGMENT } else { self.settings.large_segment_bytes };
        let (address, bytes) = driver.reserve(unit);
        let bytes = bytes.max(search.bytes).next_multiple_of(unit);
        let space = self.add_space(Space { address, unit });
        let block = Block::free(address, bytes, search.stream, search.pool);
        let index = self.new_block(Block { mapped: false, space: Some(space), ..block });
        self.insert_free(index);
        index
    }

    pub(super) fn add_space(&mut self, space: Space) -> u32 {
        self.spaces.push(space);
        u32::try_from(self.spaces.len() - 1).expect("fewer spaces than blocks")
    }

    fn space(&self, index: u32) -> Space {
        let space = self.block(index).space.expect("a block of an expandable segment");
        self.spaces[space as usize]
    }

    /// Maps the first `bytes` of an unmapped range, or all of it if that is less, in whole units.
    fn map(&mut self, index: u32, bytes: u64, driver: &mut dyn Driver) -> bool {
        let unit = self.space(index).unit;
        let block = self.block(index);
        let (address, bytes) = (block.address, bytes.min(block.bytes).next_multiple_of(unit).min(block.bytes));
        if !driver.map(address, bytes) {
            return false;
        }
        self.remove_free(index);
        if bytes < self.block(index).bytes {
            let rest = self.split(index, bytes);
            self.insert_free(rest);
        }
        self.block_mut(index).mapped = true;
        let previous = self.block(index).previous;
        self.merge(index, previous);
        let next = self.block(index).next;
        self.merge(index, next);
        self.insert_free(index);
        self.reserved += bytes;
        let stream = self.block(index).stream;
        self.driver_events.push(DriverEvent { kind: DriverEventKind::Map, address, bytes, stream });
        true
    }

    /// Unmaps the whole units within a free block.
    pub(super) fn unmap(&mut self, index: u32, driver: &mut dyn Driver) {
        let space = self.space(index);
        let block = self.block(index);
        let begin = space.address + (block.address - space.address).next_multiple_of(space.unit);
        let end = space.address + (block.address + block.bytes - space.address) / space.unit * space.unit;
        if begin >= end {
            return;
        }
        let (address, bytes) = (begin, end - begin);
        self.remove_free(index);
        let mut middle = index;
        if begin > self.block(index).address {
            middle = self.split(index, begin - self.block(index).address);
            self.insert_free(index);
        }
        if self.block(middle).bytes > bytes {
            let rest = self.split(middle, bytes);
            self.insert_free(rest);
        }
        self.block_mut(middle).mapped = false;
        let (previous, next) = (self.block(middle).previous, self.block(middle).next);
        self.merge(middle, previous);
        self.merge(middle, next);
        driver.unmap(address, bytes);
        self.reserved -= bytes;
        let stream = self.block(middle).stream;
        self.driver_events.push(DriverEvent { kind: DriverEventKind::Unmap, address, bytes, stream });
        if self.block(middle).is_split() {
            self.insert_free(middle);
        } else {
            // The whole segment is unmapped: its addresses are released, too.
            self.vacant.push(middle);
        }
    }
}
