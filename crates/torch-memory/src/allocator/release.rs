//! Decides when cached memory is returned to the driver.

use super::block::{DriverEvent, DriverEventKind};
use super::{Allocator, Driver, Search};
use crate::snapshot::PoolId;

impl Allocator {
    /// Frees all segments, and whole units of expandable ones, without blocks in use. `empty_cache` does this, and so
    /// does each request that the driver refuses. Pools of CUDA graphs keep their segments.
    pub fn release_cached(&mut self, driver: &mut dyn Driver) {
        for small in [false, true] {
            self.release_pool((0, 0), small, driver);
        }
    }

    fn release_pool(&mut self, id: PoolId, small: bool, driver: &mut dyn Driver) {
        let pool = self.pool(id, small);
        let free = self.pools[pool].free.iter().map(|block| block.3).collect::<Vec<_>>();
        let (expandable, whole): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|block| self.block(*block).space.is_some());
        for block in whole.into_iter().filter(|block| !self.blocks[*block as usize].is_split()).collect::<Vec<_>>() {
            self.give_back(block, driver);
        }
        for block in expandable {
            self.unmap(block, driver);
        }
    }

    /// Frees unsplittable blocks until the request may fit: the smallest that is large enough, or several from the
    /// largest down. False if they do not suffice.
    pub fn release_oversize_for(&mut self, request: super::Request, driver: &mut dyn Driver) -> bool {
        let search = self.search(request);
        self.release_oversize(&search, driver)
    }

    pub(super) fn release_oversize(&mut self, search: &Search, driver: &mut dyn Driver) -> bool {
        let Some(limit) = self.settings.max_split_bytes else { return false };
        let needed = search.bytes.max(limit);
        let free = &self.pools[search.pool].free;
        let fitting = free.range((search.stream, needed, 0, 0)..).next().filter(|block| block.0 == search.stream);
        if let Some(block) = fitting.map(|block| block.3) {
            return self.give_back_unless_expandable(block, driver);
        }
        let below = free.range(..(search.stream, needed, 0, 0)).rev();
        let oversize = below.take_while(|block| block.0 == search.stream && block.1 >= limit);
        let mut released = 0;
        for (_, bytes, _, block) in oversize.copied().collect::<Vec<_>>() {
            if released >= needed {
                break;
            }
            if self.give_back_unless_expandable(block, driver) {
                released += bytes;
            }
        }
        released >= needed
    }

    /// Parts of expandable segments are not freed one by one.
    fn give_back_unless_expandable(&mut self, block: u32, driver: &mut dyn Driver) -> bool {
        let whole = self.block(block).space.is_none() && !self.block(block).is_split();
        if whole {
            self.give_back(block, driver);
        }
        whole
    }

    /// Whether blocks age: a threshold applies only if a limit is set.
    pub(super) fn collects_garbage(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0 && self.allowed.is_some()
    }

    /// Called before a driver call: frees memory reserved above the threshold.
    pub(super) fn collect_garbage(&mut self, driver: &mut dyn Driver) {
        let (true, Some(allowed)) = (self.collects_garbage(), self.allowed) else { return };
        let threshold = (self.settings.garbage_collection_threshold * allowed as f64) as u64;
        if self.reserved > threshold {
            self.collect(self.reserved - threshold, driver);
        }
    }

    /// Repeatedly frees segments of at least the mean age, until `excess` bytes are freed or none is left.
    pub fn collect(&mut self, excess: u64, driver: &mut dyn Driver) {
        let pool = self.pool((0, 0), false);
        let clock = self.pools[pool].requests;
        let candidates = self.pools[pool].free.iter().map(|block| block.3);
        let candidates =
            candidates.filter(|block| !self.block(*block).is_split() && self.block(*block).space.is_none());
        let mut candidates = candidates.collect::<Vec<_>>();
        let mut total_age = candidates.iter().map(|block| clock - self.block(*block).freed_at).sum::<u64>();
        let mut reclaimed = 0;
        while reclaimed < excess && !candidates.is_empty() {
            let mean = total_age as f64 / candidates.len() as f64;
            let old = |block: &u32| (clock - self.block(*block).freed_at) as f64 >= mean;
            let (going, staying): (Vec<_>, Vec<_>) = candidates.into_iter().partition(old);
            if going.is_empty() {
                return;
            }
            for block in going {
                total_age -= clock - self.block(block).freed_at;
                reclaimed += self.block(block).bytes;
                self.give_back(block, driver);
            }
            candidates = staying;
        }
    }

    /// Frees a segment that consists of one free block.
    fn give_back(&mut self, index: u32, driver: &mut dyn Driver) {
        self.remove_free(index);
        let block = self.block(index);
        let (address, bytes, stream) = (block.address, block.bytes, block.stream);
        driver.give_back(address, bytes);
        self.reserved -= bytes;
        self.driver_events.push(DriverEvent { kind: DriverEventKind::GiveBack, address, bytes, stream });
        self.vacant.push(index);
    }
}
