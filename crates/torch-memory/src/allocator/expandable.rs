//! Expandable segments: addresses are reserved once, and memory is put behind them as it is needed.

use super::block::{Block, DriverEvent, DriverEventKind, Space};
use super::{Allocator, Driver, SMALL_SEGMENT, Search};

impl Allocator {
    /// A free block for the request, by putting memory behind the lowest addresses where it has room.
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
            let behind = self.block(candidate).next.expect("there is room for the request");
            if !self.map(behind, missing, driver) {
                return None;
            }
            // What was before it is now a part of it.
            candidate = behind;
        }
        self.unshelve(candidate);
        Some(candidate)
    }

    /// The lowest addresses, free or without memory, with room for the request.
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
        self.shelve(index);
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

    /// Puts memory behind the first `bytes` of a range that has none, or all of it if that is less, in whole units.
    fn map(&mut self, index: u32, bytes: u64, driver: &mut dyn Driver) -> bool {
        let unit = self.space(index).unit;
        let block = self.block(index);
        let (address, bytes) = (block.address, bytes.min(block.bytes).next_multiple_of(unit).min(block.bytes));
        if !driver.map(address, bytes) {
            return false;
        }
        self.unshelve(index);
        if bytes < self.block(index).bytes {
            let behind = self.split(index, bytes);
            self.shelve(behind);
        }
        self.block_mut(index).mapped = true;
        let previous = self.block(index).previous;
        self.merge(index, previous);
        let next = self.block(index).next;
        self.merge(index, next);
        self.shelve(index);
        self.reserved += bytes;
        let stream = self.block(index).stream;
        self.driver_events.push(DriverEvent { kind: DriverEventKind::Map, address, bytes, stream });
        true
    }

    /// Takes the memory of a free block back, as far as it fills whole units.
    pub(super) fn unmap(&mut self, index: u32, driver: &mut dyn Driver) {
        let space = self.space(index);
        let block = self.block(index);
        let begin = space.address + (block.address - space.address).next_multiple_of(space.unit);
        let end = space.address + (block.address + block.bytes - space.address) / space.unit * space.unit;
        if begin >= end {
            return;
        }
        let (address, bytes) = (begin, end - begin);
        self.unshelve(index);
        let mut middle = index;
        if begin > self.block(index).address {
            middle = self.split(index, begin - self.block(index).address);
            self.shelve(index);
        }
        if self.block(middle).bytes > bytes {
            let behind = self.split(middle, bytes);
            self.shelve(behind);
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
            self.shelve(middle);
        } else {
            // No part of the segment has memory: its addresses go back, too.
            self.vacant.push(middle);
        }
    }
}
