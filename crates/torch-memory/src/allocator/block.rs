//! Blocks, the shelves on which free ones lie, and the ranges of addresses of expandable segments.

use super::{Allocator, UNIT};
use crate::snapshot::PoolId;
use std::collections::BTreeSet;

/// A block in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(super) u32);

/// Something that the driver was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverEvent {
    /// What.
    pub kind: DriverEventKind,
    /// Where.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// For which stream.
    pub stream: u64,
}

/// What the driver is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DriverEventKind {
    /// A segment.
    Take,
    /// A segment goes back.
    GiveBack,
    /// Memory behind a range of addresses.
    Map,
    /// Such memory goes back.
    Unmap,
}

/// A part of a segment: in use, free, or (of an expandable segment) without memory.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub stream: u64,
    /// Index of its pool.
    pub pool: usize,
    pub in_use: bool,
    /// Whether there is memory behind its addresses.
    pub mapped: bool,
    /// The blocks before and behind it in its segment.
    pub previous: Option<u32>,
    pub next: Option<u32>,
    /// The expandable segment that it is a part of.
    pub space: Option<u32>,
    /// How many requests its pool had seen when it became free: for its age.
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

    /// Its place among the free blocks of its pool: of a stream, the smallest first, of those the lowest.
    fn on_shelf(&self, index: u32) -> (u64, u64, u64, u32) {
        (self.stream, self.bytes, self.address, index)
    }

    /// Its place among the ranges without memory: of a stream, the lowest first.
    fn in_address_order(&self, index: u32) -> (u64, u64, u32) {
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
    /// Requests that it has seen, where garbage is collected: the clock for ages.
    pub requests: u64,
}

/// The addresses of an expandable segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub address: u64,
    /// Memory comes and goes in multiples of it, counted from the first address.
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

    /// The index of a pool, which is made when it is first asked for.
    pub(super) fn pool(&mut self, id: PoolId, small: bool) -> usize {
        if let Some(index) = self.pools.iter().position(|pool| pool.id == id && pool.small == small) {
            return index;
        }
        self.pools.push(Pool { id, small, free: BTreeSet::new(), unmapped: BTreeSet::new(), requests: 0 });
        self.pools.len() - 1
    }

    /// Puts a free block where requests, or expandable segments that grow, look for it.
    pub(super) fn shelve(&mut self, index: u32) {
        let requests = self.pools[self.block(index).pool].requests;
        self.block_mut(index).freed_at = requests;
        let block = &self.blocks[index as usize];
        let pool = &mut self.pools[block.pool];
        let is_new = match block.mapped {
            true => pool.free.insert(block.on_shelf(index)),
            false => pool.unmapped.insert(block.in_address_order(index)),
        };
        assert!(is_new, "a block is free once");
    }

    /// Takes a free block from its shelf.
    pub(super) fn unshelve(&mut self, index: u32) {
        let block = &self.blocks[index as usize];
        let pool = &mut self.pools[block.pool];
        let was_there = match block.mapped {
            true => pool.free.remove(&block.on_shelf(index)),
            false => pool.unmapped.remove(&block.in_address_order(index)),
        };
        assert!(was_there, "a free block lies on its shelf");
    }

    /// Cuts a block that is on no shelf after `bytes`. Returns the new block behind.
    pub(super) fn split(&mut self, index: u32, bytes: u64) -> u32 {
        let block = self.block(index).clone();
        assert!(bytes >= UNIT && bytes < block.bytes, "a block of {} bytes is cut at {bytes}", block.bytes);
        let behind = self.new_block(Block {
            address: block.address + bytes,
            bytes: block.bytes - bytes,
            previous: Some(index),
            ..block.clone()
        });
        if let Some(next) = block.next {
            self.block_mut(next).previous = Some(behind);
        }
        let block = self.block_mut(index);
        block.bytes = bytes;
        block.next = Some(behind);
        behind
    }

    /// Merges a neighbor into a free block that is on no shelf, if both are free and of the same kind.
    pub(super) fn merge(&mut self, index: u32, neighbor: Option<u32>) {
        let Some(neighbor) = neighbor else { return };
        let (block, other) = (self.block(index), self.block(neighbor).clone());
        if other.in_use || other.mapped != block.mapped {
            return;
        }
        self.unshelve(neighbor);
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
