//! A simulation of PyTorch's caching allocator: the address of each block, and each call to the driver.
//! Not here: events and recordings (`replay/`), the syntax of settings (`snapshot/settings.rs`).
//!
//! ```text
//!   request ─► round ─► best fit among the free blocks of its pool and stream ─► split ─► block
//!                              | none fits
//!                              └► the driver: a segment, or memory mapped to a range of an expandable segment
//!                                        | refused
//!                                        └► free cached segments (`release.rs`), retry
//!
//!   segment  | block | block | free      |    Free neighbors are merged, so no two free blocks are adjacent.
//! ```
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp`; the simulation makes the same choices to the byte, in independent code.

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

use crate::snapshot::{AllocatorSettings, PoolId};
use block::{Block, Pool, Space};

/// The unit of all block sizes.
pub const UNIT: u64 = 512;
/// The largest request served from the small pool.
pub const SMALL: u64 = 1 << 20;
/// Size of segments of the small pool, and the unit of large ones.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Requests of at least this size get a segment of their own.
const OWN_SEGMENT: u64 = 10 << 20;

/// The source of memory.
pub trait Driver {
    /// Allocates memory: its address, or `None` if there is not enough.
    fn take(&mut self, bytes: u64) -> Option<u64>;
    /// Frees memory.
    fn give_back(&mut self, address: u64, bytes: u64);
    /// Reserves addresses for an expandable segment with this unit: the first address, and the size.
    fn reserve(&mut self, unit: u64) -> (u64, u64);
    /// Maps memory to a range of reserved addresses; false if there is not enough.
    fn map(&mut self, address: u64, bytes: u64) -> bool;
    /// Unmaps such a range.
    fn unmap(&mut self, address: u64, bytes: u64);
}

/// No memory is available for a request, even after freeing all cached segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// A request for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Size requested by the program.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
    /// The pool.
    pub pool: PoolId,
}

/// PyTorch's caching allocator for one card.
#[derive(Debug, Clone)]
pub struct Allocator {
    settings: AllocatorSettings,
    blocks: Vec<Block>,
    /// Unused entries of `blocks`.
    vacant: Vec<u32>,
    pools: Vec<Pool>,
    spaces: Vec<Space>,
    /// Limit on reserved bytes, if a fraction of the card's memory was set.
    allowed: Option<u64>,
    reserved: u64,
    in_use: u64,
    requested: u64,
    /// Driver calls since the last `take_driver_events`.
    driver_events: Vec<DriverEvent>,
}

/// A request in progress: its rounded size, and the size to request from the driver.
#[derive(Debug, Clone, Copy)]
struct Search {
    bytes: u64,
    requested: u64,
    stream: u64,
    pool: usize,
    segment: u64,
}

impl Allocator {
    /// An allocator without memory. With `allowed`, it reserves at most this many bytes.
    pub fn new(settings: AllocatorSettings, allowed: Option<u64>) -> Self {
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

    /// Bytes reserved from the driver.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes of blocks in use by the program or still in use by other streams.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Bytes that the program requested for those blocks.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// The address of a block in use.
    pub fn address(&self, block: BlockId) -> u64 {
        self.block(block.0).address
    }

    /// The size of a block in use.
    pub fn bytes(&self, block: BlockId) -> u64 {
        self.block(block.0).bytes
    }

    /// Returns the driver calls since the last call of this function, in order.
    pub fn take_driver_events(&mut self) -> Vec<DriverEvent> {
        std::mem::take(&mut self.driver_events)
    }

    /// Returns the same calls without clearing them.
    pub fn driver_events(&self) -> &[DriverEvent] {
        &self.driver_events
    }

    /// Returns a block for the request.
    /// Errors: `OutOfMemory` if the driver has no memory, or the limit is reached, after freeing everything cached.
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

    /// Requests the memory for a request from the driver and keeps it as free blocks. For an expandable segment, a part
    /// may be mapped before the driver refuses.
    pub fn attempt(&mut self, request: Request, driver: &mut dyn Driver) {
        let search = self.search(request);
        if let Some(found) = self.grow(&search, driver) {
            self.insert_free(found);
        }
    }

    /// Frees a block: merges it with free neighbors and caches it for later requests.
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
        self.insert_free(index);
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

    /// Requests memory from the driver for a request that no free block fits.
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

    /// Splits the request's block off a free one that is in no list, if the rest is large enough.
    fn place(&mut self, found: u32, search: &Search) -> BlockId {
        let (bytes, rest) = (search.bytes, self.block(found).bytes - search.bytes);
        if self.splits(found, bytes, rest) {
            let remaining = self.split(found, bytes);
            self.insert_free(remaining);
        }
        let block = self.block_mut(found);
        block.in_use = true;
        block.requested = search.requested;
        self.in_use += self.block(found).bytes;
        self.requested += search.requested;
        BlockId(found)
    }

    /// Whether a free block is split into a block of `bytes` and a rest of this size.
    fn splits(&self, found: u32, bytes: u64, rest: u64) -> bool {
        if self.pools[self.block(found).pool].small || self.settings.expandable_segments {
            return rest >= UNIT;
        }
        self.settings.max_split_bytes.is_none_or(|limit| bytes < limit) && rest > SMALL
    }
}
