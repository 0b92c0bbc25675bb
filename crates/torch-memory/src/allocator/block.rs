//! Blocks, the sorted lists of free ones, and the address ranges of expandable segments.

use super::{Allocator, UNIT};
use crate::snapshot::PoolId;
use std::collections::BTreeSet;

/// A block in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(super) u32);

/// A call to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverEvent {
    /// The kind of call.
    pub kind: DriverEventKind,
    /// The address.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
}

/// Kinds of calls to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DriverEventKind {
    /// Allocate a segment.
    Take,
    /// Free a segment.
    GiveBack,
    /// Map memory to a range of addresses.
    Map,
    /// Unmap such memory.
    Unmap,
}

/// A part of a segment: in use, free, or, in an expandable segment, unmapped.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub stream: u64,
    /// Index of its pool.
    pub pool: usize,
    pub in_use: bool,
    /// Whether memory is mapped at its addresses.
    pub mapped: bool,
    /// The previous and next block in its segment.
    pub previous: Option<u32>,
    pub next: Option<u32>,
    /// The expandable segment that contains it.
    pub space: Option<u32>,
    /// The pool's request count when it became free, for computing its age.
    pub freed_at: u64,
}

impl Block {
    /// A free block that fills a segment.
    pub fn free(address: u64, bytes: u64, stream: u64, pool: usize) -> Self {
        Self {
            address,
            bytes,
            requested: 0,
            stream,
            pool,
            in_use: false,
            mapped: true,
            previous: None,
            next: None,
            space: None,
            freed_at: 0,
        }
    }

    pub fn is_split(&self) -> bool {
        self.previous.is_some() || self.next.is_some()
    }

    /// Its sort key among the free blocks of its pool: by stream, then size, then address.
    fn free_list_key(&self, index: u32) -> (u64, u64, u64, u32) {
        (self.stream, self.bytes, self.address, index)
    }

    /// Its sort key among unmapped ranges: by stream, then address.
    fn unmapped_key(&self, index: u32) -> (u64, u64, u32) {
        (self.stream, self.address, index)
    }
}

/// Free blocks of one kind.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub id: PoolId,
    pub small: bool,
    pub free: BTreeSet<(u64, u64, u64, u32)>,
    pub unmapped: BTreeSet<(u64, u64, u32)>,
    /// Number of requests so far, if garbage collection is on: the clock for ages.
    pub requests: u64,
}

/// The addresses of an expandable segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub address: u64,
    /// Memory is mapped in multiples of this, counted from the first address.
    pub unit: u64,
}

impl Allocator {
    pub(super) fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    pub(super) fn block_mut(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    pub(super) fn new_block(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.blocks[index as usize] = block;
            return index;
        }
        self.blocks.push(block);
        u32::try_from(self.blocks.len() - 1).expect("fewer blocks than events")
    }

    /// The index of a pool, which is created on first use.
    pub(super) fn pool(&mut self, id: PoolId, small: bool) -> usize {
        if let Some(index) = self.pools.iter().position(|pool| pool.id == id && pool.small == small) {
            return index;
        }
        self.pools.push(Pool { id, small, free: BTreeSet::new(), unmapped: BTreeSet::new(), requests: 0 });
        self.pools.len() - 1
    }

    /// Adds a free or unmapped block to the sorted list that requests or growing segments search.
    pub(super) fn insert_free(&mut self, index: u32) {
        let requests = self.pools[self.block(index).pool].requests;
        self.block_mut(index).freed_at = requests;
        let block = &self.blocks[index as usize];
        let pool = &mut self.pools[block.pool];
        let is_new = match block.mapped {
            true => pool.free.insert(block.free_list_key(index)),
            false => pool.unmapped.insert(block.unmapped_key(index)),
        };
        assert!(is_new, "a block is in the list only once");
    }

    /// Removes a free block from its list.
    pub(super) fn remove_free(&mut self, index: u32) {
        let block = &self.blocks[index as usize];
        let pool = &mut self.pools[block.pool];
        let was_there = match block.mapped {
            true => pool.free.remove(&block.free_list_key(index)),
            false => pool.unmapped.remove(&block.unmapped_key(index)),
        };
        assert!(was_there, "a free block is in its list");
    }

    /// Splits a block that is in no list after `bytes`. Returns the new block that follows.
    pub(super) fn split(&mut self, index: u32, bytes: u64) -> u32 {
        let block = self.block(index).clone();
        assert!(bytes >= UNIT && bytes < block.bytes, "a block of {} bytes is split at {bytes}", block.bytes);
        let rest = self.new_block(Block {
            address: block.address + bytes,
            bytes: block.bytes - bytes,
            previous: Some(index),
            ..block.clone()
        });
        if let Some(next) = block.next {
            self.block_mut(next).previous = Some(rest);
        }
        let block = self.block_mut(index);
        block.bytes = bytes;
        block.next = Some(rest);
        rest
    }

    /// Merges a neighbor into a free block that is in no list, if both are free and of the same kind.
    pub(super) fn merge(&mut self, index: u32, neighbor: Option<u32>) {
        let Some(neighbor) = neighbor else { return };
        let (block, other) = (self.block(index), self.block(neighbor).clone());
        if other.in_use || other.mapped != block.mapped {
            return;
        }
        self.remove_free(neighbor);
        let block = self.block_mut(index);
        block.bytes += other.bytes;
        if block.previous == Some(neighbor) {
            block.address = other.address;
            block.previous = other.previous;
            if let Some(previous) = other.previous {
                self.block_mut(previous).next = Some(index);
            }
        } else {
            block.next = other.next;
            if let Some(next) = other.next {
                self.block_mut(next).previous = Some(index);
            }
        }
        self.vacant.push(neighbor);
    }
}
