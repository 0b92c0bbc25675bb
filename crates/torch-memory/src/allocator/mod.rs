//! A simulation of PyTorch's caching allocator: where it puts each block, and when it asks the driver for what.
//! Not here: events and recordings (`replay/`), settings' spelling (`snapshot/settings.rs`).
//!
//! ```text
//!   request ─► round ─► best fit among the free blocks of its pool and stream ─► split ─► block
//!                              | none fits
//!                              └► the driver: a segment, or memory behind a range of an expandable segment
//!                                        | refused
//!                                        └► give back cached segments (`release.rs`), ask again
//!
//!   segment  | block | block | free      |    Free neighbors are merged, so no two free blocks touch.
//! ```
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp`, whose choices are followed to the byte; the code is our own.

mod block;
mod card;
mod dump;
mod expandable;
mod fit;
mod release;
mod restore;
#[cfg(test)]
mod tests;

pub use block::{BlockId, DriverEvent, DriverEventKind};
pub use card::Card;
pub use restore::{Part, StartRange};

use crate::snapshot::{PoolId, Settings};
use block::{Block, Pool, Space};

/// All sizes are multiples of it.
pub const UNIT: u64 = 512;
/// The largest allocation of the small pool.
pub const SMALL: u64 = 1 << 20;
/// Segments of the small pool, and the unit of large ones.
const SMALL_SEGMENT: u64 = 2 << 20;
/// From here on, a segment is made for one allocation.
const OWN_SEGMENT: u64 = 10 << 20;

/// Where memory comes from.
pub trait Driver {
    /// Memory of so many bytes: its address, or none if there is not as much.
    fn take(&mut self, bytes: u64) -> Option<u64>;
    /// Takes memory back.
    fn give_back(&mut self, address: u64, bytes: u64);
    /// Addresses for an expandable segment of this unit: the first of them, and how many bytes.
    fn reserve(&mut self, unit: u64) -> (u64, u64);
    /// Backs a range of reserved addresses with memory; false if there is not as much.
    fn map(&mut self, address: u64, bytes: u64) -> bool;
    /// Takes the memory of such a range back.
    fn unmap(&mut self, address: u64, bytes: u64);
}

/// The allocator has no memory for a request, even after giving back all that was cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes, as the program asked for them.
    pub bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// From which pool.
    pub pool: PoolId,
}

/// PyTorch's caching allocator for one card.
#[derive(Debug, Clone)]
pub struct Allocator {
    settings: Settings,
    blocks: Vec<Block>,
    /// Places in `blocks` that hold none.
    vacant: Vec<u32>,
    pools: Vec<Pool>,
    spaces: Vec<Space>,
    /// The most bytes that may be reserved, where a fraction of the card's memory was set.
    allowed: Option<u64>,
    reserved: u64,
    in_use: u64,
    requested: u64,
    /// What the driver did since it was last asked for.
    driver_events: Vec<DriverEvent>,
}

/// A request on its way: its rounded size, and what to ask the driver for.
#[derive(Debug, Clone, Copy)]
struct Search {
    bytes: u64,
    requested: u64,
    stream: u64,
    pool: usize,
    segment: u64,
}

impl Allocator {
    /// An allocator without memory. With `allowed`, it reserves at most so many bytes.
    pub fn new(settings: Settings, allowed: Option<u64>) -> Self {
        Self {
            settings,
            blocks: vec![],
            vacant: vec![],
            pools: vec![],
            spaces: vec![],
            allowed,
            reserved: 0,
            in_use: 0,
            requested: 0,
            driver_events: vec![],
        }
    }

    /// Bytes that it has from the driver.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of blocks that the program has, or other streams are not done with.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Bytes that were asked for in those blocks.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// Where a block in use begins.
    pub fn address(&self, block: BlockId) -> u64 {
        self.block(block.0).address
    }

    /// The size of a block in use.
    pub fn bytes(&self, block: BlockId) -> u64 {
        self.block(block.0).bytes
    }

    /// What the driver did since this was last asked, in order.
    pub fn take_driver_events(&mut self) -> Vec<DriverEvent> {
        std::mem::take(&mut self.driver_events)
    }

    /// The same, and it is not forgotten.
    pub fn driver_events(&self) -> &[DriverEvent] {
        &self.driver_events
    }

    /// A block for the request.
    /// Errors: `OutOfMemory` if the driver has no memory, or no more is allowed, after all that was cached is given back.
    pub fn allocate(&mut self, request: Request, driver: &mut dyn Driver) -> Result<BlockId, OutOfMemory> {
        let search = self.search(request);
        let found = self.best_fit(&search).or_else(|| {
            self.collect_garbage(driver);
            self.grow(&search, driver)
                .or_else(|| if self.release_oversize(&search, driver) { self.grow(&search, driver) } else { None })
                .or_else(|| {
                    self.release_cached(driver);
                    self.grow(&search, driver)
                })
        });
        Ok(self.place(found.ok_or(OutOfMemory)?, &search))
    }

    /// Asks the driver for the request's memory and keeps what comes of it. Of an expandable segment that may be some of it,
    /// before the driver refuses.
    pub fn attempt(&mut self, request: Request, driver: &mut dyn Driver) {
        let search = self.search(request);
        if let Some(found) = self.grow(&search, driver) {
            self.shelve(found);
        }
    }

    /// Frees a block: merges it with free neighbors and keeps it for requests to come.
    pub fn free(&mut self, block: BlockId) {
        let index = block.0;
        assert!(self.block(index).in_use, "a block that is freed is in use");
        self.in_use -= self.block(index).bytes;
        self.requested -= self.block(index).requested;
        self.block_mut(index).in_use = false;
        self.block_mut(index).requested = 0;
        let (previous, next) = (self.block(index).previous, self.block(index).next);
        self.merge(index, previous);
        self.merge(index, next);
        self.shelve(index);
    }

    fn search(&mut self, Request { bytes: requested, stream, pool }: Request) -> Search {
        let bytes = self.settings.rounded(requested);
        let segment = match bytes {
            _ if bytes <= SMALL => SMALL_SEGMENT,
            _ if bytes < OWN_SEGMENT => self.settings.large_segment_bytes.max(bytes),
            _ => bytes.next_multiple_of(SMALL_SEGMENT),
        };
        Search { bytes, requested, stream, pool: self.pool(pool, bytes <= SMALL), segment }
    }

    /// Memory from the driver for a request that no free block fits.
    fn grow(&mut self, search: &Search, driver: &mut dyn Driver) -> Option<u32> {
        if self.allowed.is_some_and(|allowed| self.reserved + search.segment > allowed) {
            return None;
        }
        if self.settings.expandable_segments {
            return self.expand(search, driver);
        }
        let address = driver.take(search.segment)?;
        self.reserved += search.segment;
        let (bytes, stream) = (search.segment, search.stream);
        self.driver_events.push(DriverEvent { kind: DriverEventKind::Take, address, bytes, stream });
        Some(self.new_block(Block::free(address, search.segment, search.stream, search.pool)))
    }

    /// Cuts the request's block off a free one that is on no shelf, where the rest is worth keeping.
    fn place(&mut self, found: u32, search: &Search) -> BlockId {
        let (bytes, rest) = (search.bytes, self.block(found).bytes - search.bytes);
        if self.splits(found, bytes, rest) {
            let remaining = self.split(found, bytes);
            self.shelve(remaining);
        }
        let block = self.block_mut(found);
        block.in_use = true;
        block.requested = search.requested;
        self.in_use += self.block(found).bytes;
        self.requested += search.requested;
        BlockId(found)
    }

    /// Whether a free block of `bytes` and a rest of so many is cut in two.
    fn splits(&self, found: u32, bytes: u64, rest: u64) -> bool {
        if self.pools[self.block(found).pool].small || self.settings.expandable_segments {
            return rest >= UNIT;
        }
        self.settings.max_split_bytes.is_none_or(|limit| bytes < limit) && rest > SMALL
    }
}
